"""Signs of hostile updates that need no images: who points away, and when a model is lost."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedclass.models.incremental import IncrementalModel
from fedclass.wire import Weights

ASIDE = 5  # rounds that a suspect is not asked
RISE = 1.5  # times the median loss of the previous round: then the model that was sent has been spoilt
ALIKE = 1e-5  # relative difference below which outputs for different images count as equal
IDLE = 0.1  # of the median length
OWN_WORK = 3  # fewer updates have no majority to agree with


def agreement(moves: Tensor) -> Tensor:
    """How far each update goes the way of the others: the median over j != i of cos(m_i, m_j).

    moves: (n, P), from the model that was sent.  Returns (n,). A median, so that fewer than half cannot decide it. An
    update shorter than a tenth of the median length contributes nothing and slows the others down: it gets -1.
    """
    units = torch.nn.functional.normalize(moves, dim=1)
    n = len(moves)
    others = (units @ units.T)[~torch.eye(n, dtype=torch.bool)].reshape(n, n - 1)
    lengths = moves.norm(dim=1)
    idle = lengths < IDLE * lengths.quantile(0.5)
    return others.quantile(0.5, dim=1).masked_fill(idle, -1.0)


def pointing_away(agreements: Tensor, *, most: int) -> list[int]:
    """Positions of updates that go against the others, if most go the same way: the `most` worst at most."""
    if float(agreements.quantile(0.5)) <= 0:
        return []
    found = torch.argsort(agreements, stable=True)[:most]
    return sorted(int(i) for i in found if agreements[i] < 0)


@torch.no_grad()
def constant(model: IncrementalModel, weights: Weights, images: Tensor) -> bool:
    """Whether the outputs are the same for all of these (different) images, so that the model ignores its input."""
    model.load(weights)
    outputs = model.eval()(images).double()
    spread = (outputs - outputs[0]).abs().max()
    return bool(spread <= ALIKE * outputs.abs().max()) and outputs.shape[1] > 1


def at_chance(confusion: np.ndarray) -> bool:
    """Whether a model is no better than a guess: not above the share of the largest class, or within three standard
    deviations of an even guess.
    """
    images, classes = int(confusion.sum()), len(confusion)
    if images == 0 or classes < 2:
        return False
    chance = 1 / classes
    limit = chance + 3 * math.sqrt(chance * (1 - chance) / images)
    return int(confusion.trace()) <= max(limit * images, float(confusion.sum(axis=1).max()))


def lost(losses: Sequence[float], before: float | None, *, classes: int) -> bool:
    """Whether the losses that clients report for the received model show that the previous round has spoilt it.

    Their median counts, so that fewer than half of the clients cannot fake it. It must be above 1.5 times the previous
    round's median, and no better than guessing, log(classes).
    """
    if before is None or len(losses) < OWN_WORK:
        return False
    now = float(np.median(losses))
    return now > RISE * before and now >= math.log(max(classes, 2))


def one_round_less(aside: Mapping[int, int]) -> dict[int, int]:
    return {client: rounds - 1 for client, rounds in aside.items() if rounds > 1}
