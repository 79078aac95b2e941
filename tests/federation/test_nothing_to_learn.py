"""Clients that hold images of earlier tasks only, where exemplars count in the mean."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedclass.data.partition import save_partition
from fedclass.errors import ConfigError
from fedclass.experiment.config import Experiment
from fedclass.experiment.setup import Setup, prepare
from fedclass.federation.store import MemoryStore
from fedclass.wire import Job

Tiny = Callable[..., Experiment]


@pytest.fixture
def odd(tiny: Tiny, tmp_path: Path) -> Callable[..., Setup]:
    """Client 0 has images of the first task only, client 1 of both."""
    whole = prepare(tiny()).stream
    old = whole.targets < 2
    first = np.flatnonzero(old)[:8]
    shares = [first, np.setdiff1d(np.arange(len(old)), first)]
    save_partition(shares, tmp_path / "p.json", dataset=whole.data.sha256)
    settings = ["partition.kind=file", f"partition.path={tmp_path / 'p.json'}", "partition.clients=2"]
    counted = "server.weighting=with-exemplars"
    return lambda *more, method: prepare(tiny(*settings, counted, *more, method=method))


@pytest.mark.parametrize(
    ("method", "settings", "learners"),
    [
        ("fedavg", (), [0, 1]),
        ("fedavg", ("memory.quota=floor", "memory.per_client=1"), [1]),  # 1 // 2 classes: it keeps nothing
        ("fedavg", ("memory.per_client=0",), [1]),
        ("derpp", (), [1]),  # replays beside new images only
        ("joint", (), [0, 1]),
    ],
)
def test_a_client_is_asked_if_it_can_take_a_step(
    method: str, settings: tuple[str, ...], learners: list[int], odd: Callable[..., Setup]
) -> None:
    setup = odd(*settings, method=method)
    assert setup.learners(0, 0, lambda _: None) == [0, 1]
    assert setup.learners(1, 0, lambda _: None) == learners


def test_without_a_step_a_method_keeps_its_state(odd: Callable[..., Setup]) -> None:
    """SCAFFOLD divides by the number of steps: a control variate of NaN would exclude the client for good."""
    setup, store = odd("memory.per_client=0", method="scaffold"), MemoryStore()
    client, model = setup.client(store), setup.build()
    weights, control = [], {}
    for classes in (2, 4):
        model.grow_to(classes, seed=0)
        weights.append(model.weights())
        control[classes] = {"control": model.flattened(model.weights()) * 0}
    client.run(Job(0, 0, 0, "train", weights[0], None, control[2]))
    before = store.load(0).method.tensors["control"]
    assert before.any()
    answer = client.run(Job(0, 1, 0, "train", weights[1], None, control[4]))
    assert answer.examples == 0
    assert store.load(0).method.tensors["control"].equal(before)


def test_no_run_begins_that_must_end_for_want_of_clients(odd: Callable[..., Setup]) -> None:
    """In the second task, which may begin hours later, one client has something to train on."""
    odd("server.min_updates=2", method="fedavg")
    with pytest.raises(ConfigError, match=r"min_updates = 2: in task 2, round 1, only 1 of 2 clients would be asked"):
        odd("server.min_updates=2", "memory.per_client=0", method="fedavg")
    with pytest.raises(ConfigError, match=r"min_updates = 2: in task 1, round 1, only 1 of 2 clients would be asked"):
        odd("server.min_updates=2", "server.participation=0.5", method="fedavg")
