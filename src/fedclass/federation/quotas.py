"""Exemplar quotas set by the server (memory.quota = "balanced"): what clients report, and what they get."""

from collections.abc import Iterable

import numpy as np
import torch

from fedclass.data.memory import Exemplars, MemorySettings, available
from fedclass.data.partition import Index
from fedclass.data.quotas import balanced_quotas
from fedclass.errors import ClientError
from fedclass.methods.declare import Sizes, Spec, misfit
from fedclass.wire import Job, Update

# How many images of each class a client could keep, and its budget in all.
AVAILABLE = {"available": Spec(("classes",), torch.int64), "budget": Spec((), torch.int64)}
MOST = 2**40  # no client has more images


def counted(
    job: Job, exemplars: Exemplars, arrived: Index, targets: Index, memory: MemorySettings, classes: int
) -> Update:
    """A client's answer: class counts of its exemplars and of what has arrived since they were chosen."""
    counts = torch.from_numpy(available(exemplars, arrived, targets, classes=classes))
    return Update(
        client=job.client,
        task=job.task,
        round=job.round,
        weights={},
        examples=int(counts.sum()),
        metrics={},
        extras={"available": counts, "budget": torch.tensor(memory.per_client or 0)},
    )


def check_quotas(job: Job, memory: MemorySettings) -> None:
    """A client keeps no more than its own budget, whatever the server says."""
    if job.quotas is not None and sum(job.quotas) > (memory.per_client or 0):
        raise ClientError(
            f"{job.where}: the server's quotas add up to {sum(job.quotas)} exemplars, but memory.per_client is "
            f"{memory.per_client}"
        )


def counts_flaw(update: Update, sizes: Sizes) -> str | None:
    """Why the server rejects such an answer, or None."""
    if (fault := misfit(update.extras, AVAILABLE, sizes, every=True)) is not None:
        return fault
    if any(bool((part < 0).any() or (part > MOST).any()) for part in update.extras.values()):
        return "image counts are negative or too large"
    return None


def divided(answers: Iterable[Update], per_client: int) -> dict[int, tuple[int, ...]]:
    """How many exemplars of each class each answering client may keep; at most `per_client` in all."""
    said = sorted(answers, key=lambda update: update.client)
    if not said:
        return {}
    held = np.stack([update.extras["available"].numpy() for update in said])
    budgets = np.array([int(update.extras["budget"]) for update in said])
    quotas = balanced_quotas(held, np.minimum(budgets, per_client))
    return {update.client: tuple(row) for update, row in zip(said, quotas.tolist(), strict=True)}
