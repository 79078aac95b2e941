"""Signs of hostile updates that need no images: which to leave out, and when a model is lost."""

import math
from collections.abc import Collection, Mapping, Sequence
from statistics import NormalDist

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
FEWEST_CLASSES = 3  # in common: two can only be right or swapped
BY_CHANCE = 1.0  # deviations of an agreement on labels, of what permuted labels would have
MISTAKES = 0.05  # share of rounds in which noise may make an honest client's labels look permuted
ROUNDING = 1e-9  # of cosines


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


def labels_in_common(rows: Tensor, others: Tensor) -> float:
    """Whether two heads mean the same by each label: z = (T - E[T]) / sd[T], T the sum of cos(a_c, b_c) over classes.

    E and sd are those of T if the labels of one of them were permuted at random, so that noise has its part in both.
    With s_cd = cos(a_c, b_d), less the means of its row and column and plus that of all: z = sum_c s_cc / sd, and
    sd^2 = sum_cd s_cd^2 / (k - 1) (Hoeffding 1951). Of k classes that move at right angles to each other, and alike in
    both heads, z is k - 1. Rows that all move the same way say nothing about labels: z = 0.

    rows, others: (k, features), how the rows of classes that both hold have moved.
    """
    s = normalize(rows, dim=1) @ normalize(others, dim=1).T
    s = s - s.mean(dim=0) - s.mean(dim=1, keepdim=True) + s.mean()
    spread = (s.square().sum() / (len(s) - 1)).sqrt()
    return float(s.trace() / spread) if spread > ROUNDING else 0.0


def mislabelled(heads: Sequence[Tensor], holds: Sequence[Collection[int]], *, most: int) -> list[int]:
    """Positions of clients whose labels have nothing to do with those on which the others agree.

    Each client's head is compared with the sum of the others' unit rows, over the k classes that it has in common with
    any of them: z says whether its labels are better than permuted ones, r = z / (k - 1) how well it agrees. Were it
    like the others, z would be m (k - 1) with a deviation of 1 at most, m the median of their r. A client is left out
    if z is below 1, as by chance, and below m (k - 1) by so much that of n honest clients noise would bring any one
    there in one round of twenty. Whoever has fewer than three classes in common with the others says nothing.

    The worse half of those found is left out, and the rest are looked at again: hostile heads are part of the sum.

    heads: (classes, features) each, moves without frequencies.  holds: the classes of each client.
    """
    left, found = list(range(len(heads))), list[int]()
    units = [normalize(head, dim=1) for head in heads]
    has = torch.zeros(len(heads), len(heads[0]) if heads else 0, dtype=torch.bool)
    for i, labels in enumerate(holds):
        has[i, [label for label in labels if label < has.shape[1]]] = True
    while len(found) < most and len(left) >= OWN_WORK:
        total = sum((units[i] * has[i, :, None] for i in left), torch.zeros_like(units[0]))
        holders = has[left].sum(dim=0)
        z, classes = torch.full((len(left),), math.nan).double(), torch.zeros(len(left)).double()
        for at, i in enumerate(left):
            both = has[i] & (holders > 1)
            if (k := int(both.sum())) >= FEWEST_CLASSES:
                z[at], classes[at] = labels_in_common(units[i][both], (total - units[i])[both]), k - 1
        below = _medians_of_others(z / classes) * classes - z
        limit = NormalDist().inv_cdf(1 - MISTAKES / len(left))
        suspects = [at for at in range(len(left)) if z[at] < BY_CHANCE and below[at] > limit]  # NaN is neither
        if not suspects:
            break
        worst = sorted(suspects, key=lambda at: (-float(below[at]), at))[
            : min((len(suspects) + 1) // 2, most - len(found))
        ]
        found += [left[at] for at in worst]
        left = [i for at, i in enumerate(left) if at not in worst]
    return sorted(found)


def _medians_of_others(values: Tensor) -> Tensor:
    """For each, the median of the others that are numbers: of all but itself. (n,) -> (n,); NaN where there is none."""
    known = values[~values.isnan()].sort().values
    if len(known) < 2:
        return torch.full_like(values, math.nan)
    places = torch.searchsorted(known, values).clamp(max=len(known) - 1)
    middle = (len(known) - 2) / 2  # of what is left, one fewer
    lower, upper = math.floor(middle), math.ceil(middle)
    return (known[lower + (places <= lower).long()] + known[upper + (places <= upper).long()]) / 2


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
