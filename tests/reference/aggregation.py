"""Robust means, number by number and as literally as their papers say them. rows: an update each."""

import statistics
from collections.abc import Sequence
from itertools import permutations, product
from math import nan, sqrt

Rows = list[list[float]]


def trimmed_mean(rows: Rows, f: int) -> list[float]:
    result = []
    for column in zip(*rows, strict=True):
        left = list(column)
        for _ in range(f):
            left.remove(max(left))
            left.remove(min(left))
        result.append(sum(left) / len(left))
    return result


def median(rows: Rows) -> list[float]:
    result = []
    for column in zip(*rows, strict=True):
        left = list(column)
        while len(left) > 2:
            left.remove(max(left))
            left.remove(min(left))
        result.append(sum(left) / len(left))
    return result


def distance(a: list[float], b: list[float]) -> float:
    return sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))


def geometric_median(rows: Rows, *, within: float = 1e-7) -> list[float]:
    """By trying: go to whichever of the points around has a smaller sum of distances, else look closer."""
    z = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    step = max(distance(z, row) for row in rows)
    while step > within:
        around = [[c + step * d for c, d in zip(z, moves, strict=True)] for moves in product((-1, 0, 1), repeat=len(z))]
        best = min(around, key=lambda point: sum(distance(point, row) for row in rows))
        if sum(distance(best, row) for row in rows) < sum(distance(z, row) for row in rows):
            z = best
        else:
            step /= 2
    return z


def multi_krum(rows: Rows, f: int) -> list[float]:
    n = len(rows)
    scores = []
    for i in range(n):
        others = sorted(distance(rows[i], rows[j]) ** 2 for j in range(n) if j != i)
        scores.append(sum(others[: max(n - f - 2, 1)]))
    chosen: list[int] = []
    while len(chosen) < n - f:
        chosen.append(min((i for i in range(n) if i not in chosen), key=lambda i: scores[i]))
    return [sum(rows[i][k] for i in chosen) / len(chosen) for k in range(len(rows[0]))]


def clipped(rows: Rows, most: float) -> Rows:
    """No row longer than `most` times the median length."""
    norms = [distance(row, [0.0] * len(row)) for row in rows]
    limit = most * median([[norm] for norm in norms])[0]
    return [[x * min(1.0, limit / norm) if norm else x for x in row] for row, norm in zip(rows, norms, strict=True)]


def labels_in_common(rows: Rows, others: Rows) -> float:
    """By trying all permutations of the labels of one of the two."""

    def cosine(a: list[float], b: list[float]) -> float:
        zero = [0.0] * len(a)
        return sum(x * y for x, y in zip(a, b, strict=True)) / distance(a, zero) / distance(b, zero)

    k = len(rows)
    sums = [sum(cosine(rows[c], others[d]) for c, d in enumerate(order)) for order in permutations(range(k))]
    mean = sum(sums) / len(sums)
    spread = sqrt(sum((one - mean) ** 2 for one in sums) / len(sums))
    return (sums[0] - mean) / spread


def mislabelled(heads: Sequence[Rows], holds: Sequence[Sequence[int]]) -> list[tuple[float, float, float]]:
    """For each client: z of its labels, what it would be if it were like the others, and its limit below that."""
    n, told = len(heads), {}
    for i in range(n):
        both = [c for c in holds[i] if any(c in holds[j] for j in range(n) if j != i)]
        if len(both) < 3:
            continue
        total = []
        for c in both:
            row = [0.0] * len(heads[i][c])
            for j in range(n):
                if j != i and c in holds[j]:
                    length = distance(heads[j][c], [0.0] * len(row))
                    row = [x + y / length for x, y in zip(row, heads[j][c], strict=True)]
            total.append(row)
        told[i] = labels_in_common([heads[i][c] for c in both], total), len(both) - 1
    found = []
    for i in range(n):
        z, free = told.get(i, (nan, nan))
        others = [other / most for j, (other, most) in told.items() if j != i]
        found.append(
            (z, free * (statistics.median(others) if others else nan), statistics.NormalDist().inv_cdf(1 - 0.05 / n))
        )
    return found
