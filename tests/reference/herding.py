"""Herding as iCaRL (Rebuffi et al. 2017) prints it, in plain Python floats."""

from collections.abc import Sequence
from math import sqrt

Row = Sequence[float]


def mean(rows: Sequence[Row]) -> list[float]:
    return [sum(row[d] for row in rows) / len(rows) for d in range(len(rows[0]))]


def distance(a: Row, b: Row) -> float:
    return sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))


def herd(features: Sequence[Row], count: int) -> list[int]:
    """Alg. 4: p_k = argmin over x of || mu - 1/k (phi(x) + sum_{j<k} phi(p_j)) ||, no image picked twice."""
    mu = mean(features)
    picked: list[int] = []
    for _ in range(count):
        best, nearest = -1, float("inf")
        for i in range(len(features)):
            if i in picked:
                continue
            candidate = distance(mu, mean([features[j] for j in [*picked, i]]))
            if candidate < nearest:
                best, nearest = i, candidate
        picked.append(best)
    return picked
