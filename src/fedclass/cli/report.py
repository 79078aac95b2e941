"""fedclass report: a page to look at, and figures for a paper."""

from pathlib import Path
from typing import Annotated

import typer

from fedclass.errors import ConfigError


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
    from fedclass.report.history import read_history
    from fedclass.report.html import write_report
    from fedclass.runs.find import find_all

    if picture is not None and picture.suffix != ".svg":
        raise ConfigError(f"--picture {picture}: is an SVG file; let its name end in .svg")
    histories = [read_history(path) for path in find_all(runs)]
    if out is None and len(runs) == 1:
        page, pictures = runs[0] / "report.html", runs[0] / "figures"
    else:
        page = out or Path("report.html")
        pictures = page.with_name(f"{page.stem}-figures")
    write_report(histories, page, pictures, picture=picture)
    typer.echo(f"report: {page} ({len(histories)} run{'s' if len(histories) > 1 else ''})")
    typer.echo(f"figures: {pictures}")
    if picture is not None:
        typer.echo(f"picture: {picture}")
