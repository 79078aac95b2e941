"""SCAFFOLD against Algorithm 1, through a head that grows."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from fedclass.data.batches import as_input, normalise
from fedclass.experiment.checkpoint import Checkpoints
from fedclass.experiment.config import Experiment
from fedclass.experiment.launch import run_one
from fedclass.experiment.setup import prepare
from fedclass.models.incremental import IncrementalModel
from reference.scaffold import Named, scaffold_round, widened

Tiny = Callable[..., Experiment]
PLAIN = (
    "optimizer.momentum=0",
    "optimizer.weight_decay=0",
    "train.batch_size=1000",
    "train.local_epochs=2",
    "train.rounds=2",
)


def trained(model: IncrementalModel) -> Named:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def test_a_run_is_algorithm_1_over_two_tasks(tiny: Tiny, tmp_path: Path) -> None:
    """Batches hold all of a client's images, so that their order does not matter; no exemplars; tolerance of floats."""
    experiment = tiny(*PLAIN, "memory.per_client=0", "optimizer.learning_rate=0.02", method="scaffold")
    run_one(experiment, tmp_path)
    found = Checkpoints(tmp_path / "checkpoints").load(max(Checkpoints(tmp_path / "checkpoints").numbers()))

    setup = prepare(experiment)
    stream, model = setup.stream, setup.build()
    model.grow_to(2, seed=0)
    c = {name: torch.zeros_like(p) for name, p in trained(model).items()}
    controls = [dict(c) for _ in stream.shares]
    weights: Named = dict(model.weights())
    for task in range(2):
        if task:
            model.load(weights)
            model.grow_to(4, seed=0)
            weights = dict(model.weights())
            like = trained(model)
            c, controls = widened(c, like), [widened(control, like) for control in controls]
        parts = [stream.new_data(client, task) for client in range(stream.clients)]
        data = [
            (
                as_input(normalise(torch.from_numpy(stream.data.train.images[part]), *setup.normalisation)),
                torch.from_numpy(stream.targets[part]),
            )
            for part in parts
        ]
        for _ in range(2):
            weights, c, controls = scaffold_round(
                model, weights, c, controls, data, [len(part) for part in parts], steps=2, learning_rate=0.02
            )
    assert found.state.last is not None
    for name, tensor in weights.items():
        torch.testing.assert_close(found.state.last[name], tensor, atol=2e-5, rtol=2e-4)
    flat = model.flattened({**weights, **c})
    torch.testing.assert_close(found.state.method["control"], flat, atol=2e-4, rtol=2e-3)
    assert float(flat.norm()) > 0.1  # there was something to compare
    for client, control in enumerate(controls):
        kept = found.clients[client].method.tensors["control"]
        torch.testing.assert_close(kept, model.flattened({**weights, **control}), atol=1e-3, rtol=1e-2)


def test_without_drift_there_is_no_correction(tiny: Tiny, tmp_path: Path) -> None:
    """One client: c and c_i are the same, so that every step is FedAvg's."""
    alone = (*PLAIN, "partition.clients=1")
    fedavg = run_one(tiny(*alone, method="fedavg"), tmp_path / "fedavg")
    scaffold = run_one(tiny(*alone, method="scaffold"), tmp_path / "scaffold")
    assert scaffold["accuracy_matrix"] == fedavg["accuracy_matrix"]


def test_a_flat_vector_grows_with_the_head_and_nothing_else_moves() -> None:
    model = IncrementalModel(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 5)), 5)
    model.grow_to(2, seed=0)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    flat = model.flat.detach().clone()
    model.grow_to(7, seed=0)
    now = model.flat_from(flat, 2)
    assert len(now) == len(model.flat)
    with torch.no_grad():
        model.flat.copy_(now)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p[: len(before[name])].detach(), before[name], rtol=0, atol=0)
        assert not np.any(p[len(before[name]) :].detach().numpy())
