"""Signs of hostile updates that need no images: which to leave out, and when a model is lost."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedclass.models.incremental import IncrementalModel
from fedclass.wire import Weights

ASIDE = 5  # rounds that a suspect is not asked
RISE = 1.5  # times the median loss of the previous round: then the model that was sent has been spoilt
ALIKE = 1e-5  # relative difference below which outputs for different images count as equal
IDLE, FAR = 0.1, 2.0  # times the median length
ABSURD = 0.25  # of the model's own length
LOPSIDED = 0.5  # mean sign: three quarters one way
OWN_WORK = 3  # fewer updates have no majority to agree with


# Which of a round's updates to leave out. moves: (n, P), a row per update, from the model that was sent.


def agreement(moves: Tensor) -> Tensor:
    """How far each update goes the way of the others: the median over j != i of cos(m_i, m_j). Returns (n,).

    A median, so that fewer than half cannot decide it.
    """
    units = normalize(moves, dim=1)
    n = len(moves)
    others = (units @ units.T)[~torch.eye(n, dtype=torch.bool)].reshape(n, n - 1)
    return others.quantile(0.5, dim=1)


def without_frequencies(rows: Tensor, bias: Tensor) -> Tensor:
    """The part of a head's move on which honest clients agree: what classes look like, not how frequent they are.

    A step of cross-entropy moves the bias of class c by sum_x r_c(x), and its row by sum_x r_c(x) f(x), with the
    residuals r = 1[y = c] - p_c and the features f. Where a class is frequent, residuals are positive on the whole, and
    where it is rare, negative: along the mean feature, clients with uneven shares move rows in opposite directions.
    That part goes with the bias. Left is w_c - b_c m, where m = sum_c b_c w_c / sum_c b_c^2 (least squares).

    rows: (classes, features).  bias: (classes,).  Returns (classes, features).
    """
    squares = bias.square().sum()
    return rows if squares == 0 else rows - torch.outer(bias, bias @ rows / squares)


def out_of_scale(lengths: Tensor, examples: Tensor, *, model: float) -> Tensor:
    """Whether updates hardly move and so slow the others down, or move absurdly far: (n,) of bool.

    Below a tenth of the median length; or above twice the median, and a quarter of the model's own length. The
    former limit grows with the examples above their median: more images take more steps. The latter leaves honest
    clients alone once most have little to learn, and the median is next to nothing.

    model: length of the weights that were sent.
    """
    usual = lengths.quantile(0.5)
    more = (examples / examples.quantile(0.5)).clamp(min=1)
    return (lengths < IDLE * usual) | ((lengths > FAR * usual * more) & (lengths > ABSURD * model))


def lopsided(moves: Tensor) -> Tensor:
    """Whether more than three quarters of an update's numbers rise, or fall: (n,) of bool.

    Training moves about as many up as down. "A little is enough" moves all one way (Xu et al. 2022 look at signs too).
    """
    return moves.sign().mean(dim=1).abs() > LOPSIDED


def left_out(agreements: Tensor, odd: Tensor, *, most: int) -> list[int]:
    """Positions of updates that are odd, or go against the others if most go the same way: the `most` worst at most."""
    against = (agreements < 0) & (agreements.quantile(0.5) > 0)
    worst = torch.argsort(agreements.masked_fill(odd, -2.0), stable=True)[:most]
    return sorted(int(i) for i in worst if odd[i] or against[i])


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
