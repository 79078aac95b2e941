"""From a run's events to the figures that sinks take."""

import hashlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fedclass.metrics import accuracy_micro_or_none, accuracy_row
from fedclass.runs.config_file import flat, read_config
from fedclass.runs.events import (
    Event,
    RoundFinished,
    RunFinished,
    RunResumed,
    RunStarted,
    SitesKnown,
    TaskFinished,
    read_events,
)
from fedclass.runs.layout import RunDirectory


@dataclass(frozen=True)
class Start:
    """identity: the same for a resumed run, different for every other run.

    parameters: the resolved recipe, "train.rounds" and so on, with the variant and the version that ran it.
    """

    identity: str
    name: str
    parameters: Mapping[str, Any]


class Sink(Protocol):
    """Made before the run, with the run's directory. It loads its library, or raises ImportError; it writes nothing."""

    def begin(self, start: Start) -> None:
        """Replace what was written about the same run before, or continue it without repetition."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Steps never decrease, but may repeat with other values."""

    def finish(self, step: int, summary: Mapping[str, Any]) -> None: ...

    def close(self, *, finished: bool) -> None:
        """Called after each `begin` that succeeded."""


Told = RunStarted | RunResumed | SitesKnown | RoundFinished | TaskFinished | RunFinished  # other events have no figures


class Feed:
    """Feeds one run into one sink. An error is reported once, and ends only the sink."""

    def __init__(self, name: str, sink: Sink, root: Path) -> None:
        self.name, self.sink, self.directory = name, sink, RunDirectory(root)
        self.started: RunStarted | None = None
        self.finished = self.failed = False

    def tell(self, event: Event) -> None:
        if isinstance(event, Told):
            self._attempt(lambda: self._take(event))

    def close(self) -> None:
        if self.started is not None:
            self.started = None
            self._attempt(lambda: self.sink.close(finished=self.finished))

    def _attempt(self, action: Callable[[], None]) -> None:
        if self.failed:
            return
        try:
            action()
        except Exception as error:  # of any kind: hours of training matter more
            self.failed = True
            reason = (str(error).splitlines() or [""])[0]
            message = f"{self.name} failed and is left out ({type(error).__name__}: {reason}); the run continues"
            print(f"warning: {self.directory.root}: {message}", file=sys.stderr)

    def _take(self, event: Told) -> None:
        match event:
            case RunStarted():
                self.close()
                self.sink.begin(self._start(event))
                self.started, self.finished = event, False
            case RunResumed():
                self._catch_up(event)
            case RoundFinished() | TaskFinished():
                self.sink.log(*figures(event, self._of()))
            case SitesKnown():
                self.started = self._of().knowing(event)
            case RunFinished():
                started = self._of()
                self.sink.finish(started.rounds * len(started.tasks) - 1, event.summary)
                self.finished = True
                self.close()

    def _catch_up(self, resumed: RunResumed) -> None:
        """Replay all events before the run was resumed. The log may already have later ones, which will follow."""
        events = list(read_events(self.directory.events))
        last = max(number for number, event in enumerate(events) if event == resumed)
        for event in events[:last]:
            if not isinstance(event, RunResumed):
                self.tell(event)

    def _of(self) -> RunStarted:
        if self.started is None:
            raise ValueError("an event came before RunStarted or RunResumed")
        return self.started

    def _start(self, started: RunStarted) -> Start:
        with self.directory.events.open("rb") as log:
            first = log.readline()  # contains the time, and stays when the run is resumed
        place = str(
            self.directory.root.resolve()
        ).encode()  # two runs may begin with the same line, within a millisecond
        facts = {"variant": started.variant, "version": started.version}
        name = f"{started.method} {started.dataset} s{started.seed}"
        recipe = flat(read_config(self.directory.root))
        return Start(hashlib.sha256(place + first).hexdigest()[:16], name, recipe | facts)


def figures(event: RoundFinished | TaskFinished, started: RunStarted) -> tuple[int, dict[str, float]]:
    """The step, task * rounds + round, and its figures. The end of a task belongs to its last round."""
    first = event.task * started.rounds
    if isinstance(event, RoundFinished):
        values = {"loss": event.loss, "seconds": event.seconds}
        values |= {"bytes/up": event.bytes_up, "bytes/down": event.bytes_down}
        tests = {"accuracy/all": event.accuracy, "validation/all": event.validation_accuracy}
        return first + event.round, values | {name: value for name, value in tests.items() if value is not None}
    values = {}
    for name, counts in (("accuracy", event.confusion), ("validation", event.validation)):
        if counts is not None:
            on_tasks = enumerate(accuracy_row(counts, started.tasks), start=1)
            found = {f"{name}/all": accuracy_micro_or_none(counts)}
            found |= {f"{name}/task_{task}": value for task, value in on_tasks}
            values |= {name: value for name, value in found.items() if value is not None}
    return first + started.rounds - 1, values


def numbers(summary: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a summary: summary/accuracy_last and so on."""
    return {
        f"summary/{key}": value
        for key, value in summary.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
