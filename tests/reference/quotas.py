"""The most balanced quotas, found by looking at all there are."""

from collections.abc import Sequence
from itertools import product


def most_balanced(available: Sequence[Sequence[int]], budgets: Sequence[int]) -> list[int]:
    """The union's exemplars per class, sorted: of the largest unions, the one whose scarcest classes have most."""
    rows = []
    for held, budget in zip(available, budgets, strict=True):
        every = product(*(range(count + 1) for count in held))
        rows.append([row for row in every if sum(row) <= budget])
    unions = [[sum(column) for column in zip(*chosen, strict=True)] for chosen in product(*rows)]
    largest = max(map(sum, unions))
    return max(sorted(union) for union in unions if sum(union) == largest)
