"""Errors in a method's hooks, in one message: where, method, hook, what was expected, and the user's line."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType

from torch import Tensor

from fedclass.errors import ClientError, FedclassError
from fedclass.methods.base import Method, Outcome, Rates
from fedclass.methods.declare import Sizes, Specs, found, misfit
from fedclass.models.head import head_rows, with_shapes_for
from fedclass.models.weights import Packed, flaw, form_flaw
from fedclass.usercode import frames_of, reason
from fedclass.wire import Tensors, Weights

OUTSIDE = (
    "fedclass.experiment",
    "fedclass.engines",
    "fedclass.runs",
    "fedclass.deploy",
)  # not part of a hook


@contextlib.contextmanager
def failures_named(where: str, method: Method, kind: type[FedclassError] = ClientError) -> Iterator[None]:
    """Methods, backbones and transforms may be user code: name the place of every exception they raise.

    At the server, a hook waits for updates. An error in fetching them, or in a listener, is not blamed on the hook.
    """
    try:
        yield
    except FedclassError:
        raise
    except Exception as error:
        frames = [frame for frame, _ in frames_of(error)]
        hooks = [at for at, frame in enumerate(frames) if frame.f_locals.get("self") is method]
        if kind is not ClientError and (not hooks or any(map(_is_outside, frames[hooks[0] :]))):
            raise
        named = f"{type(method).__name__}.{frames[hooks[0]].f_code.co_name}: " if hooks else ""
        raise kind(f"{where}: {named}{reason(error)}") from error


def _is_outside(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith(OUTSIDE)


@dataclass(frozen=True)
class Checks:
    """Checks of what a method's hooks return and change. where: names the job or round.  kind: the error to raise."""

    where: str
    method: Method
    kind: type[FedclassError] = ClientError

    def _refuse(self, hook: str, fault: str | None) -> None:
        if fault is not None:
            raise self.kind(f"{self.where}: {type(self.method).__name__}.{hook}: {fault}")

    def _refuse_unless(self, fits: bool, hook: str, expected: str, value: object) -> None:
        self._refuse(
            hook, None if fits else f"must return {expected}; it returned {found(value, gradient=hook == 'loss')}"
        )

    def loss(self, value: object) -> None:
        if not isinstance(value, Tensor) or value.ndim or not value.requires_grad:
            self._refuse_unless(False, "loss", "a scalar tensor with a gradient, such as a mean over the batch", value)

    def nothing(self, hook: str, value: object) -> None:
        if value is not None:
            self._refuse_unless(False, hook, "nothing, and change what it is given in place", value)

    def rates(self, value: object) -> None:
        self._refuse_unless(isinstance(value, Rates), "rates", "Rates", value)

    def outcome(self, value: object) -> None:
        self._refuse_unless(isinstance(value, Outcome), "end_round", "an Outcome", value)

    def teacher(self, value: object, model: Weights) -> None:
        """Weights of the model, with the same number of classes or fewer."""
        self._refuse_unless(value is None or isinstance(value, Mapping), "teacher", "weights by name, or None", value)
        if isinstance(value, Mapping):
            known = value.keys() == model.keys()
            self._refuse("teacher", form_flaw(value, with_shapes_for(model, len(head_rows(value))) if known else model))

    def tensors(
        self, hook: str, value: Tensors, specs: Specs, sizes: Sizes, *, rows: int | None = None, every: bool = False
    ) -> None:
        """Tensors must be as declared."""
        self._refuse(hook, misfit(value, specs, sizes, rows=rows, every=every))

    def weights_and_state(self, hook: str, value: object, like: Weights, *, sane: bool = True) -> None:
        """sane: values must be finite and of plausible size, too."""
        pair = isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], Mapping)
        self._refuse_unless(pair, hook, "a pair, the model's weights and the method's state", value)
        if isinstance(value, tuple):
            self._refuse(hook, flaw(value[0], like) if sane else form_flaw(value[0], like))

    def unchanged(self, **groups: Tensors) -> Callable[..., None]:
        """Returns a check, to be called with the names of the hooks that have seen these tensors since.

        The tensors are shared with other clients. In another process a hook would change a copy, and results differ.
        """

        def versions() -> dict[str, int]:
            """How often each tensor was changed in place, as counted by torch; a model's share their counters."""
            found = {}
            for group, named in groups.items():
                if isinstance(named, Packed):
                    found[group] = sum(section._version for section in named.sections)
                else:
                    found |= {f"{group}[{name!r}]": tensor._version for name, tensor in named.items()}
            return found

        before = versions()

        def check(*hooks: str) -> None:
            changed = [name for name, version in versions().items() if before.get(name, version) != version]
            if changed:
                what = changed[0] if len(changed) == 1 else changed[0].partition("[")[0]
                self._refuse(" or ".join(hooks), f"changes {what} in place; change a clone() of it, and return that")

        return check
