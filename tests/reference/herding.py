"""Herding as iCaRL (Rebuffi et al. 2017) has it, in plain Python floats."""

from collections.abc import Callable, Sequence
from math import sqrt

Row = Sequence[float]


def mean(rows: Sequence[Row]) -> list[float]:
    return [sum(row[d] for row in rows) / len(rows) for d in range(len(rows[0]))]


def distance(a: Row, b: Row) -> float:
    return sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))


def as_it_is(row: Row) -> list[float]:
    return list(row)


def unit(row: Row) -> list[float]:
    length = sqrt(sum(x * x for x in row))
    return [x / length for x in row]


def herd(features: Sequence[Row], count: int, scale: Callable[[Row], list[float]]) -> list[int]:
    """Alg. 4: p_k = argmin over x of || mu - 1/k (phi(x) + sum_{j<k} phi(p_j)) ||, no image picked twice.

    scale: what becomes of each mean. The paper's section 2 says that "the results of any operation on feature vectors,
    e.g. averages, are also re-normalized" (`unit`); PyCIL leaves them `as_it_is`.
    """
    mu = scale(mean(features))
    picked: list[int] = []
    for _ in range(count):
        best, nearest = -1, float("inf")
        for i in range(len(features)):
            if i in picked:
                continue
            candidate = distance(mu, scale(mean([features[j] for j in [*picked, i]])))
            if candidate < nearest:
                best, nearest = i, candidate
        picked.append(best)
    return picked
