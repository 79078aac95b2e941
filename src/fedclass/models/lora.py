"""Low-rank adapters (LoRA, Hu et al., 2022): a frozen model learns small changes of some of its weights."""

import math
from fnmatch import fnmatchcase
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from fedclass.errors import ConfigError
from fedclass.models.frozen import freeze

M = TypeVar("M", bound=nn.Module)


class LowRank(nn.Module):
    """W + alpha / rank * up @ down, for a W whose dimensions after the first count as one.

    W: (n, ...), m elements each.  up: (n, rank), zero at first, so that the model begins as it was.  down: (rank, m),
    drawn from a normal distribution with variance 1 / m.
    """

    def __init__(self, weight: Tensor, *, rank: int, alpha: float) -> None:
        super().__init__()
        outputs, inputs = len(weight), weight[0].numel()
        self.scale = alpha / rank
        self.down = nn.Parameter(torch.randn(rank, inputs).to(weight) / math.sqrt(inputs))
        self.up = nn.Parameter(weight.new_zeros(outputs, rank))

    def forward(self, weight: Tensor) -> Tensor:
        change: Tensor = self.scale * (self.up @ self.down)
        return weight + change.view(weight.shape)


def add_lora(module: M, *patterns: str, rank: int, alpha: float | None = None) -> M:
    """Freeze a module, and add an adapter to each weight whose name matches a pattern such as `*.conv2.weight`.

    Only adapters are then trained. Weights with one dimension (biases, normalisation) get none.  alpha: scales the
    change that an adapter makes; by default equal to the rank.
    """
    if rank < 1:
        raise ConfigError(f"add_lora: rank = {rank}; it must be at least 1")
    weights = {name: p for name, p in module.named_parameters() if p.ndim >= 2 and p.is_floating_point()}
    for pattern in patterns or ("",):
        if not any(fnmatchcase(name, pattern) for name in weights):
            raise ConfigError(
                f"add_lora: {pattern!r} matches no weight of {type(module).__name__} with two dimensions or more; it "
                f"has {', '.join(list(weights)[:5]) or 'none'}{' ...' if len(weights) > 5 else ''}"
            )
    chosen = {name: p for name, p in weights.items() if any(fnmatchcase(name, pattern) for pattern in patterns)}
    for name, weight in chosen.items():
        if rank > (most := min(len(weight), weight[0].numel())):
            raise ConfigError(f"add_lora: rank = {rank}; the rank of {name} is at most {most}")
    freeze(module)
    for name, weight in chosen.items():
        path, _, last = name.rpartition(".")
        adapter = LowRank(weight, rank=rank, alpha=rank if alpha is None else alpha)
        parametrize.register_parametrization(module.get_submodule(path), last, adapter)
    return module
