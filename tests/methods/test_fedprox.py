"""FedProx against its objective, differentiated by autograd."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional as F

from fedclass.data.batches import as_input, normalise
from fedclass.experiment.config import Experiment
from fedclass.experiment.launch import run_one
from fedclass.experiment.setup import prepare
from fedclass.federation.store import MemoryStore
from fedclass.wire import Job

Tiny = Callable[..., Experiment]


def test_a_round_minimises_the_loss_plus_the_distance_to_the_received_weights(tiny: Tiny) -> None:
    """Whole batches, with momentum, against steps on cross-entropy + mu/2 * |w - w_received|^2 as one loss."""
    settings = ("train.batch_size=1000", "train.local_epochs=6", "method.mu=2.0")
    setup = prepare(tiny(*settings, method="fedprox"))
    model = setup.build()
    model.grow_to(2, seed=0)
    weights = model.weights()
    update = setup.client(MemoryStore()).run(Job(1, 0, 0, "train", weights, None))

    index = setup.stream.new_data(1, 0)
    images = as_input(normalise(torch.from_numpy(setup.stream.data.train.images[index]), *setup.normalisation))
    labels = torch.from_numpy(setup.stream.targets[index])
    rates = setup.experiment.optimizer
    optimizer = torch.optim.SGD(
        model.parameters(), lr=rates.learning_rate, momentum=rates.momentum, weight_decay=rates.weight_decay
    )
    start = [p.detach().clone() for p in model.parameters()]
    model.train()
    for _ in range(6):
        away = sum((p - s).square().sum() for p, s in zip(model.parameters(), start, strict=True))
        model.flat.grad.zero_()  # type: ignore[union-attr]
        (F.cross_entropy(model(images), labels) + 2.0 / 2 * away).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    for name, tensor in model.weights().items():
        torch.testing.assert_close(update.weights[name], tensor, rtol=1e-3, atol=1e-5, msg=name)


def test_without_pull_it_is_fedavg_and_with_more_of_it_clients_stay_closer(tiny: Tiny, tmp_path: Path) -> None:
    fedavg = run_one(tiny(method="fedavg"), tmp_path / "fedavg")
    none = run_one(tiny("method.mu=0", method="fedprox"), tmp_path / "none")
    assert none["weights_sha256"] == fedavg["weights_sha256"]
    moved = []
    for mu in (0.0, 0.1, 10.0):
        setup = prepare(tiny(f"method.mu={mu}", "train.local_epochs=3", method="fedprox"))
        model = setup.build()
        model.grow_to(2, seed=0)
        start = model.flat.detach().clone()
        model.load(setup.client(MemoryStore()).run(Job(0, 0, 0, "train", model.weights(), None)).weights)
        moved.append(float((model.flat.detach() - start).norm()))
    assert moved[0] > moved[1] > moved[2] > 0
