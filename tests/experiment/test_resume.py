"""Runs that stop in all kinds of ways, and go on to the same bits."""

import json
import resource
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch

import fedclass
from commands import called
from fedclass.data.memory import Exemplars
from fedclass.data.partition import save_partition
from fedclass.errors import ConfigError, DataError, RunError
from fedclass.experiment.checkpoint import Checkpoints, Earlier, State, Totals
from fedclass.experiment.config import Experiment
from fedclass.experiment.launch import run_one
from fedclass.experiment.parallel import run_all
from fedclass.experiment.recipe import load
from fedclass.experiment.resume import _of_today, check_config, differences
from fedclass.experiment.setup import prepare
from fedclass.federation.store import ClientState, Kept
from fedclass.report.history import read_history
from fedclass.runs.config_file import MOVED, read_config
from fedclass.runs.events import (
    Event,
    RunFinished,
    RunResumed,
    RunStarted,
    TaskFinished,
    Warned,
    read_events,
)
from fedclass.runs.layout import RunDirectory
from stopping import Stop, stop_after

Tiny = Callable[..., Experiment]


def outcome(root: Path) -> tuple[dict[str, Any], bytes, list[dict[str, Any]]]:
    """All that must be equal, whatever happened on the way: everything but times and remarks about stopping."""
    directory = RunDirectory(root)
    summary = json.loads(directory.summary.read_text())
    for key in ("seconds", "samples_per_second"):
        del summary[key]
    facts = []
    for event in read_events(directory.events):
        if isinstance(event, RunResumed | Warned):
            continue
        fact = {f.name: getattr(event, f.name) for f in fields(event) if f.name not in ("seconds", "phases", "summary")}
        facts.append({"event": type(event).__name__, **fact})
    return summary, directory.model.read_bytes(), facts


def stopped_after(experiment: Experiment, root: Path, rounds: int, *, go_on: bool = False) -> None:
    """Run until that many rounds have been heard of, and drop everything."""
    with pytest.raises(Stop):
        run_one(experiment, root, stop_after(rounds), go_on=go_on)


class Before:
    """Runs that several tests begin with, each carried out once and copied to where a test wants it."""

    def __init__(self, root: Path) -> None:
        self.root, self.places = root, dict[tuple[str, int], Path]()

    def copied(self, experiment: Experiment, root: Path, rounds: int = 0) -> None:
        """The whole run, or what a stop after that many rounds has left."""
        key = experiment.to_toml(), rounds
        if key not in self.places:
            place = self.root / str(len(self.places))
            if rounds:
                stopped_after(experiment, place, rounds)
            else:
                run_one(experiment, place)
            self.places[key] = place
        shutil.copytree(self.places[key], root)


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Before:
    return Before(tmp_path_factory.mktemp("before"))


@pytest.mark.parametrize(
    ("method", "rounds"), [("fedclass", 1), ("fedclass", 2), ("fedclass", 3), ("fedicarl", 5), ("fedwa", 6)]
)
def test_a_run_stopped_anywhere_ends_with_the_same_bits(
    method: str, rounds: int, before: Before, tiny: Tiny, tmp_path: Path
) -> None:
    """In the first round; at the end of a task; in the second one with teacher and exemplars; before the evaluation."""
    experiment = tiny("train.rounds=3", "server.participation=0.7", method=method)
    before.copied(experiment, tmp_path / "whole")
    stopped_after(experiment, tmp_path / "cut", rounds)
    run_one(experiment, tmp_path / "cut", go_on=True)
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")
    resumed = [e for e in read_events(tmp_path / "cut" / "events.jsonl") if isinstance(e, RunResumed)]
    assert len(resumed) == (rounds > 1)  # in the first round there is nothing yet to go on from


@pytest.mark.slow
def test_the_other_engine_may_go_on(before: Before, tiny: Tiny, tmp_path: Path) -> None:
    experiment = tiny("train.rounds=3", method="fedclass")
    before.copied(experiment, tmp_path / "whole")
    before.copied(experiment, tmp_path / "cut", 6)
    run_one(experiment, tmp_path / "cut", go_on=True, engine="processes", workers=2)
    ours, whole = outcome(tmp_path / "cut"), outcome(tmp_path / "whole")
    assert ours[1] == whole[1]
    assert {**ours[0], "engine": ""} == {**whole[0], "engine": ""}


KILLED = """
import os, random, signal, sys, time
from fedclass.experiment.launch import run_one
from fedclass.experiment.recipe import load

recipe, whole, root, seed, kills = sys.argv[1:]
experiment, chance = load(recipe), random.Random(int(seed))


def started(root):
    child = os.fork()
    if child == 0:
        run_one(experiment, root, go_on=True)
        os._exit(0)
    return child


began = time.monotonic()
os.waitpid(started(whole), 0)
took = time.monotonic() - began
for _ in range(int(kills)):
    child = started(root)
    time.sleep(chance.uniform(0, took))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
sys.exit(os.waitpid(started(root), 0)[1])
"""


@pytest.mark.slow
def test_kill_9_at_random_moments_loses_nothing(tiny: Tiny, tmp_path: Path) -> None:
    """Killed again and again, at any moment of a run, in the middle of whatever it was doing."""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(tiny("train.rounds=4", "evaluation.every=0", method="fedclass").to_toml())
    words = [sys.executable, "-c", KILLED, str(recipe), str(tmp_path / "whole"), str(tmp_path / "killed"), "0", "5"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")
    assert not list((tmp_path / "killed").glob("**/*.part"))


def test_a_full_disk_ends_in_one_line_and_the_run_goes_on_later(before: Before, tiny: Tiny, tmp_path: Path) -> None:
    """Files larger than the limit cannot be written; the checkpoint of a model is."""
    experiment = tiny(method="fedavg")
    before.copied(experiment, tmp_path / "whole")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(RunError, match=r"cannot continue \(.*File too large.*fedclass run --resume"):
            run_one(experiment, tmp_path / "cut")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert not list((tmp_path / "cut").glob("**/*.part"))
    run_one(experiment, tmp_path / "cut", go_on=True)
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")


def newest(root: Path, kind: str) -> Path:
    """The newest checkpoint, or its file of that kind."""
    path = max((root / "checkpoints").glob("*.json"))
    return path if kind == "json" else path.with_name(json.loads(path.read_text())["files"][kind])


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        ("json", flipped),
        ("json", lambda path: path.write_bytes(path.read_bytes()[:100])),
        ("json", lambda path: path.write_text("[]")),
        ("models", flipped),
        ("models", Path.unlink),
        ("models", lambda path: path.write_bytes(b"")),
        ("clients", flipped),
    ],
)
def test_a_damaged_checkpoint_is_noticed_and_the_one_before_it_used(
    kind: str, damage: Callable[[Path], object], before: Before, tiny: Tiny, tmp_path: Path
) -> None:
    experiment = tiny("train.rounds=3", method="fedclass")
    before.copied(experiment, tmp_path / "whole")
    before.copied(experiment, tmp_path / "cut", 6)
    damage(newest(tmp_path / "cut", kind))
    heard: list[Event] = []
    run_one(experiment, tmp_path / "cut", heard.append, go_on=True)
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")
    (resumed,) = [event for event in heard if isinstance(event, RunResumed)]
    assert (resumed.task, resumed.round) == (1, 1)
    (warning,) = [event for event in heard if isinstance(event, Warned) and "checkpoint" in event.message]
    assert "going back to the one before it" in warning.message


def test_when_all_checkpoints_are_damaged_the_run_begins_anew(before: Before, tiny: Tiny, tmp_path: Path) -> None:
    experiment = tiny(method="fedavg")
    before.copied(experiment, tmp_path / "whole")
    before.copied(experiment, tmp_path / "cut", 3)
    for path in (tmp_path / "cut" / "checkpoints").glob("models-*"):
        flipped(path)
    heard: list[Event] = []
    run_one(experiment, tmp_path / "cut", heard.append, go_on=True)
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")
    newer, older = [event.message for event in heard if isinstance(event, Warned)]
    assert newer.endswith("going back to the one before it")
    assert older.endswith("starting over: there is no other")


@pytest.mark.parametrize("kind", ["json", "models", "clients"])
def test_after_damage_there_are_two_whole_checkpoints_again(
    kind: str, before: Before, tiny: Tiny, tmp_path: Path
) -> None:
    """The round that is done again has the same bits, and the name of the damaged file."""
    experiment = tiny("train.rounds=3", method="fedclass")
    before.copied(experiment, tmp_path / "cut", 6)
    flipped(newest(tmp_path / "cut", kind))
    stopped_after(experiment, tmp_path / "cut", 6, go_on=True)
    known = Checkpoints(tmp_path / "cut" / "checkpoints")
    reached = [(found.state.task, found.state.round) for found in map(known.load, known.numbers())]
    assert reached == [(1, 1), (1, 2)]


def test_two_checkpoints_are_kept_with_the_files_they_need_and_no_others(
    before: Before, tiny: Tiny, tmp_path: Path
) -> None:
    before.copied(tiny("train.rounds=3", method="fedclass"), tmp_path / "cut", 6)
    files = [path.name for path in (tmp_path / "cut" / "checkpoints").iterdir()]
    assert len([name for name in files if name.endswith(".json")]) == 2
    assert len([name for name in files if name.startswith("models-")]) == 2
    assert len([name for name in files if name.startswith("clients-")]) == 2


def test_another_configuration_is_refused_and_every_differing_key_is_named(
    before: Before, tiny: Tiny, tmp_path: Path
) -> None:
    before.copied(tiny(method="fedclass"), tmp_path / "cut", 2)
    files = {path: path.read_bytes() for path in (tmp_path / "cut").rglob("*") if path.is_file()}
    other = tiny("optimizer.learning_rate=0.5", "method.beta=1", method="fedclass", seed=3)
    with pytest.raises(RunError) as caught:
        run_one(other, tmp_path / "cut", go_on=True)
    for words in ("seed (0 then, 3 now)", "optimizer.learning_rate (", "method.beta (5.0 then, 1.0 now)"):
        assert words in str(caught.value)
    assert files == {path: path.read_bytes() for path in (tmp_path / "cut").rglob("*") if path.is_file()}


def test_a_recipe_edited_in_the_run_directory_is_refused(before: Before, tiny: Tiny, tmp_path: Path) -> None:
    before.copied(tiny(), tmp_path / "cut", 2)
    config = tmp_path / "cut" / "config.toml"
    config.write_text(config.read_text().replace("rounds = 2", "rounds = 7"))
    with pytest.raises(RunError, match=r"was changed after the run began, in train.rounds \(2 then, 7 now\)"):
        run_one(load(str(config)), tmp_path / "cut", go_on=True)


def test_other_images_are_refused(tiny: Tiny, tmp_path: Path) -> None:
    with np.load(tiny().data.path) as archive:
        arrays = dict(archive)
    mine = tmp_path / "mine.npz"
    np.savez(mine, **arrays)
    experiment = tiny(f"data.path={mine}")
    stopped_after(experiment, tmp_path / "cut", 2)
    arrays["x_train"][0] += 1
    np.savez(mine, **arrays)
    with pytest.raises(RunError, match="the images of npz have changed"):
        run_one(experiment, tmp_path / "cut", go_on=True)


def test_a_run_whose_data_moved_goes_on_with_the_same_bits(
    before: Before, tiny: Tiny, tiny_file: Path, tmp_path: Path
) -> None:
    """Images are compared, not paths; without the new path, the error says what to type."""
    before.copied(tiny("train.rounds=3", method="fedclass"), tmp_path / "whole")
    old, new = tmp_path / "old.npz", tmp_path / "new.npz"
    shutil.copy(tiny_file, old)
    stopped_after(tiny(f"data.path={old}", "train.rounds=3", method="fedclass"), tmp_path / "cut", 5)
    old.rename(new)
    stored = str(tmp_path / "cut" / "config.toml")
    with pytest.raises(DataError, match=r"old\.npz: no longer exists; if it has moved, give data\.path=PLACE"):
        run_one(load(stored), tmp_path / "cut", go_on=True)
    run_one(load(stored, [f"data.path={new}"]), tmp_path / "cut", go_on=True)
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")
    assert load(stored).data.path == str(new), "and next time it is known"


def test_a_finished_run_whose_data_moved_is_read_if_the_images_are_the_same(
    before: Before, tiny: Tiny, tiny_file: Path, tmp_path: Path
) -> None:
    before.copied(tiny(method="fedavg"), tmp_path / "run")
    first = json.loads(RunDirectory(tmp_path / "run").summary.read_text())
    shutil.copy(tiny_file, tmp_path / "copy.npz")
    assert run_one(tiny(f"data.path={tmp_path / 'copy.npz'}", method="fedavg"), tmp_path / "run", go_on=True) == first
    with np.load(tiny_file) as archive:
        np.savez(tmp_path / "copy.npz", **{**archive, "x_test": archive["x_test"][::-1]})
    with pytest.raises(RunError, match="the images of npz are not those it was made with"):
        run_one(tiny(f"data.path={tmp_path / 'copy.npz'}", method="fedavg"), tmp_path / "run", go_on=True)


def test_a_finished_run_is_not_shown_for_other_images(tiny: Tiny, tiny_file: Path, tmp_path: Path) -> None:
    """At the same place; nothing of the recipe tells."""
    mine = tmp_path / "mine.npz"
    shutil.copy(tiny_file, mine)
    experiment = tiny(f"data.path={mine}", method="fedavg")
    run_one(experiment, tmp_path / "run")
    with np.load(tiny_file) as archive:
        np.savez(mine, **{**archive, "x_train": archive["x_train"][::-1]})
    with pytest.raises(RunError, match="the images of npz are not those it was made with; put them back"):
        run_one(experiment, tmp_path / "run", go_on=True)
    with pytest.raises(RunError, match="the images of npz are not those it was made with"):
        run_all([(experiment, tmp_path / "run")], workers=1, listen=lambda *_: None)


def test_a_partition_that_moved_is_compared_by_what_it_says(tiny: Tiny, tmp_path: Path) -> None:
    stream = prepare(tiny()).stream
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    save_partition(stream.shares, old, dataset=stream.data.sha256)
    settings = ["partition.kind=file", "partition.clients=3"]
    stopped_after(tiny(*settings, f"partition.path={old}"), tmp_path / "cut", 2)
    save_partition(stream.shares[::-1], new, dataset=stream.data.sha256)
    with pytest.raises(RunError, match=r"the partition that partition\.path names has changed since"):
        run_one(tiny(*settings, f"partition.path={new}"), tmp_path / "cut", go_on=True)
    old.rename(new)
    run_one(tiny(*settings, f"partition.path={new}"), tmp_path / "cut", go_on=True)


def test_a_finished_run_is_read_and_not_run_again(before: Before, tiny: Tiny, tmp_path: Path) -> None:
    experiment = tiny(method="fedavg")
    before.copied(experiment, tmp_path / "run")
    first = json.loads(RunDirectory(tmp_path / "run").summary.read_text())
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    heard: list[Event] = []
    assert run_one(experiment, tmp_path / "run", heard.append, go_on=True) == first
    assert isinstance(heard[0], RunStarted)
    assert files == {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}


def test_without_being_asked_nothing_goes_on(before: Before, tiny: Tiny, tmp_path: Path) -> None:
    before.copied(tiny(), tmp_path / "cut", 2)
    with pytest.raises(RunError, match="is not empty"):
        run_one(tiny(), tmp_path / "cut")


def test_a_folder_that_is_no_run_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("no = [toml")
    with pytest.raises(RunError, match="not the directory of a run that can be resumed"):
        run_one(tiny(), tmp_path, go_on=True)


def test_a_machine_that_differs_is_noted(
    before: Before, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before.copied(tiny(), tmp_path / "cut", 2)
    monkeypatch.setattr("fedclass.experiment.resume.fingerprint", lambda: {"processor": "abacus"})
    heard: list[Event] = []
    run_one(tiny(), tmp_path / "cut", heard.append, go_on=True)
    assert any(isinstance(e, Warned) and "and is abacus; the last bits may differ" in e.message for e in heard)


@pytest.mark.slow
def test_several_experiments_go_on_together(before: Before, tiny: Tiny, tmp_path: Path) -> None:
    """One finished, one stopped, one not begun."""
    experiments = (
        tiny(method="fedavg"),
        tiny("train.rounds=3", method="fedclass"),
        tiny("train.rounds=1", method="fedavg"),
    )
    plan = [(experiment, tmp_path / str(number)) for number, experiment in enumerate(experiments)]
    before.copied(*plan[0])
    before.copied(*plan[1], 6)
    stamp = (tmp_path / "0" / "summary.json").stat().st_mtime_ns
    heard: dict[int, list[Event]] = {0: [], 1: [], 2: []}
    failures = run_all(plan, workers=2, listen=lambda number, event: heard[number].append(event))
    assert failures == {}
    assert (tmp_path / "0" / "summary.json").stat().st_mtime_ns == stamp
    for number, (experiment, root) in enumerate(plan):
        before.copied(experiment, tmp_path / f"alone {number}")
        assert outcome(root) == outcome(tmp_path / f"alone {number}")
        assert sum(isinstance(event, TaskFinished) for event in heard[number]) == 2
    assert any(isinstance(event, RunResumed) for event in heard[1])


@pytest.mark.slow
def test_a_run_of_several_that_cannot_write_its_summary_is_a_failure_like_any_other(tiny: Tiny, tmp_path: Path) -> None:
    """Its last event was heard, but it is not finished."""
    experiment = tiny(method="fedavg")
    stopped_after(experiment, tmp_path / "a", 4)
    (tmp_path / "a" / "summary.json.part").mkdir()
    heard: list[int] = []
    failures = run_all(
        [(experiment, tmp_path / "a"), (tiny(method="fedwa"), tmp_path / "b")],
        workers=1,
        listen=lambda number, event: heard.append(number) if isinstance(event, RunFinished) else None,
    )
    assert heard == [0, 1]
    assert "cannot continue" in str(failures.pop(0))
    assert not failures


def test_a_checkpoint_keeps_every_field(tmp_path: Path) -> None:
    """Fields are compared one by one, so that a new one cannot be forgotten."""
    weights = {"filters": torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last), "steps": torch.tensor(3)}
    state = State(
        task=1,
        round=2,
        weights=weights,
        last={"filters": torch.randn(2, 2)},
        method={"class_means": torch.randn(2, 3)},
        optimizer={"momentum": torch.randn(9)},
        confusions=[np.array([[3, 1], [0, 4]])],
        validations=[np.array([[2, 0], [1, 1]])],
        reached=frozenset({0, 7}),
        totals=Totals(bytes_up=1, bytes_down=2, samples=3, seconds=4.5),
        before_task=Totals(bytes_up=5, bytes_down=6, samples=7, seconds=8.5),
        registry={"sites": ["north"]},
        aside={4: 2},
        earlier=Earlier({"filters": torch.randn(2)}, {"c": torch.randn(1)}, {"momentum": torch.randn(3)}, 0.5, (4,)),
    )
    exemplars = Exemplars({2: np.array([5, 1, 9]), 0: np.array([], np.int64)})
    rows = Kept({"logits": torch.randn(3, 4)}, 4)
    own = Kept({"control": torch.randn(5)}, 6)
    clients = {3: ClientState(tasks=2, exemplars=exemplars, rows=rows, method=own), 0: ClientState(tasks=1)}
    Checkpoints(tmp_path / "kept").save(state, clients, changes=0, events=99, made_with={"version": "x"})
    found = Checkpoints(tmp_path / "kept").load(1)
    for field in fields(State):
        if field.name not in ("weights", "last", "method", "optimizer", "confusions", "validations", "earlier"):
            assert getattr(found.state, field.name) == getattr(state, field.name) != field.default
    assert all(torch.equal(found.state.weights[name], tensor) for name, tensor in weights.items())  # type: ignore[index]
    for name in ("last", "method", "optimizer"):
        kept, wanted = getattr(found.state, name), getattr(state, name)
        assert kept.keys() == wanted.keys() != set()
        assert all(torch.equal(kept[key], wanted[key]) for key in wanted)
    earlier, before = found.state.earlier, state.earlier
    assert earlier is not None
    assert before is not None
    assert (earlier.loss, earlier.suspects) == (before.loss, before.suspects)
    for name in ("weights", "method", "optimizer"):
        kept, wanted = getattr(earlier, name), getattr(before, name)
        assert kept.keys() == wanted.keys() != set()
        assert all(torch.equal(kept[key], wanted[key]) for key in wanted)
    np.testing.assert_array_equal(found.state.confusions, state.confusions)
    np.testing.assert_array_equal(found.state.validations, state.validations)
    assert (found.events, found.made_with) == (99, {"version": "x"})
    assert found.clients.keys() == clients.keys()
    assert found.clients[0] == ClientState(tasks=1)
    assert found.clients[3].tasks == 2
    assert torch.equal(found.clients[3].rows.tensors["logits"], rows.tensors["logits"])
    assert torch.equal(found.clients[3].method.tensors["control"], own.tensors["control"])
    assert (found.clients[3].rows.classes, found.clients[3].method.classes) == (4, 6)
    for label, images in exemplars.of_class.items():
        np.testing.assert_array_equal(found.clients[3].exemplars.of_class[label], images)


def test_options_that_exclude_each_other_are_refused(tmp_path: Path) -> None:
    words = ["run", "--resume", str(tmp_path), "--out", str(tmp_path / "other")]
    done = called(*words, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        ConfigError.exit_code,
        "error: --resume continues in the run's own directory; leave out --out\n",
    )


def test_a_run_that_was_stored_before_keys_moved_is_read_as_if_stored_today(
    before: Before, tiny: Tiny, tmp_path: Path
) -> None:
    experiment, directory = tiny(), RunDirectory(tmp_path / "run")
    before.copied(experiment, directory.root)
    tables = tomllib.loads(directory.config.read_text())
    for old, new in MOVED.items():
        (source, key), (target, _) = old.split("."), new.split(".")
        tables[source][key] = tables[target].pop(key)
    del tables["optimizer"], tables["aggregation"]  # there were none; nothing else of theirs was chosen
    directory.config.write_text(tomli_w.dumps(tables))
    assert check_config(directory, experiment.to_tables()) == "", "and no difference is found"
    assert differences(_of_today(tables, 1), experiment.to_tables()) == ""
    (record,) = fedclass.results(directory.root)
    assert (record["optimizer.learning_rate"], record["server.participation"]) == (0.03, 1.0)
    assert read_config(directory.root)["server"]["weighting"] == "new-data"
    assert read_history(directory.root).config["optimizer"]["momentum"] == 0.9
    with pytest.raises(RunError, match=r"checkpoint 7 \[train\]: unknown key 'rouns'.*cannot resume it"):
        _of_today({"train": {"rouns": 3}}, 7)
