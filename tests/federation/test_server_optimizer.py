"""FedAvgM and FedAdam against their formulas, number by number."""

import pytest
import torch
from torch import nn

from fedclass.federation.server_optimizer import ServerSettings, grown, step
from fedclass.models.incremental import IncrementalModel
from fedclass.wire import Weights
from reference import server_optimizer as oracle


def model() -> IncrementalModel:
    """With a buffer that is averaged and one that is not trained."""
    made = IncrementalModel(nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.BatchNorm1d(4)), 4)
    made.grow_to(3, seed=0)
    return made


def moved(net: IncrementalModel, weights: Weights, deltas: list[float]) -> Weights:
    """What clients would have made of these weights."""
    flat = net.flattened(weights) + torch.tensor(deltas)
    after = net.with_flat(weights, flat)
    after["backbone.2.running_mean"].add_(0.25)
    return after


@pytest.mark.parametrize(
    "settings",
    [
        ServerSettings(optimizer="momentum", learning_rate=0.5, momentum=0.8),
        ServerSettings(optimizer="adam", learning_rate=0.1, momentum=0.9, beta2=0.7, tau=0.01),
    ],
)
def test_three_rounds_are_the_papers_steps(settings: ServerSettings) -> None:
    net = model()
    rng = torch.Generator().manual_seed(0)
    size = len(net.flat)
    deltas = [(torch.randn(size, generator=rng) * 0.1).tolist() for _ in range(3)]
    weights: Weights = net.weights()
    first = net.flattened(weights).tolist()
    state: Weights = {}
    for move in deltas:
        weights, state = step(settings, net, weights, moved(net, weights, move), state)
    if settings.optimizer == "momentum":
        want = oracle.momentum(first, deltas, eta=0.5, beta=0.8)
    else:
        want = oracle.adam(first, deltas, eta=0.1, beta1=0.9, beta2=0.7, tau=0.01)
    torch.testing.assert_close(net.flattened(weights), torch.tensor(want), atol=1e-6, rtol=1e-5)
    assert set(state) == set(settings.declare())
    assert weights["backbone.2.running_mean"].tolist() == pytest.approx([0.75] * 4), "buffers are the clients' mean"


def test_the_mean_is_handed_on_as_it_is() -> None:
    net = model()
    after = moved(net, net.weights(), [0.1] * len(net.flat))
    assert step(ServerSettings(), net, net.weights(), after, {}) == (after, {})


def test_momentum_without_memory_and_rate_one_is_the_mean() -> None:
    net = model()
    after = moved(net, net.weights(), [0.1] * len(net.flat))
    plain = ServerSettings(optimizer="momentum", momentum=0.0, learning_rate=1.0)
    weights, _ = step(plain, net, net.weights(), after, {})
    torch.testing.assert_close(net.flattened(weights), net.flattened(after), atol=1e-7, rtol=0)


def test_entries_of_new_classes_begin_as_all_entries_began() -> None:
    """v starts at tau^2, also in a later task: the second task's rows move as in a run that begins with them."""
    settings = ServerSettings(optimizer="adam", learning_rate=0.1, momentum=0.9, beta2=0.7, tau=0.01)
    net = model()
    weights, state = step(settings, net, net.weights(), moved(net, net.weights(), [0.1] * len(net.flat)), {})
    net.load(weights)
    net.grow_to(5, seed=0)
    before, after = net.weights(), moved(net, net.weights(), [0.05] * len(net.flat))
    made, _ = step(settings, net, before, after, grown(settings, state, net, 3))
    anew, _ = step(settings, net, before, after, {})
    rows = "head.weight"
    assert made[rows][3:].equal(anew[rows][3:])
    assert not made[rows][:3].isclose(anew[rows][:3]).any(), "learned rows keep theirs"
