"""What a person sees while runs are under way, and the tables at their end."""

import os
import sys
from collections.abc import Collection, Sequence
from types import TracebackType
from typing import Protocol, Self

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable

from fedclass.report.tables import Table, headlines_first
from fedclass.runs.events import (
    Event,
    RoundFinished,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
    SetAside,
    SiteChanged,
    SitesKnown,
    SiteTested,
    TaskFinished,
    TaskReused,
    TaskStarted,
    UpdateMissing,
    UpdateReceived,
    UpdateRejected,
    Warned,
)
from fedclass.runs.outlook import TimeLeft, duration
from fedclass.runs.progress import Pace, ProgressLines, accuracy_after, partition_summary, remark

# Names of classes, folders and methods are the user's and are never read as markup. A file or a pipe has no width, and
# tables must not lose figures there.
console = Console(markup=False, width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160)

FINISHED = "already finished"
PADDING = 3  # characters between two columns of a table


class Display(Protocol):
    """Gets every event of every run, with the run's number. RunStarted comes first, also for a resumed run."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def tell(self, number: int, event: Event) -> None: ...
    def expect(self, left: TimeLeft) -> None:
        """From now on, also show the time left for all runs together. The caller keeps `left` up to date."""


def display(names: Sequence[str], *, finished: Collection[int] = ()) -> Display:
    """Live bars on a terminal, plain lines elsewhere. finished: numbers of runs with nothing left to do."""
    shown = Live(names) if console.is_terminal else Plain(names)
    return _Brief(shown, finished)


class _Brief:
    """Of runs that were already finished, shows only that they are, not their rounds again."""

    def __init__(self, display: "Live | Plain", finished: Collection[int]) -> None:
        self.display, self.finished = display, finished

    def __enter__(self) -> Self:
        self.display.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.display.__exit__(kind, error, trace)

    def expect(self, left: TimeLeft) -> None:
        self.display.expect(left)

    def tell(self, number: int, event: Event) -> None:
        if number not in self.finished:
            self.display.tell(number, event)
        elif isinstance(event, RunFinished):
            self.display.tell_finished(number)
        elif isinstance(event, Warned):
            self.display.remark(number, remark(event), style="yellow")


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
        self.left: TimeLeft | None = None
        self.width = width

    def expect(self, left: TimeLeft) -> None:
        """Adds a row at the end if there are several runs."""
        self.left = left
        if len(self.names) > 1:
            name = "all runs".ljust(self.width)
            self.all_runs = self.progress.add_task(name, total=1.0, where="", loss="", accuracy="", left="")

    def _update_all_runs(self) -> None:
        if self.left is not None and len(self.names) > 1:
            seconds = self.left.seconds
            left = "" if seconds is None else f"elapsed, {duration(seconds)} left"
            self.progress.update(self.all_runs, completed=self.left.share_done, left=left)

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
                self._start(number, event)
            case UpdateReceived():
                self._count(number, event)
            case RoundFinished():
                self._advance(number, event)
            case TaskFinished():
                self.progress.update(row, accuracy=accuracy_after(event))
            case RunFinished():
                self.progress.update(row, where="finished", left="")
                self.progress.stop_task(row)
                self._update_all_runs()
            case RunResumed():
                self.progress.update(row, completed=self.paces[number].done(event.task, event.round), where="goes on")
                self.remark(number, remark(event), style="none")
            case UpdateRejected() | UpdateMissing() | SetAside():
                self.remark(number, remark(event, self.paces[number].started.called), style="yellow")
            case TaskReused():
                self.paces[number].reused.add(event.task)
                self.remark(number, remark(event), style="none")
            case Warned() | SiteChanged() | RunFailed():
                calm = isinstance(event, SiteChanged) and event.connected
                self.remark(number, remark(event), style="none" if calm else "yellow")
            case SitesKnown():
                pace = self.paces[number]
                pace.started = pace.started.knowing(event)
                self.progress.update(row, total=pace.total)
                self.remark(number, remark(event), style="none")
            case TaskStarted() | SiteTested():
                pass

    def _start(self, number: int, event: RunStarted) -> None:
        before = 0 if self.left is None else self.left.outlooks[number].done
        self.paces[number] = pace = Pace(event, before=before)
        self.progress.start_task(self.rows[number])
        self.progress.update(self.rows[number], total=pace.total, completed=0, where="starting")
        if number == 0:
            self.progress.console.print(partition_summary(event), highlight=False)

    def _count(self, number: int, event: UpdateReceived) -> None:
        row, pace = self.rows[number], self.paces[number]
        if event.round == pace.started.rounds:
            self.progress.update(row, where=f"task {event.task + 1}/{len(pace.started.tasks)} exemplars")
            return
        done = pace.done(event.task, event.round) + event.done / event.of
        where = f"{pace.where(event.task, event.round)}, client {event.done}/{event.of}"
        self.progress.update(row, completed=done, where=where)

    def _advance(self, number: int, event: RoundFinished) -> None:
        row, pace = self.rows[number], self.paces[number]
        seconds = pace.left_after(event)
        left = "" if seconds is None else f"elapsed, {duration(seconds)} left"
        done, where = pace.done(event.task, event.round) + 1, pace.where(event.task, event.round)
        self.progress.update(row, completed=done, where=where, loss=f"loss {event.loss:.3f}", left=left)
        self._grow_older(number)
        self._update_all_runs()
        if accuracy := accuracy_after(event):
            self.progress.update(row, accuracy=accuracy)

    def remark(self, number: int, text: str, *, style: str) -> None:
        self.progress.console.print(f"{self.names[number]}: {text}", style=style, highlight=False)

    def tell_finished(self, number: int) -> None:
        self.progress.update(self.rows[number], total=1, completed=1, where=FINISHED)

    def _grow_older(self, number: int) -> None:
        """The age of a run watched from the middle on is the duration of its rounds."""
        (task,) = (task for task in self.progress.tasks if task.id == self.rows[number])
        assert task.start_time is not None  # RunStarted came first
        task.start_time = min(task.start_time, task.get_time() - sum(self.paces[number].seconds))


class Plain:
    """A line per round, for log files and pipes."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.lines = [ProgressLines() for _ in names]
        self.left: TimeLeft | None = None

    def expect(self, left: TimeLeft) -> None:
        self.left = left
        for lines, outlook in zip(self.lines, left.outlooks, strict=True):
            lines.before = outlook.done

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.stdout.flush()

    def tell(self, number: int, event: Event) -> None:
        line = self.lines[number].line(event)
        if line is not None:
            self.remark(number, line + self._left_of_all(event))

    def _left_of_all(self, event: Event) -> str:
        seconds = self.left.seconds if self.left is not None and isinstance(event, RoundFinished) else None
        return "" if seconds is None or len(self.names) == 1 else f"; all runs: about {duration(seconds)} left"

    def remark(self, number: int, text: str, *, style: str = "none") -> None:  # noqa: ARG002
        print(f"{self.names[number]}: {text}", flush=True)

    def tell_finished(self, number: int) -> None:
        self.remark(number, FINISHED)


class State(Plain):
    """Prints how far each run is, in one line at the end."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(names)
        self.last = ["no event yet"] * len(names)

    def tell(self, number: int, event: Event) -> None:
        line = self.lines[number].line(event)
        if line is not None and not isinstance(event, Warned | UpdateRejected | UpdateMissing):
            self.last[number] = line

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, line in zip(self.names, self.last, strict=True):
            print(f"{name}: {line}")
        super().__exit__(kind, error, trace)


def print_table(table: Table) -> None:
    console.print()
    if len(_blocks(table)) > 1:
        table = headlines_first(table)
    for number, columns in enumerate(_blocks(table)):
        shown = RichTable(title=None if number else table.title, box=SIMPLE_HEAD, title_justify="left")
        for i in columns:
            shown.add_column(_heading(table.columns[i]), justify="right" if i else "left", no_wrap=i > 0)
        for row in table.rows:
            shown.add_row(*(row[i] for i in columns))
        console.print(shown)
    for note in table.notes:
        console.print(note, style="dim", highlight=False)


def _heading(column: str) -> str:
    return column.replace("validation ", "validation\n")


def _blocks(table: Table) -> list[list[int]]:
    """The columns, in blocks that fit the screen, each with the first column, whose names may be wrapped."""
    cells = [[*_heading(name).splitlines(), *column] for name, *column in zip(table.columns, *table.rows, strict=True)]
    first, *widths = (max(map(cell_len, column)) + PADDING for column in cells)
    room = console.width - min(first, console.width // 2)
    blocks, used = [[0]], 0
    for i, width in enumerate(widths, start=1):
        if used and used + width > room:
            blocks.append([0])
            used = 0
        blocks[-1].append(i)
        used += width
    return blocks
