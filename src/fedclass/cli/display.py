"""What a person sees while runs are under way, and the tables at their end."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import Protocol, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable

from fedclass.report.tables import Table
from fedclass.runs.events import (
    Event,
    RoundFinished,
    RunFinished,
    RunResumed,
    RunStarted,
    SitesKnown,
    TaskFinished,
    TaskReused,
    TaskStarted,
    UpdateMissing,
    UpdateReceived,
    UpdateRejected,
    Warned,
)

# Names of classes, folders and methods are the user's: they are never read as markup. A file or a pipe has no width to
# keep to, and a table should not lose its figures there.
console = Console(markup=False, width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160)


class Display(Protocol):
    """Hears every event of every run, with the run's number. RunStarted comes first, also of a run that goes on."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def tell(self, number: int, event: Event) -> None: ...


def display(names: Sequence[str]) -> Display:
    """Live bars on a terminal, plain lines elsewhere."""
    return Live(names) if console.is_terminal else Plain(names)


@dataclass
class Pace:
    """How fast a run is, by its own account of its rounds: the clock says nothing where a log is read later."""

    started: RunStarted
    seconds: list[float] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.started.rounds * len(self.started.tasks)

    def done(self, task: int, round: int) -> int:
        """Rounds before this one."""
        return task * self.started.rounds + round

    def left_after(self, event: RoundFinished) -> float:
        """Takes note of a round. Returns the seconds left, if the rounds to come are like those so far."""
        self.seconds.append(event.seconds)
        return sum(self.seconds) / len(self.seconds) * (self.total - self.done(event.task, event.round) - 1)

    def where(self, task: int, round: int) -> str:
        return f"task {task + 1}/{len(self.started.tasks)}, round {round + 1}/{self.started.rounds}"


class Live:
    """A bar per run: task, round, clients heard from, loss, accuracy, time left."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.progress = Progress(
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[where]}"),
            TextColumn("{task.fields[loss]}"),
            TextColumn("{task.fields[accuracy]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
        )
        width = max(map(len, names))
        self.rows = [
            self.progress.add_task(
                name.ljust(width), total=None, start=False, where="waiting", loss="", accuracy="", left=""
            )
            for name in names
        ]
        self.paces: dict[int, Pace] = {}

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def tell(self, number: int, event: Event) -> None:
        row = self.rows[number]
        match event:
            case RunStarted():
                self.paces[number] = pace = Pace(event)
                self.progress.start_task(row)
                self.progress.update(row, total=pace.total, completed=0, where="starting")
                if number == 0:
                    self.progress.console.print(plan(event), highlight=False)
            case UpdateReceived():
                pace = self.paces[number]
                if event.round == pace.started.rounds:
                    self.progress.update(row, where=f"task {event.task + 1}/{len(pace.started.tasks)} exemplars")
                    return
                done = pace.done(event.task, event.round) + event.done / event.of
                where = f"{pace.where(event.task, event.round)}, client {event.done}/{event.of}"
                self.progress.update(row, completed=done, where=where)
            case RoundFinished():
                pace = self.paces[number]
                left = f"left {timedelta(seconds=round(pace.left_after(event)))}"
                done, where = pace.done(event.task, event.round) + 1, pace.where(event.task, event.round)
                self.progress.update(row, completed=done, where=where, loss=f"loss {event.loss:.3f}", left=left)
                self._grow_older(number)
                if event.accuracy is not None:
                    self.progress.update(row, accuracy=f"accuracy {event.accuracy:.1f} %")
            case TaskFinished():
                self.progress.update(row, accuracy=f"accuracy {accuracy_after(event):.1f} %")
            case RunFinished():
                self.progress.update(row, where="finished", left="")
                self.progress.stop_task(row)
            case RunResumed():
                self.progress.update(row, completed=self.paces[number].done(event.task, event.round), where="goes on")
                self._remark(number, remark(event), style="none")
            case TaskReused():
                self._remark(number, remark(event), style="none")
            case Warned() | UpdateRejected() | UpdateMissing():
                self._remark(number, remark(event), style="yellow")
            case SitesKnown():
                pace = self.paces[number]
                pace.started = pace.started.knowing(event)
                self.progress.update(row, total=pace.total)
                self._remark(number, remark(event), style="none")
            case TaskStarted():
                pass

    def _remark(self, number: int, text: str, *, style: str) -> None:
        self.progress.console.print(f"{self.names[number]}: {text}", style=style, highlight=False)

    def _grow_older(self, number: int) -> None:
        """A run that is watched from half-way on is as old as its rounds are long."""
        (task,) = (task for task in self.progress.tasks if task.id == self.rows[number])
        assert task.start_time is not None  # RunStarted came first
        task.start_time = min(task.start_time, task.get_time() - sum(self.paces[number].seconds))


class Plain:
    """A line per round, for log files and pipes."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.paces: dict[int, Pace] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.stdout.flush()

    def tell(self, number: int, event: Event) -> None:
        line = self.line(number, event)
        if line is not None:
            print(f"{self.names[number]}: {line}", flush=True)

    def line(self, number: int, event: Event) -> str | None:
        match event:
            case RunStarted():
                self.paces[number] = Pace(event)
                sizes = ",".join(map(str, event.tasks))
                return f"{event.dataset} {{{sizes}}}, seed {event.seed}: {plan(event)}"
            case RoundFinished():
                pace = self.paces[number]
                accuracy = "" if event.accuracy is None else f", accuracy {event.accuracy:.1f} %"
                return (
                    f"{pace.where(event.task, event.round)}, {len(event.clients)} clients, "
                    f"loss {event.loss:.3f}{accuracy}, about {pace.left_after(event):.0f} s left"
                )
            case TaskFinished():
                return f"task {event.task + 1} learned: accuracy {accuracy_after(event):.1f} % on all classes so far"
            case RunFinished():
                return "finished"
            case SitesKnown():
                self.paces[number].started = self.paces[number].started.knowing(event)
                return remark(event)
            case RunResumed() | TaskReused() | Warned() | UpdateRejected() | UpdateMissing():
                return remark(event)
            case TaskStarted() | UpdateReceived():
                return None


class State(Plain):
    """How far each run is, in one line at the end."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(names)
        self.last = ["no event yet"] * len(names)

    def tell(self, number: int, event: Event) -> None:
        line = self.line(number, event)
        if line is not None and not isinstance(event, Warned | UpdateRejected | UpdateMissing):
            self.last[number] = line

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, line in zip(self.names, self.last, strict=True):
            print(f"{name}: {line}")
        super().__exit__(kind, error, trace)


def plan(event: RunStarted) -> str:
    """Who holds what, in a line; `fedclass plan` has the rest."""
    if not event.counts:
        return "waiting for sites to say what they hold"
    held = [sum(row) for row in event.counts]
    kept = ", ".join(f"{n} after task {t + 1}" for t, n in enumerate(event.exemplars))
    return (
        f"{event.clients} clients hold {min(held)} to {max(held)} training images each, {sum(held)} in all; "
        f"exemplars on all clients: {kept}"
    )


def accuracy_after(event: TaskFinished) -> float:
    """Percent of all test images, per image."""
    right = sum(row[i] for i, row in enumerate(event.confusion))
    return 100 * right / sum(map(sum, event.confusion))


def remark(event: RunResumed | TaskReused | Warned | UpdateRejected | UpdateMissing | SitesKnown) -> str:
    match event:
        case RunResumed():
            return f"goes on from task {event.task + 1}, round {event.round + 1}"
        case TaskReused():
            return f"task {event.task + 1} taken from an earlier run with the same beginning"
        case Warned():
            return f"warning: {event.message}"
        case UpdateRejected():
            where = f"task {event.task + 1}, round {event.round + 1}"
            return f"{where}: update of client {event.client} rejected: {event.reason}"
        case UpdateMissing():
            return f"task {event.task + 1}, round {event.round + 1}: no update of client {event.client}: {event.reason}"
        case SitesKnown():
            new = event.classes[len(event.classes) - event.tasks[-1] :]
            return f"sites {', '.join(event.sites)}; task {len(event.tasks)} brings {', '.join(new)}"


def print_table(table: Table) -> None:
    console.print()
    shown = RichTable(title=table.title, box=SIMPLE_HEAD, title_justify="left")
    for i, column in enumerate(table.columns):
        shown.add_column(column, justify="right" if i else "left", no_wrap=i > 0)
    for row in table.rows:
        shown.add_row(*row)
    console.print(shown)
    for note in table.notes:
        console.print(note, style="dim", highlight=False)
