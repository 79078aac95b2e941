"""From stored bytes to normalised batches, with augmentation as a few tensor operations."""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from fedclass.errors import ConfigError
from fedclass.usercode import imported

Augment = Literal["none", "crop-flip", "crop-flip-cutout"]
Transform = Callable[[Tensor, torch.Generator], Tensor]


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(B, H, W, 1 or 3) uint8 -> (B, H, W, 3) float32 with (x / 255 - mean) / std; grey is repeated.

    mean, std: one value, or one per channel.

    Images stay in this layout until they reach the model: permuted, it is PyTorch's channels_last, without a copy.
    """
    scale = (1 / (255 * torch.tensor(std))).expand(3)
    shift = (-torch.tensor(mean) / torch.tensor(std)).expand(3)
    return torch.addcmul(shift, images.float(), scale)


def as_input(images: Tensor) -> Tensor:
    """(B, H, W, 3) -> (B, 3, H, W), a view in channels_last layout."""
    return images.permute(0, 3, 1, 2)


def crop_and_flip(images: Tensor, generator: torch.Generator, *, pad: int = 4) -> Tensor:
    """Shift each image by up to `pad` pixels (black moves in) and mirror every other one, in one gather.

    images: (B, H, W, C) uint8.
    """
    count, height, width, _ = images.shape
    padded = torch.nn.functional.pad(images, (0, 0, pad, pad, pad, pad))
    top = torch.randint(2 * pad + 1, (count, 1), generator=generator)
    left = torch.randint(2 * pad + 1, (count, 1), generator=generator)
    mirrored = torch.randint(2, (count, 1), generator=generator).bool()
    rows = top + torch.arange(height)
    ahead = torch.arange(width)
    columns = left + torch.where(mirrored, ahead.flip(0), ahead)
    return padded[torch.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]


def cut_out(images: Tensor, generator: torch.Generator, *, size: int | None = None) -> Tensor:
    """Cutout (DeVries and Taylor, 2017): zero a square with a uniform centre, clipped at the border.

    images: (B, H, W, 3) normalised, so that zero is the mean.  size: by default half of the height, 16 for CIFAR-10.
    """
    count, height, width, _ = images.shape
    size = height // 2 if size is None else size
    y = torch.randint(height, (count, 1), generator=generator)
    x = torch.randint(width, (count, 1), generator=generator)
    rows = _within(torch.arange(height), y, size)
    columns = _within(torch.arange(width), x, size)
    return images.masked_fill((rows[:, :, None] & columns[:, None, :])[..., None], 0.0)


def varied(
    images: Tensor,
    generator: torch.Generator,
    *,
    augment: Augment,
    transform: Transform | None,
    normalisation: tuple[Sequence[float], Sequence[float]],
) -> Tensor:
    """A training batch: the user's transform, shift and mirror, normalisation, cutout, each if asked for.

    images: (B, H, W, C) uint8.  Returns (B, H, W, 3) float32.
    """
    if transform is not None:
        images = transformed(images, generator, transform)
    if augment != "none":
        images = crop_and_flip(images, generator)
    images = normalise(images, *normalisation)
    return cut_out(images, generator) if augment == "crop-flip-cutout" else images


def find_transform(path: str | None) -> Transform | None:
    """The user's function behind package.module:function."""
    if path is None:
        return None
    if ":" not in path:
        raise ConfigError(f"[data] transform = {path!r}: write package.module:function")
    found = imported(path, where="[data] transform")
    if not callable(found):
        raise ConfigError(f"[data] transform: {path!r} is not callable; it must take images and a generator")
    return found


def transformed(images: Tensor, generator: torch.Generator, transform: Transform) -> Tensor:
    """Apply the transform, which may change the images in place. Returns a batch of the same shape, in 0..255."""
    made = transform(images, generator)
    if not isinstance(made, Tensor) or made.shape != images.shape or made.dtype not in (torch.uint8, torch.float32):
        got = f"{tuple(made.shape)} {made.dtype}" if isinstance(made, Tensor) else f"a {type(made).__name__}"
        raise ConfigError(
            f"[data] transform: must return the shape it was given, {tuple(images.shape)}, as uint8 or float32 "
            f"in 0..255; got {got}"
        )
    return made


def _within(positions: Tensor, centre: Tensor, size: int) -> Tensor:
    first = centre - size // 2
    return (positions >= first) & (positions < first + size)
