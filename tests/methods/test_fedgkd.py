"""FedGKD: which models its teacher is the mean of."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fedclass.experiment.checkpoint import Checkpoints
from fedclass.experiment.config import Experiment
from fedclass.experiment.launch import run_one
from fedclass.experiment.runner import run
from fedclass.experiment.setup import prepare
from fedclass.federation.client import Client
from fedclass.federation.store import MemoryStore
from fedclass.runs.layout import create
from fedclass.wire import Job, Update, Weights

Tiny = Callable[..., Experiment]


class Watching:
    """An engine that notes, of every round, the model that clients got and the model that taught them."""

    name = "watching"

    def __init__(self, client: Client) -> None:
        self.client = client
        self.sent: dict[tuple[int, int], Weights] = {}
        self.taught: dict[tuple[int, int], Weights | None] = {}

    def run(self, jobs: list[Job]) -> list[Update]:
        updates = [self.client.run(job) for job in jobs]
        job = jobs[0]
        if job.phase == "train":
            self.sent[job.task, job.round] = job.weights
            teacher = self.client.teacher
            assert teacher is not None
            known = teacher.model.weights() if teacher.loaded else None
            self.taught[job.task, job.round] = known
        return updates


@pytest.mark.parametrize("server", ["mean", "momentum"])
def test_the_teacher_is_the_mean_of_the_last_models_of_the_task(server: str, tiny: Tiny, tmp_path: Path) -> None:
    """Written out for three models and five rounds; with a server that goes its own way, of the models that it sent."""
    settings = ("method.models=3", "train.rounds=5", "model.norm=group", f"server.optimizer={server}")
    experiment = tiny(*settings, method="fedgkd")
    setup = prepare(experiment)
    engine = Watching(setup.client(MemoryStore()))
    run(setup, engine, create(tmp_path / "run"))  # type: ignore[arg-type]
    mean_of = {1: [1], 2: [1, 2], 3: [1, 2, 3], 4: [2, 3, 4]}  # not 0: what a task begins with has not met its classes
    for task in (0, 1):
        for round, rounds in mean_of.items():
            teacher = engine.taught[task, round]
            assert teacher is not None
            for name, tensor in teacher.items():
                want = torch.stack([engine.sent[task, r][name] for r in rounds]).mean(dim=0)
                torch.testing.assert_close(tensor, want, rtol=1e-5, atol=1e-7, msg=name)
    assert engine.taught[0, 0] is None
    first = engine.taught[1, 0]
    assert first is not None
    assert torch.equal(first["head.weight"], engine.sent[1, 0]["head.weight"][:2])
    assert all(torch.equal(first[n], engine.sent[1, 0][n]) for n in first if not n.startswith("head."))


def test_one_model_needs_no_state_and_no_weight_is_fedavg(tiny: Tiny, tmp_path: Path) -> None:
    fedavg = run_one(tiny(method="fedavg"), tmp_path / "fedavg")
    none = run_one(tiny("method.gamma=0", method="fedgkd"), tmp_path / "none")
    assert none["weights_sha256"] == fedavg["weights_sha256"]
    one = run_one(tiny("method.models=1", method="fedgkd"), tmp_path / "one")
    assert (one["bytes_up"], one["bytes_down"]) == (fedavg["bytes_up"], fedavg["bytes_down"])
    known = Checkpoints(tmp_path / "one" / "checkpoints")
    assert known.load(max(known.numbers())).state.method == {}


def test_a_round_that_was_undone_is_not_among_the_earlier_ones(tiny: Tiny) -> None:
    """The state is then that of the round before: how many models there are does not follow from the round."""
    setup = prepare(tiny("method.models=3", "model.norm=group", method="fedgkd"))
    client, model = setup.client(MemoryStore()), setup.build()
    model.grow_to(2, seed=0)
    weights = model.weights()
    client.run(Job(0, 0, 2, "train", weights, None))  # nothing is known of round 1
    assert client.teacher is not None
    assert client.teacher.model.flat.equal(model.flat)
    one = {"earlier": model.flattened(weights) + 3.0, "count": torch.tensor(1)}
    client.run(Job(0, 0, 3, "train", weights, None, one))
    torch.testing.assert_close(client.teacher.model.flat, model.flat + 1.5)
