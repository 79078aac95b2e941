"""fedclass cache: tasks that earlier runs have learned."""

import time

import typer

app = typer.Typer(
    help="Tasks that runs have learned, kept so that later runs with the same beginning need not learn them again.",
    no_args_is_help=True,
)


@app.command()
def show() -> None:
    """What is kept, oldest first, and where."""
    from fedclass.cli.display import console, print_table
    from fedclass.experiment.reuse import usual_store
    from fedclass.report.tables import Table

    store = usual_store()
    entries = list(store.entries())
    rows = []
    for entry in entries:
        made = entry.made_with
        what = f"{made['method']} ({made['variant']})" if made else "damaged"
        stream = f"{made['dataset']} {{{','.join(map(str, made['tasks']))}}}" if made else ""
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.time))
        rows.append((entry.key[:12], what, stream, str(made.get("seed", "")), f"{entry.bytes / 1e6:.1f} MB", when))
    if rows:
        columns = ("key", "first learned by", "after tasks", "seed", "size", "when")
        print_table(Table(title="learned tasks", columns=columns, rows=tuple(rows), notes=()))
    total = sum(entry.bytes for entry in entries)
    console.print(f"{len(entries)} entries, {total / 1e6:.1f} MB in {store.folder}", highlight=False)


@app.command()
def clear() -> None:
    """Remove all of it. Runs and data sets stay."""
    from fedclass.cli.display import console
    from fedclass.experiment.reuse import usual_store

    store = usual_store()
    count = sum(1 for _ in store.entries())
    store.clear()
    console.print(f"{count} entries removed from {store.folder}", highlight=False)
