"""What a server can tell of hostile updates without seeing an image: who points away, and when a model is lost."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedclass.models.incremental import IncrementalModel
from fedclass.wire import Weights

ASIDE = 5  # rounds that a suspect is not asked
RISE = 1.5  # times the median loss of the round before: the model that clients were sent is no longer what it was
ALIKE = 1e-5  # outputs for different images that differ by less than this part of their size are the same
IDLE = 0.1  # of the median length
OWN_WORK = 3  # without so many updates there is no majority to agree with


def agreement(moves: Tensor) -> Tensor:
    """How far each update goes the way of the others: the median over j != i of cos(m_i, m_j).

    moves: (n, P), from the model that was sent.  Returns (n,). A median, so that less than half of them decide nothing.
    Whoever hardly moves, a tenth of the median length, takes a free ride and holds the others up: -1.
    """
    units = torch.nn.functional.normalize(moves, dim=1)
    n = len(moves)
    others = (units @ units.T)[~torch.eye(n, dtype=torch.bool)].reshape(n, n - 1)
    lengths = moves.norm(dim=1)
    idle = lengths < IDLE * lengths.quantile(0.5)
    return others.quantile(0.5, dim=1).masked_fill(idle, -1.0)


def pointing_away(agreements: Tensor, *, most: int) -> list[int]:
    """Positions of updates that go against the others, if most go the same way; at most so many, the worst."""
    if float(agreements.quantile(0.5)) <= 0:
        return []
    found = torch.argsort(agreements, stable=True)[:most]
    return sorted(int(i) for i in found if agreements[i] < 0)


@torch.no_grad()
def constant(model: IncrementalModel, weights: Weights, images: Tensor) -> bool:
    """Whether the outputs are the same for all of these (different) images: the model looks at none of them."""
    model.load(weights)
    outputs = model.eval()(images).double()
    spread = (outputs - outputs[0]).abs().max()
    return bool(spread <= ALIKE * outputs.abs().max()) and outputs.shape[1] > 1


def at_chance(confusion: np.ndarray) -> bool:
    """Whether a model tells classes no better than one that does not look: no more right than the largest class,
    and no more than three standard deviations above an even guess.
    """
    images, classes = int(confusion.sum()), len(confusion)
    if images == 0 or classes < 2:
        return False
    chance = 1 / classes
    limit = chance + 3 * math.sqrt(chance * (1 - chance) / images)
    return int(confusion.trace()) <= max(limit * images, float(confusion.sum(axis=1).max()))


def lost(losses: Sequence[float], before: float | None, *, classes: int) -> bool:
    """Whether losses, which clients report of the model that they were sent, say that the round before has spoilt it.

    Their median, so that less than half of the clients cannot make it up: 1.5 times the median of the round before, and
    no better than guessing, log(classes).
    """
    if before is None or len(losses) < OWN_WORK:
        return False
    now = float(np.median(losses))
    return now > RISE * before and now >= math.log(max(classes, 2))


def one_round_less(aside: Mapping[int, int]) -> dict[int, int]:
    return {client: rounds - 1 for client, rounds in aside.items() if rounds > 1}
