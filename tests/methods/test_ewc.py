"""EWC: its Fisher diagonal image by image, through a run, and the hook that it needs."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fedclass.data.batches import as_input, normalise
from fedclass.errors import FedclassError
from fedclass.experiment.checkpoint import Checkpoint, Checkpoints
from fedclass.experiment.config import Experiment
from fedclass.experiment.launch import run_one
from fedclass.experiment.setup import prepare
from fedclass.federation.server import rejection
from fedclass.federation.store import MemoryStore
from fedclass.losses import pull
from fedclass.methods import EWC
from fedclass.methods.base import Batch, ClientContext
from fedclass.methods.declare import Sizes
from fedclass.wire import Job, Update
from reference.penalty import fisher_diagonal

Tiny = Callable[..., Experiment]
UserModule = Callable[[str, str], str]


def last(root: Path) -> Checkpoint:
    known = Checkpoints(root / "checkpoints")
    return known.load(max(known.numbers()))


def test_the_fisher_diagonal_of_a_run_is_the_mean_over_all_images_of_all_clients(tiny: Tiny, tmp_path: Path) -> None:
    """F = decay * F_1 + F_2, each with the model of its task's end; the anchor is the last of them."""
    uneven = ("partition.kind=dirichlet", "partition.alpha=0.5", "partition.min_size=3", "method.decay=0.5")
    experiment = tiny(*uneven, method="ewc")
    run_one(experiment, tmp_path / "two")
    first = tmp_path / "first"
    run_one(tiny(*uneven, "stream.tasks=2", "stream.class_order=[0,1]", method="ewc"), first)
    setup = prepare(experiment)
    stream, expected = setup.stream, torch.zeros(0)
    for task, root in ((0, first), (1, tmp_path / "two")):
        model = setup.build()
        model.grow_to(stream.classes_until(task), seed=0)
        weights = last(root).state.last
        assert weights is not None
        model.load(weights)
        index = np.concatenate([stream.new_data(client, task) for client in range(stream.clients)])
        images = as_input(normalise(torch.from_numpy(stream.data.train.images[index]), *setup.normalisation))
        fisher = fisher_diagonal(model, images, torch.from_numpy(stream.targets[index]))
        before = model.flat_from(expected, 2) if task else torch.zeros(len(model.flat))
        expected = 0.5 * before + model.flattened({**weights, **fisher})
        kept = last(root).state.method
        torch.testing.assert_close(kept["fisher"], expected, rtol=1e-3, atol=1e-6)
        assert torch.equal(kept["anchor"], model.flattened(weights))
    assert float(expected.max()) > 0.01  # there was something to compare


def test_the_pull_is_towards_the_last_tasks_model_and_absent_in_the_first(tiny: Tiny) -> None:
    setup = prepare(tiny(method="ewc"))
    model = setup.build()
    model.grow_to(4, seed=0)
    rng = torch.Generator().manual_seed(0)
    fisher, anchor = torch.rand(2, len(model.flat), generator=rng)
    client = ClientContext(model=model, old_classes=2, weights=model.weights(), counts=torch.ones(4))
    gradient = torch.zeros(len(model.flat))
    EWC(strength=3.0).adjust(client, gradient)
    assert not gradient.any()
    broadcast = {"fisher": fisher, "anchor": anchor}
    later = ClientContext(
        model=model, old_classes=2, weights=model.weights(), counts=torch.ones(4), broadcast=broadcast
    )
    EWC(strength=3.0).adjust(later, gradient)
    torch.testing.assert_close(gradient, pull(model.flat.detach(), anchor, 3.0 * fisher))


def test_without_strength_it_is_fedavg_and_with_it_important_weights_move_less(tiny: Tiny, tmp_path: Path) -> None:
    """Measured by F and the model of the first task's end, which all runs share."""
    fedavg = run_one(tiny(method="fedavg"), tmp_path / "fedavg")
    first = tmp_path / "first"
    run_one(tiny("stream.tasks=2", "stream.class_order=[0,1]", method="ewc"), first)
    kept, model, moved = last(first).state.method, prepare(tiny()).build(), []
    model.grow_to(4, seed=0)
    fisher, anchor = (model.flat_from(kept[name], 2) for name in ("fisher", "anchor"))
    for strength in (0, 300):
        summary = run_one(tiny(f"method.strength={strength}", method="ewc"), tmp_path / str(strength))
        assert (summary["weights_sha256"] == fedavg["weights_sha256"]) == (strength == 0)
        weights = last(tmp_path / str(strength)).state.last
        assert weights is not None
        moved.append(float((fisher * (model.flattened(weights) - anchor).square()).sum()))
    assert moved[1] < 0.5 * moved[0]


def test_a_client_with_one_image_sends_nothing_of_it(tiny: Tiny) -> None:
    model = prepare(tiny(method="ewc")).build()
    model.grow_to(2, seed=0)

    def sent(images: int) -> tuple[float, int]:
        batch = Batch(torch.rand(images, 3, 8, 8), torch.zeros(images, dtype=torch.int64), None)
        client = ClientContext(
            model=model.eval(),
            old_classes=0,
            weights=model.weights(),
            counts=torch.ones(2),
            task_data=lambda size: [batch] if images else [],  # noqa: ARG005
        )
        report = EWC().report(client, batch)
        return float(report["fisher"].sum()), int(report["images"])

    assert sent(0) == sent(1) == (0.0, 0)
    assert sent(2)[1] == 2
    assert sent(2)[0] > 0


def test_what_cannot_be_a_fisher_diagonal_is_rejected(tiny: Tiny) -> None:
    setup = prepare(tiny(method="ewc"))
    model = setup.build()
    model.grow_to(2, seed=0)
    job = Job(0, 0, 2, "end_task", model.weights(), None)
    update = setup.client(MemoryStore()).run(job)
    assert rejection(update, job, EWC(), Sizes.of(model)) is None
    for changed in ({"fisher": -update.extras["fisher"] - 1}, {"images": torch.tensor(-1)}):
        bad = Update(0, 0, 2, {}, update.examples, update.metrics, {**update.extras, **changed})
        assert rejection(bad, job, EWC(), Sizes.of(model)) == "a Fisher diagonal, or a number of images, below 0"


TASK_DATA = """
from dataclasses import dataclass
import torch
from fedclass import FedAvg
from fedclass.methods import Declaration, Spec

@dataclass(frozen=True, kw_only=True)
class Sums(FedAvg):
    def declare(self):
        uploads = {"end_task": {"seen": Spec(("classes",), torch.int64)}}
        return Declaration(server={"seen": Spec(("classes",), torch.int64)}, uploads=uploads, task_data=%s)
    def report(self, client, exemplars):
        counts = [torch.bincount(b.labels, minlength=client.model.classes) for b in client.task_data(5)]
        assert torch.is_grad_enabled()
        return {"seen": sum(counts, start=torch.zeros(client.model.classes, dtype=torch.int64))}
    def end_task(self, server, reports):
        return server.weights, {"seen": sum(r["seen"] for r in reports)}
"""


def test_a_tasks_images_are_there_at_its_end_once_and_only_if_declared(
    tiny: Tiny, user_module: UserModule, tmp_path: Path
) -> None:
    user_module("sums", TASK_DATA % "True")
    run_one(tiny(method="sums:Sums"), tmp_path / "run")
    assert last(tmp_path / "run").state.method["seen"].tolist() == [0, 0, 24, 24]
    user_module("sums_undeclared", TASK_DATA % "False")
    with pytest.raises(
        FedclassError, match="task_data is available only in `end_round` and `report`, if `declare` says"
    ):
        run_one(tiny(method="sums_undeclared:Sums"), tmp_path / "undeclared")
