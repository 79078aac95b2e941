"""Who holds which images: the training set shared out among clients."""

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedclass.data.paths import absolute
from fedclass.errors import ConfigError, DataError
from fedclass.rng import array_generator

Index = NDArray[np.int64]

ATTEMPTS = 100


@dataclass(frozen=True, kw_only=True)
class PartitionSettings:
    """Table [partition]."""

    kind: Annotated[Literal["dirichlet", "iid", "classes", "file"], Field(description="how images are shared out")] = (
        "dirichlet"
    )
    clients: Annotated[int, Field(ge=1, description="number of clients")] = 20
    alpha: Annotated[float, Field(gt=0, le=1e9, description="dirichlet: smaller is more uneven")] = 0.5
    min_size: Annotated[int, Field(ge=0, description="dirichlet: images that every client has at least")] = 10
    classes: Annotated[int, Field(ge=1, description="classes: how many classes of each task a client holds")] = 2
    path: Annotated[str, Field(description="file: a partition written by `fedclass plan --save`")] = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", absolute(self.path, where="[partition] path"))


def partition(
    targets: Index, task_sizes: tuple[int, ...], settings: PartitionSettings, *, seed: int, dataset: str
) -> list[Index]:
    """Indices of the images that each client holds over all tasks, in file order.

    targets: (N,) classes numbered in order of arrival; -1 marks an image whose class is not in the stream.
    dataset: the data set's sha256, which a saved partition must match.
    """
    images = int((targets >= 0).sum())
    if settings.clients > images:
        raise ConfigError(f"[partition] clients = {settings.clients}, but there are only {images} training images")
    match settings.kind:
        case "dirichlet":
            return _dirichlet(targets, settings, seed)
        case "iid":
            return _iid(targets, settings, seed)
        case "classes":
            return _classes(targets, task_sizes, settings, seed)
        case "file":
            return _saved(targets, settings, dataset)


def _members(targets: Index) -> list[Index]:
    """Indices of each class's images."""
    order = np.argsort(targets, kind="stable")
    edges = np.searchsorted(targets[order], np.arange(targets.max() + 2))
    return [order[a:b] for a, b in pairwise(edges)]


def _gathered(pieces: list[list[Index]]) -> list[Index]:
    return [np.sort(np.concatenate(p)) if p else np.empty(0, np.int64) for p in pieces]


def _dirichlet(targets: Index, settings: PartitionSettings, seed: int) -> list[Index]:
    """Each class is cut by its own draw from Dir(alpha, ..., alpha), until every client has `min_size` images."""
    if not np.isfinite(settings.alpha):
        raise ConfigError(f"[partition] alpha must be a finite number, got {settings.alpha}")
    clients, members = settings.clients, _members(targets)
    need, have = clients * settings.min_size, sum(map(len, members))
    if need > have:
        raise ConfigError(
            f"[partition] {clients} clients with {settings.min_size} images or more need {need}, there are {have}; "
            "lower clients or min_size, or raise data.fraction"
        )
    best = -1
    for attempt in range(ATTEMPTS):
        rng = array_generator(seed, "partition", attempt)
        pieces: list[list[Index]] = [[] for _ in range(clients)]
        for images in members:
            shares = rng.dirichlet(np.full(clients, settings.alpha))
            cuts = np.rint(np.cumsum(shares)[:-1] * len(images)).astype(np.int64)
            for client, piece in enumerate(np.split(rng.permutation(images), cuts)):
                if len(piece):
                    pieces[client].append(piece)
        smallest = min(sum(map(len, p)) for p in pieces)
        if smallest >= settings.min_size:
            return _gathered(pieces)
        best = max(best, smallest)
    raise ConfigError(
        f"[partition] in {ATTEMPTS} draws no Dirichlet partition with alpha = {settings.alpha} gave each of {clients} "
        f"clients {settings.min_size} images (the best gave {best}); raise alpha, or lower clients or min_size"
    )


def _iid(targets: Index, settings: PartitionSettings, seed: int) -> list[Index]:
    """Each class is dealt out evenly; who gets the remainders rotates, so that sizes differ by one at most."""
    pieces: list[list[Index]] = [[] for _ in range(settings.clients)]
    first = 0
    for label, images in enumerate(_members(targets)):
        shuffled = array_generator(seed, "partition", label).permutation(images)
        for i in range(min(settings.clients, len(shuffled))):
            pieces[(first + i) % settings.clients].append(shuffled[i :: settings.clients])
        first = (first + len(shuffled)) % settings.clients
    return _gathered(pieces)


def _classes(targets: Index, task_sizes: tuple[int, ...], settings: PartitionSettings, seed: int) -> list[Index]:
    """Each client holds `classes` classes of every task; a class is dealt out evenly among its holders.

    Clients take classes in turn from a shuffled ring, so that each class has a holder where there are places enough.
    """
    clients, members = settings.clients, _members(targets)
    pieces: list[list[Index]] = [[] for _ in range(clients)]
    first_class = 0
    for task, size in enumerate(task_sizes):
        if settings.classes > size:
            raise ConfigError(f"[partition] classes = {settings.classes}, but task {task + 1} has only {size} classes")
        if clients * settings.classes < size:
            raise ConfigError(
                f"[partition] {clients} clients with {settings.classes} classes each cannot hold the {size} classes of "
                f"task {task + 1}; raise clients or classes"
            )
        rng = array_generator(seed, "partition", "task", task)
        ring = rng.permutation(size)
        holders: list[list[int]] = [[] for _ in range(size)]
        for place, client in enumerate(np.repeat(rng.permutation(clients), settings.classes)):
            holders[ring[place % size]].append(int(client))
        for label, owners in enumerate(holders):
            images = rng.permutation(members[first_class + label])
            for i, owner in enumerate(owners):
                pieces[owner].append(images[i :: len(owners)])
        first_class += size
    return _gathered(pieces)


def save_partition(shares: list[Index], path: Path, *, dataset: str) -> None:
    path.write_text(json.dumps({"dataset_sha256": dataset, "clients": [s.tolist() for s in shares]}) + "\n")


def _indices(share: list[int]) -> Index:
    if not all(type(i) is int for i in share):
        raise ValueError("not a list of whole numbers")
    return np.array(share, dtype=np.int64)


def _saved(targets: Index, settings: PartitionSettings, dataset: str) -> list[Index]:
    path = Path(settings.path).expanduser()
    if not settings.path:
        raise ConfigError('[partition] kind = "file" needs path, a file written by `fedclass plan --save`')
    try:
        content = json.loads(path.read_text())
        shares = [_indices(share) for share in content["clients"]]
        saved_for = str(content["dataset_sha256"])
    except OSError as error:
        raise DataError(f"{path}: cannot read the partition ({error.strerror}); check [partition] path") from error
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise DataError(f"{path}: not a partition; write one with `fedclass plan --save`") from error
    if saved_for != dataset:
        raise DataError(f"{path}: was saved for other data (sha256 {saved_for[:12]}, here {dataset[:12]})")
    if len(shares) != settings.clients:
        raise DataError(
            f"{path}: is for {len(shares)} clients, not {settings.clients}; set partition.clients={len(shares)}"
        )
    held = np.concatenate(shares)
    absent = held[(held < 0) | (held >= len(targets))]
    if len(absent):
        raise DataError(f"{path}: names image {absent[0]}, but the training set has {len(targets)}")
    if len(np.unique(held)) != len(held):
        raise DataError(f"{path}: some images are held twice")
    return [np.sort(share[targets[share] >= 0]) for share in shares]
