"""A backbone and a head that gains classes from task to task."""

import math
from collections.abc import Callable, Hashable
from itertools import pairwise
from typing import Literal, Self, TypeVar

import torch
from torch import Tensor, nn

from fedclass.errors import ConfigError
from fedclass.models.weights import Layout, Packed
from fedclass.rng import generator
from fedclass.wire import Weights

HeadInit = Literal["linear", "kaiming"]
HEAD = "head."  # names of tensors with a row per class begin so
Kind = TypeVar("Kind", bound=Hashable)


class GrowingHead(nn.Linear):
    """A linear classifier that can gain classes; rows already learned never move.

    init: how new rows begin. "linear", as nn.Linear's own: rows and bias uniform within 1/sqrt(features); "kaiming":
    rows within sqrt(3/features), bias zero.  learns_bias: without, the bias is zero, and no optimizer moves it.
    """

    def __init__(self, features: int, *, init: HeadInit, learns_bias: bool) -> None:
        with torch.random.fork_rng(devices=[]):  # nn.Linear draws even for no rows: leave the caller's stream alone
            super().__init__(features, 1)
        self.init, self.learns_bias = init, learns_bias
        self._replace(torch.empty(0, features), torch.empty(0))

    def _replace(self, weight: Tensor, bias: Tensor) -> None:
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias, requires_grad=self.learns_bias)
        self.out_features = len(weight)

    def resize(self, classes: int) -> None:
        """For `classes`, with values that do not matter yet."""
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


class IncrementalModel(nn.Module):
    """Images to logits over all classes met so far. `backbone` maps (B, 3, H, W) to (B, D).

    Its parameters and buffers are views into a few long tensors: `packed`, and for the optimizer `movable`, each of
    which has a gradient of the same length. A parameter that no loss depends on thus has a gradient of zero.
    """

    packed: Packed
    movable: list[Tensor]

    def __init__(
        self, backbone: nn.Module, features: int, *, head_init: HeadInit = "linear", head_bias: bool = True
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = GrowingHead(features, init=head_init, learns_bias=head_bias)
        self._pack()

    @torch.no_grad()
    def _pack(self) -> None:
        """Lay all parameters and buffers into new long tensors."""
        tensors: dict[str, Tensor] = self.state_dict(keep_vars=True)
        layout = Layout.of(tensors)
        device = self.head.weight.device
        sections, gradients = layout.empty(device), layout.empty(device)
        for name, tensor in tensors.items():
            place = layout.slots[name]
            tensor.data = place.view(sections).copy_(tensor)
            if tensor.requires_grad:
                tensor.grad = place.view(gradients)
        self.packed = Packed(layout, sections)
        self.movable = []
        for section, gradient, (_, _, moved) in zip(sections, gradients, layout.sections, strict=True):
            if moved:
                section.grad = gradient
                self.movable.append(section)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._pack()
        return self

    @property
    def classes(self) -> int:
        return self.head.out_features

    def features(self, images: Tensor) -> Tensor:
        features: Tensor = self.backbone(images)
        return features

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.backbone(images))
        return logits

    def grow_to(self, classes: int, *, seed: int) -> None:
        """Grow the head to `classes`. Equal seeds give equal rows, however many steps it takes to get there."""
        for index in range(self.classes, classes):
            self.head.grow(1, generator(seed, "head", index))
        self._pack()

    def load(self, weights: Weights) -> None:
        """Take over `weights`, for however many classes they are."""
        classes = len(weights["head.weight"])
        if classes != self.classes:
            self.head.resize(classes)
            self._pack()
        if isinstance(weights, Packed) and weights.layout == self.packed.layout:
            self.packed.copy_(weights)
        else:
            self.load_state_dict(weights)

    # All trained parameters as one vector, in the order of `packed`; what lies between two tensors is padding.

    @property
    def flat(self) -> Tensor:
        """(P,), sharing memory with the parameters; its `grad` is the gradient of all of them."""
        if len(self.movable) != 1:
            kinds = ", ".join(sorted({str(section.dtype) for section in self.movable})) or "none"
            raise ConfigError(f"[model] name: this method needs trained parameters of one dtype, here are {kinds}")
        return self.movable[0]

    def flattened(self, weights: Weights) -> Tensor:
        """The trained parameters among these weights as such a vector, on the model's device."""
        packed = Packed.of(weights, self.packed.layout)
        moved = [s for s, (*_, moved) in zip(packed.sections, packed.layout.sections, strict=True) if moved]
        return moved[0].to(self.flat.device)

    def with_flat(self, weights: Weights, flat: Tensor) -> Packed:
        """These weights with the trained parameters of a vector."""
        packed = Packed.of(weights, self.packed.layout).clone()
        for section, (*_, moved) in zip(packed.sections, packed.layout.sections, strict=True):
            if moved:
                section.copy_(flat)
        return packed

    def flat_from(self, flat: Tensor, classes: int) -> Tensor:
        """Such a vector of the time when there were `classes`, as one of now; new rows of the head are 0."""
        before, now = self._layout(classes), self.packed.layout
        grown = torch.zeros(len(self.flat), dtype=flat.dtype, device=flat.device)
        for name, slot in now.slots.items():
            if now.sections[slot.section][2]:
                old = before.slots[name]
                target = slot._replace(section=0).view([grown])
                target[: old.shape[0] if old.shape else None] = old._replace(section=0).view([flat])
        return grown

    def flat_length(self, classes: int) -> int:
        """P, if there were `classes`."""
        return sum(length for _, length, moved in self._layout(classes).sections if moved)

    def _layout(self, classes: int) -> Layout:
        tensors: dict[str, Tensor] = dict(self.state_dict(keep_vars=True))
        for name in ("head.weight", "head.bias"):
            now = tensors[name]
            resized = torch.empty(classes, *now.shape[1:], dtype=now.dtype, device="meta")
            tensors[name] = resized.requires_grad_(now.requires_grad)
        return Layout.of(tensors)

    def grouped(self, kind: Callable[[bool, int], Kind]) -> dict[Kind, list[Tensor]]:
        """The trained parameters by kind(in_head, dimensions): parts of `movable`, each with its part of the gradient.

        Neighbours of one kind make one part; padding belongs to the tensor before it.
        """
        layout = self.packed.layout
        found: dict[Kind, list[Tensor]] = {}
        moved = [number for number, (*_, moved) in enumerate(layout.sections) if moved]
        for number, section in zip(moved, self.movable, strict=True):
            assert section.grad is not None
            kinds = {
                slot.start: kind(name.startswith(HEAD), len(slot.shape))
                for name, slot in layout.slots.items()
                if slot.section == number
            }
            edges = [at for before, at in pairwise(sorted(kinds)) if kinds[at] != kinds[before]]
            for first, end in pairwise([0, *edges, len(section)]):
                part = section[first:end]
                part.grad = section.grad[first:end]
                found.setdefault(kinds[first], []).append(part)
        return found

    def weights(self) -> Packed:
        """A copy of all parameters and buffers, on the CPU."""
        return self.packed.clone().cpu()
