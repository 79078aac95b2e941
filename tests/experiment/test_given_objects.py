"""Methods and backbones as objects: which name a recipe has for them, and what cannot be one."""

import functools
import pickle
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from fedclass import FedAvg, usercode
from fedclass.errors import ConfigError
from fedclass.experiment.grid import methods_given, read_seeds, read_sweep
from fedclass.experiment.recipe import load
from fedclass.experiment.setup import prepare
from fedclass.methods import FedCLASS

UserModule = Callable[[str, str], str]
OWN = """
from dataclasses import dataclass
import torch
from fedclass import FedAvg

@dataclass(frozen=True, kw_only=True)
class Mine(FedAvg):
    mu: float = 0.1
    steps: tuple[int, ...] = (1, 2)

class Outer:
    @staticmethod
    def net(width=2):
        return torch.nn.Sequential(torch.nn.Conv2d(3, width, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
"""


def test_a_class_of_a_module_is_what_the_command_line_would_name(user_module: UserModule) -> None:
    user_module("own", OWN)
    import own

    typed = load(None, ["method.mu=0.5", "model.args.width=3"], method="own:Mine", model="own:Outer.net")
    given = load(None, {"model.args.width": 3}, method=own.Mine(mu=0.5), model=own.Outer.net)
    assert given == typed
    assert given.to_toml() == typed.to_toml()
    assert given.objects == {}
    assert load(None, method=own.Mine).method == own.Mine()
    again = load(None, {"method.mu": 2}, method=own.Mine(mu=0.5))
    assert again.method == own.Mine(mu=2.0)


def test_one_of_ours_has_its_id() -> None:
    given = load(None, method=FedCLASS(beta=3.0), seed=2)
    assert (given.method_name, given.method, given.seed) == ("fedclass", FedCLASS(beta=3.0), 2)
    assert given == load(None, ["method.beta=3.0"], method="fedclass", seed=2)


def test_what_no_module_has_goes_along_and_is_found_where_it_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Local(FedAvg):
        mu: float = 0.1

    monkeypatch.setattr(usercode, "_given", {})
    given = load(None, method=Local(mu=3.0), model=lambda: torch.nn.Flatten())
    assert given.method_name.endswith("<locals>.Local")
    assert given.model.name.endswith("<lambda>")
    sent = usercode.pickled(given)
    usercode._given.clear()  # as in another process
    with pytest.raises(ConfigError, match=r"'.*<lambda>' was defined in a script, a notebook or a function"):
        given.build((8, 8))
    arrived = pickle.loads(sent)
    assert arrived.method.mu == 3.0
    assert arrived.build((8, 8)).head.in_features == 192
    assert load(None, {"method.mu": 3.0}, method=arrived.method_name).method == arrived.method


def test_a_builder_that_was_defined_again_is_not_used_for_an_experiment_of_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(usercode, "_given", {})

    def build(features: int) -> Callable[[], torch.nn.Module]:
        def net() -> torch.nn.Module:
            return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(features))

        return net

    before = load(None, model=build(2))
    load(None, model=build(3))
    with pytest.raises(
        ConfigError, match=r"net was redefined since this experiment was loaded; load the experiment again"
    ):
        prepare(before)


def test_what_cannot_be_sent_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usercode, "_given", {})
    generator = (i for i in range(3))
    with pytest.raises(ConfigError, match=r'cannot be sent to other processes .*generator.*engine="inprocess"'):
        usercode.pickled(load(None, model=lambda: generator))


@dataclass(frozen=True, kw_only=True)
class Odd(FedAvg):
    rule: object = None


MISTAKES: dict[str, Callable[[], object]] = {
    r"method: <class 'int'> is not a method; derive its class from": lambda: load(None, method=int),  # type: ignore[arg-type]
    r"method: Odd\.rule is a builtin_function_or_method, which a recipe cannot hold": lambda: load(
        None, method=Odd(rule=len)
    ),
    r"model: give a class or a function that builds the network": lambda: load(None, model=torch.nn.Flatten()),
    r"model: functools.partial.* has no name; give": lambda: load(None, model=functools.partial(torch.nn.Linear, 3)),
    r"overrides = 'train.rounds=2': give a dict, or a list": lambda: load(None, "train.rounds=2"),
    r"train.rounds = nan: use finite numbers, text, or lists": lambda: load(None, {"train.rounds": float("nan")}),
    r"a.b.c=2: write it as table.key=value": lambda: load(None, {"a.b.c": 2}),
    r"methods = \[\]: give a list, such as": lambda: methods_given([]),
    r"seeds 0,1,1: name each seed only once": lambda: read_seeds([0, 1, 1]),
    r"seeds: none are given; give at least one": lambda: read_seeds([]),
    r"train.rounds=2,2: a value is given twice": lambda: read_sweep({"train.rounds": [2, 2]}),
    r"nothing to sweep": lambda: read_sweep({"train.rounds": 2}),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_is_told_in_terms_of_arguments(message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        MISTAKES[message]()
    assert "--" not in str(raised.value)


def test_grids_from_python_are_those_that_one_would_type() -> None:
    assert read_sweep({"method.beta": [0, 1.5], "train.rounds": 2}) == read_sweep(
        ["method.beta=0,1.5", "train.rounds=2"]
    )
    tasks = read_sweep({"stream.tasks": [[5, 5], [2, 8]], "method.variant": ["paper", "released"]})
    assert [choice.overrides for choice in tasks][:2] == [
        ("stream.tasks=[5, 5]", "method.variant=paper"),
        ("stream.tasks=[5, 5]", "method.variant=released"),
    ]
    assert read_seeds(range(3)) == read_seeds("0-2") == [0, 1, 2]
    assert read_seeds(7) == [7]
    names = [choice.name for choice in methods_given(["fedclass:beta=8", FedCLASS(beta=3.0), FedAvg])]
    assert names == ["fedclass:beta=8", "fedclass:beta=3.0", "fedavg"]
