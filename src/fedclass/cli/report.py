"""fedclass report: a page, and figures for papers."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run directories, or folders with run directories in them.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The page to write. Default: report.html in RUN, or in this folder if there are several RUNs.",
            show_default=False,
        ),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(help="Also draw accuracy and forgetting over rounds, side by side, to this .svg file."),
    ] = None,
) -> None:
    """Write a page about one run or several runs side by side, and its figures as SVG, PDF and PNG for papers.

    The page is one file that needs no network. Figures go to a folder beside it: RUN/figures for RUN/report.html,
    NAME-figures for any other NAME.html. An unfinished run is reported as far as it got.

    Example:  fedclass report runs/my-comparison
    """
    from fedclass.report.page import write
    from fedclass.runs.counted import counted

    written = write(runs, out=out, picture=picture)
    typer.echo(f"report: {written.page} ({counted(written.runs, 'run')})")
    typer.echo(f"figures: {written.figures}")
    if picture is not None:
        typer.echo(f"picture: {picture}")
