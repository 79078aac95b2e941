"""ResNets for small images: those of He et al. (2016), section 4.2, and their ResNet-18 with the same stem.

Both have projection shortcuts. They begin with a 3x3 convolution of stride 1, where networks for ImageNet have a 7x7
convolution of stride 2 and pooling.
"""

from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

Norm = Literal["batch", "group"]


def _norm(kind: Norm, channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels) if kind == "batch" else nn.GroupNorm(8, channels)


def _conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is projected where the shape changes."""

    def __init__(self, inputs: int, outputs: int, *, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1, self.norm1 = _conv3x3(inputs, outputs, stride), _norm(norm, outputs)
        self.conv2, self.norm2 = _conv3x3(outputs, outputs), _norm(norm, outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            project = nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(project, _norm(norm, outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        y = self.norm2(self.conv2(y))
        return F.relu(y + self.shortcut(x), inplace=True)


class ResNet(nn.Module):
    """Images to features: (B, 3, H, W) -> (B, D), for any H and W. Depth counts the classifier's layer.

    6n + 2: D = 64, three stages of n blocks.  18: D = 512, four stages of two blocks.
    """

    def __init__(self, *, depth: int, norm: Norm = "batch") -> None:
        super().__init__()
        widths: tuple[int, ...] = (16, 32, 64)
        blocks, rest = divmod(depth - 2, 6)
        if depth == 18:
            widths, blocks, rest = (64, 128, 256, 512), 2, 0
        if rest or blocks < 1:
            raise ValueError(f"a ResNet for small images has 6n + 2 layers (8, 14, 20, ...) or 18, got {depth}")
        inputs = widths[0]
        self.conv, self.norm = _conv3x3(3, inputs), _norm(norm, inputs)
        stages: list[nn.Module] = []
        for stage, outputs in enumerate(widths):
            for i in range(blocks):
                stages.append(Block(inputs, outputs, stride=2 if stage and i == 0 else 1, norm=norm))
                inputs = outputs
        self.blocks = nn.Sequential(*stages)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.norm(self.conv(x)), inplace=True))
        return x.mean(dim=(2, 3))


BACKBONES: dict[str, Callable[[Norm], nn.Module]] = {
    "resnet8": lambda norm: ResNet(depth=8, norm=norm),
    "resnet18": lambda norm: ResNet(depth=18, norm=norm),
    "resnet20": lambda norm: ResNet(depth=20, norm=norm),
    "resnet32": lambda norm: ResNet(depth=32, norm=norm),
}
