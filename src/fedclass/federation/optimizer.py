"""The clients' optimizer: the recipe's table [optimizer], its schedule, and its parameter groups."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.optim.sgd import sgd

from fedclass.methods.base import Progress, Rates
from fedclass.models.head import in_head
from fedclass.models.incremental import IncrementalModel


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """Table [optimizer]: of clients. Its state is reset in every round."""

    name: Annotated[Literal["sgd", "adamw"], Field(description="adamw: Loshchilov and Hutter 2019")] = "sgd"
    learning_rate: Annotated[float, Field(gt=0, description="as a task begins")] = 0.01
    momentum: Annotated[float, Field(ge=0, lt=1, description="sgd: momentum; adamw: beta_1")] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1, description="adamw: beta_2")] = 0.999
    weight_decay: Annotated[float, Field(ge=0, description="sgd: in the gradient; adamw: apart from it")] = 1e-5
    schedule: Annotated[
        Literal["constant", "cosine", "step"],
        Field(description="of the learning rate over a task's rounds; cosine: half a wave, towards 0"),
    ] = "constant"
    step_rounds: Annotated[int, Field(ge=1, description="step: after every so many rounds of a task")] = 10
    step_factor: Annotated[float, Field(gt=0, description="step: what the learning rate is multiplied by")] = 0.1
    clip: Annotated[float, Field(ge=0, description="largest norm of a step's gradient; 0: no limit")] = 0.0
    head_rate: Annotated[float, Field(gt=0, description="the head's learning rate, as a multiple")] = 1.0
    decay_all: Annotated[
        bool, Field(description="weight decay also for biases and normalisation, that is all tensors of one dimension")
    ] = True

    @property
    def plain(self) -> bool:
        """Whether a step is w - learning_rate * gradient, but for momentum and weight decay."""
        return self.name == "sgd" and self.clip == 0 and self.head_rate == 1

    def rates(self, progress: Progress) -> Rates:
        """Of a round, before the method may change them."""
        return Rates(scheduled(self, progress), self.momentum, self.weight_decay)


def scheduled(settings: OptimizerSettings, progress: Progress) -> float:
    """The learning rate eta_r of round r = 0 .. R - 1 of a task; it is constant within a round.

    cosine: eta_r = eta * (1 + cos(pi * r / R)) / 2
    step:   eta_r = eta * step_factor ** floor(r / step_rounds)
    """
    match settings.schedule:
        case "constant":
            return settings.learning_rate
        case "cosine":
            return settings.learning_rate * (1 + math.cos(math.pi * progress.round / progress.rounds)) / 2
        case "step":
            return settings.learning_rate * settings.step_factor ** (progress.round // settings.step_rounds)


class Steps:
    """The optimizer of one client in one round. It updates the model's packed tensors."""

    def __init__(self, settings: OptimizerSettings, model: IncrementalModel) -> None:
        self.settings, self.model = settings, model
        self._optimizer = _optimizer(settings, _groups(settings, model))

    def set(self, rates: Rates) -> None:
        """Change the rates; the optimizer's state is kept."""
        for group in self._optimizer.param_groups:
            group["lr"] = rates.learning_rate * group["factor"]
            group["weight_decay"] = rates.weight_decay if group["decays"] else 0.0
            group |= self._momentum(rates)

    def _momentum(self, rates: Rates) -> Mapping[str, object]:
        if self.settings.name == "sgd":
            return {"momentum": rates.momentum}
        return {"betas": (rates.momentum, self.settings.beta2)}

    def clear(self) -> None:
        for section in self.model.movable:
            assert section.grad is not None
            section.grad.zero_()

    def step(self) -> None:
        if self.settings.clip:
            torch.nn.utils.clip_grad_norm_(self.model.movable, self.settings.clip)
        self._optimizer.step()


def _groups(settings: OptimizerSettings, model: IncrementalModel) -> list[dict[str, Any]]:
    """Groups for torch's optimizers: a single one, unless the settings treat some parameters differently."""
    if settings.head_rate == 1 and settings.decay_all:
        return [{"params": model.movable, "factor": 1.0, "decays": True}]

    found: dict[tuple[float, bool], list[Tensor]] = {}
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            kind = settings.head_rate if in_head(name) else 1.0, settings.decay_all or weight.ndim > 1
            found.setdefault(kind, []).append(weight)
    return [{"params": parts, "factor": factor, "decays": decays} for (factor, decays), parts in found.items()]


def _optimizer(settings: OptimizerSettings, groups: list[dict[str, Any]]) -> "Sgd | torch.optim.AdamW":
    return Sgd(groups) if settings.name == "sgd" else torch.optim.AdamW(groups)


class Sgd:
    """torch.optim.SGD by its function: the class imports torch's compiler, a second of every process that trains."""

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        self.param_groups = groups
        self._momentum: list[list[Tensor | None]] = [[None] * len(group["params"]) for group in groups]

    @torch.no_grad()
    def step(self) -> None:
        for group, momentum in zip(self.param_groups, self._momentum, strict=True):
            sgd(
                group["params"],
                [part.grad for part in group["params"]],
                momentum,
                lr=group["lr"],
                momentum=group["momentum"],
                weight_decay=group["weight_decay"],
                dampening=0.0,
                nesterov=False,
                maximize=False,
            )
