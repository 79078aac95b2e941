"""Runs that begin in the same way share what they have learned, and nothing else is ever shared."""

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fedclass.experiment.config import Experiment
from fedclass.experiment.launch import run_one
from fedclass.experiment.parallel import run_all
from fedclass.experiment.recipe import SECTIONS
from fedclass.experiment.reuse import APART, TaskStore, key_after, usual_store
from fedclass.experiment.setup import prepare
from fedclass.experiment.source_code import sources
from fedclass.experiment.task_cache import superfluous
from fedclass.runs.config_file import flat
from fedclass.runs.events import Event, RoundFinished, TaskReused, TaskStarted, UpdateReceived, Warned
from stopping import Stop

Tiny = Callable[..., Experiment]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDCLASS_DATA", str(tmp_path / "cache"))


def told(experiment: Experiment, root: Path, **how: Any) -> tuple[dict[str, Any], list[Event]]:
    heard: list[Event] = []
    return run_one(experiment, root, heard.append, reuse=True, **how), heard


def trained(heard: list[Event]) -> set[int]:
    """The tasks in which clients worked."""
    return {event.task for event in heard if isinstance(event, UpdateReceived)}


def key(experiment: Experiment, tasks: int) -> str:
    setup = prepare(experiment)
    return key_after(setup, tasks, sources(setup))


def same(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    times = ("seconds", "samples_per_second")
    return all(found[key] == wanted[key] for key in wanted if key not in times)


def test_methods_that_begin_like_fedavg_share_their_first_task_bit_for_bit(tiny: Tiny, tmp_path: Path) -> None:
    """Bounds keep no exemplars, and so begin like FedAvg without memory."""
    once = ("train.rounds=1", "evaluation.every=0")
    told(tiny(*once, method="fedavg"), tmp_path / "first")
    told(tiny(*once, "memory.per_client=0", method="fedavg"), tmp_path / "without")
    for name, experiment in {
        "fedclass": tiny(*once, method="fedclass"),
        "beta": tiny(*once, "method.beta=8", method="fedclass"),
        "released": tiny(*once, "method.variant=released", method="fedclass"),
        "fedclass-tuned": tiny(*once, method="fedclass-tuned"),
        "fedwa": tiny(*once, "method.variant=pycil", method="fedwa"),
        "lwf": tiny(*once, method="lwf"),
        "finetune": tiny(*once, method="finetune"),
        "joint": tiny(*once, method="joint"),
    }.items():
        summary, heard = told(experiment, tmp_path / name)
        alone = run_one(experiment, tmp_path / f"{name} alone")
        assert trained(heard) == {1}
        assert [event.task for event in heard if isinstance(event, TaskReused)] == [0]
        assert sum(isinstance(event, RoundFinished) for event in heard) == 2, "the rounds of both tasks are in its log"
        assert same(summary, alone)
        assert (tmp_path / name / "model.safetensors").read_bytes() == (
            tmp_path / f"{name} alone" / "model.safetensors"
        ).read_bytes()


@pytest.mark.parametrize("method", ["fedavg", "fedclass", "fedicarl", "glfc", "fedwa"])
def test_the_same_experiment_is_taken_over_as_a_whole(method: str, tiny: Tiny, tmp_path: Path) -> None:
    first, _ = told(tiny(method=method), tmp_path / "a")
    again, heard = told(tiny(method=method), tmp_path / "b")
    assert trained(heard) == set()
    assert same(again, first)


@pytest.mark.parametrize(
    "change",
    [
        ["optimizer.learning_rate=0.02"],
        ["train.batch_size=16"],
        ["train.augment=crop-flip-cutout"],
        ["memory.per_client=4"],
        ["memory.select=herding"],
        ["model.norm=group"],
        ["model.head_init=kaiming"],
        ["partition.clients=2"],
        ["partition.kind=dirichlet"],
        ["stream.tasks=3,1"],
        ["stream.class_order=[1, 0, 2, 3]"],
        ["data.fraction=0.5"],
        ["evaluation.every=2"],
        ["seed=1"],
    ],
)
def test_whatever_matters_is_in_the_key(change: list[str], tiny: Tiny) -> None:
    assert key(tiny(*change), 1) != key(tiny(), 1)


def test_the_whole_recipe_is_in_the_key_but_for_named_exceptions(tiny: Tiny) -> None:
    """Also keys that do not exist yet: whoever adds one to a recipe need not think of this."""
    setup = prepare(tiny(method="fedclass"))
    code, tables = sources(setup), setup.experiment.to_tables()

    class Changed(Experiment):
        tables: dict[str, Any]

        def to_tables(self) -> dict[str, Any]:
            return self.tables

    def changed(name: str) -> list[str]:
        """The keys after each task, with another value there."""
        section, _, inner = name.rpartition(".")
        other = (
            {**tables, section: {**tables.get(section, {}), inner: "other"}} if section else {**tables, name: "other"}
        )
        experiment = Changed(**{f.name: getattr(setup.experiment, f.name) for f in fields(Experiment)})
        object.__setattr__(experiment, "tables", other)
        return [key_after(replace(setup, experiment=experiment), tasks, code) for tasks in (1, 2)]

    first, second = (key_after(setup, tasks, code) for tasks in (1, 2))
    keys = [*flat(tables), "data.title", "new", *(f"{section}.new" for section in [*SECTIONS, "method"])]
    assert {key.partition(".")[0] for key in keys} == {"seed", "new", *SECTIONS, "method"}
    for name in keys:
        found = changed(name)
        if name in APART:
            assert found == [first, second], name
        else:
            assert found[1] != second, name
            assert (found[0] == first) == name.startswith("method."), name
    assert APART.keys() <= {*flat(tables), "partition.path", "data.title"}, "an exception for a key that is gone"


def test_what_does_not_matter_yet_is_not_in_the_key(tiny: Tiny) -> None:
    """Later tasks, and a method's parameters before they have an effect."""
    tiny = partial(tiny, method="fedclass")
    assert key(tiny("stream.tasks=2,1,1"), 1) == key(tiny(), 1)
    assert key(tiny("method.beta=1"), 1) == key(tiny(), 1)
    assert key(tiny("method.beta=1"), 2) != key(tiny(), 2)
    assert key(tiny("stream.class_order=[0, 1, 3, 2]"), 1) == key(tiny(), 1)


def test_methods_with_a_loss_of_their_own_in_the_first_task_do_not_share_it(tiny: Tiny) -> None:
    different = ("fedavg", "fedicarl", "glfc", "fedwa", "fedeven", "fedprox", "fedgkd", "ewc", "lga", "finetune")
    keys = [key(tiny(method=method), 1) for method in different]
    keys += [key(tiny("train.balanced=true", method="fedavg"), 1)]
    assert key(tiny("train.balanced=true", "method.strength=0", method="fedeven"), 1) == keys[-1]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    ("files", "damage"),
    [
        ("*/models-*", lambda path: path.write_bytes(b"rubbish")),
        ("*/events.jsonl", lambda path: path.write_bytes(path.read_bytes()[:-20])),
        ("*/events.jsonl", lambda path: path.write_bytes(b"")),
    ],
)
def test_a_damaged_entry_is_not_used_and_said_so(
    files: str, damage: Callable[[Path], object], tiny: Tiny, tmp_path: Path
) -> None:
    first, _ = told(tiny(method="fedavg"), tmp_path / "a")
    for path in usual_store().folder.glob(files):
        damage(path)
    again, heard = told(tiny(method="fedavg"), tmp_path / "b")
    assert trained(heard) == {0, 1}
    assert same(again, first)
    assert sum("fedclass cache clear" in event.message for event in heard if isinstance(event, Warned)) == 2


def test_a_store_that_cannot_be_written_is_a_warning_and_ends_no_run(tiny: Tiny, tmp_path: Path) -> None:
    usual_store().folder.parent.mkdir()
    usual_store().folder.write_text("a file where the folder should be")
    summary, heard = told(tiny(method="fedavg"), tmp_path / "a")
    assert same(summary, run_one(tiny(method="fedavg"), tmp_path / "alone"))
    messages = [event.message for event in heard if isinstance(event, Warned)]
    assert [message.partition(" cannot be added to the cache")[0] for message in messages] == ["task 1", "task 2"]


def test_a_run_stopped_after_reuse_goes_on(tiny: Tiny, tmp_path: Path) -> None:
    told(tiny(method="fedavg"), tmp_path / "first")
    experiment = tiny(method="fedclass")

    def listen(event: Event) -> None:
        if isinstance(event, TaskStarted) and event.task == 1:
            raise Stop

    with pytest.raises(Stop):
        run_one(experiment, tmp_path / "cut", listen, reuse=True)
    summary, heard = told(experiment, tmp_path / "cut", go_on=True)
    assert trained(heard) == {1}
    assert same(summary, run_one(experiment, tmp_path / "alone"))


@pytest.mark.slow
def test_of_several_experiments_one_learns_what_they_share(tiny: Tiny, tmp_path: Path) -> None:
    names = ["fedavg", "fedclass", "fedclass-tuned"]
    heard: list[list[Event]] = [[] for _ in names]
    plan = [(tiny(method=name), tmp_path / name) for name in names]
    assert run_all(plan, workers=2, listen=lambda number, event: heard[number].append(event), reuse=True) == {}
    assert [0 in trained(events) for events in heard].count(True) == 1
    for name in names:
        alone = run_one(tiny(method=name), tmp_path / f"{name} alone")
        summary = run_one(tiny(method=name), tmp_path / name, go_on=True)
        assert same({**summary, "engine": "inprocess"}, alone)


def test_the_store_can_be_looked_at_and_cleared(tiny: Tiny, tmp_path: Path) -> None:
    told(tiny(method="fedwa"), tmp_path / "a")
    store = TaskStore(tmp_path / "cache" / "learned-tasks")
    first, second = store.entries()
    assert (first.made_with["tasks"], second.made_with["tasks"]) == ([2], [2, 2])
    assert first.made_with["method"] == "fedwa"
    assert first.bytes > 300_000
    assert superfluous([first, second], keep_bytes=first.bytes + second.bytes) == []
    assert superfluous([second, first], keep_bytes=second.bytes) == [first], "the oldest go first"
    assert superfluous([first, second], learned_before=second.time) == [first]
    assert superfluous([first, second], learned_before=second.time, keep_bytes=0) == [first, second]
    store.remove([first])
    assert [entry.key for entry in store.entries()] == [second.key]
    store.clear()
    assert list(store.entries()) == []
