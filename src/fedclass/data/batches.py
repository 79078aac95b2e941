"""From stored bytes to normalised batches, with augmentation as a few tensor operations."""

from collections.abc import Sequence

import torch
from torch import Tensor


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(B, H, W, 1 or 3) uint8 -> (B, H, W, 3) float32 with (x / 255 - mean) / std; grey is repeated.

    mean, std: one value, or one per channel.

    Kept in this layout until the model sees it: permuted, it is what PyTorch calls channels_last, without a copy.
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


def _within(positions: Tensor, centre: Tensor, size: int) -> Tensor:
    first = centre - size // 2
    return (positions >= first) & (positions < first + size)
