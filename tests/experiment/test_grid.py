"""Methods, sweeps and seeds as they are typed, and the runs that they plan."""

from pathlib import Path

import pytest

from fedclass.errors import ConfigError
from fedclass.experiment.grid import Choice, expand, folder_name, read_methods, read_seeds, read_sweep


def test_a_method_may_carry_a_variant_and_parameters():
    assert read_methods("fedavg, fedclass:paper:beta=8,my.mod:Mine,my.mod:Mine:mu=0.1:sizes=[1,2]") == [
        Choice("fedavg", "fedavg"),
        Choice("fedclass:paper:beta=8", "fedclass", ("method.variant=paper", "method.beta=8")),
        Choice("my.mod:Mine", "my.mod:Mine"),
        Choice("my.mod:Mine:mu=0.1:sizes=[1,2]", "my.mod:Mine", ("method.mu=0.1", "method.sizes=[1,2]")),
    ]


def test_a_sweep_is_every_combination_and_a_list_is_one_value():
    choices = read_sweep(["method.beta=0,3", "train.rounds=2", "stream.tasks=[5,5],[2,8]"], method="fedclass")
    assert [choice.name for choice in choices] == [
        "method.beta=0 stream.tasks=[5,5]",
        "method.beta=0 stream.tasks=[2,8]",
        "method.beta=3 stream.tasks=[5,5]",
        "method.beta=3 stream.tasks=[2,8]",
    ]
    assert choices[1].overrides == ("method.beta=0", "train.rounds=2", "stream.tasks=[2,8]")
    assert {choice.method for choice in choices} == {"fedclass"}


def test_braces_and_quotes_bind_like_brackets():
    choices = read_sweep(['stream.tasks={5,5},"2,8",B0-Inc5'])
    assert [choice.overrides for choice in choices] == [
        ("stream.tasks={5,5}",),
        ('stream.tasks="2,8"',),
        ("stream.tasks=B0-Inc5",),
    ]


def test_seeds():
    assert read_seeds("3,0,11") == [3, 0, 11]
    assert read_seeds("0-4") == [0, 1, 2, 3, 4]
    assert read_seeds("0 - 2, 7,9-9") == [0, 1, 2, 7, 9]


def test_a_plan_has_each_choice_with_each_seed_in_a_directory_of_its_own():
    choices = read_methods("fedavg,fedclass:paper:beta=8")
    members = expand("cifar10_3task", choices, overrides=["train.rounds=3"], seeds=[0, 4], root=Path("r"))
    assert [str(member.path) for member in members] == [
        *("r/fedavg-s0", "r/fedavg-s4", "r/fedclass-paper-beta=8-s0", "r/fedclass-paper-beta=8-s4"),
    ]
    last = members[-1].experiment
    assert (last.method_name, last.method.variant_name, last.method.beta) == ("fedclass", "paper", 8.0)  # type: ignore[attr-defined]
    assert (last.seed, last.train.rounds) == (4, 3)
    assert members[-1].name == "fedclass:paper:beta=8 s4"


def test_a_recipes_own_parameters_stay_unless_the_choice_names_them():
    members = expand("cifar10_3task", read_methods("fedclass,fedclass:beta=1"), seeds=[0], root=Path())
    assert [member.experiment.method.beta for member in members] == [8.0, 1.0]  # type: ignore[attr-defined]


def test_a_sweep_may_run_over_methods():
    members = expand(None, read_sweep(["method.name=fedavg,fedwa"]), seeds=[0], root=Path())
    assert [member.experiment.method_name for member in members] == ["fedavg", "fedwa"]


def test_directory_names_are_safe_short_and_different():
    assert folder_name("fedclass:beta=0.5 x") == "fedclass-beta=0.5-x"
    odd = [folder_name(f"data.path={path}") for path in ("/a/b", "/a.b", "/a\\b", "/" + "a" * 300)]
    assert len(set(odd)) == 4
    for name in odd:
        assert len(name) <= 120
        assert not set(name) & set("/\\ :[]")


MISTAKES = {
    "methods fedavg,,fedwa: an entry is empty": lambda: read_methods("fedavg,,fedwa"),
    "methods fedavg,: an entry is empty": lambda: read_methods("fedavg,"),
    "methods : an entry is empty": lambda: read_methods(""),
    "methods fedclass:: write a variant or key=value": lambda: read_methods("fedclass:"),
    "seeds 0,x: write whole numbers": lambda: read_seeds("0,x"),
    "seeds -1: write whole numbers from 0 on, such as 0,1,2 or 0-4": lambda: read_seeds("-1"),
    "seeds 0-: write whole numbers": lambda: read_seeds("0-"),
    "seeds 1,5-4: 5-4 must rise": lambda: read_seeds("1,5-4"),
    "seeds 0-9999999999: 0-9999999999 must rise, and hold at most 1000": lambda: read_seeds("0-9999999999"),
    "seeds 0-3,2: name each seed only once": lambda: read_seeds("0-3,2"),
    "seeds 1,1: name each seed only once": lambda: read_seeds("1,1"),
    "method.beta: write it as table.key=value,value": lambda: read_sweep(["method.beta"]),
    "=1,2: write it as": lambda: read_sweep(["=1,2"]),
    "method.beta=1,,2: an entry is empty": lambda: read_sweep(["method.beta=1,,2"]),
    "stream.tasks=5,5: a value is given twice; write a list in brackets, stream.tasks=[5,5]": lambda: read_sweep(
        ["stream.tasks=5,5"]
    ),
    "method.beta=1,1: a value is given twice; give each value once": lambda: read_sweep(["method.beta=1,1"]),
    "seed=0,1: the seed is not a setting here; give --seeds 0,1, or in Python seeds='0,1'": lambda: read_sweep(
        ["seed=0,1"]
    ),
    "seed=3: the seed is not a setting here; give --seeds 3": lambda: expand(
        None, read_methods("fedavg"), overrides={"seed": 3}, seeds=[0, 1], root=Path()
    ),
    "method.beta=3: fedavg has no parameter 'beta'; write the methods as fedavg,fedclass:beta=3": lambda: expand(
        None, read_methods("fedavg,fedclass"), overrides=["method.beta=3"], seeds=[0], root=Path()
    ),
    "method.beta is given twice": lambda: read_sweep(["method.beta=0,1", "method.beta=2"]),
    "nothing to sweep": lambda: read_sweep(["train.rounds=2"]),
    "give a key several values": lambda: read_sweep([]),
    "fedclass and fedclass:paper are the same setting; name it once": lambda: expand(
        None, read_methods("fedclass,fedclass:paper"), seeds=[0], root=Path()
    ),
    "method.beta=5 and method.beta=5.0 are the same setting": lambda: expand(
        None, read_sweep(["method.beta=5,5.0"], method="fedclass"), seeds=[0], root=Path()
    ),
    "method.variant=papr: must be 'paper', 'paper-literal' or 'released'": lambda: expand(
        None, read_methods("fedclass:papr"), seeds=[0], root=Path()
    ),
    "method.variant=tuned: that loss is not the paper's: use the method fedclass-tuned": lambda: expand(
        None, read_methods("fedclass:tuned"), seeds=[0], root=Path()
    ),
    "did you mean 'beta'?": lambda: expand(None, read_methods("fedclass:bta=8"), seeds=[0], root=Path()),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_is_named(message):
    with pytest.raises(ConfigError) as error:
        MISTAKES[message]()
    assert message in str(error.value)
