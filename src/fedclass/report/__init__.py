"""Tables and charts, from what runs have written. The package can be called: `fedclass.report("runs/mine")`."""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

Place = str | os.PathLike[str]


class _Report(ModuleType):
    """A module that can be called: `fedclass.report` is both this package and the function that writes a report."""

    def __call__(
        self, places: Place | Iterable[Place], *, out: Place | None = None, picture: Place | None = None
    ) -> Path:
        """See `fedclass.report.page.report`."""
        from fedclass.report.page import report

        return report(places, out=out, picture=picture)


sys.modules[__name__].__class__ = _Report
