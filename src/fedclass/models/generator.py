"""A small network that generates images from noise (TARGET)."""

import math

import torch
from torch import Tensor, nn


class Generator(nn.Module):
    """(B, noise) to (B, 3, height, width), values in 0..1.

    A linear layer makes feature maps of a quarter of the size, which are doubled twice between convolutions. What
    exceeds the image at the edges is cropped.
    """

    def __init__(self, *, noise: int, width: int, image: tuple[int, int]) -> None:
        super().__init__()
        self.image, self.first = image, tuple(math.ceil(side / 4) for side in image)
        self.spread = nn.Linear(noise, 2 * width * math.prod(self.first))
        self.paint = nn.Sequential(
            nn.BatchNorm2d(2 * width),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.LeakyReLU(0.2),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(2 * width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, 3, 3, padding=1),
            nn.Sigmoid(),
        )

    def forward(self, noise: Tensor) -> Tensor:
        maps = self.spread(noise).unflatten(1, (-1, *self.first))
        height, width = self.image
        images: Tensor = self.paint(maps)[:, :, :height, :width]
        return images


class StatisticsGap:
    """How far the inputs of a BatchNorm2d are from what it has seen in training, in the last forward pass.

    With momentum, the statistics of earlier batches, as `remember` has kept them, count beside those of this one.
    """

    def __init__(self, norm: nn.BatchNorm2d, *, momentum: float) -> None:
        self.norm, self.momentum = norm, momentum
        self.now: tuple[Tensor, Tensor] | None = None  # mean and variance
        self.past: tuple[Tensor, Tensor] | None = None
        self.hook = norm.register_forward_pre_hook(lambda _, inputs: self._look(inputs[0]))

    def _look(self, inputs: Tensor) -> None:
        self.now = inputs.mean(dim=(0, 2, 3)), inputs.var(dim=(0, 2, 3), unbiased=False)

    @property
    def value(self) -> Tensor:
        """|running_mean - mean| + |running_var - var|, Euclidean norms over channels."""
        assert self.now is not None
        assert self.norm.running_mean is not None
        assert self.norm.running_var is not None
        mean, var = self.now if self.past is None else self._mixed(self.now, self.past)
        gap: Tensor = (self.norm.running_mean - mean).norm() + (self.norm.running_var - var).norm()
        return gap

    def _mixed(self, now: tuple[Tensor, Tensor], past: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        mean, var = ((1 - self.momentum) * a + self.momentum * b for a, b in zip(now, past, strict=True))
        return mean, var

    @torch.no_grad()
    def remember(self) -> None:
        assert self.now is not None
        mean, var = self.now if self.past is None else self._mixed(self.now, self.past)
        self.past = mean.detach(), var.detach()
