"""Frozen backbones and adapters: the same bits on every engine, few bytes, and no run on other frozen weights."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the extra [flower]")

from flwr.app import Context, RecordDict

from deploy.memory_grid import MemoryGrid
from deploy.sites import plan_of
from fedclass.deploy.client_app import app as client_app
from fedclass.deploy.server_app import app as server_app
from fedclass.deploy.site import JobRefusedError, Site, SiteSettings
from fedclass.deploy.split import split
from fedclass.errors import ClientError, ConfigError, RunError
from fedclass.experiment.checkpoint import Checkpoints
from fedclass.experiment.config import Experiment
from fedclass.experiment.launch import run_one
from fedclass.experiment.recipe import load
from fedclass.experiment.reuse import key_after
from fedclass.experiment.setup import prepare
from fedclass.experiment.source_code import sources
from fedclass.experiment.trained import load_model
from fedclass.federation.store import MemoryStore
from fedclass.runs.events import RoundFinished, read_events
from fedclass.runs.summary import Result
from fedclass.wire import Job
from stopping import Stop, stop_after

Tiny = Callable[..., Experiment]
UserModule = Callable[[str, str], str]

BACKBONES = """
import os
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fedclass.models.frozen import freeze
from fedclass.models.lora import add_lora
from fedclass.models.resnet import ResNet

def whole():
    return ResNet(depth=8)

def normalised(mean=0.5, std=0.25):
    backbone = ResNet(depth=8)
    backbone.normalisation = (mean,), (std,)
    return backbone

def frozen(mean=0.5):
    return freeze(normalised(mean))

def adapted(rank=1, patterns=("blocks.*.conv?.weight",)):
    return add_lora(ResNet(depth=8), *patterns, rank=rank)

def from_file():
    '''A frozen map of 8x8 images to the features that a file says.'''
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(192, 6))
    with (Path(__file__).parent / "map.npy").open("rb") as file:
        backbone[1].weight.data.copy_(torch.from_numpy(np.load(file)))
    return freeze(backbone)

def of_each_process():
    torch.manual_seed(os.getpid())
    return freeze(ResNet(depth=8))

class Counting(nn.Flatten):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
    def forward(self, images):
        self.seen += 1
        return super().forward(images)

def counting():
    return freeze(Counting())
"""


@pytest.fixture
def named(user_module: UserModule) -> str:
    return user_module("backbones", BACKBONES)


def write_map(folder: Path, seed: int) -> None:
    np.save(folder / "map.npy", np.random.default_rng(seed).normal(size=(6, 192)).astype(np.float32))


def rounds_of(root: Path) -> list[RoundFinished]:
    return [event for event in read_events(root / "events.jsonl") if isinstance(event, RoundFinished)]


def over_flower(experiment: Experiment, folder: Path) -> dict[str, Any]:
    """On Flower's apps and messages, in memory; every site allows the model."""
    nodes = {
        1000 + i: {
            "name": f"site-{i:03d}",
            "data": str(path),
            "store": str(folder / "stores" / str(i)),
            "holdout": 0.0,
            "allow": experiment.model.name,
        }
        for i, path in enumerate(split(experiment, folder / "data"))
    }
    (folder / "recipe.toml").write_text(experiment.to_toml())
    config: dict[str, Any] = {"recipe": str(folder / "recipe.toml"), "out": str(folder / "there"), "min-sites": 3}
    config |= {"poll-seconds": 0.01, "classes-from": "recipe"}
    server_app(MemoryGrid(client_app, nodes), Context(1, 1, {}, RecordDict(), config))
    return Result.read(folder / "there").summary


WHOLE = 312_328  # bytes: of a resnet8 without its head
HEAD = 4 * (64 + 1)  # of a class
ADAPTERS = 4 * (16 + 144 + 16 + 144 + 32 + 144 + 32 + 288 + 64 + 288 + 64 + 576)  # of rank 1, on six convolutions


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "method", "travels"),
    [
        ("frozen", "scaffold", 0),  # control variates of the head alone
        ("adapted", "fedclass", 2 * ADAPTERS),  # a teacher
    ],
)
def test_every_engine_gives_the_same_bits_after_stops_too(
    model: str, method: str, travels: int, named: str, tiny: Tiny, tmp_path: Path
) -> None:
    """travels: bytes of the backbone's weights that change."""
    overrides = ["memory.per_class=3", f"model.name={named}:{model}"]
    overrides += ["model.args.rank=2"] if model == "adapted" else []
    experiment = tiny(*overrides, method=method)
    alone = run_one(experiment, tmp_path / "alone")
    spread = run_one(experiment, tmp_path / "spread", engine="processes", workers=2)
    there = over_flower(experiment, tmp_path)
    root = tmp_path / "stopped"
    for rounds in (2, 3):  # of the four, those of the first task heard again
        with pytest.raises(Stop):
            run_one(experiment, root, stop_after(rounds), go_on=rounds > 2)
    stopped = run_one(experiment, root, go_on=True)
    assert len({run["weights_sha256"] for run in (alone, spread, there, stopped)}) == 1
    assert alone["accuracy_matrix"] == spread["accuracy_matrix"] == there["accuracy_matrix"]

    sent = travels + HEAD * 2 + (4 * 144 if method == "scaffold" else 0)  # by a client, in a round of the first task
    for folder in ("alone", "spread", "there"):
        first, second, *_ = rounds_of(tmp_path / folder)
        assert first.bytes_up == first.bytes_down == 3 * sent
        assert second.loss < first.loss
    assert sent < WHOLE / 20
    known = Checkpoints(root / "checkpoints")
    last = known.load(max(known.numbers())).state.last
    assert last is not None
    assert sum(tensor.nbytes for tensor in last.values()) == travels + HEAD * 4

    trained = load_model(tmp_path / "there")  # its file is complete
    assert trained.description.mean == ((0.5,) * 3 if model == "frozen" else (0.5,))
    assert trained.evaluate(experiment.data.path).accuracy_micro == alone["accuracy_last"]


def test_what_is_frozen_is_compared_before_a_job_is_done(named: str, tiny: Tiny, tmp_path: Path) -> None:
    """At a site, for every kind of job, and in any other client."""
    experiment = tiny(f"model.name={named}:frozen")
    setup = prepare(experiment)
    model = setup.build()
    model.grow_to(2, seed=0)
    settings = SiteSettings(
        name="north",
        data=split(experiment, tmp_path / "data")[0],
        store=tmp_path / "store",
        holdout=0.0,
        allow=(experiment.model.name,),
    )
    job = Job(0, 0, 0, "train", model.weights(), None, frozen=model.frozen_sha256)
    assert Site(settings).run(plan_of(setup, 0), job).examples > 0
    reason = (
        f"differs from the server's \\(SHA-256 {model.frozen_sha256[:12]} here, none there\\); build it from the same"
    )
    for phase in ("train", "end_task", "evaluate"):
        with pytest.raises(JobRefusedError, match=reason):
            Site(settings).run(plan_of(setup, 0), replace(job, phase=phase, frozen=""))
    with pytest.raises(ClientError, match=rf"client 0, task 1, round 1: the frozen part of the model {reason}"):
        setup.client(MemoryStore()).run(replace(job, frozen=""))
    recipe = plan_of(prepare(tiny(f"model.name={named}:frozen", "model.args.mean=0.25")), 0)  # another normalisation
    with pytest.raises(JobRefusedError, match="differs from the server's"):
        Site(settings).run(recipe, job)


@pytest.mark.slow
def test_a_worker_with_other_frozen_weights_ends_the_run(named: str, tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(ClientError, match="the frozen part of the model differs from the server's"):
        run_one(tiny(f"model.name={named}:of_each_process"), tmp_path / "run", engine="processes", workers=2)


def test_a_run_does_not_go_on_with_other_frozen_weights_nor_share_its_tasks(
    named: str, tiny: Tiny, tmp_path: Path
) -> None:
    write_map(tmp_path, seed=0)
    experiment = tiny(f"model.name={named}:from_file", method="fedclass")
    setup = prepare(experiment)
    before = sources(setup)
    key = key_after(setup, 1, before)
    whole = run_one(experiment, tmp_path / "whole")
    predicted = load_model(tmp_path / "whole").scores(setup.stream.data.test.images)
    with pytest.raises(Stop):
        run_one(experiment, tmp_path / "cut", stop_after(3))

    write_map(tmp_path, seed=1)
    assert sources(setup).model != before.model
    assert key_after(setup, 1, replace(before, model=sources(setup).model)) != key
    with pytest.raises(RunError, match=r"its code has changed: .*map.npy changed, the initial weights"):
        run_one(experiment, tmp_path / "cut", go_on=True)
    with pytest.raises(
        RunError, match=r"the frozen weights of backbones:from_file are not those with which the run began"
    ):
        run_one(experiment, tmp_path / "cut", go_on=True, changed_code=True)
    again = load_model(tmp_path / "whole").scores(setup.stream.data.test.images)
    assert np.array_equal(again, predicted)  # the model's file has all of its own

    write_map(tmp_path, seed=0)
    assert run_one(experiment, tmp_path / "cut", go_on=True)["weights_sha256"] == whole["weights_sha256"]


def test_a_backbone_that_changes_what_is_frozen_ends_the_run(named: str, tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"backbone.seen is frozen, but training changed it"):
        run_one(tiny(f"model.name={named}:counting"), tmp_path / "run")


def test_a_backbone_s_own_normalisation_takes_the_place_of_the_data_set_s(
    named: str, tiny: Tiny, tmp_path: Path
) -> None:
    def losses(model: str, *overrides: str) -> list[float]:
        root = tmp_path / f"{model}{len(list(tmp_path.iterdir()))}"
        run_one(tiny(f"model.name={named}:{model}", *overrides, method="fedavg"), root)
        return rounds_of(root)[0].losses

    assert losses("normalised", "model.args.mean=0.5", "model.args.std=0.5") == losses("whole")  # npz files' own
    assert losses("normalised", "model.args.mean=0.5", "model.args.std=0.25") != losses("whole")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ["model.args.width=2"],
            r"\[model.args\] width: resnet8 takes no arguments; leave them out \(--set model.args=",
        ),
        (
            ["model.name=NAMED:adapted", "model.args.rang=2"],
            r"\[model.args\]: got an unexpected keyword argument 'rang'",
        ),
        (["model.name=NAMED:adapted", "model.args.rang=2"], r"NAMED:adapted takes \(rank=1, patterns="),
        (["model.name=NAMED:adapted", 'model.args.patterns=["fc*"]'], r"add_lora: 'fc\*' matches no weight of ResNet"),
        (["model.name=NAMED:adapted", 'model.args.rank="two"'], r"calling 'NAMED:adapted' with rank failed: TypeError"),
        (["model.args.rank=inf"], r"\[model.args\]: numbers must be finite"),
        (["model.args.since=2024-01-01"], r"settings \[model\]: args = .* valid"),
        (["model.args=7"], r"model.args=7: must be a table"),
        (["model.args=7", "model.args.rank=2"], r"model.args.rank=2: model.args is not a table"),
        (["model.args.a.b=2"], r"model.args.a.b=2: write it as table.key=value"),
        (["train.args.rank=2"], r"train.args.rank=2: write it as table.key=value"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_before_training(
    settings: list[str], message: str, named: str, tiny: Tiny
) -> None:
    with pytest.raises(ConfigError, match=message.replace("NAMED", named)):
        prepare(tiny(*(setting.replace("NAMED", named) for setting in settings)))


def test_arguments_are_part_of_the_recipe(named: str, tiny: Tiny, tmp_path: Path) -> None:
    made = tiny(f"model.name={named}:adapted", "model.args.rank=2", 'model.args.patterns=["conv.weight"]')
    assert "[model.args]\nrank = 2\n" in made.to_toml()
    (tmp_path / "recipe.toml").write_text(made.to_toml())
    assert load(str(tmp_path / "recipe.toml")) == made
    other = load(str(tmp_path / "recipe.toml"), ["model.args.rank=1"])
    assert other.model.args == {"rank": 1, "patterns": ["conv.weight"]}
    code = sources(prepare(made))
    assert key_after(prepare(made), 1, code) != key_after(prepare(other), 1, code)
    assert "args" not in tiny().to_tables()["model"]  # as runs of older versions have it
    run_one(made, tmp_path / "run")
    with pytest.raises(RunError, match=r"it differs in model.args.rank \(2 then, 1 now\)"):
        run_one(other, tmp_path / "run", go_on=True)
