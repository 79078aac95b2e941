"""Which of a client's images become exemplars, as memory.select or the method says."""

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedclass.data.memory import HERDING, Select, herd
from fedclass.data.partition import Index

Selection = Select | Literal["own"]  # own: by the method's `importance`
BY_MODEL = (*HERDING, "own")  # those that need the task's final model


def ranked(
    select: Selection,
    images: Index,
    count: int,
    *,
    rng: Callable[[], np.random.Generator],
    features: Callable[[Index], NDArray[np.float32]],
    importance: Mapping[int, float],
) -> Index:
    """The `count` most important images of a class, in order.

    rng: for "random".  features: (n, D) rows of unit length, for herding.  importance: of each image, for "own"; ties
    go to the first.
    """
    match select:
        case "first":
            return images[:count]
        case "random":
            return rng().permutation(images)[:count]
        case "own":
            scores = np.array([importance[image] for image in images.tolist()])
            return images[np.argsort(-scores, kind="stable")[:count]]
        case "herding" | "herding-pycil" as kind:
            if not count:
                return images[:0]
            return images[herd(features(images), count, unit_means=kind == "herding")]


def scores_flaw(scores: Tensor, images: int) -> str | None:
    """Why a method's `importance` cannot be used, or None."""
    if scores.shape != (images,):
        return f"must return one number for each of {images} images; it returned {tuple(scores.shape)}"
    return None if bool(torch.isfinite(scores).all()) else "returned values that are NaN or infinite"
