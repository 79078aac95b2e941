"""How a round's updates become their mean: the recipe's table [aggregation].

Independent of methods: `ServerContext.mean` is an Aggregation. Only weights pass through here; other uploads of a
method (SCAFFOLD's control variates, FedICARL's class means) do not.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, Protocol

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from fedclass.federation.guards import (
    OWN_WORK,
    agreement,
    left_out,
    lopsided,
    mislabelled,
    out_of_scale,
    without_frequencies,
)
from fedclass.models.head import BIAS, ROWS, in_head
from fedclass.models.weights import Layout, Packed, weighted_mean
from fedclass.wire import Update, Weights

# Geometric median: nu relative to the largest distance, the change of weights at which it stops, the most steps.
SMOOTHED, CLOSE, MOST_STEPS = 1e-6, 1e-10, 10_000
STANDS_OUT = 3.0  # times the median
CLIP_NORM = 2.0  # times the median
Rule = Literal["mean", "trimmed-mean", "median", "geometric-median", "multi-krum"]


@dataclass(frozen=True, kw_only=True)
class AggregationSettings:
    """Table [aggregation]. All but the plain mean hold a round's updates in memory together."""

    rule: Annotated[
        Rule, Field(description="mean: by examples; the robust ones count all updates alike, and heads by holders")
    ] = "mean"
    hostile: Annotated[
        float, Field(ge=0, lt=0.5, description="trimmed-mean, multi-krum, screen: share of updates that may be hostile")
    ] = 0.25
    clip_norm: Annotated[
        float | None,
        Field(
            ge=0,
            description="longest update, as a multiple of the round's median; 0: no limit; "
            "not given: 0 in a simulation, 2 where classes come from sites",
        ),
    ] = None
    max_examples: Annotated[int, Field(ge=0, description="as many examples count at most; 0: no limit")] = 0
    screen: Annotated[
        bool | None,
        Field(
            description="leave out updates that go against the others, hardly move, or move absurdly; "
            "not given: false in a simulation, true where classes come from sites"
        ),
    ] = None

    def among_strangers(self) -> "AggregationSettings":
        """With defences on, unless the recipe says otherwise: sites may be hostile, simulated clients are not."""
        clip = CLIP_NORM if self.clip_norm is None else self.clip_norm
        return replace(self, clip_norm=clip, screen=True if self.screen is None else self.screen)

    @property
    def plain(self) -> bool:
        """Nothing is done about hostile clients."""
        return self.rule == "mean" and not self.clip_norm and not self.screen


def guarded_against(updates: int, share: float) -> int:
    """f: how many of the updates may be hostile; always less than half of them."""
    return min(math.ceil(share * updates), (updates - 1) // 2)


# The rules. rows: (n, P) float64, an update each. They return (P,).


def mean(rows: Tensor) -> Tensor:
    return rows.mean(dim=0)


def trimmed_mean(rows: Tensor, *, hostile: float) -> Tensor:
    """Each coordinate's mean without its f largest and f smallest values (Yin et al. 2018)."""
    f = guarded_against(len(rows), hostile)
    return rows.sort(dim=0).values[f : len(rows) - f].mean(dim=0)


def median(rows: Tensor) -> Tensor:
    """Each coordinate's median; of an even number, the mean of the two in the middle (Yin et al. 2018)."""
    ordered, n = rows.sort(dim=0).values, len(rows)
    return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2


def geometric_median(rows: Tensor) -> Tensor:
    """The point with the least sum of distances to the rows, by smoothed Weiszfeld steps (Pillutla et al. 2022).

    It is a mean of the rows with weights a, from a = 1 / n on:  a_i <- 1 / max(d_i, nu), made to sum to 1, where
    d_i is the distance from row i to the mean. Distances follow from the rows' inner products alone.
    """
    around = rows - rows.mean(dim=0)
    inner = around @ around.T
    scale = inner.diagonal().max().sqrt()
    weights = torch.full((len(rows),), 1 / len(rows), dtype=rows.dtype)
    if scale == 0:
        return rows[0]
    for _ in range(MOST_STEPS):
        squares = inner.diagonal() - 2 * inner @ weights + weights @ inner @ weights
        after = 1 / squares.clamp(min=0).sqrt().clamp(min=SMOOTHED * scale)
        after /= after.sum()
        change, weights = (after - weights).abs().max(), after
        if change <= CLOSE:
            break
    return weights @ rows


def multi_krum(rows: Tensor, *, hostile: float) -> Tensor:
    """The mean of the n - f rows with the lowest scores (Blanchard et al. 2017).

    A row's score is the sum of squared distances to its n - f - 2 nearest others, to one at least.
    Their proof needs n >= 2 f + 3.
    """
    n = len(rows)
    if n < 3:
        return mean(rows)
    f = guarded_against(n, hostile)
    apart = torch.stack([(rows - row).square().sum(dim=1) for row in rows])
    apart.fill_diagonal_(torch.inf)
    scores = apart.sort(dim=1).values[:, : max(n - f - 2, 1)].sum(dim=1)
    chosen = scores.argsort(stable=True)[: n - f].sort().values
    return rows[chosen].mean(dim=0)


def _rule(settings: AggregationSettings) -> Callable[[Tensor], Tensor]:
    def chosen(rows: Tensor) -> Tensor:
        match settings.rule:
            case "mean":
                return mean(rows)
            case "trimmed-mean":
                return trimmed_mean(rows, hostile=settings.hostile)
            case "median":
                return median(rows)
            case "geometric-median":
                return geometric_median(rows)
            case "multi-krum":
                return multi_krum(rows, hostile=settings.hostile)

    return chosen


# Norms.


def distances(weights: Weights, before: Weights) -> list[float]:
    """Distance of an update from the model that it began with, for each kind of tensor: parameters, statistics, ..."""
    start = Packed.of(before)
    here = Packed.of(weights, start.layout)
    pairs = zip(here.sections, start.sections, strict=True)
    return [float(torch.dist(a.float(), b.float())) for a, b in pairs if a.is_floating_point()]


def standing_out(moved: Mapping[int, Sequence[float]], examples: Mapping[int, int]) -> list[int]:
    """Clients whose update is far longer than the others', in any kind of tensor, or claims far more examples."""
    columns = [*zip(*moved.values(), strict=True), tuple(examples[client] for client in moved)]
    limits = [STANDS_OUT * float(np.median(column)) for column in columns]
    rows = zip(moved, zip(*columns, strict=True), strict=True)
    return [client for client, row in rows if any(value > limit for value, limit in zip(row, limits, strict=True))]


def clip_factors(norms: Sequence[float], *, most: float) -> list[float]:
    """Factors for updates, so that none is longer than `most` times the median length."""
    limit = most * float(np.median(norms))
    return [limit / norm if norm > limit else 1.0 for norm in norms]


class Claims(Protocol):
    """What the server knows about a client's images besides its update."""

    def holds(self, client: int, task: int, round: int) -> Collection[int]:
        """The classes of which it has images as this round begins, by number."""

    def most_examples(self, client: int) -> int | None:
        """The most images it can have by its own announcement; None if it has made none."""


class Aggregation:
    """The mean of a round.

    before: the model that it began with.  at: task and round.  clipped: clients whose update was shortened; screened:
    whose was left out.
    """

    def __init__(self, settings: AggregationSettings, before: Weights, claims: Claims, *, at: tuple[int, int]) -> None:
        self.settings, self.before, self.claims, self.at = settings, before, claims, at
        self.clipped: list[int] = []
        self.screened: list[int] = []

    def __call__(self, updates: Iterable[Update]) -> Weights:
        counted = (replace(update, examples=self._examples(update)) for update in updates)
        if self.settings.plain:
            return weighted_mean((update.weights, update.examples) for update in counted)
        together = list(counted)
        if not together:
            raise ValueError("a mean needs at least one update")
        start = Packed.of(self.before)
        packed = [Packed.of(update.weights, start.layout) for update in together]
        if self.settings.screen and len(together) >= OWN_WORK:
            away = self._away(together, packed, start)
            self.screened = [together[at].client for at in away]
            staying = [at for at in range(len(together)) if at not in away]
            together, packed = [together[at] for at in staying], [packed[at] for at in staying]
        if self.settings.clip_norm:
            packed = self._shortened([update.client for update in together], packed, start)
        if self.settings.rule == "mean":
            return weighted_mean(zip(packed, [update.examples for update in together], strict=True))
        holders = [frozenset(self.claims.holds(update.client, *self.at)) for update in together]
        return _combined(packed, holders, _rule(self.settings))

    def _away(self, updates: Sequence[Update], packed: Sequence[Packed], start: Packed) -> list[int]:
        """Positions of updates to leave out: by size and direction, then, of the rest, by their labels."""
        most = guarded_against(len(updates), self.settings.hostile)
        heads = [_head_move(one, start) for one in packed]
        away = _odd(packed, start, heads, [update.examples for update in updates], most=most)
        rest = [at for at in range(len(updates)) if at not in away]
        holds = [self.claims.holds(updates[at].client, *self.at) for at in rest]
        wrong = mislabelled([heads[at] for at in rest], holds, most=most - len(away))
        return sorted([*away, *(rest[at] for at in wrong)])

    def _examples(self, update: Update) -> int:
        limits = (self.settings.max_examples, self.claims.most_examples(update.client))
        return min([update.examples, *(limit for limit in limits if limit)])

    def _shortened(self, clients: Sequence[int], packed: Sequence[Packed], start: Packed) -> list[Packed]:
        """Clip each kind of tensor separately: running statistics can spoil a model as parameters can."""
        assert self.settings.clip_norm
        whole = list(packed)
        found: set[int] = set()
        for number, first in enumerate(start.sections):
            if not first.is_floating_point():
                continue
            moves = [one.sections[number].double() - first.double() for one in whole]
            factors = clip_factors([float(move.norm()) for move in moves], most=self.settings.clip_norm)
            for at, (move, factor) in enumerate(zip(moves, factors, strict=True)):
                if factor < 1:
                    found.add(clients[at])
                    sections = list(whole[at].sections)
                    sections[number] = (first.double() + factor * move).to(first.dtype)
                    whole[at] = Packed(start.layout, sections)
        self.clipped = sorted(found)
        return whole


def _odd(
    packed: Sequence[Packed], start: Packed, heads: Sequence[Tensor], examples: Sequence[int], *, most: int
) -> list[int]:
    """Positions of updates whose moves are of an odd size, or go against the others'.

    Directions are those of the backbone and of the head, in equal parts; sizes are the backbone's alone, since the head
    of whoever alone holds a new class moves farther than the others'.
    """
    before = _backbone(start)
    backbones = torch.stack([_backbone(one) for one in packed]) - before
    rows = torch.stack([head.flatten() for head in heads])
    agreements = agreement(torch.cat([normalize(backbones, dim=1), normalize(rows, dim=1)], dim=1))
    counts = torch.tensor(examples, dtype=torch.float64)
    sizes = out_of_scale(backbones.norm(dim=1), counts, model=float(before.norm()))
    return left_out(agreements, sizes | lopsided(backbones), most=most)


def _backbone(weights: Packed) -> Tensor:
    """All trained numbers but the head's; none if the backbone is frozen."""
    trained = weights.layout.slots[ROWS].section
    names = [name for name, slot in weights.layout.slots.items() if slot.section == trained and not in_head(name)]
    return torch.cat([torch.empty(0, dtype=torch.float64), *(weights[name].flatten().double() for name in names)])


def _head_move(weights: Packed, start: Packed) -> Tensor:
    rows, bias = (weights[name].double() - start[name].double() for name in (ROWS, BIAS))
    return without_frequencies(rows, bias)


def _combined(packed: Sequence[Packed], holders: Sequence[frozenset[int]], rule: Callable[[Tensor], Tensor]) -> Packed:
    """Combine updates by the rule, each kind of tensor separately; rows of the head over clients that hold the class.

    The only holder of a class is naturally an outlier, and must not be outvoted. Rows of a class without a holder are
    combined over all updates. Integers (BatchNorm's step counters) take the maximum.
    """
    layout = packed[0].layout
    rows_of = _head_positions(layout)
    sections = []
    for number, (dtype, *_) in enumerate(layout.sections):
        stacked = torch.stack([one.sections[number] for one in packed])
        if not dtype.is_floating_point:
            sections.append(stacked.amax(dim=0))
            continue
        rows = stacked.double()
        result, backbone = torch.empty_like(rows[0]), torch.ones(rows.shape[1], dtype=torch.bool)
        for members, classes in _by_holders(holders, len(rows_of[number])).items():
            places = torch.cat([rows_of[number][label] for label in classes])
            backbone[places] = False
            result[places] = rule(rows[list(members)][:, places])
        result[backbone] = rule(rows[:, backbone])
        sections.append(result.to(dtype))
    return Packed(layout, sections)


def _head_positions(layout: Layout) -> list[list[Tensor]]:
    """For each section, the positions of each class's values."""
    numbers = [torch.arange(length) for _, length, _ in layout.sections]
    found: list[list[Tensor]] = [[] for _ in layout.sections]
    for name, slot in layout.slots.items():
        if in_head(name):
            rows = slot.view(numbers).reshape(slot.shape[0], -1)
            before = found[slot.section] or [torch.empty(0, dtype=torch.int64)] * len(rows)
            found[slot.section] = [torch.cat(pair) for pair in zip(before, rows, strict=True)]
    return found


def _by_holders(holders: Sequence[frozenset[int]], classes: int) -> dict[tuple[int, ...], list[int]]:
    """Classes grouped by the positions of their holders' updates; without holders, by all positions."""
    found: dict[tuple[int, ...], list[int]] = {}
    everyone = tuple(range(len(holders)))
    for label in range(classes):
        members = tuple(at for at in everyone if label in holders[at]) or everyone
        found.setdefault(members, []).append(label)
    return found
