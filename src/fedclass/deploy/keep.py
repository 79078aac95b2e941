"""What a site keeps of a federation on its own disk, readable by its owner only.

    STORE/FEDERATION/
      site.json                 whose it is
      task-0003.json            the images that came with a task: class and SHA-256 of the pixels, in order
      state-0003.safetensors    the exemplars after that task: pixels, and a ledger of what they are and since when
      teacher-<sha256>.safetensors   the global model after a task
      forgotten.json            classes that the owner has had deleted; they stay out of this federation

Tasks count from 0. Every file says its own SHA-256, and is written atomically. Callers hold the lock while they write.
"""

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save

from fedclass.errors import ClientError
from fedclass.models.weights import plain
from fedclass.runs.layout import write_atomically
from fedclass.wire import Weights, sha256

STATES = 3  # of the last tasks: a server may go back to an earlier checkpoint
TEACHERS = 2
OWNER_ONLY = 0o600

Arrival = tuple[str, str]  # class, SHA-256 of the pixels


@dataclass(frozen=True)
class Entry:
    """An exemplar in the ledger: what it is, with which task it came, and on which day (UTC) it was chosen."""

    sha256: str
    label: str  # the name of its class
    task: int
    date: str


@dataclass(frozen=True, eq=False)
class KeptState:
    """Exemplars once `tasks` tasks are over.

    classes: all that the site has met, those without exemplars too.  ledger, images: of each exemplar, class by class,
    the most important first.  made_with: identifies the request that it answers.
    """

    tasks: int
    classes: tuple[str, ...]
    ledger: tuple[Entry, ...]
    images: NDArray[np.uint8]
    made_with: str

    def without(self, label: str) -> "KeptState":
        kept = [at for at, entry in enumerate(self.ledger) if entry.label != label]
        return KeptState(
            self.tasks,
            tuple(name for name in self.classes if name != label),
            tuple(self.ledger[at] for at in kept),
            self.images[kept],
            self.made_with,
        )


@dataclass(frozen=True)
class Forgotten:
    """A class that the owner has had deleted: on which day, and how many exemplars that were."""

    label: str
    date: str
    exemplars: int


def today() -> str:
    return datetime.now(UTC).date().isoformat()


def federations(store: Path) -> list["FederationFolder"]:
    """Sorted by name."""
    return [FederationFolder(path.parent) for path in sorted(store.glob("*/site.json"))]


class FederationFolder:
    def __init__(self, root: Path) -> None:
        self.root = root

    def claim(self, site: str) -> None:
        """Two sites with one store would take each other's exemplars for their own."""
        owner = self.root / "site.json"
        if not owner.exists():
            self._write_json(owner, {"site": site})
        elif (found := self._read_json(owner)["site"]) != site:
            raise ClientError(f"site {site}: {self.root} belongs to site {found}; give every site a store of its own")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time; others wait. The lock goes with the process, however it ends."""
        self.root.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.root.mkdir(exist_ok=True)
        self.root.chmod(0o700)
        with FileLock(self.root / ".lock", mode=OWNER_ONLY):
            yield

    # What came with each task.

    def tasks(self) -> list[int]:
        return self._numbers("task-*.json")

    def arrivals(self, task: int) -> list[Arrival] | None:
        """What came with a task; none if the site has not taken part in it.

        An image belongs to the first task that has it: after a server has gone back, a later list may name it too.
        """
        if not self._task(task).exists():
            return None
        earlier = self.had_before(task)
        return [arrival for arrival in self._listed(task) if arrival not in earlier]

    def had_before(self, task: int) -> set[Arrival]:
        return {arrival for number in self.tasks() if number < task for arrival in self._listed(number)}

    def fix_arrivals(self, task: int, arrivals: Sequence[Arrival]) -> None:
        self._write_json(self._task(task), {"task": task, "arrivals": arrivals})

    def _task(self, task: int) -> Path:
        return self.root / f"task-{task:04d}.json"

    def _listed(self, task: int) -> list[Arrival]:
        return [(label, digest) for label, digest in self._read_json(self._task(task))["arrivals"]]

    # Exemplars.

    def states(self) -> list[int]:
        """How many tasks were over, for each state there is."""
        return [number + 1 for number in self._numbers("state-*.safetensors")]

    def state(self, tasks: int) -> KeptState:
        path = self._state(tasks)
        try:
            with safe_open(path, framework="numpy") as file:
                metadata, images = file.metadata() or {}, file.get_tensor("images")
            content = json.loads(metadata["content"])
            if _state_digest(metadata["content"], images) != metadata["sha256"]:
                raise ValueError("it does not match its SHA-256")
            ledger = tuple(Entry(**entry) for entry in content["ledger"])
            return KeptState(content["tasks"], tuple(content["classes"]), ledger, images, content["made_with"])
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise self._damaged(path, error) from error

    def save_state(self, state: KeptState) -> None:
        """States of later tasks go: they began from another one than this. Of the others, the last few stay."""
        for tasks in self.states():
            if tasks > state.tasks:
                self._state(tasks).unlink()
        self._write_state(state)
        for tasks in self.states()[:-STATES]:
            self._state(tasks).unlink()

    def _write_state(self, state: KeptState) -> None:
        content = json.dumps(
            {
                "tasks": state.tasks,
                "classes": state.classes,
                "ledger": [asdict(entry) for entry in state.ledger],
                "made_with": state.made_with,
            }
        )
        metadata = {"content": content, "sha256": _state_digest(content, state.images)}
        images = torch.from_numpy(np.ascontiguousarray(state.images))
        self._write(self._state(state.tasks), save({"images": images}, metadata))

    def _state(self, tasks: int) -> Path:
        return self.root / f"state-{tasks - 1:04d}.safetensors"

    # Teachers.

    def teacher(self, name: str) -> Weights | None:
        """The model of this SHA-256, if it was kept and is whole."""
        try:
            weights = load(self._teacher(name).read_bytes())
        except (FileNotFoundError, SafetensorError):
            return None
        return weights if sha256(weights) == name else None

    def teachers(self) -> list[str]:
        """The oldest first."""
        paths = sorted(self.root.glob("teacher-*.safetensors"), key=lambda path: path.stat().st_mtime_ns)
        return [path.stem.removeprefix("teacher-") for path in paths]

    def keep_teacher(self, weights: Weights) -> None:
        name = sha256(weights)
        if self.teacher(name) is None:
            self._write(self._teacher(name), save({key: plain(tensor) for key, tensor in weights.items()}))
        self._teacher(name).touch()
        for old in [other for other in self.teachers() if other != name][: 1 - TEACHERS]:
            self._teacher(old).unlink()

    def _teacher(self, name: str) -> Path:
        return self.root / f"teacher-{name}.safetensors"

    # What the owner has had deleted.

    def forgotten(self) -> list[Forgotten]:
        path = self.root / "forgotten.json"
        return [Forgotten(**entry) for entry in self._read_json(path)["classes"]] if path.exists() else []

    def forget(self, label: str) -> int:
        """Delete a class from all states and lists, for good; returns how many different exemplars that were."""
        states = [self.state(tasks) for tasks in self.states()]
        gone = {entry.sha256 for state in states for entry in state.ledger if entry.label == label}
        known = [entry for entry in self.forgotten() if entry.label != label]
        before = sum(entry.exemplars for entry in self.forgotten() if entry.label == label)
        entries = [*known, Forgotten(label, today(), before + len(gone))]
        self._write_json(self.root / "forgotten.json", {"classes": [asdict(entry) for entry in entries]})
        for part in self.root.glob("*.part"):  # of a write that a crash has ended
            part.unlink()
        for state in states:
            self._write_state(state.without(label))
        for task in self.tasks():
            self.fix_arrivals(task, [arrival for arrival in self._listed(task) if arrival[0] != label])
        return len(gone)

    def forget_all(self) -> int:
        """Delete all classes that this federation has had here, and the models. What is damaged goes unread."""
        for tasks in self.states():
            try:
                self.state(tasks)
            except ClientError:
                self._state(tasks).unlink()
        for task in self.tasks():
            try:
                self._listed(task)
            except ClientError:
                self._task(task).unlink()
        gone = sum(self.forget(label) for label in self.classes())
        for pattern in ("state-*", "task-*", "teacher-*", "*.part"):
            for path in self.root.glob(pattern):
                path.unlink()
        return gone

    def describe(self) -> dict[str, Any]:
        """What there is, for the owner to see. Tasks count from 0."""
        states = self.states()
        ledger = self.state(states[-1]).ledger if states else ()
        exemplars = []
        for label in sorted({entry.label for entry in ledger}):
            of_class = [entry for entry in ledger if entry.label == label]
            first = min(of_class, key=lambda entry: (entry.task, entry.date))
            exemplars.append({"class": label, "count": len(of_class), "task": first.task, "date": first.date})
        return {
            "federation": self.root.name,
            "site": self._read_json(self.root / "site.json")["site"],
            "tasks": [{"task": task, "images": len(self.arrivals(task) or ())} for task in self.tasks()],
            "exemplars": exemplars,
            "teachers": self.teachers(),
            "forgotten": [
                {"class": entry.label, "count": entry.exemplars, "date": entry.date} for entry in self.forgotten()
            ],
        }

    def classes(self) -> list[str]:
        """All that any state or list names."""
        named = {label for tasks in self.states() for label in self.state(tasks).classes}
        return sorted(named | {label for task in self.tasks() for label, _ in self._listed(task)})

    # Files.

    def _numbers(self, pattern: str) -> list[int]:
        found = (re.search(r"-(\d{4,})\.", path.name) for path in self.root.glob(pattern))
        return sorted(int(match[1]) for match in found if match)

    def _write(self, path: Path, content: bytes) -> None:
        write_atomically(path, content, mode=OWNER_ONLY)

    def _write_json(self, path: Path, content: Mapping[str, Any]) -> None:
        whole = {"sha256": _json_digest(content), **content}
        self._write(path, json.dumps(whole, indent=1).encode())

    def _read_json(self, path: Path) -> dict[str, Any]:
        try:
            content: dict[str, Any] = json.loads(path.read_bytes())
            if content.pop("sha256") != _json_digest(content):
                raise ValueError("it does not match its SHA-256")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._damaged(path, error) from error
        return content

    def _damaged(self, path: Path, error: Exception) -> ClientError:
        lost = {
            "state": "exemplars are then chosen anew from the images that are still there",
            "task": "its images then count as new",
            "forgotten": "the classes it names may then come back",
        }.get(path.name.split("-")[0].split(".")[0], "it is then written anew")
        return ClientError(f"{path}: damaged ({error}); restore it from a backup, or remove it ({lost})")


def _json_digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _state_digest(content: str, images: NDArray[np.uint8]) -> str:
    whole = hashlib.sha256(f"{content} {images.dtype} {images.shape};".encode())
    whole.update(np.ascontiguousarray(images).tobytes())
    return whole.hexdigest()
