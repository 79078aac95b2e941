"""A backbone and a head that gains classes from task to task."""

import contextlib
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Self

import torch
from torch import Tensor, nn

from fedclass.errors import ConfigError
from fedclass.models.frozen import frozen_names, stay_frozen
from fedclass.models.head import GrowingHead, HeadInit, head_rows, in_head, with_shapes_for
from fedclass.models.weights import Layout, Packed
from fedclass.rng import generator
from fedclass.wire import Tensors, Weights, sha256

Normalisation = tuple[tuple[float, ...], tuple[float, ...]]  # mean and std: pixels in 0..1 become (x - mean) / std


class IncrementalModel(nn.Module):
    """Images to logits over all classes met so far. `backbone` maps (B, 3, H, W) to (B, D).

    Its weights are the parameters and buffers that change. They are views into a few long tensors: `packed`, and for
    the optimizer `movable`, each with a gradient of the same length. A parameter that no loss depends on thus has a
    gradient of zero. Tensors of the backbone that are frozen when the model is built are not among the weights: every
    process builds them itself. The head is never frozen.

    normalisation: the backbone's own, if any; it replaces the data set's.  image_size: height and width of the images
    it was built for, if known.
    """

    packed: Packed
    movable: list[Tensor]

    def __init__(
        self,
        backbone: nn.Module,
        features: int,
        *,
        head_init: HeadInit = "linear",
        head_bias: bool = True,
        normalisation: Normalisation | None = None,
        image_size: tuple[int, int] = (0, 0),
    ) -> None:
        super().__init__()
        self.backbone, self.normalisation, self.image_size = backbone, normalisation, image_size
        self._frozen = frozenset(f"backbone.{name}" for name in frozen_names(backbone))
        self.head = GrowingHead(features, init=head_init, learns_bias=head_bias)
        self._pack()

    @torch.no_grad()
    def _pack(self) -> None:
        """Move all parameters and buffers that change into new long tensors."""
        tensors = self._changing()
        layout = Layout.of(tensors)
        sections, gradients = layout.empty(self.device), layout.empty(self.device)
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
        self.__dict__.pop("frozen_sha256", None)
        self._pack()
        return self

    def _changing(self) -> dict[str, Tensor]:
        """Parameters and buffers themselves, by name."""
        return {name: t for name, t in self.state_dict(keep_vars=True).items() if name not in self._frozen}

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        stay_frozen(self.backbone)
        return self

    @property
    def device(self) -> torch.device:
        return self.head.rows.device

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

    @torch.no_grad()
    def load(self, weights: Weights) -> None:
        """Copy `weights` into the model, resizing the head if needed. Frozen tensors stay."""
        classes = len(head_rows(weights))
        if classes != self.classes:
            self.head.resize(classes)
            self._pack()
        if isinstance(weights, Packed) and weights.layout == self.packed.layout:
            self.packed.copy_(weights)
            return
        if odd := sorted(weights.keys() ^ self.packed.keys()):
            raise ValueError(f"names of weights differ from the model's: {', '.join(odd[:3])}")
        for name, tensor in self.packed.items():
            if tensor.shape != weights[name].shape:
                raise ValueError(f"{name} has shape {tuple(weights[name].shape)} instead of {tuple(tensor.shape)}")
            tensor.copy_(weights[name])

    # All trained parameters as one vector, in the order of `packed`, with padding between tensors.

    @property
    def flat(self) -> Tensor:
        """(P,), sharing memory with the parameters; its `grad` is the gradient of all of them."""
        if len(self.movable) != 1:
            kinds = ", ".join(sorted({str(section.dtype) for section in self.movable})) or "none"
            raise ConfigError(f"[model] name: this method needs trained parameters of one dtype, but there are {kinds}")
        return self.movable[0]

    def flattened(self, weights: Weights) -> Tensor:
        """The trained parameters among these weights as a flat vector, on the model's device."""
        packed = Packed.of(weights, self.packed.layout)
        moved = [s for s, (*_, moved) in zip(packed.sections, packed.layout.sections, strict=True) if moved]
        return moved[0].to(self.flat.device)

    def with_flat(self, weights: Weights, flat: Tensor) -> Packed:
        """These weights, with trained parameters taken from a flat vector."""
        packed = Packed.of(weights, self.packed.layout).clone()
        for section, (*_, moved) in zip(packed.sections, packed.layout.sections, strict=True):
            if moved:
                section.copy_(flat)
        return packed

    def flat_from(self, flat: Tensor, classes: int) -> Tensor:
        """A flat vector from when there were `classes`, for the current head; its new rows are 0."""
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
        same = classes == self.classes
        return self.packed.layout if same else Layout.of(with_shapes_for(self._changing(), classes))

    def weights(self) -> Packed:
        """A copy of all parameters and buffers that change, on the CPU."""
        return self.packed.clone().cpu()

    # Frozen tensors.

    @property
    def trained_in_backbone(self) -> list[str]:
        """The names of the backbone's weights: parameters and buffers of it that are not frozen."""
        return [name for name in self.packed if not in_head(name)]

    @property
    def frozen(self) -> Tensors:
        if not self._frozen:  # asked for before and after each job
            return {}
        return {name: tensor for name, tensor in self.state_dict().items() if name in self._frozen}

    @cached_property
    def frozen_sha256(self) -> str:
        """The hash of what is never sent but must be the same everywhere: frozen tensors and the backbone's own
        normalisation. Empty if there is neither.
        """
        fixed = dict(self.frozen)
        if self.normalisation is not None:
            fixed["normalisation"] = torch.tensor(self.normalisation, dtype=torch.float64)
        return sha256(fixed) if fixed else ""

    def complete(self, weights: Weights) -> Tensors:
        """These weights and the frozen tensors: the complete model."""
        return {**weights, **{name: tensor.cpu() for name, tensor in self.frozen.items()}}

    @contextlib.contextmanager
    def frozen_kept(self) -> Iterator[None]:
        """A context for user code: ConfigError if it changes frozen tensors, because such a change is never sent."""
        before = {name: (tensor.data_ptr(), tensor._version) for name, tensor in self.frozen.items()}
        yield
        changed = [name for name, tensor in self.frozen.items() if (tensor.data_ptr(), tensor._version) != before[name]]
        if changed:
            raise ConfigError(
                f"[model] name: {changed[0]} is frozen, but training changed it; train it, or do not change it"
            )
