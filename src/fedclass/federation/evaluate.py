"""Counts of predictions of the global model, from which every metric is derived."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedclass.data.batches import as_input, normalise
from fedclass.data.image_set import Split
from fedclass.data.partition import Index
from fedclass.errors import HookError, RunError
from fedclass.federation.hooks import failures_named
from fedclass.federation.job_checks import frozen_flaw
from fedclass.methods.base import Method
from fedclass.methods.declare import found
from fedclass.models.head import head_rows
from fedclass.models.incremental import IncrementalModel
from fedclass.rng import seed_streams
from fedclass.wire import Tensors, Weights

BATCH = 256

Counts = NDArray[np.int64]  # (classes, classes): rows are the truth


@dataclass(frozen=True)
class Part:
    """One batch of an evaluation after a task, or within it.

    Its images depend on the model's classes alone, and counts are whole numbers, so the sum does not depend on which
    process counts which part.

    images: which ones.  number: of the batch, from 0.  broadcast: what the method predicts with.  frozen: as in a Job.
    """

    task: int
    images: Literal["test", "validation"]
    number: int
    weights: Weights
    broadcast: Tensors
    frozen: str

    @property
    def where(self) -> str:
        """For messages."""
        return f"evaluation, task {self.task + 1}, {self.images} images"


def scores(
    model: IncrementalModel,
    method: Method,
    state: Tensors,
    images: Tensor,
    normalisation: tuple[Sequence[float], Sequence[float]],
) -> Tensor:
    """(B, H, W, C) uint8 images to (B, classes) scores. A backbone's own normalisation replaces the data set's."""
    inputs = normalise(images, *(model.normalisation or normalisation))
    made = method.predict(model, as_input(inputs).to(model.device), state)
    shape = (images.shape[0], model.classes)  # len() would fix the size of batches in an exported graph
    if not isinstance(made, Tensor) or tuple(made.shape) != shape:
        raise HookError(f"{type(method).__name__}.predict: must return scores {shape}; it returned {found(made)}")
    return made


def parts(
    task: int, images: Literal["test", "validation"], split: Split, weights: Weights, broadcast: Tensors, frozen: str
) -> list[Part]:
    """All batches of an evaluation."""
    count = len(_batches(split, len(head_rows(weights))))
    return [Part(task, images, number, weights, broadcast, frozen) for number in range(count)]


def counted(
    part: Part,
    model: IncrementalModel,
    method: Method,
    split: Split,
    normalisation: tuple[Sequence[float], Sequence[float]],
    *,
    seed: int,
) -> Counts:
    """The counts of one part of an evaluation."""
    if (fault := frozen_flaw(part, model)) is not None:
        raise RunError(f"{part.where}: {fault}")
    with failures_named(part.where, method, HookError), model.frozen_kept():
        model.load(part.weights)
        seed_streams(seed, "user code", "evaluate", "task", part.task, part.images, part.number)
        batch = _batches(split, model.classes)[part.number]
        try:
            return _counted(model, method, part.broadcast, split, batch, normalisation)
        except (HookError, RunError) as error:
            raise type(error)(f"{part.where}: {error}") from error


def confusion(
    model: IncrementalModel,
    method: Method,
    state: Tensors,
    test: Split,
    normalisation: tuple[Sequence[float], Sequence[float]],
) -> Counts:
    """(classes, classes): how many test images of each class (row) were predicted as each class (column).

    All classes that the model has met are tested, and all of them compete. test: images with their classes, numbered
    in order of arrival; -1 marks images of other classes.
    """
    total = np.zeros((model.classes, model.classes), np.int64)
    for batch in _batches(test, model.classes):
        total += _counted(model, method, state, test, batch, normalisation)
    return total


def _batches(split: Split, classes: int) -> list[Index]:
    """The images of the first `classes` classes, in batches."""
    index = np.flatnonzero((split.labels >= 0) & (split.labels < classes))
    return [index[start : start + BATCH] for start in range(0, len(index), BATCH)]


@torch.no_grad()
def _counted(
    model: IncrementalModel,
    method: Method,
    state: Tensors,
    split: Split,
    batch: Index,
    normalisation: tuple[Sequence[float], Sequence[float]],
) -> Counts:
    model.eval()
    images = torch.from_numpy(split.images)[torch.from_numpy(batch)]
    predicted = scores(model, method, state, images, normalisation).argmax(dim=1).cpu().numpy()
    cells = split.labels[batch] * model.classes + predicted
    return np.bincount(cells, minlength=model.classes**2).reshape(model.classes, model.classes)
