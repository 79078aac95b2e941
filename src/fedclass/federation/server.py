"""The server's part of a round: whom to ask, and which answers can be used."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedclass.federation.hooks import failures_named
from fedclass.federation.quotas import counts_flaw
from fedclass.methods.base import Method
from fedclass.methods.declare import Sizes, misfit
from fedclass.models.head import ROWS
from fedclass.models.incremental import IncrementalModel
from fedclass.models.weights import flaw
from fedclass.rng import array_generator
from fedclass.wire import Job, Update, Weights, nbytes


def sample(clients: Sequence[int], *, participation: float, seed: int, task: int, round: int) -> list[int]:
    """The clients of a round, in order; at least one. The draw depends on seed, task and round alone."""
    count = max(1, math.floor(participation * len(clients) + 0.5))
    if count >= len(clients):
        return sorted(clients)
    chosen = array_generator(seed, "sample", "task", task, "round", round).choice(len(clients), count, replace=False)
    return sorted(clients[i] for i in chosen)


@dataclass(frozen=True)
class Missing:
    """What an engine passes on in place of an Update that did not arrive."""

    client: int
    reason: str


def breakage(model: IncrementalModel, weights: Weights, before: Weights, images: Tensor) -> str | None:
    """Why these weights would break a model that worked before, or None.

    images: of any content, such as noise; outputs for them must be finite. A model whose outputs were not finite
    before is not considered broken.
    """
    if (fault := flaw(weights, before)) is not None:
        return fault
    if not _gives_numbers(model, weights, images) and _gives_numbers(model, before, images):
        return "the model's outputs would be NaN or infinite"
    return None


@torch.no_grad()
def _gives_numbers(model: IncrementalModel, weights: Weights, images: Tensor) -> bool:
    model.load(weights)
    return bool(torch.isfinite(model.eval()(images)).all())


MOST_EXAMPLES = 2**40  # no client has more images; a larger count would outweigh all others


def rejection(update: Update, job: Job, method: Method, sizes: Sizes) -> str | None:
    """Why the server rejects this update, or None."""
    if (update.client, update.task, update.round) != (job.client, job.task, job.round):
        return f"answers for client {update.client}, task {update.task}, round {update.round}"
    fewest = 1 if job.phase == "train" else 0
    if type(update.examples) is not int or not fewest <= update.examples <= MOST_EXAMPLES:
        return f"claims {update.examples} examples"
    expected = {"train": {"loss", "samples"}, "end_task": {"exemplars"}}.get(job.phase, set())
    if not math.isfinite(update.metrics.get("loss", 0.0)):
        return f"{type(method).__name__}.loss: its mean over the round is {update.metrics['loss']}, not a finite number"
    sane = all(math.isfinite(value) for value in update.metrics.values())
    if update.metrics.keys() != expected or not sane or update.metrics.get("samples", 0) < 0:
        return f"reports {dict(update.metrics)}"
    if job.phase == "evaluate":
        return _counts_flaw(update, classes=sizes.classes)
    if job.phase == "count":
        return counts_flaw(update, sizes)
    declared = method.declare().uploads.get(job.phase, {})
    if declared or update.extras:
        if (fault := misfit(update.extras, declared, sizes, every=True)) is not None:
            return f"uploads differ from what {type(method).__name__} declares: {fault}"
        for name, tensor in update.extras.items():
            if not bool(torch.isfinite(tensor).all()):
                return f"{name} holds NaN or infinite values"
        with failures_named(job.where, method):
            fault = method.upload_flaw(update.extras)
        if fault is not None:
            return fault
    return flaw(update.weights, job.weights) if job.phase == "train" else None


def _counts_flaw(update: Update, *, classes: int) -> str | None:
    if set(update.extras) != {"confusion"}:
        return f"sends {', '.join(sorted(update.extras)) or 'nothing'} instead of confusion"
    counts = update.extras["confusion"]
    if counts.shape != (classes, classes) or counts.dtype != torch.int64:
        return f"confusion is {tuple(counts.shape)} {counts.dtype} instead of {(classes, classes)} torch.int64"
    if bool((counts < 0).any()) or bool((counts > update.examples).any()) or int(counts.sum()) != update.examples:
        return f"confusion counts do not add up to {update.examples} examples"
    return None


def answer_bytes(job: Job, method: Method, *, image: tuple[int, int, int]) -> int:
    """About how many bytes of tensors an honest answer has, before it is read. image: (H, W, C)."""
    classes, features = job.weights[ROWS].shape if ROWS in job.weights else (0, 0)
    numbers = sum(tensor.numel() for tensor in job.weights.values())
    sizes = Sizes(classes, features, numbers, *image[:2])
    declared = method.declare().uploads.get(job.phase, {})
    confusion = classes**2 * torch.int64.itemsize if job.phase == "evaluate" else 0
    weights = nbytes(job.weights) if job.phase == "train" else 0
    return weights + confusion + sum(spec.nbytes(sizes) for spec in declared.values())


def usable(
    answers: Iterable[Update], jobs: Sequence[Job], method: Method, sizes: Sizes, reject: Callable[[int, str], None]
) -> Iterator[Update]:
    """The usable answers, one at a time. `reject` is called with the reason for each of the others."""
    asked = {job.client: job for job in jobs}
    for update in answers:
        job = asked.pop(update.client, None)
        if job is None:
            reject(update.client, "was not asked, or has already answered")
        elif reason := rejection(update, job, method, sizes):
            reject(update.client, reason)
        else:
            yield _in_order(update, job, method)


def _in_order(update: Update, job: Job, method: Method) -> Update:
    """With tensors in the model's order, which a network does not preserve. Hooks may draw a number per tensor."""
    if job.phase == "train" and list(update.weights) != list(job.weights):
        update = replace(update, weights={name: update.weights[name] for name in job.weights})
    if job.phase in ("train", "end_task") and update.extras:
        declared = method.declare().uploads[job.phase]
        update = replace(update, extras={name: update.extras[name] for name in declared})
    return update
