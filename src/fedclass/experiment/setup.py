"""A recipe made ready to run: data found and hashed, partition drawn, model built. No training yet."""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedclass.data.batches import find_transform, transformed
from fedclass.data.coverage import coverage
from fedclass.data.datasets import load
from fedclass.data.image_set import Split
from fedclass.data.memory import check_fewest, exemplar_counts, remarks
from fedclass.data.schedule import Schedule
from fedclass.data.stream import Stream, build_stream
from fedclass.data.validation import hold_out
from fedclass.errors import ConfigError, FedclassError
from fedclass.experiment.config import MEASURED, Experiment
from fedclass.experiment.curriculum import DataFacts, Tell, Tested, Trial
from fedclass.federation.client import Client
from fedclass.federation.evaluate import Counts, Part, counted
from fedclass.federation.server import sample
from fedclass.federation.store import ClientStore
from fedclass.federation.train_settings import chosen_device
from fedclass.models.incremental import IncrementalModel
from fedclass.rng import generator, streams_restored
from fedclass.usercode import imported, reason


@dataclass(frozen=True)
class Setup:
    """A recipe made ready to run. Its stream is known from the start, so it is also the curriculum."""

    experiment: Experiment
    stream: Stream

    @property
    def image(self) -> tuple[int, int, int]:
        height, width, channels = self.stream.data.train.images.shape[1:]
        return height, width, channels

    @property
    def normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return self.experiment.data.normalisation or self.stream.data.normalisation

    def build(self) -> IncrementalModel:
        return self.experiment.build(self.image[:2])

    @cached_property
    def initial(self) -> IncrementalModel:
        return self.build()

    def __getstate__(self) -> dict[str, object]:
        """Without the initial model: a worker that needs one builds it."""
        return {"experiment": self.experiment, "stream": self.stream}

    def client(self, store: ClientStore) -> Client:
        e = self.experiment
        return Client(
            self.stream,
            e.method,
            train=e.train,
            optimizer=e.optimizer,
            weighting=e.server.weighting,
            memory=e.memory,
            normalisation=self.normalisation,
            build=self.build,
            store=store,
            seed=e.seed_of("training"),
            transform=find_transform(e.data.transform),
            faults=e.faults,
        )

    def counted(self, part: Part, model: IncrementalModel) -> Counts:
        """A part of an evaluation, done with this model."""
        images = self.stream.test if part.images == "test" else self.stream.validation
        assert images is not None  # parts are made only of images that exist
        e = self.experiment
        return counted(part, model, e.method, images, self.normalisation, seed=e.seed_of("training"))

    # The protocol Curriculum.

    @property
    def schedule(self) -> Schedule:
        return self.stream

    @property
    def registry(self) -> Mapping[str, Any]:
        return {}

    def restore(self, registry: Mapping[str, Any]) -> None:
        pass

    @cached_property
    def exemplars(self) -> NDArray[np.int64]:
        """(clients, tasks): how many each client will keep after each task."""
        stream = self.stream
        return exemplar_counts(self.experiment.memory, stream.counts(), stream.task_sizes, offered=stream.offered)

    def facts(self) -> DataFacts:
        e, stream, counts = self.experiment, self.stream, self.stream.counts()
        return DataFacts(
            name=stream.data.name,
            sha256=stream.data.sha256,
            official=stream.data.official,
            counts=counts.tolist(),
            exemplars=self.exemplars.sum(axis=0).tolist(),
            partition_sha256=shares_sha256(self) if e.partition.kind == "file" else None,
            coverage=coverage(stream),
            remarks=remarks(e.memory, counts, stream.task_sizes, offered=stream.offered),
        )

    def begin(self, task: int, tell: Tell) -> bool:  # noqa: ARG002
        return task < len(self.stream.task_sizes)

    def learners(self, task: int, round: int, tell: Tell) -> list[int]:  # noqa: ARG002
        """Clients with new data; if earlier data counts too, clients with any data that they can train on."""
        images = self.stream.new_images(task, round)
        if self.experiment.method.declare().replay == "all":
            images = images + self.stream.counts()[:, : self.stream.new_classes(task).start].sum(axis=1)
        elif task and exemplars_count(self.experiment):
            images = images + self.exemplars[:, task - 1]
        found: list[int] = np.flatnonzero(images).tolist()
        return found

    def everyone(self) -> list[int]:
        return list(range(self.stream.clients))

    def named(self, client: int) -> str:
        return f"client {client}"

    def holds(self, client: int, task: int, round: int) -> Collection[int]:
        found: list[int] = np.flatnonzero(self.stream.counts()[client]).tolist()
        return set(found) - set(self.stream.awaited(client, task, round))

    def most_examples(self, client: int) -> int | None:  # noqa: ARG002
        return None

    def test(self, trial: Trial, tell: Tell, *, must: bool) -> Tested:  # noqa: ARG002
        return Tested(trial.here(self.stream.test))

    @property
    def watched(self) -> Split | None:
        return self.stream.validation

    @property
    def validation(self) -> Split | None:
        return self.stream.validation


def exemplars_count(experiment: Experiment) -> bool:
    """Whether a client that has exemplars and no new data has something to learn from.

    A method that replays exemplars itself does so beside new images only.
    """
    mixed = experiment.method.declare().replay == "mixed"
    return experiment.server.weighting == "with-exemplars" and experiment.memory.keeps and mixed


def check_device(name: str, *, where: str) -> None:
    try:
        torch.ones(1, device=chosen_device(name)).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{where}: {name!r} cannot be used here ({reason})") from error


def prepare(experiment: Experiment) -> Setup:
    """Find every mistake that can be found before training."""
    check_device(experiment.train.device, where="[train] device")
    for path, given in experiment.objects.items():
        if imported(path, where=path) is not given:
            raise ConfigError(f"{path} was redefined since this experiment was loaded; load the experiment again")
    experiment.stream.check(experiment.train.rounds)
    data = load(
        experiment.data.name,
        path=Path(experiment.data.path) if experiment.data.path else None,
        fraction=experiment.data.fraction,
        test_fraction=experiment.data.test_fraction,
        orientation=experiment.data.orientation,
        size=experiment.data.image_size,
        measure=experiment.data.mean == MEASURED,
        args=experiment.data.args,
    )
    seed, order_seed = experiment.seed_of("partition"), experiment.seed_of("class_order")
    stream = build_stream(data, experiment.stream, experiment.partition, seed=seed, order_seed=order_seed)
    stream = hold_out(stream, experiment.data.validation, seed=seed)
    check_fewest(
        experiment.memory,
        stream.counts(),
        stream.task_sizes,
        stream.classes,
        experiment.method.declare().fewest_exemplars,
        otherwise="let the model's own scores predict: method.classifier=sigmoid",
        offered=stream.offered,
    )
    setup = Setup(experiment, stream)
    _check_updates(setup)
    _ = setup.initial  # which finds faults of the model
    _check_transform(setup)
    return setup


def _check_updates(setup: Setup) -> None:
    """Refuse to wait for more updates than clients are asked for."""
    settings, stream = setup.experiment.server, setup.stream
    rounds = 1 if stream.delays is None else setup.experiment.train.rounds
    for task, round in product(range(len(stream.task_sizes)), range(rounds if settings.min_updates > 1 else 0)):
        clients = setup.learners(task, round, lambda _: None)
        asked = len(sample(clients, participation=settings.participation, seed=0, task=task, round=round))
        if asked < settings.min_updates:
            raise ConfigError(
                f"[server] min_updates = {settings.min_updates}: in task {task + 1}, round {round + 1}, "
                f"only {asked} of {len(stream.shares)} clients would be asked; lower it, or let more clients take part"
            )


def _check_transform(setup: Setup) -> None:
    """Try the transform on two images."""
    name = setup.experiment.data.transform
    transform = find_transform(name)
    if transform is None:
        return
    images = torch.from_numpy(setup.stream.data.train.images[:2].copy())
    try:
        with streams_restored():
            transformed(images, generator(0, "transform"), transform)
    except FedclassError:
        raise
    except Exception as error:  # user code may raise anything
        raise ConfigError(
            f"[data] transform: {name!r} cannot take {tuple(images.shape)} uint8 images: {reason(error)}"
        ) from error


def shares_sha256(setup: Setup, classes: int | None = None) -> str:
    """The hash of which client holds which images, with their classes: of the first `classes` classes, or of all."""
    stream, digest = setup.stream, hashlib.sha256()
    until = len(stream.classes) if classes is None else classes
    for share in stream.shares:
        targets = stream.targets[share]
        arrived = (targets >= 0) & (targets < until)
        for part in (np.array([arrived.sum()]), share[arrived], targets[arrived]):
            digest.update(np.ascontiguousarray(part, np.int64).tobytes())
    return digest.hexdigest()
