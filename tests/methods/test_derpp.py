"""DER++: its loss, and logits that stay with their exemplars."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fedclass.data.batches import as_input, normalise
from fedclass.experiment.checkpoint import Checkpoint, Checkpoints
from fedclass.experiment.config import Experiment
from fedclass.experiment.launch import run_one
from fedclass.experiment.setup import prepare
from fedclass.losses import stored_logits_error

Tiny = Callable[..., Experiment]


def last(root: Path) -> Checkpoint:
    known = Checkpoints(root / "checkpoints")
    return known.load(max(known.numbers()))


def test_the_error_is_the_mean_square_over_logits_that_were_stored() -> None:
    rng = torch.Generator().manual_seed(0)
    current = torch.randn(5, 4, generator=rng, requires_grad=True)
    stored = torch.randn(5, 4, generator=rng)
    stored[:2, 2:] = float("nan")  # two exemplars of a time with two classes
    total, count = 0.0, 0
    for i in range(5):
        for j in range(4):
            if i >= 2 or j < 2:
                total, count = total + (float(current.detach()[i, j]) - float(stored[i, j])) ** 2, count + 1
    error = stored_logits_error(current, stored)
    assert float(error.detach()) == pytest.approx(total / count, rel=1e-6)
    error.backward()
    assert current.grad is not None
    assert bool(torch.isfinite(current.grad).all())
    assert not bool(current.grad[:2, 2:].any())


def test_logits_are_those_of_the_model_that_chose_and_stay_with_their_exemplar(tiny: Tiny, tmp_path: Path) -> None:
    """After the second task, old exemplars have the first model's logits for old classes and none for new ones."""
    experiment = tiny("memory.per_client=9", method="derpp")
    run_one(experiment, tmp_path)
    kept, setup = last(tmp_path), prepare(experiment)
    first = tmp_path / "first"
    run_one(tiny("memory.per_client=9", "stream.tasks=2", "stream.class_order=[0,1]", method="derpp"), first)
    models = []
    for classes, root in ((2, first), (4, tmp_path)):
        model = setup.build()
        model.grow_to(classes, seed=0)
        weights = last(root).state.last
        assert weights is not None
        model.load(weights)
        models.append(model.eval())
    old = new = 0
    for state in kept.clients.values():
        index = state.exemplars.index
        images = as_input(normalise(torch.from_numpy(setup.stream.data.train.images[index]), *setup.normalisation))
        assert state.rows.tensors["logits"].shape == (len(index), 4)
        for label, image, row in zip(setup.stream.targets[index], images, state.rows.tensors["logits"], strict=True):
            with torch.no_grad():
                if label < 2:
                    torch.testing.assert_close(row[:2], models[0](image[None])[0], atol=1e-5, rtol=1e-4)
                    assert bool(row[2:].isnan().all())
                    old += 1
                else:
                    torch.testing.assert_close(row, models[1](image[None])[0], atol=1e-5, rtol=1e-4)
                    new += 1
    assert old > 3
    assert new > 3


def test_without_exemplars_it_trains_on_new_data_alone(tiny: Tiny, tmp_path: Path) -> None:
    """And is then FedAvg without exemplars, bit for bit."""
    none = tiny("memory.per_client=0", method="derpp")
    derpp = run_one(none, tmp_path / "derpp")
    fedavg = run_one(tiny("memory.per_client=0", method="fedavg"), tmp_path / "fedavg")
    assert derpp["weights_sha256"] == fedavg["weights_sha256"]
    assert np.isfinite(derpp["accuracy_last"])
