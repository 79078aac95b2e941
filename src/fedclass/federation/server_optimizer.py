"""How the server uses a round's mean: as the next model, or as the target of an optimizer step.

Independent of methods: it sees only the model before a round and the method's result.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field

from fedclass.methods.declare import Spec
from fedclass.models.incremental import IncrementalModel
from fedclass.wire import Tensors, Weights

Weighting = Literal["new-data", "with-exemplars"]


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Table [server]: whom to ask, how an update counts, and how a round's mean is used."""

    participation: Annotated[float, Field(gt=0, le=1, description="share of clients asked in a round")] = 1.0
    weighting: Annotated[Weighting, Field(description="what counts as a client's size in the mean")] = "new-data"
    min_updates: Annotated[int, Field(ge=1, description="usable updates a round needs to count")] = 1

    optimizer: Annotated[
        Literal["mean", "momentum", "adam"],
        Field(description="mean: FedAvg's; momentum: FedAvgM (Hsu et al. 2019); adam: FedAdam (Reddi et al. 2021)"),
    ] = "mean"
    learning_rate: Annotated[float, Field(gt=0, description="momentum, adam: eta")] = 1.0
    momentum: Annotated[float, Field(ge=0, lt=1, description="momentum: beta; adam: beta_1")] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1, description="adam: beta_2")] = 0.99
    tau: Annotated[
        float,
        Field(
            gt=0, description="adam: added to the root of the variance, so that tiny variances do not make large steps"
        ),
    ] = 1e-3

    def declare(self) -> Mapping[str, Spec]:
        """The optimizer's own state."""
        names = {"mean": (), "momentum": ("momentum",), "adam": ("momentum", "variance")}[self.optimizer]
        return {name: Spec(("parameters",)) for name in names}

    @property
    def first(self) -> Mapping[str, float]:
        """What the entries of this state are before their first round."""
        return {"momentum": 0.0, "variance": self.tau**2}


def grown(settings: ServerSettings, state: Tensors, model: IncrementalModel, classes: int) -> Tensors:
    """State from when the model had `classes`, for the current head; entries of new classes begin now."""
    if not state or classes == model.classes:
        return state
    known = model.flat_from(torch.ones(model.flat_length(classes)), classes) > 0
    return {name: model.flat_from(moment, classes).where(known, settings.first[name]) for name, moment in state.items()}


def step(
    settings: ServerSettings, model: IncrementalModel, before: Weights, after: Weights, state: Tensors
) -> tuple[Weights, Tensors]:
    """The next global model and the optimizer's state. after: the model that "mean" would take.

    With delta = after - before, over the trained parameters; buffers are those of `after`:

        momentum:  m = beta * m + delta;  x = before + eta * m
        adam:      m = beta_1 * m + (1 - beta_1) * delta;  v = beta_2 * v + (1 - beta_2) * delta^2
                   x = before + eta * m / (sqrt(v) + tau), v starts at tau^2
    """
    if settings.optimizer == "mean":
        return after, {}
    start = model.flattened(before).double()
    delta = model.flattened(after).double() - start
    first = settings.first
    moments = {name: state.get(name, torch.full_like(start, first[name])).double() for name in settings.declare()}
    beta = settings.momentum
    if settings.optimizer == "momentum":
        m = beta * moments["momentum"] + delta
        moments, move = {"momentum": m}, m
    else:
        m = beta * moments["momentum"] + (1 - beta) * delta
        v = settings.beta2 * moments["variance"] + (1 - settings.beta2) * delta.square()
        moments, move = {"momentum": m, "variance": v}, m / (v.sqrt() + settings.tau)
    flat = (start + settings.learning_rate * move).float()
    return model.with_flat(after, flat), {name: tensor.float() for name, tensor in moments.items()}
