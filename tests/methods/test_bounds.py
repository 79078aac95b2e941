"""Bounds: without exemplars, and with everything."""

import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from deploy.sites import Sites
from fedclass.deploy.server import ServerSettings
from fedclass.deploy.split import split
from fedclass.errors import ClientError, ConfigError
from fedclass.experiment.config import Experiment
from fedclass.experiment.launch import run_one
from fedclass.experiment.runner import run
from fedclass.experiment.setup import prepare
from fedclass.federation.store import MemoryStore
from fedclass.runs.layout import create
from fedclass.wire import Job

Tiny = Callable[..., Experiment]
UNEVEN = ("partition.kind=dirichlet", "partition.clients=6", "partition.alpha=0.1", "partition.min_size=3")


def test_finetune_is_fedavg_without_exemplars_whatever_the_memory_says(tiny: Tiny, tmp_path: Path) -> None:
    none = run_one(tiny("memory.per_client=0", method="fedavg"), tmp_path / "none")
    for budget in ("memory.per_client=8", "memory.per_class=3"):
        experiment = tiny(budget, method="finetune")
        assert (experiment.memory.per_client, experiment.memory.per_class) == (0, None)
        root = tmp_path / budget
        assert run_one(experiment, root)["weights_sha256"] == none["weights_sha256"]
        assert tomllib.loads((root / "config.toml").read_text())["memory"]["per_client"] == 0


def test_joint_trains_on_all_images_so_far_and_counts_with_them(tiny: Tiny) -> None:
    """At clients that get nothing new in a task too."""
    setup = prepare(tiny(*UNEVEN, "stream.tasks=1,1,1,1", method="joint"))
    stream, client = setup.stream, setup.client(MemoryStore())
    model = setup.build()
    learners = []
    for task in range(4):
        model.grow_to(task + 1, seed=0)
        found = setup.learners(task, 0, lambda _: None)
        learners.append(len(found))
        for number in found:
            counts = np.bincount(stream.targets[stream.shares[number]], minlength=4)
            update = client.run(Job(number, task, 0, "train", model.weights(), None))
            assert update.examples == update.metrics["samples"] == counts[: task + 1].sum()
            client.run(Job(number, task, 2, "end_task", model.weights(), None))
            assert len(client.store.load(number).exemplars) == 0
    assert all(any(not len(stream.new_data(c, t)) for c in range(6)) for t in range(4))
    assert learners == sorted(learners)
    assert learners[-1] == 6


def test_joint_forgets_least_and_begins_like_fedavg(tiny: Tiny, tmp_path: Path) -> None:
    settings = ("memory.per_client=0", "train.rounds=4", "train.local_epochs=2")
    joint, fedavg = (run_one(tiny(*settings, method=m), tmp_path / m) for m in ("joint", "fedavg"))
    assert joint["accuracy_matrix"][0] == fedavg["accuracy_matrix"][0]
    assert joint["accuracy_last"] > 90 > fedavg["accuracy_last"]


def test_a_federation_of_sites_refuses_joint_at_the_server_and_at_each_site(tiny: Tiny, tmp_path: Path) -> None:
    told = "'joint' trains on all images of earlier tasks, which sites do not keep for it; run it in a simulation"
    settings = ServerSettings.read({"out": str(tmp_path / "out"), "set": "method.name=joint"})
    with pytest.raises(ConfigError, match=told):
        settings.experiment()
    experiment = tiny(method="joint")
    setup = prepare(experiment)
    sites = Sites(setup, split(experiment, tmp_path / "data"), tmp_path / "stores")
    with pytest.raises(ClientError, match=f"refuses a job.*{told}"):
        run(setup, sites, create(tmp_path / "run"))


def test_an_unknown_replay_is_refused(tiny: Tiny, user_module: Callable[[str, str], str]) -> None:
    user_module(
        "odd",
        """
from dataclasses import dataclass
from fedclass import FedAvg
from fedclass.methods import Declaration

@dataclass(frozen=True, kw_only=True)
class Odd(FedAvg):
    def declare(self):
        return Declaration(replay="some")
""",
    )
    with pytest.raises(ConfigError, match="declares replay = 'some'; it must be one of 'mixed', 'own', 'none', 'all'"):
        tiny(method="odd:Odd")
