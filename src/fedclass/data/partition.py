"""Which client holds which images: the training set divided among clients."""

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
RELEASED_SEED = 2023  # of the authors' release, in the only configuration that comes with it


@dataclass(frozen=True, kw_only=True)
class PartitionSettings:
    """Table [partition]."""

    kind: Annotated[
        Literal["dirichlet", "fedml", "released", "iid", "classes", "file"],
        Field(description="how images are shared out; fedml: Dirichlet that stops giving to clients with their share"),
    ] = "dirichlet"
    clients: Annotated[int, Field(ge=1, description="number of clients")] = 20
    alpha: Annotated[float, Field(gt=0, le=1e9, description="dirichlet, fedml, released: smaller is more uneven")] = 0.5
    min_size: Annotated[int, Field(ge=0, description="dirichlet, fedml: images that every client has at least")] = 10
    classes: Annotated[int, Field(ge=1, description="classes: how many classes of each task a client holds")] = 2
    classes_per_task: Annotated[
        int | list[int],
        Field(description="classes of each task, drawn per client, that it learns from; it uses no others. 0: all"),
    ] = 0
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
    offered = classes_offered(task_sizes, settings)
    match settings.kind:
        case "dirichlet" | "fedml":
            shares = _dirichlet(targets, settings, seed)
        case "released":
            shares = _released(targets, settings, seed)
        case "iid":
            shares = _iid(targets, settings, seed)
        case "classes":
            shares = _classes(targets, task_sizes, settings, seed)
        case "file":
            shares = _saved(targets, settings, dataset)
    return shares if offered == task_sizes else _restricted(shares, targets, task_sizes, offered, seed)


def classes_offered(task_sizes: tuple[int, ...], settings: PartitionSettings) -> tuple[int, ...]:
    """How many classes of each task a client may hold."""
    wanted = settings.classes_per_task
    if not wanted:
        return task_sizes
    if settings.kind == "classes":
        raise ConfigError('[partition] kind = "classes" already chooses classes; leave classes_per_task out')
    offered = [wanted] * len(task_sizes) if isinstance(wanted, int) else wanted
    if len(offered) != len(task_sizes):
        raise ConfigError(f"[partition] classes_per_task: {wanted} is for {len(offered)} tasks, not {len(task_sizes)}")
    for task, (chosen, size) in enumerate(zip(offered, task_sizes, strict=True)):
        if not 1 <= chosen <= size:
            raise ConfigError(
                f"[partition] classes_per_task = {wanted}: task {task + 1} has {size} classes, so from 1 to {size}"
            )
    return tuple(offered)


def _members(targets: Index) -> list[Index]:
    """Indices of each class's images."""
    order = np.argsort(targets, kind="stable")
    edges = np.searchsorted(targets[order], np.arange(targets.max() + 2))
    return [order[a:b] for a, b in pairwise(edges)]


def _gathered(pieces: list[list[Index]]) -> list[Index]:
    return [np.sort(np.concatenate(p)) if p else np.empty(0, np.int64) for p in pieces]


def _check_alpha(settings: PartitionSettings) -> None:
    if not np.isfinite(settings.alpha):
        raise ConfigError(f"[partition] alpha must be a finite number, got {settings.alpha}")


def _dirichlet(targets: Index, settings: PartitionSettings, seed: int) -> list[Index]:
    """Each class is cut by its own draw from Dir(alpha, ..., alpha), until every client has `min_size` images."""
    _check_alpha(settings)
    clients, members = settings.clients, _members(targets)
    need, have = clients * settings.min_size, sum(map(len, members))
    if need > have:
        raise ConfigError(
            f"[partition] {clients} clients with {settings.min_size} images or more need {need}, there are {have}; "
            "lower clients or min_size, or raise data.fraction"
        )
    cut = _capped if settings.kind == "fedml" else _uncapped
    best = -1
    for attempt in range(ATTEMPTS):
        pieces = cut(members, settings, array_generator(seed, "partition", attempt))
        if pieces is None:
            continue
        smallest = min(sum(map(len, p)) for p in pieces)
        if smallest >= settings.min_size:
            return _gathered(pieces)
        best = max(best, smallest)
    if best < 0:
        raise ConfigError(
            f"[partition] alpha = {settings.alpha}: in each of {ATTEMPTS} draws, a whole class went to clients that "
            "already had their share; raise alpha"
        )
    raise ConfigError(
        f"[partition] in {ATTEMPTS} draws no Dirichlet partition with alpha = {settings.alpha} gave each of {clients} "
        f"clients {settings.min_size} images (the best gave {best}); raise alpha, or lower clients or min_size"
    )


def _uncapped(members: list[Index], settings: PartitionSettings, rng: np.random.Generator) -> list[list[Index]]:
    pieces: list[list[Index]] = [[] for _ in range(settings.clients)]
    for images in members:
        shares = rng.dirichlet(np.full(settings.clients, settings.alpha))
        cuts = np.rint(np.cumsum(shares)[:-1] * len(images)).astype(np.int64)
        for client, piece in enumerate(np.split(rng.permutation(images), cuts)):
            if len(piece):
                pieces[client].append(piece)
    return pieces


def _capped(members: list[Index], settings: PartitionSettings, rng: np.random.Generator) -> list[list[Index]] | None:
    """As in FedML: a client with N / K images of earlier classes gets none of later ones.

    Classes take their turn in order of arrival, over all tasks at once: FedML counts through the labels, and the
    authors' release numbers labels by arrival before it shares images out. So clients tend to lack late tasks.
    Cuts are rounded down; the remainder goes to the last client, full or not.

    None: all clients with a share of some class were full (possible if a tiny alpha makes shares of zero).
    """
    clients = settings.clients
    even = sum(map(len, members)) / clients
    held = np.zeros(clients, np.int64)
    pieces: list[list[Index]] = [[] for _ in range(clients)]
    for images in members:
        shares = rng.dirichlet(np.full(clients, settings.alpha)) * (held < even)
        if not shares.sum() > 0:
            return None
        cuts = (np.cumsum(shares / shares.sum()) * len(images)).astype(np.int64)[:-1]
        for client, piece in enumerate(np.split(rng.permutation(images), cuts)):
            pieces[client].append(piece)
            held[client] += len(piece)
    return pieces


def released_generator(seed: int) -> np.random.RandomState:
    """The generator with which the authors' release orders classes and then divides images.

    Our seed 0 is its seed 2023, our 1 its 2024, and so on.
    """
    return np.random.RandomState((RELEASED_SEED + seed) % 2**32)


def _released(targets: Index, settings: PartitionSettings, seed: int) -> list[Index]:
    """As in the authors' release: each class is cut in file order, cuts rounded down; a client may get nothing."""
    _check_alpha(settings)
    members = _members(targets)
    rng = released_generator(seed)
    rng.permutation(len(members))  # the release draws the order of the classes first
    pieces: list[list[Index]] = [[] for _ in range(settings.clients)]
    for images, shares in zip(members, rng.dirichlet([settings.alpha] * settings.clients, len(members)), strict=True):
        if not np.isfinite(shares).all():
            raise ConfigError(f'[partition] alpha = {settings.alpha} is too small for kind = "released"; raise it')
        cuts = (np.cumsum(shares)[:-1] * len(images)).astype(np.int64)
        for client, piece in enumerate(np.split(images, cuts)):
            pieces[client].append(piece)
    return _gathered(pieces)


def _restricted(
    shares: list[Index], targets: Index, task_sizes: tuple[int, ...], offered: tuple[int, ...], seed: int
) -> list[Index]:
    """Each client's images of `offered` classes of each task, drawn per client; the other images are not used."""
    restricted = []
    for client, share in enumerate(shares):
        usable = np.zeros(sum(task_sizes), bool)
        first = 0
        for task, (size, chosen) in enumerate(zip(task_sizes, offered, strict=True)):
            rng = array_generator(seed, "partition", "classes", client, task)
            usable[first + rng.permutation(size)[:chosen]] = True
            first += size
        restricted.append(share[usable[targets[share]]])
    return restricted


def _iid(targets: Index, settings: PartitionSettings, seed: int) -> list[Index]:
    """Each class is divided evenly; remainders rotate among clients, so that sizes differ by at most one."""
    pieces: list[list[Index]] = [[] for _ in range(settings.clients)]
    first = 0
    for label, images in enumerate(_members(targets)):
        shuffled = array_generator(seed, "partition", label).permutation(images)
        for i in range(min(settings.clients, len(shuffled))):
            pieces[(first + i) % settings.clients].append(shuffled[i :: settings.clients])
        first = (first + len(shuffled)) % settings.clients
    return _gathered(pieces)


def _classes(targets: Index, task_sizes: tuple[int, ...], settings: PartitionSettings, seed: int) -> list[Index]:
    """Each client holds `classes` classes of every task; a class is divided evenly among its holders.

    Clients take classes in turn from a shuffled ring, so that each class has a holder if there are enough places.
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
        raise DataError(f"{path}: some images belong to two clients")
    return [np.sort(share[targets[share] >= 0]) for share in shares]
