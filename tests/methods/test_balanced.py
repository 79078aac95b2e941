"""FedEven, and the same adjustment as a switch for other methods."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fedclass.errors import ConfigError
from fedclass.experiment.config import Experiment
from fedclass.experiment.launch import run_one
from fedclass.experiment.setup import prepare
from fedclass.federation.store import MemoryStore
from fedclass.methods import METHODS
from fedclass.methods.base import can_be_balanced
from fedclass.wire import Job, Weights

Tiny = Callable[..., Experiment]
UserModule = Callable[[str, str], str]
UNEVEN = ("partition.kind=dirichlet", "partition.alpha=0.5", "partition.min_size=3")
BALANCED = "train.balanced=true"


def test_fedeven_is_lwf_balanced_and_lwf_without_distillation_is_fedavg_balanced(tiny: Tiny, tmp_path: Path) -> None:
    """One mechanism, bit for bit."""

    def hash_of(method: str, *overrides: str) -> str:
        root = tmp_path / "-".join((method, *overrides))
        return str(run_one(tiny(*UNEVEN, "train.rounds=1", *overrides, method=method), root)["weights_sha256"])

    even, lwf = hash_of("fedeven"), hash_of("lwf", BALANCED)
    assert even == lwf != hash_of("lwf")
    assert hash_of("fedeven", BALANCED) == even, "it is so anyway"
    assert hash_of("fedeven", "method.strength=0", BALANCED) == even, "its own strength 0 insists on nothing"
    alone = hash_of("fedeven", "method.distillation=0")
    assert alone == hash_of("fedavg", BALANCED) == hash_of("lwf", "method.distillation=0", BALANCED)
    assert alone not in (even, hash_of("fedavg"))


def test_the_switch_is_for_methods_whose_loss_has_a_cross_entropy_over_all_that_a_client_holds(tiny: Tiny) -> None:
    """Not for sigmoids (glfc, lga, fedicarl) and squares (analytic), nor for DER++, which has one over new images and
    one over exemplars, nor for TARGET, which has one among new classes alone.
    """
    can = {name for name, method in METHODS.items() if can_be_balanced(method())}
    assert set(METHODS) - can == {"glfc", "lga", "fedicarl", "derpp", "analytic", "target", "glfc-full"}
    assert not tiny().train.balanced
    for name in METHODS:
        if name in can:
            tiny(BALANCED, method=name)
            continue
        told = rf"\[train\] balanced: the loss of '{name}' has no softmax cross-entropy .* set train.balanced=false"
        with pytest.raises(ConfigError, match=told):
            tiny(BALANCED, method=name)


MINE = """
from dataclasses import dataclass
from fedclass.methods import Balance, Declaration, FedCLASS, FedAvg

@dataclass(frozen=True, kw_only=True)
class Silent(FedCLASS):
    def loss(self, client, batch):
        return 0.5 * super().loss(client, batch)

@dataclass(frozen=True, kw_only=True)
class Spoken(Silent):
    def declare(self):
        return Declaration(teacher="previous task", balances=True)

@dataclass(frozen=True, kw_only=True)
class Forgetful(FedAvg):
    def declare(self):
        return Declaration(balance=Balance(strength=0.5))
"""


def test_a_loss_of_ones_own_must_say_so_itself(tiny: Tiny, user_module: UserModule) -> None:
    """What it inherits was said of another loss."""
    user_module("balancing", MINE)
    with pytest.raises(ConfigError, match=r"a method of your own: client\.cross_entropy, balances=True"):
        tiny(BALANCED, method="balancing:Silent")
    assert tiny(BALANCED, method="balancing:Spoken").train.balanced
    with pytest.raises(ConfigError, match="declares how to balance, but not balances=True"):
        tiny(method="balancing:Forgetful")


def trained(tiny: Tiny, *overrides: str, method: str) -> tuple[Weights, Weights]:
    """A client's weights before and after a round of the second task."""
    plain = ("optimizer.momentum=0", "optimizer.weight_decay=0", *overrides)
    setup = prepare(tiny(*plain, method=method))
    model = setup.build()
    model.grow_to(2, seed=0)
    teacher = model.weights()
    model.grow_to(4, seed=0)
    client = setup.client(MemoryStore())
    client.run(Job(0, 0, 2, "end_task", teacher, None))
    before = model.weights()
    return before, client.run(Job(0, 1, 0, "train", before, teacher)).weights


def test_memory_0_leaves_old_rows_of_the_head_alone(tiny: Tiny) -> None:
    """Old classes have count 0: no gradient from cross-entropy, whereas without the switch they are pushed away."""
    for overrides, method, still in (
        (("memory.per_client=0", BALANCED), "fedavg", True),
        (("memory.per_client=0", "method.distillation=0"), "fedeven", True),
        (("memory.per_client=0",), "fedavg", False),
        (("memory.per_client=8", BALANCED), "fedavg", False),
        (("memory.per_client=0",), "fedeven", False),  # of the distillation
    ):
        before, after = trained(tiny, *overrides, method=method)
        assert torch.equal(after["head.weight"][:2], before["head.weight"][:2]) == still, (overrides, method)
        assert torch.equal(after["head.bias"][:2], before["head.bias"][:2]) == still
        assert not torch.equal(after["head.weight"][2:], before["head.weight"][2:])


def test_clients_of_one_class_each_move_nothing_unless_smoothed(tiny: Tiny) -> None:
    """Without exemplars of another class, a client of one class has nothing to tell apart: its weights stay."""
    one_each = ("partition.clients=2", "partition.kind=classes", "partition.classes=1")
    nothing_else = ("memory.per_client=0", "optimizer.weight_decay=0", "method.distillation=0")
    settings = (*one_each, *nothing_else, "model.norm=group")
    setup = prepare(tiny(*settings, method="fedeven"))
    model = setup.build()
    model.grow_to(2, seed=0)
    client = setup.client(MemoryStore())
    held = set()
    for number in range(2):
        update = client.run(Job(number, 0, 0, "train", model.weights(), None))
        held.update(setup.stream.targets[setup.stream.new_data(number, 0)].tolist())
        assert update.metrics["loss"] == 0
        assert all(torch.equal(update.weights[name], tensor) for name, tensor in model.weights().items())
    assert held == {0, 1}
    smoothed = prepare(tiny(*settings, "method.smoothing=1", method="fedeven")).client(MemoryStore())
    update = smoothed.run(Job(0, 0, 0, "train", model.weights(), None))
    assert not torch.equal(update.weights["head.weight"], model.weights()["head.weight"])
