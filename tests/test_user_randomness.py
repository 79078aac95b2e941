"""User code that draws random numbers of its own, from whichever stream: the same bits all the same."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiment.test_resume import outcome, stopped_after
from fedclass.experiment.config import Experiment
from fedclass.experiment.launch import run_one
from fedclass.experiment.setup import prepare
from fedclass.federation.client import Client
from fedclass.federation.store import MemoryStore
from fedclass.models.build import build_model
from fedclass.runs.events import Event
from fedclass.wire import Job, sha256

Tiny = Callable[..., Experiment]
UserModule = Callable[[str, str], str]

# The dropout of `Net` before its layer goes on in evaluation: teacher, herding and predictions draw too.
SOURCE = '''
import random
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from fedclass.methods import Declaration, FedAvg, FedCLASS, Outcome, Spec


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.dropout = nn.Linear(3 * 8 * 8, 12), nn.Dropout(0.3)
        with torch.no_grad():
            self.layer.weight *= np.random.uniform(0.5, 1.5)
            self.layer.bias += random.random()

    def forward(self, images):
        return self.dropout(torch.relu(self.layer(F.dropout(images.flatten(1), 0.1, training=True))))


def drawn(source, client=None):
    """A number between 0 and 1."""
    return {
        "torch": lambda: float(torch.rand(())),
        "numpy": lambda: np.random.rand(),
        "random": random.random,
        "generator": lambda: float(torch.rand((), generator=client.generator)),
        "nothing": lambda: 1.0,
    }[source]()


@dataclass(frozen=True, kw_only=True)
class Mixup(FedAvg):
    source: str = "torch"

    def loss(self, client, batch):
        share = drawn(self.source, client)
        logits = client.model(share * batch.images + (1 - share) * batch.images.flip(0))
        ours, theirs = (F.cross_entropy(logits, labels) for labels in (batch.labels, batch.labels.flip(0)))
        return share * ours + (1 - share) * theirs


def noise():
    return 0.01 * sum(drawn(source) for source in ("torch", "numpy", "random"))


@dataclass(frozen=True, kw_only=True)
class Everywhere(FedCLASS):
    """Draws in every hook."""

    def declare(self):
        noise = {"noise": Spec((1,))}
        return Declaration(
            teacher="previous task",
            select="herding",
            server={**noise, "start": Spec((1,))},
            uploads={"train": noise, "end_task": noise},
            client=noise,
            rows=noise,
        )

    def loss(self, client, batch):
        return super().loss(client, batch) * (1 + noise() + drawn("generator", client))

    def adjust(self, client, gradient):
        gradient.mul_(1 + noise())

    def end_round(self, client):
        own = {"noise": torch.tensor([noise() + drawn("generator", client)])}
        return Outcome(own, own)

    def annotate(self, client, images, labels):
        return {"noise": torch.rand(len(labels), 1) + noise()}

    def report(self, client, exemplars):
        drawn_now = torch.tensor([noise() + drawn("generator", client)])
        return {"noise": drawn_now + client.state.get("noise", 0.0) + exemplars.rows["noise"].sum()}

    def start(self, server):
        return {"start": torch.tensor([noise()])}

    def aggregate(self, server, updates):
        total, count = None, 0
        for update in updates:  # between two of them, clients may run in this process
            moved = {name: tensor + noise() for name, tensor in update.weights.items()}
            total = moved if total is None else {name: total[name] + moved[name] for name in total}
            count += 1
        return {name: tensor / count + noise() for name, tensor in total.items()}, server.state

    def end_rounds(self, server):
        moved = server.state["start"].item() + torch.rand(1, generator=server.generator).item() + noise()
        return {name: tensor + 0.01 * moved for name, tensor in server.weights.items()}, server.state

    def end_task(self, server, reports):
        mean = torch.stack([report["noise"] for report in reports]).mean(dim=0) + noise()
        return {name: tensor + 0.001 * mean for name, tensor in server.weights.items()}, {**server.state, "noise": mean}

    def predict(self, model, images, state):
        return model(images) * (1 + torch.rand(model.classes) * np.random.rand() + noise())
'''


@pytest.fixture
def everywhere(tiny: Tiny, user_module: UserModule) -> Experiment:
    user_module("drawing", SOURCE)
    settings = ("model.name=drawing:Net", "train.rounds=3", "partition.clients=4", "server.participation=0.7")
    return tiny(*settings, method="drawing:Everywhere")


def globals_now() -> list[Any]:
    _, key, *place = np.random.get_state()  # noqa: NPY002
    return [torch.get_rng_state().tolist(), key.tolist(), place, random.getstate()]


def draw_somewhere() -> None:
    """From all global streams, an odd number of times: half of a pair of normal numbers stays behind."""
    torch.randn(3)
    np.random.standard_normal(3)  # noqa: NPY002
    random.gauss()


@pytest.mark.parametrize("source", ["torch", "numpy", "random", "generator"])
def test_mixup_and_dropout_repeat(source: str, tiny: Tiny, user_module: UserModule, tmp_path: Path) -> None:
    user_module("drawing", SOURCE)

    def bits(name: str, **given: str | int) -> str:
        settings = [f"method.source={given.get('source', source)}", "model.name=drawing:Net", "train.rounds=1"]
        experiment = tiny(*settings, method="drawing:Mixup", seed=int(given.get("seed", 0)))
        return str(run_one(experiment, tmp_path / name)["weights_sha256"])

    first = bits("first")
    draw_somewhere()
    assert bits("again") == first
    assert bits("other", seed=1) != first
    assert bits("plain", source="nothing") != first


def test_every_hook_gives_the_same_bits_with_every_engine(everywhere: Experiment, tmp_path: Path) -> None:
    """Accuracies too: predictions draw. Clients in this process draw between two updates of an aggregation."""
    whole = run_one(everywhere, tmp_path / "whole")

    def disturb(_: Event) -> None:
        draw_somewhere()

    run_one(everywhere, tmp_path / "disturbed", disturb)
    assert outcome(tmp_path / "disturbed") == outcome(tmp_path / "whole")
    for workers in (1, 2):
        there = run_one(everywhere, tmp_path / f"{workers}", engine="processes", workers=workers)
        assert there["weights_sha256"] == whole["weights_sha256"]
        assert there["accuracy_matrix"] == whole["accuracy_matrix"]


def test_every_hook_gives_the_same_bits_after_a_stop(everywhere: Experiment, tmp_path: Path) -> None:
    """In the middle of the first task; of the second one, without the teacher's scores of before; and at its end."""
    run_one(everywhere, tmp_path / "whole")
    for rounds in (2, 5, 6):
        cut = tmp_path / f"cut-{rounds}"
        stopped_after(everywhere, cut, rounds)
        draw_somewhere()
        run_one(everywhere, cut, go_on=True)
        assert outcome(cut) == outcome(tmp_path / "whole"), rounds


def test_every_hook_gives_the_same_bits_over_flower(everywhere: Experiment, tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="needs the extra [flower]")
    from deploy.memory_grid import MemoryGrid
    from deploy.test_grid import serve, sites_of
    from fedclass.deploy.client_app import app
    from fedclass.runs.summary import Result

    alone = run_one(everywhere, tmp_path / "alone")
    allowed = {"allow": "drawing:Net,drawing:Everywhere"}
    nodes = {number: {**config, **allowed} for number, config in sites_of(everywhere, tmp_path).items()}
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(everywhere.to_toml())
    before = globals_now()
    there = str(tmp_path / "there")
    serve(MemoryGrid(app, nodes), recipe=str(recipe), out=there, classes_from="recipe", min_sites=4)
    assert globals_now() == before
    summary = Result.read(tmp_path / "there").summary
    assert summary["weights_sha256"] == alone["weights_sha256"]
    assert summary["accuracy_matrix"] == alone["accuracy_matrix"]


@pytest.mark.parametrize("phase", ["train", "end_task"])
def test_a_job_asked_for_again_gives_the_same_answer(phase: Any, everywhere: Experiment) -> None:
    """Although the teacher's scores are known the second time, and exemplars chosen."""
    setup = prepare(everywhere)
    model = setup.build()
    model.grow_to(2, seed=0)
    teacher = model.weights()
    model.grow_to(4, seed=0)
    job = Job(0, 1, 0, phase, model.weights(), teacher if phase == "train" else None)
    client: Client = setup.client(MemoryStore())
    first, again = client.run(job), client.run(job)
    assert sha256(first.weights) == sha256(again.weights)
    assert sha256(first.extras) == sha256(again.extras)
    assert first.extras


# The caller's own streams.


def test_a_run_leaves_the_caller_s_streams_alone(everywhere: Experiment, tmp_path: Path) -> None:
    draw_somewhere()
    before = globals_now()
    run_one(everywhere, tmp_path / "run")
    assert globals_now() == before
    stopped_after(everywhere, tmp_path / "cut", 2)
    assert globals_now() == before


def test_a_backbone_may_draw_from_all_streams_as_it_is_built(user_module: UserModule) -> None:
    user_module("drawing", SOURCE)

    def built(seed: int) -> str:
        return sha256(build_model("drawing:Net", norm="batch", image_size=(8, 8), seed=seed).weights())

    draw_somewhere()
    before, first = globals_now(), built(0)
    assert globals_now() == before
    draw_somewhere()
    assert built(0) == first != built(1)
