"""Which tensors of a model are trained, and which are frozen: never changed, sent, averaged or put in a checkpoint.

A parameter is frozen if it does not require a gradient, a buffer if its module was frozen by `freeze`.
"""

from collections.abc import Iterator
from typing import TypeVar

from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)

MARK = "fedclass_frozen"  # an attribute of frozen modules


def freeze(module: M) -> M:
    """Freeze a module for good, and return it: no parameter is trained, and no buffer changes, because the module stays
    in evaluation mode whatever the rest of the model does.

    To train a part of it nevertheless: `module.part.requires_grad_(True)`. Modules that are added afterwards are
    trained.
    """
    module.requires_grad_(False)
    for part in module.modules():
        setattr(part, MARK, True)
    return module.eval()


def stay_frozen(module: nn.Module) -> None:
    """Put frozen parts back into evaluation mode."""
    for part in module.modules():
        if _is_marked(part):
            part.training = False


def frozen_names(module: nn.Module) -> frozenset[str]:
    """Names of frozen parameters and buffers. A tensor that is trained under another name is not frozen."""
    found = list(_tensors(module))
    changing = {id(tensor) for _, tensor, frozen in found if not frozen}
    return frozenset(name for name, tensor, _ in found if id(tensor) not in changing)


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor, bool]]:
    for name, parameter in module.named_parameters(remove_duplicate=False):
        yield name, parameter, not parameter.requires_grad
    for path, part in module.named_modules(remove_duplicate=False):
        for name, buffer in part.named_buffers(recurse=False):
            yield f"{path}.{name}" if path else name, buffer, _is_marked(part)


def _is_marked(part: nn.Module) -> bool:
    return getattr(part, MARK, False) is True
