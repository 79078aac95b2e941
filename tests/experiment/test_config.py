"""Recipes: what is right is kept, what is wrong is named."""

import tomllib
from pathlib import Path

import pytest

from fedclass.errors import ConfigError
from fedclass.experiment.config import Experiment
from fedclass.experiment.grid import read_sweep
from fedclass.experiment.recipe import experiment, find_method, load, recipes, typed_overrides
from fedclass.methods import METHODS, FedCLASS

PAPER = {
    "svhn_2task": ("svhn", [5, 5], {"per_client": 20}, 5.0),
    "cifar10_2task": ("cifar10", [5, 5], {"per_client": 50}, 5.0),
    "synnum_2task": ("synnum", [5, 5], {"per_client": 50}, 5.0),
    "emnist_3task": ("emnist-balanced", [17, 15, 15], {"per_class": 2}, 5.0),
    "cifar10_3task": ("cifar10", [4, 3, 3], {"per_client": 50}, 8.0),
}


def paper_says(e: Experiment, name: str) -> None:
    """What both families of recipes take from the paper."""
    data, tasks, memory, beta = PAPER[name]
    assert (e.data.name, e.stream.tasks, e.method.beta) == (data, tasks, beta)  # type: ignore[attr-defined]
    budget = (e.memory.per_client, e.memory.per_class)
    assert budget == (memory.get("per_client"), memory.get("per_class"))
    assert (e.partition.clients, e.partition.alpha) == (20, 0.5)
    steps = e.optimizer
    assert (steps.name, steps.learning_rate, steps.momentum, steps.weight_decay) == ("sgd", 0.01, 0.9, 1e-5)
    assert e.train.batch_size == 32
    assert e.model.name == "resnet8"
    assert e.stream.class_order == "released-by-seed"


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_five_settings_come_along(name: str) -> None:
    e = load(name)
    paper_says(e, name)
    assert (e.partition.kind, e.partition.min_size, e.data.orientation) == ("fedml", 10, "upright")
    assert (e.memory.select, e.memory.quota, e.server.weighting) == ("random", "even", "new-data")
    assert e.method.variant_name == "paper"


@pytest.mark.parametrize("name", PAPER)
def test_each_of_them_comes_along_as_the_release_would_run_it(name: str) -> None:
    e, paper = load(f"{name}_released"), load(name)
    paper_says(e, name)
    assert (e.partition.kind, e.partition.classes_per_task) == ("released", e.stream.tasks)
    assert (e.memory.select, e.server.weighting) == ("first", "with-exemplars")
    assert (e.model.head_init, paper.model.head_init) == ("kaiming", "linear")
    assert e.memory.quota == ("even" if e.memory.per_class else "floor")
    assert e.data.orientation == ("raw" if e.data.name == "emnist-balanced" else "upright")
    assert e.method.variant_name == "released"
    assert (e.train.rounds, e.train.local_epochs, e.train.augment) == (
        *(paper.train.rounds, paper.train.local_epochs, paper.train.augment),
    )


def test_no_other_recipes_come_along() -> None:
    ours = {
        "digits_5task",
        "digits_misaligned",
        *(f"characters_{tasks}task" for tasks in (10, 25, 50)),
        "emnist_10task",
        "cifar10_5task",
        "cifar100_10task",
    }  # of the benchmark
    assert set(recipes()) == {*PAPER, *(f"{name}_released" for name in PAPER), *ours, "demo", "federation"}


def test_an_empty_recipe_is_all_defaults() -> None:
    e = experiment({})
    assert e == Experiment()
    assert e.memory.per_client == 50
    assert e.memory.per_class is None


@pytest.mark.parametrize("name", [*PAPER, "emnist_3task_released", "demo", None])
@pytest.mark.parametrize("method", METHODS)
def test_what_is_stored_reads_back_as_the_same_experiment(name: str | None, method: str) -> None:
    e = load(name, method=method, seed=3)
    assert experiment(tomllib.loads(e.to_toml())) == e


def test_without_a_recipe_every_key_has_its_own_default() -> None:
    """What makes the demonstration small never reaches who does not name it."""
    assert load() == Experiment()
    assert load().method_name == "fedeven"  # the one we recommend; the paper's recipes name the paper's
    assert (load().data.fraction, load().data.test_fraction, load().server.participation) == (1.0, 1.0, 1.0)
    demo = load("demo")
    assert (demo.data.fraction, demo.data.test_fraction, demo.server.participation) == (0.1, 0.1, 0.4)
    assert load(None, ["data.name=folder", "data.path=x"]) == experiment({"data": {"name": "folder", "path": "x"}})


def test_the_former_name_of_the_demonstration_says_what_to_type(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ConfigError, match="the demonstration's recipe is now called demo; without a recipe, every key has"
    ):
        load("default")
    (tmp_path / "default").write_text("seed = 3")  # a file of one's own may be called so
    assert load("default").seed == 3


def test_overrides_may_be_nested() -> None:
    nested = {"train": {"rounds": 3}, "model": {"name": "my:net", "args": {"depth": 2}}, "seed": 4}
    assert typed_overrides(nested) == ["train.rounds=3", "model.name=my:net", "model.args.depth=2", "seed=4"]
    assert load(None, {"train": {"rounds": 3}}).train.rounds == 3
    (one, two) = read_sweep({"method": {"beta": [1, 3]}})
    assert (one.overrides, two.overrides) == (("method.beta=1",), ("method.beta=3",))


def test_overrides_are_toml_or_text() -> None:
    e = load(None, ["train.rounds=2", "stream.tasks=B0-Inc2", "stream.class_order=[3, 1]", "data.name=mnist", "seed=7"])
    assert (e.train.rounds, e.stream.tasks, e.stream.class_order) == (2, "B0-Inc2", [3, 1])
    assert (e.data.name, e.seed) == ("mnist", 7)


def test_a_data_set_of_ones_own_is_written_into_the_recipe() -> None:
    settings = ["data.name=a.b:load", "data.args.year=2024", "data.args.kind=all", "data.size=[24, 32]"]
    e = load(None, [*settings, "data.mean=measured", "data.std=measured"])
    assert (e.data.args, e.data.image_size, e.data.normalisation) == ({"year": 2024, "kind": "all"}, (24, 32), None)
    assert experiment(tomllib.loads(e.to_toml())) == e
    given = load(None, ["data.size=16", "data.mean=[0.4]", "data.std=[0.2]"]).data
    assert (given.image_size, given.normalisation) == ((16, 16), ((0.4,), (0.2,)))
    with pytest.raises(ConfigError, match=r"data\.args\.year=2: data\.args is not a table"):
        load(None, ["data.args=1", "data.args.year=2"])


def test_one_memory_budget_replaces_the_other() -> None:
    assert load(None, ["memory.per_class=2"]).memory.per_client is None
    assert load("emnist_3task", ["memory.per_client=9"]).memory.per_class is None
    with pytest.raises(ConfigError, match=r"memory\].*not both"):
        experiment({"memory": {"per_client": 1, "per_class": 1}})


def test_another_method_does_not_inherit_parameters() -> None:
    assert load("cifar10_3task", method="fedavg").method == METHODS["fedavg"]()
    assert load("cifar10_3task", method="fedclass").method == FedCLASS(variant="paper", beta=8.0)
    assert load("cifar10_3task", ["method.name=fedwa"]).method == METHODS["fedwa"]()


WRONG = {
    "[train]: unknown key 'roundz'; did you mean 'rounds'?": {"train": {"roundz": 3}},
    "[method]: unknown key 'temprature'; did you mean 'temperature'?": {"method": {"temprature": 3}},
    "unknown key 'trian'; did you mean 'train'?": {"trian": {}},
    "unknown method 'fedclas'; known methods: fedavg, ": {"method": {"name": "fedclas"}},
    "[partition]: alpha = 0: must be above 0": {"partition": {"alpha": 0}},
    "[partition]: alpha = -1.5": {"partition": {"alpha": -1.5}},
    "[partition]: clients = 0": {"partition": {"clients": 0}},
    "[partition]: kind = 'dirichlett'": {"partition": {"kind": "dirichlett"}},
    "[optimizer]: learning_rate = 'fast'": {"optimizer": {"learning_rate": "fast"}},
    "[train]: rounds = 0": {"train": {"rounds": 0}},
    "[server]: participation = 1.5": {"server": {"participation": 1.5}},
    "[memory]: per_client = -1": {"memory": {"per_client": -1}},
    "[data]: fraction = 2": {"data": {"fraction": 2}},
    "[data]: validation = 1": {"data": {"validation": 1}},
    "[data]: validation = -0.1": {"data": {"validation": -0.1}},
    "[data] size = 0: write a number up to 4096, or [height, width]": {"data": {"size": 0}},
    "[data] size = [1, 2, 3]: write": {"data": {"size": [1, 2, 3]}},
    "[data] mean and std belong together": {"data": {"mean": [0.5]}},
    '[data] mean and std belong together: give numbers for both, or "measured"': {
        "data": {"mean": [0.5], "std": "measured"}
    },
    "[data] mean and std: give each one value, or each three": {"data": {"mean": [0.5, 0.5], "std": [0.5, 0.5]}},
    "[data] mean must be in [0, 1] and std in (0, 1]": {"data": {"mean": [120.0], "std": [60.0]}},
    "[data]: mean = 'mesured'": {"data": {"mean": "mesured", "std": "measured"}},
    "[data]: args = 3: must be a table": {"data": {"args": 3}},
    "[method]: beta = -1": {"method": {"name": "fedclass", "beta": -1}},
    "seed must be a whole number": {"seed": -1},
    "[train]: must be a table": {"train": 3},
    "method must be a table": {"method": "fedavg"},
}


@pytest.mark.parametrize("message", WRONG)
def test_a_mistake_is_named_with_its_place(message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        experiment(WRONG[message], where="recipe.toml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("override", ["rounds", "train.rounds", "=3", "a.b.c=1", "train.=2"])
def test_an_override_that_cannot_be_read_says_how_to_write_it(override: str) -> None:
    with pytest.raises(ConfigError, match=r"write it as table\.key=value"):
        load(None, [override])


def test_a_recipe_that_is_not_there_or_not_toml(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'cifar10_2task'"):
        load("cifar10_2tasks")
    broken = tmp_path / "broken.toml"
    broken.write_text("seed = = 3")
    with pytest.raises(ConfigError, match="not a TOML file"):
        load(str(broken))
    with pytest.raises(ConfigError, match="cannot read"):
        load(str(tmp_path))


def test_a_users_own_method_needs_no_change_here(user_module) -> None:  # type: ignore[no-untyped-def]
    name = user_module(
        "my_methods",
        "from dataclasses import dataclass\n"
        "from fedclass.methods import FedAvg\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Mine(FedAvg):\n"
        '    """Mine."""\n'
        "    strength: float = 1.0\n"
        "class NotAMethod: pass\n",
    )
    e = experiment({"method": {"name": f"{name}:Mine", "strength": 2}})
    assert e.method.strength == 2.0  # type: ignore[attr-defined]
    assert experiment(tomllib.loads(e.to_toml())) == e
    with pytest.raises(ConfigError, match="must be a dataclass that derives from"):
        find_method(f"{name}:NotAMethod")
    with pytest.raises(ConfigError, match="cannot import 'my_methods:Typo'"):
        find_method(f"{name}:Typo")
    with pytest.raises(ConfigError, match="cannot import"):
        find_method("no_such_package:Mine")


HEAD = "from dataclasses import dataclass\nfrom typing import ClassVar\nfrom fedclass.methods import FedAvg, FedCLASS\n"
DECORATED = "@dataclass(frozen=True, kw_only=True)\n"
LOST = {
    "a field called name": (
        DECORATED + "class Mine(FedAvg):\n    name: str = 'x'\n",
        "must not be called 'name'",
    ),
    "no decorator": (
        "class Mine(FedAvg):\n    mu: float = 0.1\n",
        r"Mine has parameters \(mu\) that would be lost; write @dataclass\(frozen=True, kw_only=True\)",
    ),
    "no decorator, text annotations": (
        "class Mine(FedAvg):\n    mu: 'float' = 0.1\n    shared: 'ClassVar[int]' = 3\n",
        r"Mine has parameters \(mu\) that would be lost",
    ),
    "a parent without decorator": (
        "class Parent(FedAvg):\n    mu: float = 0.1\n" + DECORATED + "class Mine(Parent):\n    nu: float = 1.0\n",
        r"Parent has parameters \(mu\) that would be lost",
    ),
    "a constructor": (
        "class Mine(FedAvg):\n    def __init__(self, mu=0.1):\n        self.mu = mu\n",
        r"Mine has parameters \(mu\) that would be lost",
    ),
    "a default without its type": (
        DECORATED + "class Mine(FedCLASS):\n    beta = 8.0\n",
        r"Mine.beta has no type, so the inherited default would be used; write `beta: type = default`",
    ),
}


@pytest.mark.parametrize("case", LOST)
def test_parameters_that_would_be_lost_are_refused(case: str, user_module) -> None:  # type: ignore[no-untyped-def]
    source, message = LOST[case]
    user_module("losing", HEAD + source)
    with pytest.raises(ConfigError, match=message):
        load(None, method="losing:Mine")


def test_a_method_that_only_changes_what_it_does_needs_no_decorator(user_module) -> None:  # type: ignore[no-untyped-def]
    source = "class Mine(FedCLASS):\n    shared: ClassVar[int] = 3\n    teacher = 'received'\n"
    user_module(
        "plain", HEAD + source + "    def loss(self, client, batch):\n        return super().loss(client, batch)\n"
    )
    e = load(None, ["method.beta=8"], method="plain:Mine")
    assert tomllib.loads(e.to_toml())["method"]["beta"] == 8.0


def test_a_method_handed_over_in_python_is_checked_too(user_module) -> None:  # type: ignore[no-untyped-def]
    import importlib

    user_module("handed", HEAD + "class Mine(FedAvg):\n    mu: float = 0.1\n")
    with pytest.raises(ConfigError, match=r"method: 'handed:Mine': Mine has parameters \(mu\)"):
        Experiment(method_name="handed:Mine", method=importlib.import_module("handed").Mine())


# Paths.


def test_paths_in_a_recipe_are_relative_to_it_and_typed_ones_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "study").mkdir()
    recipe = tmp_path / "study" / "mine.toml"
    recipe.write_text(
        '[data]\nname = "npz"\npath = "images.npz"\n[partition]\nkind = "file"\npath = "../shares.json"\n'
    )
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    e = load("../study/mine.toml")
    assert (e.data.path, e.partition.path) == (f"{tmp_path}/study/images.npz", f"{tmp_path}/study/../shares.json")
    assert load(str(recipe), ["data.path=new.npz"]).data.path == f"{tmp_path}/elsewhere/new.npz"
    assert load(str(recipe), ["data.path=''"]).data.path == "", "the cache folder"
    stored = tmp_path / "config.toml"
    stored.write_text(e.to_toml())
    assert load(str(stored)) == e, "stored paths are whole"


def test_a_path_from_home_is_stored_as_a_whole_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load(None, ["data.path=~/images"]).data.path == str(tmp_path / "images")
    assert experiment({"data": {"path": "~/images"}}).data.path == str(tmp_path / "images")


OLD = """
[train]
rounds = 3
learning_rate = 0.5
momentum = 0.25
weight_decay = 0.125
participation = 0.5
weighting = "with-exemplars"
min_updates = 2
"""


def test_keys_that_moved_are_still_understood_with_one_hint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "old.toml"
    recipe.write_text(OLD)
    for _ in range(2):
        e = load(str(recipe), ["train.momentum=0.75"])
    steps, server = e.optimizer, e.server
    assert (e.train.rounds, steps.learning_rate, steps.momentum, steps.weight_decay) == (3, 0.5, 0.75, 0.125)
    assert (server.participation, server.weighting, server.min_updates) == (0.5, "with-exemplars", 2)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert said[0].startswith("old.toml: train.learning_rate is now optimizer.learning_rate, train.momentum is now")
    assert said[1] == "train.momentum: is now optimizer.momentum"
    assert not {*e.to_tables()["train"]} & {"learning_rate", "participation"}, "it is stored in its new place"
    stored = tmp_path / "config.toml"
    stored.write_text(OLD)
    assert load(str(stored)).optimizer.momentum == 0.25
    assert capsys.readouterr().err == "", "nobody is asked to change a run's own recipe"


def test_a_key_in_its_old_and_its_new_place_is_an_error(tmp_path: Path) -> None:
    recipe = tmp_path / "both.toml"
    recipe.write_text("[train]\nparticipation = 0.5\n[server]\nparticipation = 0.5\n")
    with pytest.raises(ConfigError, match=r"both\.toml: train\.participation has moved to server\.participation, and"):
        load(str(recipe))
    with pytest.raises(ConfigError, match=r"train\.momentum: has moved to optimizer\.momentum, and both"):
        load(None, ["train.momentum=0", "optimizer.momentum=0"])


def test_a_hook_by_its_old_name_is_refused_and_not_ignored(user_module) -> None:  # type: ignore[no-untyped-def]
    name = user_module(
        "my_rates",
        "from dataclasses import dataclass\n"
        "from fedclass.methods import FedAvg\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Mine(FedAvg):\n"
        "    def sgd(self, usual, *, progress): return usual\n",
    )
    with pytest.raises(ConfigError, match=r"Mine\.sgd: this hook is now called `rates`"):
        experiment({"method": {"name": f"{name}:Mine"}})


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("train.roundz=3", "train.roundz=3: unknown key 'roundz'; did you mean 'rounds'?"),
        ("train.rounds=0", "train.rounds=0: must be at least 1"),
        ("trian.rounds=3", "trian.rounds=3: unknown key 'trian'; did you mean 'train'?"),
        ("method.beta=x", "method.beta=x: must be a number"),
    ],
)
def test_a_mistake_in_an_override_is_not_said_to_be_the_recipes(tmp_path, override, told):
    with pytest.raises(ConfigError) as caught:
        load("demo", ["memory.per_client=3", override])
    assert str(caught.value).startswith(told)
    recipe = tmp_path / "mine.toml"
    recipe.write_text("[train]\nrounds = 0\n")
    with pytest.raises(ConfigError, match=r"^mine.toml \[train\]: rounds = 0: "):
        load(str(recipe), ["train.local_epochs=2"])


def test_the_order_of_overrides_does_not_drop_a_parameter(tmp_path: Path) -> None:
    """Another method's parameters go with it, but not those that are given beside its name."""
    (tmp_path / "r.toml").write_text('[method]\nname = "fedclass"\nbeta = 3.0\n')
    recipe = str(tmp_path / "r.toml")
    words = ["method.beta=8", "method.name=fedclass-tuned"]
    assert load(recipe, words) == load(recipe, words[::-1])
    assert load(recipe, words).method.beta == 8  # type: ignore[attr-defined]
    assert load(recipe, words[1:]).method.beta == 5  # type: ignore[attr-defined]
    assert load(recipe, ["method.name=fedclass"]).method.beta == 3, "no other method"  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"method\.name=lwf: the method is also given as fedavg; leave out one"):
        load(recipe, ["method.name=lwf"], method="fedavg")
    assert load(recipe, ["method.name=lwf"], method="lwf").method_name == "lwf"
