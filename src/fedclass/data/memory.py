"""Exemplars: the few images of earlier tasks that a client keeps and replays. They never leave it."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedclass.data.partition import Index
from fedclass.data.quotas import balanced_quotas
from fedclass.errors import ConfigError

Select = Literal["random", "herding", "herding-pycil", "first"]
HERDING = ("herding", "herding-pycil")  # those that need the model's features


@dataclass(frozen=True, kw_only=True)
class MemorySettings:
    """Table [memory]. The budget is the total per client, or per class; 0 keeps nothing."""

    per_client: Annotated[int | None, Field(ge=0, description="exemplars a client keeps in all")] = 50
    per_class: Annotated[int | None, Field(ge=0, description="exemplars a client keeps of each class")] = None
    quota: Annotated[
        Literal["even", "floor", "balanced"],
        Field(
            description="per_client: divided by the classes that the client has met, the remainder to the first ones; "
            "by all that have arrived, rounded down; or as the server says, which clients tell their class counts, so "
            "that all exemplars together are balanced"
        ),
    ] = "even"
    select: Annotated[Select, Field(description="which images become exemplars")] = "random"

    @property
    def keeps(self) -> bool:
        return bool(self.per_class if self.per_class is not None else self.per_client)

    @property
    def asks_counts(self) -> bool:
        """Whether clients report how many images of each class they hold."""
        return self.quota == "balanced" and self.keeps

    def quotas(self, classes: list[int], arrived: int) -> dict[int, int]:
        """How many exemplars of each class a client that has met `classes` (in order of arrival) may keep.

        A total budget is divided evenly among them; the remainder goes to those that came first. With "floor", as in
        the authors' release, a class gets the budget divided by all `arrived` classes, met or not, rounded down. With
        "balanced", this is the fallback of a client that has no quotas from the server.
        """
        if self.per_class is not None:
            return dict.fromkeys(classes, self.per_class)
        if self.quota == "floor":
            return dict.fromkeys(classes, (self.per_client or 0) // arrived)
        share, rest = divmod(self.per_client or 0, max(len(classes), 1))
        return {label: share + (i < rest) for i, label in enumerate(classes)}


@dataclass(frozen=True)
class Exemplars:
    """The images kept of each class, most important first: a smaller quota keeps a prefix."""

    of_class: Mapping[int, Index] = field(default_factory=dict)

    @property
    def index(self) -> Index:
        kept = [images for _, images in sorted(self.of_class.items())]
        return np.concatenate(kept) if kept else np.empty(0, np.int64)

    def __len__(self) -> int:
        return sum(map(len, self.of_class.values()))


def remember(
    exemplars: Exemplars,
    arrived: Index,
    targets: Index,
    settings: MemorySettings,
    rank: Callable[[int, Index, int], Index],
    *,
    classes: int,
    quotas: Sequence[int] | None = None,
) -> Exemplars:
    """The exemplars after a task: the old ones, cut to the new quotas, and the best of the new images.

    classes: how many have arrived so far, whether the client has met them or not.  quotas: of each class, if the server
    sets them.  rank(label, images, count): the `count` most important ones of `images`, in order.
    """
    labels = targets[arrived]
    seen = sorted({*exemplars.of_class, *labels.tolist()})
    allowed = settings.quotas(seen, classes) if quotas is None else {label: quotas[label] for label in seen}
    kept = {}
    for label, quota in allowed.items():
        old, new = exemplars.of_class.get(label), arrived[labels == label]
        if old is None:
            kept[label] = rank(label, new, min(quota, len(new)))
        else:  # a class seen before: its first exemplars stay
            kept[label] = np.concatenate([old, np.setdiff1d(new, old)])[:quota] if len(new) else old[:quota]
    return Exemplars(kept)


def available(exemplars: Exemplars, arrived: Index, targets: Index, *, classes: int) -> Index:
    """(classes,): how many images of each class a client could keep: its exemplars and newer images."""
    return np.bincount(targets[np.union1d(exemplars.index, arrived)], minlength=classes)


def herd(features: NDArray[np.float32], count: int, *, unit_means: bool = True) -> Index:
    """Herding (iCaRL, Alg. 4): pick, one by one, the row that brings the mean of the picked closest to that of all.

    unit_means: every mean is scaled to unit length, as the paper's text has it (section 2); PyCIL does not do so.

    features: (n, D), rows of unit length.  Returns `count` positions, in the order in which they were picked.
    """

    def scaled(means: NDArray[np.float64]) -> NDArray[np.float64]:
        if not unit_means:
            return means
        lengths: NDArray[np.float64] = np.linalg.norm(means, axis=-1, keepdims=True)
        return means / np.maximum(lengths, np.finfo(np.float64).tiny)

    mean = scaled(features.mean(axis=0, dtype=np.float64))
    total = np.zeros_like(mean)
    free = np.ones(len(features), dtype=bool)
    picked = np.empty(count, np.int64)
    for k in range(count):
        distance = np.linalg.norm(mean - scaled((total + features) / (k + 1)), axis=1)
        picked[k] = np.argmin(np.where(free, distance, np.inf))
        free[picked[k]] = False
        total += features[picked[k]]
    return picked


def remarks(
    settings: MemorySettings,
    counts: NDArray[np.int64],
    task_sizes: tuple[int, ...],
    *,
    offered: tuple[int, ...] | None = None,
) -> list[str]:
    """Warnings about a budget, which is an upper limit, as the last task begins. See `exemplar_counts_by_class`."""
    if len(task_sizes) < 2 or not settings.keeps:
        return []
    found = []
    had = counts[:, : -task_sizes[-1]]
    kept = exemplar_counts_by_class(settings, counts, task_sizes, offered=offered)[-2, :, : had.shape[1]]
    name = "per_client" if settings.per_class is None else "per_class"
    budget = f"memory.{name} = {getattr(settings, name)}"
    if (kept == had).all():
        found.append(f"{budget} is never reached: every client keeps all its images of earlier tasks")
    lacking = int(((kept == 0) & (had > 0)).any(axis=1).sum())
    if lacking:
        found.append(
            f"{budget} is less than one exemplar for each class: {lacking} of {len(counts)} clients keep none of a "
            "class that they have had"
        )
    return found


def exemplar_counts(
    settings: MemorySettings,
    counts: NDArray[np.int64],
    task_sizes: tuple[int, ...],
    *,
    offered: tuple[int, ...] | None = None,
) -> NDArray[np.int64]:
    """(clients, tasks): how many exemplars each client will keep after each task. See `exemplar_counts_by_class`."""
    kept: NDArray[np.int64] = exemplar_counts_by_class(settings, counts, task_sizes, offered=offered).sum(axis=2)
    return kept.T


def exemplar_counts_by_class(
    settings: MemorySettings,
    counts: NDArray[np.int64],
    task_sizes: tuple[int, ...],
    *,
    offered: tuple[int, ...] | None = None,
) -> NDArray[np.int64]:
    """(tasks, clients, classes): how many exemplars of each class each client will keep after each task.

    counts: (clients, classes).  offered: how many classes of each task a client may have images of; None: all.
    """
    offered = task_sizes if offered is None else offered
    after = np.zeros((len(task_sizes), *counts.shape), np.int64)
    kept = np.zeros_like(counts)
    for task in range(len(task_sizes)):
        until = sum(task_sizes[: task + 1])
        kept[:, until - task_sizes[task] : until] = counts[:, until - task_sizes[task] : until]
        if settings.quota == "balanced":
            kept = balanced_quotas(kept, np.full(len(counts), settings.per_client or 0))
        else:
            for client, row in enumerate(counts):
                quotas = settings.quotas(np.flatnonzero(row[:until]).tolist(), sum(offered[: task + 1]))
                for label, quota in quotas.items():
                    kept[client, label] = min(quota, kept[client, label])
        after[task] = kept
    return after


def check_fewest(
    settings: MemorySettings,
    counts: NDArray[np.int64],
    task_sizes: tuple[int, ...],
    classes: Sequence[str],
    fewest: int,
    otherwise: str,
    *,
    offered: tuple[int, ...] | None = None,
) -> None:
    """Refuse budgets that leave, after some task, no client with `fewest` exemplars of some class.

    otherwise: another remedy, for the message.  counts, offered: as in `exemplar_counts_by_class`.
    """

    def lacking(per_client: int | None, per_class: int | None) -> tuple[int, int] | None:
        """The first task after which a class has too few, and that class."""
        tried = replace(settings, per_client=per_client, per_class=per_class)
        most = exemplar_counts_by_class(tried, counts, task_sizes, offered=offered).max(axis=1)
        for task, row in enumerate(most):
            short = np.flatnonzero(row[: sum(task_sizes[: task + 1])] < fewest)
            if len(short):
                return task, int(short[0])
        return None

    found = lacking(settings.per_client, settings.per_class)
    if found is None:
        return
    task, label = found
    most = counts.shape[1] * int(counts.max())
    if lacking(most, None) is not None:
        scarce = int(np.flatnonzero(counts.max(axis=0) < fewest)[0])
        raise ConfigError(
            f"[partition] no client has {fewest} images of class {classes[scarce]!r}, of which this method needs "
            f"{fewest} exemplars at one client; let fewer clients share the data, or {otherwise}"
        )
    least = bisect_left(range(most), True, key=lambda budget: lacking(budget, None) is None)
    key = "per_client" if settings.per_class is None else "per_class"
    raise ConfigError(
        f"[memory] {key} = {getattr(settings, key)} leaves no client with {fewest} exemplars of class "
        f"{classes[label]!r} after task {task + 1}, and this method needs them; the smallest memory that works is "
        f"per_client = {least} or per_class = {fewest}; or {otherwise}"
    )
