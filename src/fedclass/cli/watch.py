"""fedclass watch."""

import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedclass.cli.display import Display

POLL = 0.5  # seconds
QUIET = 60.0  # seconds without events before a warning, if rounds are short


def watch(
    run: Annotated[
        Path, typer.Argument(help="A run directory, or a folder of several, such as `fedclass compare` writes.")
    ],
    once: Annotated[bool, typer.Option("--once", help="Print how far the runs are, and exit.")] = False,
) -> None:
    """Follow runs of another process, until all have finished.

    Starts with the events so far. The runs are only read, never disturbed.

    Example:  fedclass watch runs/mine
    """
    from fedclass.cli.display import State, display
    from fedclass.runs.find import find_all

    roots = find_all([run], waiting=True)
    names = [str(root.relative_to(run)) if root != run else run.resolve().name for root in roots]
    with State(names) if once else display(names) as shown:
        finished = _follow(roots, shown, once=once)
    print_results(finished)


def _follow(roots: Sequence[Path], shown: "Display", *, once: bool) -> list[Path]:
    """Show what the runs write until all have finished, or once. Returns the finished ones."""
    from fedclass.cli.display import console
    from fedclass.runs.events import RoundFinished, RunFinished, RunResumed, RunStarted
    from fedclass.runs.layout import RunDirectory
    from fedclass.runs.tail import Tail

    tails = [Tail(RunDirectory(root).events) for root in roots]
    ending: set[int] = set()  # runs whose last event is written; the summary follows a moment later
    began, patience, said = time.time(), QUIET, False
    while True:
        for number, tail in enumerate(tails):
            for event in tail.news():
                shown.tell(number, event)
                match event:
                    case RunFinished():
                        ending.add(number)
                    case RunStarted() | RunResumed():
                        ending.discard(number)
                    case RoundFinished():
                        patience = max(patience, 2 * event.seconds)  # nothing is written within a round
        finished = {number for number in ending if RunDirectory(roots[number]).finished}
        if len(finished) < len(roots):
            quiet = time.time() - max((at for tail in tails if (at := tail.written()) is not None), default=began)
            if quiet > patience and not said:
                message = f"no event for {_duration(quiet)}; the run may have been stopped"
                console.print(message, style="yellow", highlight=False)
            said = quiet > patience
        if once or len(finished) == len(roots):
            return [roots[number] for number in sorted(finished)]
        time.sleep(POLL)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 600 else str(timedelta(seconds=round(seconds)))


def print_results(finished: Sequence[Path]) -> None:
    from fedclass.cli.display import print_table
    from fedclass.report.tables import comparison
    from fedclass.runs.summary import Result

    for table in comparison([Result.read(root) for root in finished], differences=False):
        print_table(table)
