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
        """As `fedclass.report.page.report`."""
        from fedclass.report.page import report

        return report(places, out=out, picture=picture)


sys.modules[__name__].__class__ = _Report
