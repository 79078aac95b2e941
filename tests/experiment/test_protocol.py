"""Protocols are named, versioned and fixed; the reduced ones say what they changed."""

from pathlib import Path

import pytest
import tomli_w

from fedclass.errors import ConfigError, RunError
from fedclass.experiment.memory_use import memory_bytes
from fedclass.experiment.protocol import Protocol, find_protocol, protocols
from fedclass.experiment.recipe import load, read_recipe
from fedclass.experiment.setup import prepare
from fedclass.wire import nbytes

# Of what each protocol fixes. Whoever changes one of them after a release gives it a new version, and changes it here.
PINNED = {
    ("characters_10task", 1): "cfbcc3c3b4bf4098",
    ("characters_10task-reduced", 1): "c24eace8ed3ce99b",
    ("characters_25task", 1): "48fc9acaa7aee4aa",
    ("characters_25task-reduced", 1): "8443044aa1d5218b",
    ("characters_50task", 1): "ff6a3d7bf170066c",
    ("characters_50task-reduced", 1): "ffd381d8f20fda38",
    ("cifar100_10task", 1): "8a944e2e41c4caf5",
    ("cifar100_10task-reduced", 1): "d584715638e18435",
    ("cifar10_2task", 1): "ecae0907175b0860",
    ("cifar10_2task-reduced", 1): "515f223a8ecc8c16",
    ("cifar10_3task", 1): "1a4e2f35006d0b6e",
    ("cifar10_3task-reduced", 1): "83c9f3e1acb0df37",
    ("cifar10_5task", 1): "3651812d4a8d612b",
    ("cifar10_5task-reduced", 1): "e8bfb429e18b3f52",
    ("digits_5task", 1): "3f3ac013a1a78d3b",
    ("digits_5task-reduced", 1): "f844f355df381fc9",
    ("digits_misaligned", 1): "f62c2dd4146337ab",
    ("digits_misaligned-reduced", 1): "4506cb50d31ba3b4",
    ("emnist_10task", 1): "95e6dda068446628",
    ("emnist_10task-reduced", 1): "4b56bb8cd581f2bc",
    ("emnist_3task", 1): "251384af54e55e13",
    ("emnist_3task-reduced", 1): "3030710b01c8465e",
    ("svhn_2task", 1): "c6c76e90967cd88f",
    ("svhn_2task-reduced", 1): "b9590ac50fd01539",
    ("synnum_2task", 1): "7b8a1865d2aa8250",
    ("synnum_2task-reduced", 1): "7d67cfd82e60136e",
}


def test_what_a_protocol_fixes_changes_with_its_version_only():
    assert {(each.name, each.settings.version): each.sha256[:16] for each in protocols()} == PINNED


def test_each_has_a_reduced_one_that_is_smaller_and_says_so():
    whole = [each for each in protocols() if not each.name.endswith("-reduced")]
    assert len(whole) == 13
    for each in whole:
        small = find_protocol(f"{each.name}-reduced")
        a, b = each.experiment(), small.experiment()
        assert (a.data.name, a.stream.tasks) == (b.data.name, b.stream.tasks)
        assert (b.data.fraction, b.train.rounds) < (a.data.fraction, a.train.rounds)
        assert small.settings.reduced_by == each.settings.reduced
        assert not each.settings.reduced_by
        assert load(small.name) == b  # and every command takes it as a recipe


def test_paths_in_reductions_are_relative_to_the_recipe_too(tmp_path):
    (tmp_path / "mine.toml").write_text(
        '[partition]\npath = "all.json"\n[protocol]\nversion = 1\nreduced = ["partition.path=few.json"]\n'
    )
    for word, name in (("", "all.json"), ("-reduced", "few.json")):
        _, table = read_recipe(f"{tmp_path / 'mine.toml'}{word}")
        assert table["partition"]["path"] == str(tmp_path / name)


def test_every_protocol_can_run_the_methods_that_it_names():
    for each in protocols():
        choices = each.choices(None)
        assert [choice.name for choice in choices] == each.settings.methods.split(",")
        for choice in choices:
            each.check(each.experiment(choice, seed=each.seeds(None)[0]), where="here")


@pytest.mark.slow
def test_digits_can_be_prepared_with_all_of_their_methods():
    """No download is needed; what a method asks of the memory is there, too."""
    for name in ("digits_5task-reduced", "digits_misaligned-reduced"):
        protocol = find_protocol(name)
        for choice in protocol.choices(None):
            experiment = protocol.experiment(choice)
            assert sum(prepare(experiment).stream.task_sizes) == 10, choice.name


def test_unknown_protocols_and_recipes_without_one_are_told():
    with pytest.raises(ConfigError, match=r"digits_5tasks: no such protocol; did you mean 'digits_5task'\?"):
        find_protocol("digits_5tasks")
    with pytest.raises(ConfigError, match=r"demo: has no table \[protocol\].*protocols are characters_10task, "):
        find_protocol("demo")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A protocol of one's own."""
    table = {"version": 3, "about": "mine", "origin": "me", "reduced": ["train.rounds=1"], "seeds": "4"}
    table |= {"methods": "fedavg,fedclass:best", "best": {"fedclass": ["method.beta=3", "optimizer.learning_rate=0.1"]}}
    table |= {"reduced_best": {"fedclass": ["method.beta=4"]}}
    path = tmp_path / "mine.toml"
    path.write_text(tomli_w.dumps({"protocol": table, "train": {"rounds": 7}, "stream": {"tasks": [5, 5]}}))
    return path


def test_a_recipe_of_ones_own_becomes_a_protocol_by_its_table(own: Path):
    protocol = find_protocol(str(own))
    assert (protocol.title, protocol.folder, protocol.seeds(None)) == ("mine, version 3", "mine-v3", [4])
    assert load(str(own)).train.rounds == 7  # and stays a recipe
    assert protocol.reduced().experiment().train.rounds == 1
    assert find_protocol(f"{own}-reduced") == protocol.reduced()
    assert load(f"{own}-reduced", ["train.local_epochs=4"]).train.rounds == 1
    with pytest.raises(ConfigError, match="demo-reduced: demo has no reduced version; leave -reduced out"):
        load("demo-reduced")
    with pytest.raises(ConfigError, match="nowhere-reduced: cannot read the recipe"):
        load("nowhere-reduced")


def test_best_settings_are_used_by_name(own: Path):
    protocol = find_protocol(str(own))
    fedavg, best = protocol.choices(None)
    e = protocol.experiment(best)
    assert (e.method_name, e.method.beta, e.optimizer.learning_rate) == ("fedclass", 3.0, 0.1)
    assert protocol.experiment(fedavg).optimizer.learning_rate == 0.01
    (reduced,) = (small := protocol.reduced()).choices("fedclass:best")
    assert small.experiment(reduced).method.beta == 4.0  # tuned by itself: less data want other values
    (more,) = protocol.choices("fedclass:best:beta=8")
    assert protocol.experiment(more).method.beta == 8.0
    with pytest.raises(
        ConfigError, match=r"fedeven:best: mine has no best settings for fedeven \(available: fedclass:"
    ):
        protocol.choices("fedeven:best")


def test_what_a_protocol_fixes_cannot_be_changed_and_the_rest_can(own: Path):
    protocol = find_protocol(str(own))
    protocol.check(load(str(own), ["optimizer.learning_rate=1", "memory.select=herding", "data.path=x"]), where="here")
    with pytest.raises(
        ConfigError, match=r"here: differs from the protocol mine, version 3: train.rounds=8 \(mine: 7\)"
    ):
        protocol.check(load(str(own), ["train.rounds=8"]), where="here")
    protocol.check(load(str(own), method="joint"), where="here")  # bounds have no memory, by definition


def test_results_have_their_protocol_beside_them(own: Path, tmp_path: Path):
    small = find_protocol(str(own)).reduced()
    small.write(tmp_path / "results")
    small.write(tmp_path / "results")
    stored = Protocol.stored(tmp_path / "results")
    assert (stored.title, stored.sha256, stored.settings.reduced_by) == (small.title, small.sha256, ["train.rounds=1"])
    assert stored.experiment() == small.experiment()
    with pytest.raises(RunError, match="is not the protocol mine, version 3"):
        find_protocol(str(own)).write(tmp_path / "results")
    with pytest.raises(RunError, match=r"has no protocol\.toml"):
        Protocol.stored(tmp_path)


def test_mistakes_in_the_table_are_told(tmp_path: Path):
    path = tmp_path / "mine.toml"
    path.write_text('[protocol]\nversion = 0\nabout = ""\norigin = ""\n')
    with pytest.raises(ConfigError, match=r"mine\.toml \[protocol\]: version = 0"):
        find_protocol(str(path))
    path.write_text('[protocol]\nversion = 1\nabout = ""\norigin = ""\nmethds = ""\n')
    with pytest.raises(ConfigError, match="unknown key 'methds'; did you mean 'methods'"):
        find_protocol(str(path))


def test_memory_is_counted_in_bytes_and_counts_all_that_is_kept(tiny):
    """Three clients with 8 exemplars each, of 8 x 8 x 3 bytes; four classes; 96 training images."""

    def use(*overrides: str, method: str) -> dict[str, int]:
        return memory_bytes(prepare(tiny(*overrides, method=method)))

    model = prepare(tiny()).build()
    model.grow_to(4, seed=0)
    weights, image = nbytes(model.weights()), 8 * 8 * 3
    nothing = {"exemplars": 24 * image, "rows": 0, "clients": 0, "server": 0, "teacher": 0}
    assert use(method="fedavg") == nothing
    assert use(method="fedclass") == nothing | {"teacher": 3 * weights}
    assert use(method="derpp") == nothing | {"rows": 24 * 4 * 4}
    assert use(method="finetune")["exemplars"] == 0
    assert use(method="joint")["exemplars"] == 96 * image
    control = 4 * model.flat_length(4)
    assert use(method="scaffold") == nothing | {"clients": 3 * control, "server": control}
    assert use("server.optimizer=momentum", method="fedavg")["server"] > 0
