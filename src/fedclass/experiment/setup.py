"""From a recipe to things that exist: data found and hashed, partition drawn, model built. No training yet."""

import hashlib
import traceback
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedclass.data.batches import find_transform, transformed
from fedclass.data.datasets import load
from fedclass.data.memory import check_fewest
from fedclass.data.stream import Stream, build_stream
from fedclass.data.validation import hold_out
from fedclass.errors import ConfigError, FedclassError
from fedclass.experiment.config import MEASURED, Experiment
from fedclass.federation.client import Client, chosen_device
from fedclass.federation.store import ClientStore
from fedclass.models.incremental import IncrementalModel
from fedclass.rng import generator, streams_restored


@dataclass(frozen=True)
class Setup:
    experiment: Experiment
    stream: Stream

    @property
    def normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return self.experiment.data.normalisation or self.stream.data.normalisation

    def build(self) -> IncrementalModel:
        height, width = self.stream.data.train.images.shape[1:3]
        return self.experiment.build((height, width))

    def client(self, store: ClientStore) -> Client:
        e = self.experiment
        return Client(
            self.stream,
            e.method,
            train=e.train,
            memory=e.memory,
            normalisation=self.normalisation,
            build=self.build,
            store=store,
            seed=e.seed_of("training"),
            transform=find_transform(e.data.transform),
            faults=e.faults,
        )


def check_device(name: str, *, where: str) -> None:
    try:
        torch.ones(1, device=chosen_device(name)).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{where}: {name!r} cannot be used here ({reason})") from error


def prepare(experiment: Experiment) -> Setup:
    """Everything that can go wrong before training goes wrong here."""
    check_device(experiment.train.device, where="[train] device")
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
    setup.build()
    _check_transform(setup)
    return setup


def _check_transform(setup: Setup) -> None:
    """Show it two images."""
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
    except Exception as error:  # it is the user's code: anything may come out of it
        place = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"{type(error).__name__}: {error} ({place.filename}, line {place.lineno})"
        raise ConfigError(
            f"[data] transform: {name!r} cannot take {tuple(images.shape)} uint8 images: {reason}"
        ) from error


def shares_sha256(setup: Setup, classes: int | None = None) -> str:
    """The hash of who holds which images, of the first `classes` classes or of all, and of these images' classes."""
    stream, digest = setup.stream, hashlib.sha256()
    until = len(stream.classes) if classes is None else classes
    for share in stream.shares:
        targets = stream.targets[share]
        arrived = (targets >= 0) & (targets < until)
        for part in (np.array([arrived.sum()]), share[arrived], targets[arrived]):
            digest.update(np.ascontiguousarray(part, np.int64).tobytes())
    return digest.hexdigest()
