"""Checkpoints: all that a run needs to resume as if it had never stopped."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

import fedclass
from fedclass.data.memory import Exemplars
from fedclass.errors import RunError
from fedclass.federation.store import ClientState, Kept
from fedclass.models.weights import plain
from fedclass.runs.layout import write_atomically
from fedclass.schema import json_sha256, read_record
from fedclass.wire import Tensors, Weights

EARLIER = ("weights", "method", "optimizer")
KEPT = 2  # checkpoints of a run; the older one is a fallback in case the newest is damaged


@dataclass
class Totals:
    """Counted since the beginning of the run."""

    bytes_up: int = 0
    bytes_down: int = 0
    samples: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Earlier:
    """The state before a round, in case the next round shows that this one has spoilt the model.

    loss: the median that clients have reported.  suspects: clients whose updates stood out.
    """

    weights: Weights
    method: Tensors
    optimizer: Tensors
    loss: float
    suspects: tuple[int, ...]


@dataclass(frozen=True)
class State:
    """A run between two rounds: all that the rest of it depends on. Tasks and rounds count from 0.

    weights: the global model in the middle of a task.  last: the global model at the end of the previous task.
    method: the method's own state.  optimizer: the state of the server's optimizer.  reached: clients that already
    have `last` as their teacher.  before_task: the totals as the task began.  registry: what the curriculum has
    learned about clients.  validations: like `confusions`, on validation images.  aside: clients that are not asked,
    and for how many more rounds.  earlier: the state before the task's last round, if [aggregation] defends the run.
    """

    task: int = 0
    round: int = 0
    weights: Weights | None = None
    last: Weights | None = None
    method: Tensors = field(default_factory=dict)
    optimizer: Tensors = field(default_factory=dict)
    confusions: Sequence[NDArray[np.int64]] = ()
    reached: frozenset[int] = frozenset()
    totals: Totals = field(default_factory=Totals)
    before_task: Totals = field(default_factory=Totals)
    registry: Mapping[str, Any] = field(default_factory=dict)
    validations: Sequence[NDArray[np.int64]] = ()
    aside: Mapping[int, int] = field(default_factory=dict)
    earlier: Earlier | None = None


@dataclass(frozen=True)
class Checkpoint:
    """A state with the states of the clients, the length of the event log, and what it was made with."""

    state: State
    clients: Mapping[int, ClientState]
    events: int  # bytes
    made_with: Mapping[str, Any]


class OtherVersion(RunError):  # noqa: N818
    """A checkpoint that is intact, but that this version cannot read."""

    def __init__(self, path: Path, content: Mapping[str, Any], error: Exception) -> None:
        made_with = content.get("made_with")
        version = made_with.get("version") if isinstance(made_with, dict) else None
        super().__init__(
            f"{path}: was written by fedclass {version or 'of another version'}, and fedclass "
            f"{fedclass.__version__} cannot read it "
            f"({error}); resume it with that version, or start a new run"
        )


@dataclass(frozen=True)
class Told:
    """The part of `Earlier` that is not tensors."""

    loss: float
    suspects: list[int]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """NUMBER.json of a checkpoint: everything but the tensors, and the names of the files that hold them."""

    task: int
    round: int
    files: dict[str, str]
    confusions: list[list[list[int]]]
    validations: list[list[list[int]]] = field(default_factory=list)  # older ones have none
    reached: list[int]
    totals: Totals
    before_task: Totals
    registry: dict[str, Any] = field(default_factory=dict)  # older ones have none
    aside: dict[str, int] = field(default_factory=dict)
    earlier: Told | None = None  # its tensors are with the models
    events: int
    made_with: dict[str, Any]


class Checkpoints:
    """A folder of checkpoints. NUMBER.json is written last and names its files; file names contain their hashes.

    No two checkpoints share a file, so that one damaged file leaves the other checkpoint intact.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._clients: dict[int, tuple[int, str]] = {}  # by copy: the store's `changes`, and the file
        self._unusable: set[int] = set()

    def save(
        self,
        state: State,
        clients: Mapping[int, ClientState],
        *,
        changes: int,
        events: int,
        made_with: Mapping[str, Any],
    ) -> None:
        """changes: a counter that rises whenever a client's state changes; unchanged states are not written again."""
        self.folder.mkdir(exist_ok=True)
        numbers = [number for number in self.numbers() if number not in self._unusable]
        number = (numbers[-1] if numbers else 0) + 1
        copy = number % KEPT
        if copy not in self._clients or self._clients[copy][0] != changes:
            self._clients[copy] = changes, self._write("clients", _clients_to_tensors(clients), copy)
        manifest = Manifest(
            task=state.task,
            round=state.round,
            files={
                "clients": self._clients[copy][1],
                "models": self._write("models", _models_to_tensors(state), copy),
            },
            confusions=[counts.tolist() for counts in state.confusions],
            validations=[counts.tolist() for counts in state.validations],
            reached=sorted(state.reached),
            totals=state.totals,
            before_task=state.before_task,
            registry=dict(state.registry),
            aside={str(client): rounds for client, rounds in state.aside.items()},
            earlier=None if state.earlier is None else Told(state.earlier.loss, list(state.earlier.suspects)),
            events=events,
            made_with=dict(made_with),
        )
        content = asdict(manifest)
        write_atomically(self._path(number), json.dumps({"sha256": json_sha256(content), **content}))
        self._unusable.discard(number)
        self._forget_all_but([*numbers, number][-KEPT:])

    def give_up(self, number: int) -> None:
        """Mark a checkpoint as unusable: it does not count as kept, and is deleted when the next one is saved."""
        self._unusable.add(number)

    def remove(self, number: int) -> None:
        self._path(number).unlink(missing_ok=True)
        self._forget_all_but([other for other in self.numbers() if other != number])

    def numbers(self) -> list[int]:
        found = (re.fullmatch(r"(\d{8})\.json", path.name) for path in self.folder.glob("*.json"))
        return sorted(int(match[1]) for match in found if match)

    def load(self, number: int) -> Checkpoint:
        path = self._path(number)
        try:
            content = read_record(dict[str, Any], json.loads(path.read_bytes()))
            if content.pop("sha256") != json_sha256(content):
                raise ValueError("its content does not match its SHA-256")
        except (OSError, ValueError, KeyError) as error:
            raise RunError(f"{path}: this checkpoint is damaged ({error})") from error
        try:
            manifest = read_record(Manifest, content)
        except ValueError as error:  # its hash matches, so it is intact
            raise OtherVersion(path, content, error) from error
        try:
            clients, models = (self._read(manifest.files[kind]) for kind in ("clients", "models"))
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise RunError(f"{path}: this checkpoint is damaged ({error})") from error
        state = State(
            task=manifest.task,
            round=manifest.round,
            weights=_part(models, "weights") or None,
            last=_part(models, "last") or None,
            method=_part(models, "method"),
            optimizer=_part(models, "optimizer"),
            confusions=[np.array(counts, np.int64) for counts in manifest.confusions],
            reached=frozenset(manifest.reached),
            totals=manifest.totals,
            before_task=manifest.before_task,
            registry=manifest.registry,
            validations=[np.array(counts, np.int64) for counts in manifest.validations],
            aside={int(client): rounds for client, rounds in manifest.aside.items()},
            earlier=_earlier(models, manifest.earlier),
        )
        return Checkpoint(state, _clients_from_tensors(clients), manifest.events, manifest.made_with)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:08d}.json"

    def _write(self, kind: str, tensors: Mapping[str, Tensor], copy: int) -> str:
        content = save(dict(tensors))
        name = f"{kind}-{_digest(content)}-{copy}.safetensors"
        path = self.folder / name
        if not path.exists() or path.read_bytes() != content:  # a repeated round may find its own file damaged
            write_atomically(path, content)
        return name

    def _read(self, name: str) -> dict[str, Tensor]:
        content = (self.folder / name).read_bytes()
        if _digest(content) not in name:
            raise ValueError(f"{name} does not match its SHA-256")
        return load(content)

    def _forget_all_but(self, numbers: Sequence[int]) -> None:
        needed = set()
        for number in self.numbers():
            if number not in numbers:
                self._path(number).unlink()
                continue
            try:
                needed |= set(json.loads(self._path(number).read_bytes())["files"].values())
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # a damaged checkpoint needs no files
        for path in self.folder.glob("*.safetensors"):
            if path.name not in needed:
                path.unlink()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# Models and clients' states as tensors by name.


def _models_to_tensors(state: State) -> dict[str, Tensor]:
    parts: dict[str, Tensors] = {
        "weights": state.weights or {},
        "last": state.last or {},
        "method": state.method,
        "optimizer": state.optimizer,
    }
    if (earlier := state.earlier) is not None:
        parts |= {f"earlier_{part}": getattr(earlier, part) for part in EARLIER}
    return {f"{part}/{name}": plain(t) for part, tensors in parts.items() for name, t in tensors.items()}


def _earlier(models: Mapping[str, Tensor], told: Told | None) -> Earlier | None:
    if told is None:
        return None
    weights, method, optimizer = (_part(models, f"earlier_{part}") for part in EARLIER)
    return Earlier(weights, method, optimizer, told.loss, tuple(told.suspects))


def _part(tensors: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    return {name.removeprefix(f"{part}/"): t for name, t in tensors.items() if name.startswith(f"{part}/")}


def _clients_to_tensors(clients: Mapping[int, ClientState]) -> dict[str, Tensor]:
    """tasks: (n, 4) client, tasks, classes of its rows, of its method's tensors.  groups: (m, 3) client, class, number
    of exemplars.  index: all exemplars.  rows/CLIENT/NAME, method/CLIENT/NAME: what the method keeps.
    """
    groups = [(c, label, images) for c, state in clients.items() for label, images in state.exemplars.of_class.items()]
    tasks = [(client, state.tasks, state.rows.classes, state.method.classes) for client, state in clients.items()]
    images = [images for _, _, images in groups]
    own = {
        f"{place}/{client}/{name}": plain(tensor)
        for client, state in clients.items()
        for place, kept in (("rows", state.rows), ("method", state.method))
        for name, tensor in kept.tensors.items()
    }
    return {
        "tasks": torch.tensor(tasks, dtype=torch.int64).reshape(-1, 4),
        "groups": torch.tensor([(c, label, len(i)) for c, label, i in groups], dtype=torch.int64).reshape(-1, 3),
        "index": torch.from_numpy(np.concatenate(images) if images else np.empty(0, np.int64)),
        **own,
    }


def _clients_from_tensors(tensors: Mapping[str, Tensor]) -> dict[int, ClientState]:
    of_class: dict[int, dict[int, NDArray[np.int64]]] = {}
    index, start = tensors["index"].numpy(), 0
    for client, label, count in tensors["groups"].tolist():
        of_class.setdefault(client, {})[label] = index[start : start + count].copy()
        start += count
    own: dict[tuple[str, int], dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        place, _, rest = key.partition("/")
        if rest:
            client, _, name = rest.partition("/")
            own.setdefault((place, int(client)), {})[name] = tensor
    return {
        client: ClientState(
            tasks=tasks,
            exemplars=Exemplars(of_class.get(client, {})),
            rows=Kept(own.get(("rows", client), {}), of_rows),
            method=Kept(own.get(("method", client), {}), of_method),
        )
        for client, tasks, of_rows, of_method in tensors["tasks"].tolist()
    }
