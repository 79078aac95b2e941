"""What benchmarks share: an experiment on random pixels, measurements in turns, and a row of the table."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedclass.data.image_set import ImageSet, Split
from fedclass.data.stream import Stream
from fedclass.experiment.recipe import load
from fedclass.experiment.setup import Setup
from fedclass.federation.client import Client
from fedclass.federation.store import MemoryStore
from fedclass.wire import Job

SIDE = 32


@dataclass(frozen=True)
class Row:
    """wanted: such as "at least 0.5"; met: whether the figure is so."""

    name: str
    figure: float
    wanted: str
    met: bool | None
    detail: str


def at_least(name: str, figure: float, wanted: float, detail: str) -> Row:
    return Row(name, figure, f"at least {wanted}", figure >= wanted, detail)


def at_most(name: str, figure: float, wanted: float, detail: str) -> Row:
    return Row(name, figure, f"at most {wanted}", figure <= wanted, detail)


def noise(
    *,
    clients: int,
    images: int,
    classes: int = 10,
    tasks: Sequence[int] | None = None,
    test: int = 1000,
    **keys: object,
) -> Setup:
    """An experiment on random pixels, equally many for each client: speed does not depend on what they show."""
    rng = np.random.default_rng(0)
    sizes = tuple(tasks or (classes // 2, classes - classes // 2))
    labels = np.arange(images) % classes
    pixels = rng.integers(256, size=(images, SIDE, SIDE, 3), dtype=np.uint8)
    test_labels = np.arange(test) % classes
    data = ImageSet(
        "noise",
        tuple(map(str, range(classes))),
        Split(pixels, labels),
        Split(rng.integers(256, size=(test, SIDE, SIDE, 3), dtype=np.uint8), test_labels),
        official=True,
    )
    order = rng.permutation(images)
    shares = [np.sort(part) for part in np.array_split(order, clients)]
    settings = {
        "train.batch_size": 32,
        "train.local_epochs": 1,
        "optimizer.learning_rate": 0.01,
        "memory.per_client": 0,
        "evaluation.every": 0,
        **{key.replace("__", "."): value for key, value in keys.items()},
    }
    method = str(settings.pop("method", "fedavg"))
    words = [f"{key}={value}" for key, value in settings.items()]
    experiment = load(None, ["data.name=cifar10", "server.participation=1", *words], method=method)
    stream = Stream(
        data.classes, sizes, data=data, targets=labels, test_targets=test_labels, shares=shares, offered=sizes
    )
    return Setup(experiment, stream)


def jobs(setup: Setup, *, task: int = 0, round: int = 0) -> list[Job]:
    model = setup.build()
    teacher = None
    if task:
        model.grow_to(setup.stream.classes_until(task - 1), seed=0)
        teacher = model.weights()
    model.grow_to(setup.stream.classes_until(task), seed=0)
    weights = model.weights()
    sent = teacher if setup.experiment.method.declare().teacher else None
    return [Job(client, task, round, "train", weights, sent) for client in range(setup.stream.clients)]


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def in_turns(works: Sequence[Callable[[], object]], turns: int) -> list[list[float]]:
    """Seconds of each, `turns` times, one after the other; a first turn warms up and is not counted."""
    for work in works:
        work()
    return [list(column) for column in zip(*([seconds(work) for work in works] for _ in range(turns)), strict=True)]


def ratio(slow: Sequence[float], quick: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(slow, quick, strict=True))


def client_of(setup: Setup) -> Client:
    return setup.client(MemoryStore())
