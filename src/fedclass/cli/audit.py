"""fedclass audit: the log of who contributed what to a federation."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Who contributed what to a federation, and who decided what.", no_args_is_help=True)
Run = Annotated[Path, typer.Argument(help="The run directory of a federation, on the server's machine.")]


@app.command()
def verify(
    run: Run,
    head: Annotated[
        str | None, typer.Option(help="A hash that an earlier `verify` printed and that you kept elsewhere.")
    ] = None,
) -> None:
    """Check that no line was changed, removed or moved. Exit code 1 if one was, or if the end is missing.

    TAMPERED: a line was changed, removed or moved within the log; that is proven. INCOMPLETE: what is there is as it
    was written, but the end is missing; a crash of the machine, an old backup or somebody's hand look alike.
    """
    from fedclass.runs.audit import verify
    from fedclass.runs.counted import counted

    found = verify(run, head)
    for flaw in found.flaws:
        typer.echo(f"TAMPERED: {flaw}")
    for loss in found.lost:
        typer.echo(f"INCOMPLETE: {loss}")
    if found.torn:
        typer.echo(
            f"the last line is not finished ({counted(found.torn, 'byte')}): it is being written now, or a crash cut "
            "it short; no finished entry is missing"
        )
    if found.flaws:
        raise typer.Exit(1)
    typer.echo(f"{counted(found.lines, 'entry', 'entries')}, whole and in order; the last is {found.head}")
    if found.lost:
        typer.echo(
            "restore the log and its head from a backup of the server; a hash noted elsewhere (--head) shows more"
        )
        raise typer.Exit(1)
    if head is None:
        typer.echo("keep this hash where the server's users cannot write; --head compares it later")


@app.command()
def export(
    run: Run,
    out: Annotated[Path | None, typer.Option(help="A .csv file; without it, JSON lines are printed.")] = None,
) -> None:
    """The entries, for other programs: JSON lines, or a CSV file."""
    import csv
    import io
    import json

    from fedclass.runs.audit import entries
    from fedclass.runs.counted import counted
    from fedclass.runs.layout import write_atomically

    rows = list(entries(run))
    if out is None:
        for row in rows:
            typer.echo(json.dumps(row, ensure_ascii=False))
        return
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, columns)
    table.writeheader()
    table.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    write_atomically(out, text.getvalue())
    typer.echo(f"wrote {out}, {counted(len(rows), 'entry', 'entries')}")


def _cell(value: object) -> object:
    """Spreadsheets take text that begins with one of these characters for a formula."""
    text = ", ".join(map(str, value)) if isinstance(value, list) else value
    return f"'{text}" if isinstance(text, str) and text[:1] in ("=", "+", "-", "@") else text
