"""Find the run directories below a folder, finished or not."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedclass.errors import RunError
from fedclass.runs.events import (
    Event,
    RoundFinished,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
    SitesKnown,
    read_events,
)
from fedclass.runs.kept import read_result
from fedclass.runs.layout import EVENTS, RunDirectory
from fedclass.runs.order import Order


def find_runs(place: Path, *, waiting: bool = False) -> list[Path]:
    """The run directories at a place: the place itself, if it is one, or else those within it, at any depth.

    Runs of one folder come in the order in which they were compared there, others by name.

    waiting: also runs that have not begun, which have only a recipe or are empty: `fedclass compare` makes the folders
    of all its runs first, directly in its own.
    """
    if not place.is_dir():
        raise RunError(f"{place}: no such folder; name a folder that holds runs, or make a run with `fedclass run`")
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
    """The runs of all places, each once, in order. A place without runs is an error."""
    found: dict[Path, Path] = {}
    for place in places:
        inside = find_runs(place, waiting=waiting)
        if not inside:
            raise RunError(f"{place}: is not a run directory and contains none; `fedclass run` makes one")
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
    failure: str | None  # why it ended, if it failed and was not resumed since

    @property
    def status(self) -> str:
        if self.summary is not None:
            return "finished"
        return "unfinished" if self.failure is None else "failed"

    @property
    def rounds(self) -> int:
        return self.started.rounds * len(self.started.tasks)


def list_runs(place: Path) -> tuple[list[Listed], list[RunError]]:
    """The runs at a place, oldest first, and an error for each run that cannot be read."""
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
            found.append(Listed(directory.root, started, done, summary, _failure(facts)))
    return found, damaged


def _failure(facts: Iterable[Event]) -> str | None:
    failure = None
    for fact in facts:
        match fact:
            case RunFailed():
                failure = fact.reason
            case RunStarted() | RunResumed() | RunFinished():
                failure = None
    return failure
