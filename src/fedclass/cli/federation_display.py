"""A federation's status, on a terminal."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from fedclass.cli.display import console
from fedclass.deploy.status import Status, ago
from fedclass.runs.counted import counted


def print_status(status: Status) -> None:
    where = f"task {status.task}, round {status.round} of {status.rounds}" if status.task else "no task yet"
    console.print(
        f"{status.run}: {status.state}, {where}; server seen {ago(status.seen)}", highlight=False, markup=False
    )
    if status.failure:
        console.print(f"failed: {status.failure}", style="red", highlight=False, markup=False)
    if status.accuracy is not None:
        console.print(f"accuracy after the last task: {status.accuracy:.1f} %", highlight=False, markup=False)
    rows = [
        (
            site.name,
            {True: "online", False: "away", None: "?"}[site.online],
            ago(site.heard),
            f"{sum(site.images.values())}, {counted(len(site.images), 'class', 'classes')}",
            percent(site.accuracy),
            site.left_out,
        )
        for site in status.sites
    ]
    _print(("site", "", "last answer", "images", "its accuracy", "left out"), rows)
    for who, why in status.silent.items():
        console.print(f"{who} is silent: {why}", style="yellow", highlight=False, markup=False)
    _print(("class", "accuracy"), [(repr(name), percent(value)) for name, value in status.accuracies.items()])
    if status.waiting:
        names = ", ".join(repr(offer.name) for offer in status.waiting[:10])
        more = f" and {len(status.waiting) - 10} more" if len(status.waiting) > 10 else ""
        console.print(
            f"wait for approval: {names}{more} (fedclass deploy classes {status.run})", highlight=False, markup=False
        )
    for warning in status.warnings:
        console.print(f"warning: {warning}", style="yellow", highlight=False, markup=False)


def _print(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if rows:
        table = Table(*columns, box=None, padding=(0, 2))
        for row in rows:
            table.add_row(*map(Text, row))
        console.print(table)


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} %"
