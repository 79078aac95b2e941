"""fedclass report: a page to look at, and figures for a paper."""

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
    """Write a page about a run, or about several side by side, and its figures as SVG, PDF and PNG for papers.

    The page is one file that needs no network. Figures go to a folder beside it: RUN/figures for RUN/report.html,
    NAME-figures for any other NAME.html. A run that is not finished is reported as far as it got.

    Example:  fedclass report runs/my-comparison
    """
    from fedclass.report.page import write

    written = write(runs, out=out, picture=picture)
    typer.echo(f"report: {written.page} ({written.runs} run{'s' if written.runs > 1 else ''})")
    typer.echo(f"figures: {written.figures}")
    if picture is not None:
        typer.echo(f"picture: {picture}")
