"""Arithmetic on weights: the mean of Algorithm 2, and what makes an update unusable."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from fedclass.wire import Weights


def copy_of(model: nn.Module) -> dict[str, Tensor]:
    """The model's parameters and buffers, detached from it."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def weighted_mean(updates: Iterable[tuple[Weights, int]]) -> dict[str, Tensor]:
    """W^S = sum_k n_k W^k / sum_k n_k (Alg. 2), one update in memory at a time, summed in the order given.

    Sums are in float64 and rounded once, so that the result is as good as exact. BatchNorm's running means and
    variances are averaged like parameters; its integer step counters cannot be, and take the maximum.
    """
    sums: dict[str, Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    total = 0
    for weights, examples in updates:
        total += examples
        for name, tensor in weights.items():
            if not tensor.is_floating_point():
                sums[name] = torch.maximum(sums[name], tensor) if name in sums else tensor.clone()
            elif name in sums:
                sums[name].add_(tensor.double(), alpha=examples)
            else:
                sums[name] = tensor.double() * examples
                dtypes[name] = tensor.dtype
    if total <= 0:
        raise ValueError("a weighted mean needs a positive total weight")
    return {name: (s / total).to(dtypes[name]) if name in dtypes else s for name, s in sums.items()}


def flaw(weights: Weights, like: Weights) -> str | None:
    """Why these weights cannot stand in for `like`, or None: names, shapes, dtypes, finite values."""
    if weights.keys() != like.keys():
        odd = sorted(weights.keys() ^ like.keys())
        return f"names differ from the model's: {', '.join(odd[:3])}"
    for name, tensor in weights.items():
        if tensor.shape != like[name].shape:
            return f"{name} has shape {tuple(tensor.shape)} instead of {tuple(like[name].shape)}"
        if tensor.dtype != like[name].dtype:
            return f"{name} is {tensor.dtype} instead of {like[name].dtype}"
        if not bool(torch.isfinite(tensor).all()):
            return f"{name} holds NaN or infinite values"
    return None
