"""How good the global model is: counts, from which every metric is derived."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedclass.data.batches import as_input, normalise
from fedclass.data.image_set import Split
from fedclass.errors import RunError
from fedclass.methods.base import Method
from fedclass.methods.declare import found
from fedclass.models.incremental import IncrementalModel
from fedclass.wire import Tensors

BATCH = 256


def scores(
    model: IncrementalModel,
    method: Method,
    state: Tensors,
    images: Tensor,
    normalisation: tuple[Sequence[float], Sequence[float]],
) -> Tensor:
    """(B, H, W, C) uint8 images to (B, classes) scores, the highest wins. A backbone's own normalisation goes first."""
    inputs = normalise(images, *(model.normalisation or normalisation))
    made = method.predict(model, as_input(inputs).to(model.device), state)
    shape = (len(images), model.classes)
    if not isinstance(made, Tensor) or tuple(made.shape) != shape:
        raise RunError(f"{type(method).__name__}.predict: must return scores {shape}; it returned {found(made)}")
    return made


@torch.no_grad()
def confusion(
    model: IncrementalModel,
    method: Method,
    state: Tensors,
    test: Split,
    normalisation: tuple[Sequence[float], Sequence[float]],
) -> NDArray[np.int64]:
    """(classes, classes): how many test images of each class (row) were taken for each (column).

    All classes that the model has met are tested, and all of them compete. test: images with their classes, numbered
    in order of arrival; -1 for others.
    """
    index = np.flatnonzero((test.labels >= 0) & (test.labels < model.classes))
    model.eval()
    predicted = []
    for part in torch.from_numpy(index).split(BATCH):
        images = torch.from_numpy(test.images)[part]
        predicted.append(scores(model, method, state, images, normalisation).argmax(dim=1).cpu())
    cells = test.labels[index] * model.classes + torch.cat(predicted).numpy()
    return np.bincount(cells, minlength=model.classes**2).reshape(model.classes, model.classes)
