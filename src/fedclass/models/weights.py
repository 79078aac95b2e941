"""Packed weights and arithmetic on them: the mean of Algorithm 2, and what makes an update unusable."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedclass.wire import Weights

ALIGNED = 16  # elements: every tensor begins at a multiple of 64 bytes (of 4-byte numbers), for fast kernels
MOST = 1e8  # no weight of a working model is larger; a larger one would outweigh all others in a mean


class Slot(NamedTuple):
    """Where a tensor is: its section, and its first element there."""

    section: int
    start: int
    shape: tuple[int, ...]

    def view(self, sections: Sequence[Tensor]) -> Tensor:
        """The tensor, sharing memory with its section. Convolution filters are in channels_last order."""
        piece = sections[self.section][self.start :]
        if len(self.shape) == 4:
            _, c, h, w = self.shape
            return piece.as_strided(self.shape, (c * h * w, 1, w * c, c))
        return piece[: math.prod(self.shape)].view(self.shape)


@dataclass(frozen=True)
class Layout:
    """Names of tensors and their places. sections: (dtype, elements, whether an optimizer moves them)."""

    slots: Mapping[str, Slot]
    sections: tuple[tuple[torch.dtype, int, bool], ...]

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Self:
        """One section per dtype, and separate ones for tensors that require a gradient.

        A tensor with two names (tied weights) has one place.
        """
        kinds: dict[tuple[torch.dtype, bool], int] = {}
        lengths: list[int] = []
        slots: dict[str, Slot] = {}
        placed: dict[int, Slot] = {}
        for name, tensor in tensors.items():
            if id(tensor) not in placed:
                section = kinds.setdefault((tensor.dtype, tensor.requires_grad), len(kinds))
                if section == len(lengths):
                    lengths.append(0)
                placed[id(tensor)] = Slot(section, lengths[section], tuple(tensor.shape))
                lengths[section] += -(-tensor.numel() // ALIGNED) * ALIGNED
            slots[name] = placed[id(tensor)]
        pairs = zip(kinds, lengths, strict=True)
        return cls(slots, tuple((dtype, length, moved) for (dtype, moved), length in pairs))

    def empty(self, device: torch.device) -> list[Tensor]:
        return [torch.zeros(length, dtype=dtype, device=device) for dtype, length, _ in self.sections]


class Packed(Mapping[str, Tensor]):
    """Weights by name, as views into a few long tensors, so that all are copied, sent, checked or summed at once."""

    def __init__(self, layout: Layout, sections: Sequence[Tensor]) -> None:
        self.layout, self.sections = layout, tuple(sections)

    @classmethod
    def of(cls, weights: Weights, layout: Layout | None = None) -> "Packed":
        """These weights in this layout (by default their own); copied only if they are not packed that way already."""
        if isinstance(weights, Packed) and (layout is None or weights.layout == layout):
            return weights
        layout = layout or Layout.of(weights)
        packed = cls(layout, layout.empty(torch.device("cpu")))
        for name, tensor in packed.items():
            tensor.copy_(weights[name].detach())
        return packed

    def __getitem__(self, name: str) -> Tensor:
        return self.layout.slots[name].view(self.sections)

    def __iter__(self) -> Iterator[str]:
        return iter(self.layout.slots)

    def __len__(self) -> int:
        return len(self.layout.slots)

    def __reduce__(self) -> tuple[Callable[..., "Packed"], tuple[Layout, list[NDArray[np.generic]]]]:
        """Pickle as plain bytes: torch would put each section into its own shared memory file."""
        return _unpacked, (self.layout, [section.numpy() for section in self.sections])

    @property
    def nbytes(self) -> int:
        """Of all tensors, without padding."""
        sizes = [dtype.itemsize for dtype, _, _ in self.layout.sections]
        return sum(math.prod(slot.shape) * sizes[slot.section] for slot in self.layout.slots.values())

    def clone(self) -> "Packed":
        return Packed(self.layout, [section.clone() for section in self.sections])

    def cpu(self) -> "Packed":
        return Packed(self.layout, [section.cpu() for section in self.sections])

    def copy_(self, other: "Packed") -> None:
        for mine, theirs in zip(self.sections, other.sections, strict=True):
            mine.copy_(theirs)


def _unpacked(layout: Layout, sections: list[NDArray[np.generic]]) -> Packed:
    return Packed(layout, [torch.from_numpy(section) for section in sections])


def weighted_mean(updates: Iterable[tuple[Weights, int]]) -> Packed:
    """W^S = sum_k n_k W^k / sum_k n_k (Alg. 2), one update in memory at a time, summed in the order given.

    Sums are in float64 and rounded once, so that the result is practically exact. BatchNorm's running means and
    variances are averaged like parameters; its integer step counters cannot be, and take the maximum.
    """
    layout: Layout | None = None
    sums: list[Tensor] = []
    total = 0
    for weights, examples in updates:
        total += examples
        packed = Packed.of(weights, layout)
        if layout is None:
            layout = packed.layout
            sums = [s.double() * examples if s.is_floating_point() else s.clone() for s in packed.sections]
            continue
        for i, section in enumerate(packed.sections):
            if section.is_floating_point():
                sums[i].add_(section.double(), alpha=examples)
            else:
                torch.maximum(sums[i], section, out=sums[i])
    if layout is None or total <= 0:
        raise ValueError("a weighted mean needs a positive total weight")
    means = [(s / total).to(d) if d.is_floating_point else s for s, (d, *_) in zip(sums, layout.sections, strict=True)]
    return Packed(layout, means)


def form_flaw(weights: Weights, like: Weights) -> str | None:
    """Why these weights do not fit the model of `like`, or None: names, shapes, dtypes."""
    if isinstance(weights, Packed) and isinstance(like, Packed) and weights.layout == like.layout:
        return None
    if weights.keys() != like.keys():
        odd = sorted(weights.keys() ^ like.keys())
        return f"names differ from the model's: {', '.join(odd[:3])}"
    for name, tensor in weights.items():
        if tensor.shape != like[name].shape:
            return f"{name} has shape {tuple(tensor.shape)} instead of {tuple(like[name].shape)}"
        if tensor.dtype != like[name].dtype:
            return f"{name} is {tensor.dtype} instead of {like[name].dtype}"
    return None


def flaw(weights: Weights, like: Weights) -> str | None:
    """Why these weights cannot replace `like`, or None: names, shapes, dtypes, sane values."""
    if (fault := form_flaw(weights, like)) is not None:
        return fault
    if isinstance(weights, Packed) and all(map(_sane, weights.sections)):
        return None
    for name, tensor in weights.items():
        if not bool(torch.isfinite(tensor).all()):
            return f"{name} holds NaN or infinite values"
        if not _sane(tensor):
            return f"{name} holds values beyond {MOST:g}"
    return None


def _sane(tensor: Tensor) -> bool:
    """Whether values are finite and of plausible size."""
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    return float(tensor.abs().max()) <= MOST  # the largest of numbers among which is a NaN is NaN


def plain(tensor: Tensor) -> Tensor:
    """A copy as safetensors needs it: in row-major order, with its own memory."""
    return tensor.detach().clone(memory_format=torch.contiguous_format)
