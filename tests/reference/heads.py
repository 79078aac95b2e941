"""Weight alignment as its two published codes compute it, one weight at a time. A head is a list of rows."""

from collections.abc import Sequence
from math import sqrt

Row = Sequence[float]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _scaled(head: Sequence[Row], old_classes: int, gamma: float) -> list[list[float]]:
    return [[w * (gamma if i >= old_classes else 1.0) for w in row] for i, row in enumerate(head)]


def align_zhao(head: Sequence[Row], old_classes: int) -> list[list[float]]:
    """Zhao et al.: sums of absolute weights, and new classes are never made larger."""
    lengths = [sum(abs(w) for w in row) for row in head]
    gamma = _mean(lengths[:old_classes]) / _mean(lengths[old_classes:])
    return _scaled(head, old_classes, min(gamma, 1.0))


def align_pycil(head: Sequence[Row], old_classes: int) -> list[list[float]]:
    """PyCIL: Euclidean lengths, in either direction."""
    lengths = [sqrt(sum(w * w for w in row)) for row in head]
    return _scaled(head, old_classes, _mean(lengths[:old_classes]) / _mean(lengths[old_classes:]))
