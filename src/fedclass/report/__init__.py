"""Tables and pictures, from what runs have written. Called, it writes a page: `fedclass.report("runs/mine")`."""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

Place = str | os.PathLike[str]


class _Report(ModuleType):
    """`import fedclass` has one name for this package and for what it is there for."""

    def __call__(
        self, places: Place | Iterable[Place], *, out: Place | None = None, picture: Place | None = None
    ) -> Path:
        """Write a page about a run, or about several side by side, and its figures; returns the page.

        places: run directories, or folders with runs in them.  out: the page; by default report.html in the place, or
        in this folder if there are several.  picture: an SVG file for accuracy and forgetting over rounds.
        """
        from fedclass.report.page import write

        return write(places, out=out, picture=picture).page


sys.modules[__name__].__class__ = _Report
