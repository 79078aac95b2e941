"""What a person sees while runs are under way, and the tables at their end."""

import os
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table as RichTable

from fedclass.report.tables import Table
from fedclass.runs.events import (
    Event,
    RoundFinished,
    RunFinished,
    RunStarted,
    TaskFinished,
    TaskStarted,
    UpdateReceived,
    UpdateRejected,
    Warned,
)

# Names of classes, folders and methods are the user's: they are never read as markup. A file or a pipe has no width to
# keep to, and a table should not lose its figures there.
console = Console(markup=False, width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160)


class Display(Protocol):
    """Hears every event of every run, with the run's number."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def tell(self, number: int, event: Event) -> None: ...


def display(names: Sequence[str]) -> Display:
    """Live bars on a terminal, plain lines elsewhere."""
    return Live(names) if console.is_terminal else Plain(names)


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
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        width = max(map(len, names))
        self.rows = [
            self.progress.add_task(name.ljust(width), total=None, start=False, where="waiting", loss="", accuracy="")
            for name in names
        ]
        self.started: dict[int, RunStarted] = {}

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
                self.started[number] = event
                self.progress.start_task(row)
                self.progress.update(row, total=event.rounds * len(event.tasks), where="starting")
                if number == 0:
                    self.progress.console.print(plan(event), highlight=False)
            case UpdateReceived():
                start = self.started[number]
                if event.round == start.rounds:
                    self.progress.update(row, where=f"task {event.task + 1}/{len(start.tasks)} exemplars")
                    return
                done = event.task * start.rounds + event.round + event.done / event.of
                where = (
                    f"task {event.task + 1}/{len(start.tasks)} round {event.round + 1}/{start.rounds} "
                    f"client {event.done}/{event.of}"
                )
                self.progress.update(row, completed=done, where=where)
            case RoundFinished():
                self.progress.update(row, loss=f"loss {event.loss:.3f}")
                if event.accuracy is not None:
                    self.progress.update(row, accuracy=f"accuracy {event.accuracy:.1f} %")
            case TaskFinished():
                self.progress.update(row, accuracy=f"accuracy {accuracy_after(event):.1f} %")
            case RunFinished():
                self.progress.update(row, where="finished")
            case Warned() | UpdateRejected():
                self.progress.console.print(f"{self.names[number]}: {remark(event)}", style="yellow", highlight=False)
            case TaskStarted():
                pass


class Plain:
    """A line per round, for log files and pipes."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.started: dict[int, tuple[RunStarted, float]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.stdout.flush()

    def tell(self, number: int, event: Event) -> None:
        line = None
        match event:
            case RunStarted():
                self.started[number] = event, time.monotonic()
                sizes = ",".join(map(str, event.tasks))
                line = f"{event.dataset} {{{sizes}}}, seed {event.seed}: {plan(event)}"
            case RoundFinished():
                start, began = self.started[number]
                rounds = start.rounds * len(start.tasks)
                done = event.task * start.rounds + event.round + 1
                left = (time.monotonic() - began) / done * (rounds - done)
                accuracy = "" if event.accuracy is None else f", accuracy {event.accuracy:.1f} %"
                line = (
                    f"task {event.task + 1}/{len(start.tasks)}, round {event.round + 1}/{start.rounds}, "
                    f"{len(event.clients)} clients, loss {event.loss:.3f}{accuracy}, about {left:.0f} s left"
                )
            case TaskFinished():
                line = f"task {event.task + 1} learned: accuracy {accuracy_after(event):.1f} % on all classes so far"
            case Warned() | UpdateRejected():
                line = remark(event)
            case RunFinished() | TaskStarted() | UpdateReceived():
                pass
        if line is not None:
            print(f"{self.names[number]}: {line}", flush=True)


def plan(event: RunStarted) -> str:
    """Who holds what, in a line; `fedclass plan` has the rest."""
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


def remark(event: Warned | UpdateRejected) -> str:
    if isinstance(event, Warned):
        return f"warning: {event.message}"
    return f"task {event.task + 1}, round {event.round + 1}: update of client {event.client} rejected: {event.reason}"


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
