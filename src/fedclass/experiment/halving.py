"""Successive halving: all candidates learn a little, the better half of them learns on, and so forth.

What is spent is counted in tasks: one task of one seed is one, and a full run as many as its stream has. A candidate's
tasks come in a fixed order, all tasks of the first seed, then all of the second, so that those who go on lose nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedclass.errors import ConfigError

FEWEST = 2  # tasks before anyone is judged: in the first one, nothing can be forgotten


@dataclass(frozen=True)
class Rung:
    """candidates: how many take part.  tasks: that each of them has learned by the end of it, over its seeds."""

    candidates: int
    tasks: int


def rungs(candidates: int, *, tasks: int, seeds: int, budget: float) -> list[Rung]:
    """What a budget of so many full runs is spent on; the last rung is the winner's, who learns all tasks of all seeds.

    What the winner needs to finish is put aside. The rest is shared evenly among the rungs. Each rung halves the
    candidates, rounded up; one for which no task is left is skipped.
    """
    full, total = tasks * seeds, math.floor(budget * tasks)
    first = min(FEWEST, tasks)
    least = math.ceil((full + (candidates - 1) * first) / tasks)
    if total < full + (candidates - 1) * first:
        raise ConfigError(
            f"budget {budget:g}: {candidates} candidates and {seeds} seed{'s' * (seeds > 1)} need at least {least} "
            f"full runs: {first} of {tasks} tasks for each of them, and all for the winner; give it more, or name fewer"
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
    """How many tasks each seed has learned, once a candidate has learned so many in all; none: left out."""
    return {seed: min(tasks, learned - number * tasks) for number, seed in enumerate(seeds) if learned > number * tasks}


def better_half(scores: Sequence[float], keep: int) -> list[int]:
    """The numbers of the best, best first. Of equal ones, the earlier."""
    return sorted(range(len(scores)), key=lambda number: (-scores[number], number))[:keep]
