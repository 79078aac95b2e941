"""Re-Fed's importance of images (Li et al. 2024, Eq. 3 to 5), one image and one weight at a time."""

import copy
from math import sqrt

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def importance(
    model: nn.Module, images: Tensor, labels: Tensor, *, share: float, steps: int, rate: float
) -> list[float]:
    received = [parameter.detach().clone() for parameter in model.parameters()]
    own, scores = copy.deepcopy(model).eval(), [0.0] * len(images)
    for step in range(1, steps + 1):
        total = [torch.zeros_like(weight) for weight in received]
        for at in range(len(images)):
            own.zero_grad()
            F.cross_entropy(own(images[at : at + 1]), labels[at : at + 1]).backward()
            squares = 0.0
            for parameter, so_far in zip(own.parameters(), total, strict=True):
                squares += float(parameter.grad.double().square().sum())
                so_far += parameter.grad
            scores[at] += sqrt(squares) / step
        q = (1 - share) / (2 * share)
        with torch.no_grad():
            for parameter, gradient, global_ in zip(own.parameters(), total, received, strict=True):
                parameter -= rate * (gradient / len(images) + q * (parameter - global_))
    return scores
