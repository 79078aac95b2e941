"""The classifier on top of a backbone: a module that grows, and its place among a model's weights."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from fedclass.wire import Weights

HeadInit = Literal["linear", "kaiming"]

NAME = "head"  # of the module in a model
ROWS, BIAS = f"{NAME}.weight", f"{NAME}.bias"


class GrowingHead(nn.Linear):
    """A linear classifier that can gain classes; rows already learned never move.

    init: how new rows begin. "linear", as nn.Linear's own: rows and bias uniform within 1/sqrt(features); "kaiming":
    rows within sqrt(3/features), bias zero.  learns_bias: without, the bias is zero, and no optimizer moves it.
    """

    def __init__(self, features: int, *, init: HeadInit, learns_bias: bool) -> None:
        with torch.random.fork_rng(devices=[]):  # nn.Linear draws numbers: keep the caller's stream as it was
            super().__init__(features, 1)
        self.init, self.learns_bias = init, learns_bias
        self._replace(torch.empty(0, features), torch.empty(0))

    @property
    def rows(self) -> Tensor:
        """(classes, features)."""
        return self.weight

    def _replace(self, weight: Tensor, bias: Tensor) -> None:
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias, requires_grad=self.learns_bias)
        self.out_features = len(weight)

    def resize(self, classes: int) -> None:
        """Resize to `classes`; the values are to be set by the caller."""
        self._replace(self.weight.new_empty(classes, self.in_features), self.bias.new_zeros(classes))

    @torch.no_grad()
    def grow(self, new_classes: int, generator: torch.Generator) -> None:
        """Append rows, drawn as `init` says."""
        bound = 1 / math.sqrt(self.in_features)
        widest = math.sqrt(3) * bound if self.init == "kaiming" else bound
        rows = torch.empty(new_classes, self.in_features).uniform_(-widest, widest, generator=generator)
        bias = torch.zeros(new_classes)
        if self.init == "linear" and self.learns_bias:
            bias.uniform_(-bound, bound, generator=generator)
        self._replace(torch.cat([self.weight, rows.to(self.weight)]), torch.cat([self.bias, bias.to(self.bias)]))


# The head among weights by name. These functions do not change their arguments.


def in_head(name: str) -> bool:
    """Whether a tensor of this name has a row per class."""
    return name in (ROWS, BIAS)


def head_rows(weights: Weights) -> Tensor:
    """(classes, features); a class's row, times the features, is its logit without the bias."""
    return weights[ROWS]


def with_head_rows(weights: Weights, rows: Tensor) -> Weights:
    return {**weights, ROWS: rows}


def with_first_classes(weights: Weights, classes: int) -> Weights:
    """The model without the classes that came after the first `classes`."""
    return {**weights, ROWS: weights[ROWS][:classes], BIAS: weights[BIAS][:classes]}


def with_shapes_for(weights: Weights, classes: int) -> Weights:
    """As if the head had `classes`: its tensors have shape, dtype and requires_grad, but no content."""
    shapes = {}
    for name in (ROWS, BIAS):
        now = weights[name]
        resized = torch.empty(classes, *now.shape[1:], dtype=now.dtype, device="meta")
        shapes[name] = resized.requires_grad_(now.requires_grad)
    return {**weights, **shapes}
