"""Finished runs for a table, in the order in which they were compared."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fedclass.errors import RunError
from fedclass.runs.find import find_runs
from fedclass.runs.kept import read_result
from fedclass.runs.layout import RunDirectory
from fedclass.runs.order import Order
from fedclass.runs.summary import Result


def collect(paths: Sequence[Path], warn: Callable[[str], None]) -> tuple[list[Result], str | None]:
    """The finished runs that paths name or contain, each once, and the reference row of their comparison, if any.

    Runs in a folder come in the order in which they were compared there; others in the order of their names.  warn: is
    called for each run that is left out.
    """
    found: dict[Path, Result] = {}
    against = None
    for path in paths:
        roots = find_runs(path)
        orders = {folder: Order.read(folder) for folder in sorted({root.parent for root in roots}, key=_natural)}
        if path not in roots:
            roots = _without_dropped(roots, orders, warn)
        places = {folder: number for number, folder in enumerate(orders)}
        roots.sort(key=lambda root: (places[root.parent], orders[root.parent].place(root.name), _natural(root)))
        finished = [root for root in roots if RunDirectory(root).summary.exists()]
        if not roots:
            raise RunError(f"{path}: contains no runs; `fedclass run` makes one")
        if not finished:
            raise RunError(f"{path}: contains no finished runs; `fedclass list {path}` shows how far they got")
        for root in roots:
            if root not in finished:
                warn(f"{root}: not finished, left out")
        found |= {root.resolve(): read_result(root) for root in finished if root.resolve() not in found}
        if path not in roots:  # a single run has no reference
            against = against or next((order.against for order in orders.values() if order.against), None)
    return list(found.values()), against


def _without_dropped(roots: Sequence[Path], orders: Mapping[Path, Order], warn: Callable[[str], None]) -> list[Path]:
    """Of a sweep with a budget, only the runs of its best setting."""
    left = [root for root in roots if root.name not in orders[root.parent].dropped]
    for folder in dict.fromkeys(root.parent for root in roots if root not in left):
        shown = ", ".join(root.name for root in left if root.parent == folder)
        warn(f"{folder}: candidates that a sweep with a budget dropped are left out; what is shown: {shown}")
    return left


def _natural(path: Path) -> list[tuple[float, str]]:
    """beta=3 before beta=10."""
    numbers_and_words = re.findall(r"(\d+(?:\.\d+)?)|(\D+)", str(path))
    return [(float(number) if number else -1.0, word) for number, word in numbers_and_words]
