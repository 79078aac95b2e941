"""Quadratic penalties on weights, and a Fisher diagonal, one weight and one image at a time."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedclass.models.incremental import IncrementalModel


def quadratic_penalty(weights: Sequence[float], anchor: Sequence[float], importance: Sequence[float]) -> float:
    """1/2 * sum_i importance_i * (w_i - a_i)^2."""
    total = 0.0
    for w, a, f in zip(weights, anchor, importance, strict=True):
        total += f * (w - a) ** 2
    return total / 2


def fisher_diagonal(model: IncrementalModel, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Mean over images of the squared derivative of log p(label | image), by backward(), image by image."""
    model.eval()
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for image, label in zip(images, labels, strict=True):
        model.flat.grad.zero_()  # type: ignore[union-attr]
        torch.log(model(image[None]).softmax(dim=1)[0, label]).backward()
        for name, p in model.named_parameters():
            total[name] += p.grad**2  # type: ignore[operator]
    return {name: t / len(labels) for name, t in total.items()}
