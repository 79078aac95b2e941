"""From a name in a recipe to a model."""

import difflib

import torch
from torch import Tensor, nn

from fedclass.errors import ConfigError
from fedclass.models.incremental import HeadInit, IncrementalModel
from fedclass.models.resnet import BACKBONES, Norm
from fedclass.rng import seed_streams, streams_restored
from fedclass.usercode import imported, watching


def _backbone(name: str, norm: Norm) -> nn.Module:
    if ":" in name:
        build = imported(name, where="[model] name")
        if not callable(build):
            raise ConfigError(f"[model] name: {name!r} is not callable; it must build an nn.Module")
        try:
            backbone = build()
        except Exception as error:
            raise ConfigError(f"[model] name: calling {name!r} without arguments failed ({error})") from error
    elif name in BACKBONES:
        backbone = BACKBONES[name](norm)
    else:
        near = difflib.get_close_matches(name, BACKBONES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "or package.module:build for your own"
        raise ConfigError(f"[model] name: unknown model {name!r}; known: {', '.join(BACKBONES)}; {hint}")
    if not isinstance(backbone, nn.Module):
        raise ConfigError(f"[model] name: {name!r} built a {type(backbone).__name__} instead of an nn.Module")
    return backbone


def build_model(
    name: str,
    *,
    norm: Norm,
    image_size: tuple[int, int],
    seed: int,
    head_init: HeadInit = "linear",
    head_bias: bool = True,
) -> IncrementalModel:
    """A model with no classes yet, initialised from the seed alone.

    A user's backbone initialises itself from global streams; they are seeded for the call and left as they were.
    """
    with watching(), streams_restored():
        seed_streams(seed, "model")
        backbone = _backbone(name, norm)
        features = _features(backbone, name, image_size)
    model = IncrementalModel(backbone, features, head_init=head_init, head_bias=head_bias)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


@torch.no_grad()
def _features(backbone: nn.Module, name: str, image_size: tuple[int, int]) -> int:
    """D, found by showing the backbone two blank images."""
    was_training = backbone.training
    try:
        output = backbone.eval()(torch.zeros(2, 3, *image_size))
    except Exception as error:  # it is the user's code: anything may come out of it
        raise ConfigError(
            f"[model] name: {name!r} cannot take images of 3x{image_size[0]}x{image_size[1]}: {error}"
        ) from error
    backbone.train(was_training)
    if not isinstance(output, Tensor) or output.ndim != 2 or len(output) != 2:
        raise ConfigError(f"[model] name: {name!r} must map (B, 3, H, W) to features (B, D)")
    return output.shape[1]
