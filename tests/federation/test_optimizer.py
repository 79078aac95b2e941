"""The table [optimizer]: each step against number-by-number oracles, on the model's long tensors."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedclass
from fedclass.errors import ConfigError
from fedclass.experiment.config import Experiment
from fedclass.federation.optimizer import OptimizerSettings, Steps, scheduled
from fedclass.methods.base import Progress, Rates
from fedclass.models.incremental import IncrementalModel
from reference import optimizer as oracle

Tiny = Callable[..., Experiment]
CASES: dict[str, dict[str, Any]] = {
    "sgd": {},
    "sgd, clipped": {"clip": 0.5},
    "sgd, the head faster": {"head_rate": 3.0},
    "sgd, biases and normalisation without decay": {"decay_all": False},
    "adamw": {"name": "adamw"},
    "adamw, all at once": {"name": "adamw", "clip": 0.5, "head_rate": 0.25, "decay_all": False, "beta2": 0.9},
}


def network() -> IncrementalModel:
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.BatchNorm1d(5), nn.Linear(5, 4))
    model = IncrementalModel(backbone, 4)
    model.grow_to(3, seed=0)
    return model


@pytest.mark.parametrize("case", CASES)
def test_steps_are_those_of_the_oracle_and_the_gradient_stays_one_vector(case: str) -> None:
    torch.manual_seed(0)
    model = network()
    settings = OptimizerSettings(learning_rate=0.1, momentum=0.8, weight_decay=0.3, **CASES[case])
    named = dict(model.named_parameters())
    start = {name: p.detach().clone() for name, p in named.items()}
    owners = [(name, i) for name, p in named.items() for i in range(p.numel())]
    drawn = [{name: torch.randn_like(p) for name, p in named.items()} for _ in range(4)]
    steps = Steps(settings, model)
    steps.set(Rates(settings.learning_rate, settings.momentum, settings.weight_decay))
    for gradients in drawn:
        steps.clear()
        assert not model.flat.grad.any()  # type: ignore[union-attr]
        for name, p in named.items():
            p.grad.copy_(gradients[name])  # type: ignore[union-attr]
        steps.step()
    rates = [0.1 * (settings.head_rate if name.startswith("head.") else 1) for name, _ in owners]
    decays = [0.3 if settings.decay_all or named[name].dim() > 1 else 0.0 for name, _ in owners]
    flat = [[float(gradients[name].flatten()[i]) for name, i in owners] for gradients in drawn]
    first = [float(start[name].flatten()[i]) for name, i in owners]
    if settings.name == "sgd":
        want = oracle.sgd(first, flat, rates, decays, momentum=0.8, clip=settings.clip)
    else:
        want = oracle.adamw(first, flat, rates, decays, beta1=0.8, beta2=settings.beta2, clip=settings.clip)
    got = [float(named[name].detach().flatten()[i]) for name, i in owners]
    assert got == pytest.approx(want, rel=1e-4, abs=1e-5)


def test_groups_share_memory_with_the_whole_and_cover_it_once() -> None:
    """But for the padding, which stays zero."""
    model = network()
    before = model.flat.clone()
    groups = Steps(OptimizerSettings(head_rate=2, decay_all=False), model)._optimizer.param_groups
    kinds = [(group["factor"], group["decays"]) for group in groups]
    assert sorted(kinds) == [(1.0, False), (1.0, True), (2.0, False), (2.0, True)]
    every = [part for group in groups for part in group["params"]]
    with torch.no_grad():
        for part in every:
            part.add_(1)
            part.grad.add_(1)
    count = sum(part.numel() for part in every)
    assert count == sum(weight.numel() for weight in model.parameters())
    assert float((model.flat - before).sum()) == pytest.approx(count)
    assert float(model.flat.grad.sum()) == count  # type: ignore[union-attr]


def test_schedules_are_torchs_own_over_a_tasks_rounds() -> None:
    rounds = 7
    for schedule in ("constant", "cosine", "step"):
        settings = OptimizerSettings(learning_rate=0.4, schedule=schedule, step_rounds=3, step_factor=0.5)
        weight = nn.Parameter(torch.zeros(1))
        torchs = torch.optim.SGD([weight], lr=0.4)
        made = {
            "constant": lambda o: torch.optim.lr_scheduler.ConstantLR(o, factor=1.0),
            "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=rounds),
            "step": lambda o: torch.optim.lr_scheduler.StepLR(o, step_size=3, gamma=0.5),
        }[schedule](torchs)
        for round in range(rounds):
            want = torchs.param_groups[0]["lr"]
            for epoch in range(2):
                assert scheduled(settings, Progress(round, rounds, epoch, 2)) == pytest.approx(want)
            torchs.step()
            made.step()


def test_each_setting_reaches_the_weights_of_a_run_and_its_neutral_value_does_not(tiny: Tiny, tmp_path: Path) -> None:
    def made(name: str, *settings: str) -> str:
        experiment = tiny("stream.tasks=4", "memory.per_client=0", *settings, method="fedavg")
        return str(fedclass.run(experiment, tmp_path / name)["weights_sha256"])

    plain = made("plain")
    assert made("neutral", "optimizer.clip=1e9", "optimizer.step_rounds=1", "optimizer.beta2=0.5") == plain
    changes = ("name=adamw", "schedule=cosine", "clip=0.1", "head_rate=2", "decay_all=false")
    found = {made(change, f"optimizer.{change}", "optimizer.weight_decay=0.01") for change in changes}
    assert len({plain, made("decay", "optimizer.weight_decay=0.01"), *found}) == len(changes) + 2


@pytest.mark.parametrize("change", [{"name": "adamw"}, {"clip": 1.0}, {"head_rate": 2.0}])
def test_methods_that_compute_with_sgds_steps_refuse_others(change: dict[str, Any], tiny: Tiny) -> None:
    for settings, method in (((), "scaffold"), (("method.variant=glfc",), "glfc")):
        experiment = tiny(*settings, method=method)
        with pytest.raises(ConfigError, match=rf"\[optimizer\]: {method} .* computes with steps of SGD"):
            replace(experiment, optimizer=OptimizerSettings(**change))
    replace(tiny(method="glfc"), optimizer=OptimizerSettings(**change))
