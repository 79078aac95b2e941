"""Which run directories there are below a folder, finished or not."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedclass.errors import RunError
from fedclass.runs.events import RoundFinished, RunStarted, SitesKnown, read_events
from fedclass.runs.kept import read_result
from fedclass.runs.layout import EVENTS, RunDirectory
from fedclass.runs.order import Order


def find_runs(place: Path, *, waiting: bool = False) -> list[Path]:
    """The run directories at a place: itself, if it is one, or else those within it, at any depth.

    Those of one folder come in the order in which they were compared there, others by name.

    waiting: also those that have yet to begin, with a recipe only, or empty: `fedclass compare` makes the folders of
    all its runs first, right in its own.
    """
    if not place.is_dir():
        raise RunError(f"{place}: no such folder; `fedclass list` shows the runs, `fedclass run` makes one")
    try:
        if _is_run(place, waiting=waiting):
            return [place]
        inside = {events.parent for name in (EVENTS, f"{EVENTS}.xz") for events in place.rglob(name)}
        if waiting:
            inside |= {path for path in place.iterdir() if path.is_dir() and _is_run(path, waiting=True)}
    except OSError as error:
        raise RunError(f"{place}: cannot be read ({error.strerror})") from error
    orders = {folder: Order.read(folder) for folder in {run.parent for run in inside}}
    return sorted(inside, key=lambda run: (run.parent, orders[run.parent].place(run.name), run))


def find_all(places: Iterable[Path], *, waiting: bool = False) -> list[Path]:
    """The runs of all places, each once, in order. A place without any is an error."""
    found: dict[Path, Path] = {}
    for place in places:
        inside = find_runs(place, waiting=waiting)
        if not inside:
            raise RunError(f"{place}: is no run directory, and there is none within it; `fedclass run` makes one")
        for run in inside:
            found.setdefault(run.resolve(), run)
    return list(found.values())


def _is_run(folder: Path, *, waiting: bool) -> bool:
    directory = RunDirectory(folder)
    return directory.events.exists() or (waiting and (directory.config.exists() or not any(folder.iterdir())))


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


def list_runs(place: Path) -> tuple[list[Listed], list[RunError]]:
    """The runs at a place, oldest first, and what is wrong with those that cannot be read."""
    found, damaged = [], []
    directories = [RunDirectory(root) for root in find_runs(place)]
    for directory in sorted(directories, key=lambda directory: directory.events.stat().st_mtime):
        try:
            facts = list(read_events(directory.events))
            summary = read_result(directory.root).summary if directory.finished else None
        except RunError as error:
            damaged.append(error)
            continue
        started = next((fact for fact in facts if isinstance(fact, RunStarted)), None)
        if started is not None:
            for fact in facts:
                started = started.knowing(fact) if isinstance(fact, SitesKnown) else started
            done = sum(isinstance(fact, RoundFinished) for fact in facts)
            found.append(Listed(directory.root, started, done, summary))
    return found, damaged
