"""fedclass cache: tasks that earlier runs have learned."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from fedclass.errors import ConfigError

if TYPE_CHECKING:
    from fedclass.experiment.task_cache import Entry

DAY = 24 * 60 * 60

app = typer.Typer(
    help="Learned tasks, kept so that later runs with the same beginning need not learn them again.",
    no_args_is_help=True,
)


@app.command()
def show(
    limit: Annotated[int, typer.Option(min=0, help="How many entries to list, the newest. 0: all.")] = 20,
) -> None:
    """List the cached tasks, oldest first, and where they are."""
    from fedclass.cli.display import console, print_table
    from fedclass.experiment.task_cache import TaskCache, usual_folder
    from fedclass.report.tables import Table

    tasks = TaskCache(usual_folder())
    entries = list(tasks.entries())
    shown = entries[-limit:] if limit else entries
    if shown:
        columns = ("key", "first learned by", "after tasks", "seed", "size", "when")
        print_table(Table(title="learned tasks", columns=columns, rows=tuple(map(_row, shown)), notes=()))
    older = len(entries) - len(shown)
    console.print(
        f"{_entries(entries)}, {_size(entries)} in {tasks.folder}"
        + (f"; not listed: {older} older (--limit 0 lists all)" if older else ""),
        highlight=False,
    )


def _row(entry: "Entry") -> tuple[str, ...]:
    made = entry.made_with
    what = f"{made['method']} ({made['variant']})" if made else "damaged"
    stream = f"{made['dataset']} {{{','.join(map(str, made['tasks']))}}}" if made else ""
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.time))
    return entry.key[:12], what, stream, str(made.get("seed", "")), f"{entry.bytes / 1e6:.1f} MB", when


def _entries(entries: "list[Entry]") -> str:
    from fedclass.runs.counted import counted

    return counted(len(entries), "entry", "entries")


def _size(entries: "list[Entry]") -> str:
    return f"{sum(entry.bytes for entry in entries) / 1e6:.1f} MB"


@app.command()
def prune(
    older_than: Annotated[
        float | None, typer.Option(min=0, metavar="DAYS", help="Remove tasks learned more than this many days ago.")
    ] = None,
    keep_gb: Annotated[
        float | None,
        typer.Option(min=0, metavar="GB", help="Remove the oldest tasks until the rest takes no more than this."),
    ] = None,
) -> None:
    """Remove the oldest tasks from the cache. Runs under way learn again what they miss.

    Example:  fedclass cache prune --older-than 30 --keep-gb 5
    """
    from fedclass.cli.display import console
    from fedclass.experiment.task_cache import TaskCache, superfluous, usual_folder

    if older_than is None and keep_gb is None:
        raise ConfigError("fedclass cache prune: give --older-than DAYS, --keep-gb GB, or both")
    tasks = TaskCache(usual_folder())
    entries = list(tasks.entries())
    going = superfluous(
        entries,
        learned_before=None if older_than is None else time.time() - older_than * DAY,
        keep_bytes=None if keep_gb is None else keep_gb * 1e9,
    )
    tasks.remove(going)
    staying = [entry for entry in entries if entry not in going]
    console.print(
        f"{_entries(going)} removed ({_size(going)}), {len(staying)} left ({_size(staying)}) in {tasks.folder}",
        highlight=False,
    )


@app.command()
def clear() -> None:
    """Empty the cache. Runs and data sets stay."""
    from fedclass.cli.display import console
    from fedclass.experiment.task_cache import TaskCache, usual_folder

    tasks = TaskCache(usual_folder())
    entries = list(tasks.entries())
    tasks.clear()
    console.print(f"{_entries(entries)} removed from {tasks.folder}", highlight=False)
