"""Ridge regression with images of all clients and tasks in one place, in plain Python floats."""

from collections.abc import Sequence

Row = Sequence[float]


def head(features: Sequence[Row], labels: Sequence[int], classes: int, strength: float) -> list[list[float]]:
    """(classes, D): the rows w_c that minimise sum (w_c . x - [label = c])^2 + strength * |w_c|^2.

    The equations (sum x x^T + strength * I) w_c = sum of x with label c, by Gauss's elimination with pivots.
    """
    size = len(features[0])
    table = [[sum(x[i] * x[j] for x in features) + strength * (i == j) for j in range(size)] for i in range(size)]
    for i in range(size):
        table[i] += [sum(x[i] for x, label in zip(features, labels, strict=True) if label == c) for c in range(classes)]
    for at in range(size):
        pivot = max(range(at, size), key=lambda row: abs(table[row][at]))
        table[at], table[pivot] = table[pivot], table[at]
        table[at] = [value / table[at][at] for value in table[at]]
        for row in range(size):
            if row != at:
                factor = table[row][at]
                table[row] = [a - factor * b for a, b in zip(table[row], table[at], strict=True)]
    return [[table[i][size + c] for i in range(size)] for c in range(classes)]
