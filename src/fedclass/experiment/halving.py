"""Successive halving: all candidates learn a little, the better half continues, and so on.

The budget is counted in tasks: one task of one seed counts 1, and a full run counts all tasks of its stream. A
candidate learns all tasks of its first seed, then all of its second, so that no work of a surviving candidate is lost.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedclass.errors import ConfigError

FEWEST = 2  # tasks before candidates are compared: nothing can be forgotten in the first


@dataclass(frozen=True)
class Rung:
    """candidates: how many take part.  tasks: how many each has learned by the end of the rung, over all its seeds."""

    candidates: int
    tasks: int


def rungs(candidates: int, *, tasks: int, seeds: int, budget: float) -> list[Rung]:
    """How a budget, in full runs, is spent. In the last rung, the winner learns all tasks of all seeds.

    What the winner needs to finish is reserved; the rest is shared evenly among the rungs. Each rung halves the
    candidates, rounded up. A rung without any task left is skipped.
    """
    full, total = tasks * seeds, math.floor(budget * tasks)
    first = min(FEWEST, tasks)
    least = math.ceil((full + (candidates - 1) * first) / tasks)
    if total < full + (candidates - 1) * first:
        raise ConfigError(
            f"budget {budget:g}: {candidates} candidates and {seeds} seed{'s' * (seeds > 1)} need at least {least} "
            f"full runs: {first} of {tasks} tasks for each of them, and all for the winner; raise the budget, or name "
            "fewer candidates"
        )
    sizes = [candidates]
    while sizes[-1] > 2:
        sizes.append(math.ceil(sizes[-1] / 2))
    found, reached, free = list[Rung](), 0, total - full
    for number, size in enumerate(sizes if candidates > 1 else []):
        share = free / (len(sizes) - number)
        more = min(full - reached, max(math.floor(share / (size - 1)), 0 if found else first))
        if more:
            reached, free = reached + more, free - (size - 1) * more
            found.append(Rung(size, reached))
    return [*found, Rung(1, full)]


def parts(learned: int, tasks: int, seeds: Sequence[int]) -> dict[int, int]:
    """How many tasks of each seed a candidate has learned, given the total. Seeds not begun are left out."""
    return {seed: min(tasks, learned - number * tasks) for number, seed in enumerate(seeds) if learned > number * tasks}


def better_half(scores: Sequence[float], keep: int) -> list[int]:
    """Positions of the `keep` best scores, best first; among equal scores, the earlier one."""
    return sorted(range(len(scores)), key=lambda number: (-scores[number], number))[:keep]
