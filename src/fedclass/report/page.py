"""A page about runs and its figures: `fedclass report`."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fedclass.errors import ConfigError
from fedclass.report.history import read_history
from fedclass.report.html import write_report
from fedclass.runs.find import find_all
from fedclass.runs.kept import is_kept, read_result
from fedclass.runs.layout import RunDirectory

Place = str | os.PathLike[str]


@dataclass(frozen=True)
class Written:
    page: Path
    figures: Path
    runs: int


def report(places: Place | Iterable[Place], *, out: Place | None = None, picture: Place | None = None) -> Path:
    """Write a page about one run or several runs side by side, and its figures. Returns the page.

    places: run directories, or folders with runs in them.  out: the page; by default report.html in the place, or in
    the current folder if there are several.  picture: an SVG file for accuracy and forgetting over rounds.
    """
    return write(places, out=out, picture=picture).page


def write(places: Place | Iterable[Place], *, out: Place | None = None, picture: Place | None = None) -> Written:
    """Write the page and the folder of its figures, as SVG, PDF and PNG. Arguments as in `report`."""
    given = [places] if isinstance(places, str | os.PathLike) else list(places)
    folders = [Path(place).expanduser() for place in given]
    drawn = None if picture is None else Path(picture).expanduser()
    if drawn is not None and drawn.suffix != ".svg":
        raise ConfigError(f"picture {picture}: the name must end in .svg")
    found = find_all(folders)
    for path in found:
        if is_kept(path) or RunDirectory(path).finished:
            read_result(path)  # refuses a summary that is damaged, and a kept run that was changed
    histories = [read_history(path) for path in found]
    if out is None and len(folders) == 1:
        page, figures = folders[0] / "report.html", folders[0] / "figures"
    else:
        page = Path(out or "report.html").expanduser()
        figures = page.with_name(f"{page.stem}-figures")
    write_report(histories, page, figures, picture=drawn)
    return Written(page, figures, len(histories))
