"""From a name in a recipe to a model."""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedclass.errors import ConfigError
from fedclass.models.head import HeadInit
from fedclass.models.incremental import IncrementalModel, Normalisation
from fedclass.models.resnet import BACKBONES, Norm
from fedclass.rng import seed_streams, streams_restored
from fedclass.schema import did_you_mean
from fedclass.usercode import imported, reason, watching


def _backbone(name: str, norm: Norm, args: Mapping[str, Any]) -> nn.Module:
    if ":" in name:
        build = imported(name, where="[model] name")
        if not callable(build):
            raise ConfigError(f"[model] name: {name!r} is not callable; it must build an nn.Module")
        _check_args(build, name, args)
        try:
            backbone = build(**args)
        except ConfigError as error:  # raised by what fedclass has for builders, such as add_lora
            raise ConfigError(f"[model] name: {name!r}: {error}") from error
        except Exception as error:  # it is the user's code: anything may come out of it
            given = f" with {', '.join(args)}" if args else ""
            raise ConfigError(f"[model] name: calling {name!r}{given} failed: {reason(error)}") from error
    elif name in BACKBONES:
        if args:
            raise ConfigError(
                f"[model.args] {next(iter(args))}: {name} takes no arguments; leave them out (--set model.args={{}})"
            )
        backbone = BACKBONES[name](norm)
    else:
        hint = did_you_mean(name, BACKBONES) or "or package.module:build for your own"
        raise ConfigError(f"[model] name: unknown model {name!r}; known: {', '.join(BACKBONES)}; {hint}")
    if not isinstance(backbone, nn.Module):
        raise ConfigError(f"[model] name: {name!r} built a {type(backbone).__name__} instead of an nn.Module")
    return backbone


def _check_args(build: Callable[..., object], name: str, args: Mapping[str, Any]) -> None:
    """Refuse arguments that a builder does not take, and missing ones that it needs."""
    try:
        signature = inspect.signature(build)
    except (TypeError, ValueError):  # a function that is not written in Python
        return
    try:
        signature.bind(**args)
    except TypeError as error:
        raise ConfigError(f"[model.args]: {error}; {name} takes {signature}") from error


def _normalisation(backbone: nn.Module, name: str) -> Normalisation | None:
    """A backbone's own attribute `normalisation`: (mean, std), one value each or one per channel."""
    given: Any = getattr(backbone, "normalisation", None)
    if given is None:
        return None
    try:
        mean, std = ([float(value) for value in values] for values in given)
    except (TypeError, ValueError):
        mean, std = [], []
    sizes = {len(mean), len(std)}
    if not sizes <= {1, 3} or not all(map(math.isfinite, mean + std)) or min(std) <= 0:
        raise ConfigError(
            f"[model] name: {name!r} has the normalisation {given!r}; it must be (mean, std), each a sequence of one "
            "or three numbers, with std above 0"
        )
    return tuple(mean * (3 // len(mean))), tuple(std * (3 // len(std)))


def build_model(
    name: str,
    *,
    norm: Norm,
    image_size: tuple[int, int],
    seed: int,
    head_init: HeadInit = "linear",
    head_bias: bool = True,
    args: Mapping[str, Any] | None = None,
) -> IncrementalModel:
    """A model with no classes yet, initialised from the seed alone. args: of a user's own builder.

    A user's backbone may draw from global random streams; they are seeded for the call and restored afterwards.
    """
    with watching(), streams_restored():
        seed_streams(seed, "model")
        backbone = _backbone(name, norm, args or {})
        features = _features(backbone, name, image_size)
    backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return IncrementalModel(
        backbone,
        features,
        head_init=head_init,
        head_bias=head_bias,
        normalisation=_normalisation(backbone, name),
        image_size=image_size,
    )


@torch.no_grad()
def _features(backbone: nn.Module, name: str, image_size: tuple[int, int]) -> int:
    """D, found by showing the backbone two blank images."""
    was_training = backbone.training
    try:
        output = backbone.eval()(torch.zeros(2, 3, *image_size))
    except Exception as error:  # it is the user's code: anything may come out of it
        raise ConfigError(
            f"[model] name: {name!r} cannot take images of 3x{image_size[0]}x{image_size[1]}: {reason(error)}"
        ) from error
    backbone.train(was_training)
    if not isinstance(output, Tensor) or output.ndim != 2 or len(output) != 2:
        raise ConfigError(f"[model] name: {name!r} must map (B, 3, H, W) to features (B, D)")
    if output.dtype != torch.float32:
        raise ConfigError(f"[model] name: {name!r} returns features as {output.dtype}; return them as torch.float32")
    return output.shape[1]
