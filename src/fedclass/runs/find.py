"""Which run directories there are below a folder, finished or not."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedclass.errors import RunError
from fedclass.runs.events import RoundFinished, RunStarted, SitesKnown, read_events
from fedclass.runs.layout import EVENTS, RunDirectory
from fedclass.runs.summary import Result


def runs_below(folder: Path) -> list[Path]:
    """Run directories at any depth, the folder itself included."""
    return sorted({events.parent for name in (EVENTS, f"{EVENTS}.xz") for events in folder.rglob(name)})


def runs_at(folder: Path) -> list[Path]:
    """`folder`, if it is a run directory, or else the run directories in it, at any depth.

    An empty folder right in it has yet to become one: `fedclass compare` makes the folders of all its runs first.
    """
    try:
        if _is_run(folder):
            return [folder]
        inside = {path for path in folder.iterdir() if path.is_dir() and _is_run(path)}
        inside |= set(runs_below(folder))
    except OSError as error:
        raise RunError(f"{folder}: cannot read it ({error.strerror}); `fedclass list` shows the runs") from error
    if not inside:
        raise RunError(f"{folder}: neither a run directory nor a folder of them; `fedclass list` shows the runs")
    return sorted(inside)


def _is_run(folder: Path) -> bool:
    directory = RunDirectory(folder)
    return directory.events.exists() or directory.config.exists() or not any(folder.iterdir())


@dataclass(frozen=True)
class Listed:
    """A run directory at a glance, finished or not."""

    path: Path
    started: RunStarted
    rounds_done: int
    summary: dict[str, Any] | None

    @property
    def rounds(self) -> int:
        return self.started.rounds * len(self.started.tasks)


def list_runs(folder: Path) -> tuple[list[Listed], list[RunError]]:
    """All run directories below `folder`, oldest first, and what is wrong with those that cannot be read."""
    found, damaged = [], []
    directories = [RunDirectory(root) for root in runs_below(folder)]
    for directory in sorted(directories, key=lambda directory: directory.events.stat().st_mtime):
        root = directory.root
        try:
            facts = list(read_events(directory.events))
            summary = Result.read(root).summary if directory.summary.exists() else None
        except RunError as error:
            damaged.append(error)
            continue
        started = next((fact for fact in facts if isinstance(fact, RunStarted)), None)
        if started is not None:
            for fact in facts:
                started = started.knowing(fact) if isinstance(fact, SitesKnown) else started
            done = sum(isinstance(fact, RoundFinished) for fact in facts)
            found.append(Listed(root, started, done, summary))
    return found, damaged
