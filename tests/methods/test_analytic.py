"""The analytic head: the joint solution, whatever the order of tasks and whoever holds what."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fedclass.data.batches import as_input, normalise
from fedclass.errors import ConfigError
from fedclass.experiment.checkpoint import Checkpoints
from fedclass.experiment.config import Experiment
from fedclass.experiment.launch import run_one
from fedclass.experiment.setup import prepare
from fedclass.federation.store import MemoryStore
from fedclass.methods import METHODS
from fedclass.models.head import head_rows
from fedclass.wire import Job
from reference.ridge import head
from stopping import Stop, stop_after

Tiny = Callable[..., Experiment]

BACKBONE = """
import torch
from torch import nn
from fedclass.models.frozen import freeze

def small():
    torch.manual_seed(5)
    return freeze(nn.Sequential(nn.Flatten(), nn.Linear(192, 6), nn.Tanh()))
"""


@pytest.fixture
def frozen(user_module: Callable[[str, str], str]) -> str:
    return f"model.name={user_module('frozen_backbone', BACKBONE)}:small"


def rows(root: Path) -> torch.Tensor:
    known = Checkpoints(root / "checkpoints")
    last = known.load(max(known.numbers())).state.last
    assert last is not None
    return head_rows(last)


def test_a_run_ends_with_the_joint_solution_in_any_order_on_any_engine_after_a_stop(
    tiny: Tiny, frozen: str, tmp_path: Path
) -> None:
    """The theorem: sums over clients and tasks are sums over images."""
    experiment = tiny(frozen, "server.participation=0.5", "method.strength=0.5", method="analytic")
    assert (experiment.train.rounds, experiment.train.local_epochs, experiment.memory.per_client) == (1, 1, 0)
    alone = run_one(experiment, tmp_path / "alone")
    spread = run_one(experiment, tmp_path / "spread", engine="processes", workers=2)
    with pytest.raises(Stop):
        run_one(experiment, tmp_path / "stopped", stop_after(2))
    stopped = run_one(experiment, tmp_path / "stopped", go_on=True)
    assert alone["weights_sha256"] == spread["weights_sha256"] == stopped["weights_sha256"]

    setup = prepare(experiment)
    images = as_input(normalise(torch.from_numpy(setup.stream.train.images), *setup.normalisation))
    features = setup.build().features(images).tolist()
    want = torch.tensor(head(features, setup.stream.targets.tolist(), 4, 0.5))
    torch.testing.assert_close(rows(tmp_path / "alone"), want, atol=1e-5, rtol=0)

    order = "stream.class_order=[2, 3, 1, 0]"  # other tasks, other clients
    run_one(
        tiny(frozen, order, "stream.tasks=3,1", "partition.clients=2", "method.strength=0.5", method="analytic"),
        tmp_path / "other",
    )
    torch.testing.assert_close(rows(tmp_path / "other"), want[[2, 3, 1, 0]], atol=1e-5, rtol=0)


def test_a_backbone_that_is_trained_is_refused_before_anything_begins(tiny: Tiny) -> None:
    with pytest.raises(ConfigError, match=r"\[model\] name: analytic needs a frozen backbone, but backb"):
        prepare(tiny(method="analytic"))


def test_a_class_with_one_image_is_in_no_sum(tiny: Tiny, frozen: str) -> None:
    """Its column of X^T Y would be the features of that image."""
    setup = prepare(tiny(frozen, method="analytic"))
    model, client = setup.build(), setup.client(MemoryStore())
    model.grow_to(2, seed=0)
    new = setup.stream.new_data
    labels = setup.stream.targets

    def one_of_class_1(client: int, task: int, round: int | None = None) -> np.ndarray:
        mine = new(client, task, round)
        return np.concatenate([mine[labels[mine] == 0], mine[labels[mine] == 1][:1]])

    object.__setattr__(setup.stream, "new_data", one_of_class_1)
    job = Job(0, 0, 1, "end_task", model.weights(), None, frozen=model.frozen_sha256)
    sent = client.run(job).extras
    assert sent["cross"][:, 0].any()
    assert not sent["cross"][:, 1].any()
    assert METHODS["analytic"]().upload_flaw({**sent, "gram": -sent["gram"]}) == "a square of features below 0"
