"""What a site keeps of a federation on its own disk, readable by its owner only.

    STORE/FEDERATION/
      site.json                 whose it is
      task-0003.json            the images that came with a task: class and SHA-256 of the pixels, in order
      state-0003.safetensors    the exemplars after that task: pixels, and a ledger of what they are and since when
      method-0003-0007.safetensors   what the method keeps here, after a task's round
      teacher-<sha256>.safetensors   the global model after a task
      broadcast-<sha256>.safetensors   what the method's server sends along
      followed.json             names that the server uses for classes of the site, and how often it has gone back
      forgotten.json            classes and images that the owner has had deleted; they stay out of this federation

Tasks count from 0. Callers hold the lock while they write.
"""

import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from filelock import FileLock
from safetensors import SafetensorError
from safetensors.torch import load, save

import fedclass
from fedclass.deploy.hashed import closed, opened, whole
from fedclass.deploy.ledger import Entry, Forgotten, KeptState, today
from fedclass.deploy.store_files import LOST, OWNER_ONLY, StoreFiles
from fedclass.errors import ClientError
from fedclass.federation.store import Kept
from fedclass.models.weights import plain
from fedclass.schema import read_record
from fedclass.wire import Tensors, Weights, sha256

if TYPE_CHECKING:  # needs cryptography
    from fedclass.deploy.sealed import Seal

STATES = 3  # of the last tasks, or rounds: a server may go back to an earlier checkpoint
ATTACHED = 2  # of each kind

Arrival = tuple[str, str]  # class, SHA-256 of the pixels
Attachment = Literal["teacher", "broadcast"]


@dataclass(frozen=True)
class _Owner:
    site: str


@dataclass(frozen=True)
class _Arrivals:
    task: int
    arrivals: list[Arrival]


@dataclass(frozen=True)
class _AboutState:
    """Of the exemplars in the same file."""

    tasks: int
    classes: tuple[str, ...]
    ledger: tuple[Entry, ...]
    made_with: str
    model_classes: int = 0
    version: str = ""  # of fedclass; older ones have none


@dataclass(frozen=True)
class _AboutMethod:
    """Of the method's tensors in the same file."""

    model_classes: int


@dataclass(frozen=True)
class _Followed:
    """What the server has said.  returns: how often it has gone back, as far as this site has followed."""

    spelled: dict[str, str] = field(default_factory=dict)
    returns: int = 0


@dataclass(frozen=True)
class _AllForgotten:
    classes: list[Forgotten] = field(default_factory=list)
    images: list[str] = field(default_factory=list)


def federations(store: Path, seal: "Seal | None" = None) -> list["FederationFolder"]:
    """Sorted by name."""
    return [FederationFolder(path.parent, seal) for path in sorted(store.glob("*/site.json"))]


class FederationFolder(StoreFiles):
    """All that a site keeps of one federation."""

    def claim(self, site: str) -> None:
        """Two sites with one store would take each other's exemplars for their own."""
        owner = self.root / "site.json"
        if not owner.exists():
            self._write_json(owner, _Owner(site))
        elif (found := self._read_json(owner, _Owner).site) != site:
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
        self._write_json(self._task(task), _Arrivals(task, list(arrivals)))

    def _task(self, task: int) -> Path:
        return self.root / f"task-{task:04d}.json"

    def _listed(self, task: int) -> list[Arrival]:
        return self._read_json(self._task(task), _Arrivals).arrivals

    # What the server has said.

    def spelled(self) -> dict[str, str]:
        """The site's own names of classes -> those of the server, where they differ."""
        return self._followed().spelled

    def spell(self, names: Mapping[str, str]) -> None:
        known = self._followed()
        if known.spelled != (now := {**known.spelled, **names}):
            self._write_json(self.root / "followed.json", replace(known, spelled=now))

    def lags(self, returns: Sequence[int]) -> bool:
        """Whether the server has gone back since this site last heard of it."""
        return len(returns) > self._followed().returns

    def follow(self, returns: Sequence[int]) -> list[int]:
        """Forget the tasks to whose beginning the server has gone back, and later ones. Returns which were new."""
        if not self.lags(returns):
            return []
        known = self._followed()
        news = list(returns[known.returns :])
        first = min(news)
        gone = [self._task(task) for task in self.tasks() if task >= first]
        gone += [self._state(tasks) for tasks in self.states() if tasks > first]
        gone += [self._method(*at) for at in self._method_states() if at[0] >= first]
        for path in gone:
            path.unlink()
        self._write_json(self.root / "followed.json", replace(known, returns=len(returns)))
        return news

    def _followed(self) -> _Followed:
        path = self.root / "followed.json"
        return self._read_json(path, _Followed) if path.exists() else _Followed()

    # Exemplars.

    def states(self) -> list[int]:
        """How many tasks were over, for each state there is."""
        return [number + 1 for number in self._numbers("state-*.safetensors")]

    def state(self, tasks: int) -> KeptState:
        path = self._state(tasks)
        try:
            content, tensors = whole(self._read(path))
            about = _understood(path, content)
            images = tensors.pop("images").numpy()
            rows = Kept(tensors, about.model_classes)
            return KeptState(about.tasks, about.classes, about.ledger, images, about.made_with, rows)
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            raise self._damaged(path, error) from error

    def sizes(self) -> set[tuple[int, int, int]]:
        """(H, W, C) of the exemplars."""
        shapes = [self.state(tasks).images.shape[1:] for tasks in self.states()]
        return {(height, width, channels) for height, width, channels in shapes}

    def save_state(self, state: KeptState) -> None:
        """States of later tasks go: they began from another one than this. Of the others, the last few stay."""
        for tasks in self.states():
            if tasks > state.tasks:
                self._state(tasks).unlink()
        self._write_state(state)
        for tasks in self.states()[:-STATES]:
            self._state(tasks).unlink()

    def _write_state(self, state: KeptState) -> None:
        about = _AboutState(
            state.tasks, state.classes, state.ledger, state.made_with, state.rows.classes, fedclass.__version__
        )
        images = torch.from_numpy(np.ascontiguousarray(state.images))
        self._write(self._state(state.tasks), closed(about, {"images": images, **state.rows.tensors}))

    def _state(self, tasks: int) -> Path:
        return self.root / f"state-{tasks - 1:04d}.safetensors"

    # What the method keeps here, by task and round.

    def method_state(self, task: int, round: int) -> Kept:
        """As this round begins: of the newest round before it."""
        earlier = [at for at in self._method_states() if at < (task, round)]
        if not earlier:
            return Kept()
        path = self._method(*earlier[-1])
        try:
            about, tensors = opened(self._read(path), _AboutMethod)
            return Kept(tensors, about.model_classes)
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            raise self._damaged(path, error) from error

    def save_method_state(self, task: int, round: int, kept: Kept) -> None:
        """Those of later rounds go: they began from another one than this. Of the others, the last few stay."""
        for at in self._method_states():
            if at > (task, round):
                self._method(*at).unlink()
        self._write(self._method(task, round), closed(_AboutMethod(kept.classes), kept.tensors))
        for at in self._method_states()[:-STATES]:
            self._method(*at).unlink()

    def _method_states(self) -> list[tuple[int, int]]:
        found = (re.search(r"-(\d+)-(\d+)\.", path.name) for path in self.root.glob("method-*.safetensors"))
        return sorted((int(match[1]), int(match[2])) for match in found if match)

    def _method(self, task: int, round: int) -> Path:
        return self.root / f"method-{task:04d}-{round:04d}.safetensors"

    # What the server sends once and then only names.

    def attached(self, kind: Attachment, name: str) -> Weights | None:
        """The tensors of this SHA-256, if they were kept and are whole."""
        try:
            tensors = load(self._read(self._attached(kind, name)))
        except (FileNotFoundError, SafetensorError, ValueError):
            return None
        return tensors if sha256(tensors) == name else None

    def attachments(self, kind: Attachment) -> list[str]:
        """The oldest first."""
        paths = sorted(self.root.glob(f"{kind}-*.safetensors"), key=lambda path: path.stat().st_mtime_ns)
        return [path.stem.removeprefix(f"{kind}-") for path in paths]

    def attach(self, kind: Attachment, tensors: Tensors) -> None:
        name = sha256(tensors)
        if self.attached(kind, name) is None:
            self._write(self._attached(kind, name), save({key: plain(tensor) for key, tensor in tensors.items()}))
        self._attached(kind, name).touch()
        for old in [other for other in self.attachments(kind) if other != name][: 1 - ATTACHED]:
            self._attached(kind, old).unlink()

    def _attached(self, kind: Attachment, name: str) -> Path:
        return self.root / f"{kind}-{name}.safetensors"

    # What the owner has had deleted.

    def forgotten(self) -> list[Forgotten]:
        return self._forgotten().classes

    def forgotten_images(self) -> list[str]:
        """SHA-256 of the pixels."""
        return self._forgotten().images

    def _forgotten(self) -> "_AllForgotten":
        path = self.root / "forgotten.json"
        return self._read_json(path, _AllForgotten) if path.exists() else _AllForgotten()

    def _note_forgotten(self, classes: Sequence[Forgotten], images: Sequence[str]) -> None:
        self._write_json(self.root / "forgotten.json", _AllForgotten(list(classes), sorted(images)))
        for part in self.root.glob("*.part"):  # of a write that a crash has ended
            part.unlink()

    def drop(self, wanted: Callable[[Entry], bool]) -> int:
        """Delete the exemplars that are not wanted from all states; returns how many distinct ones there were."""
        gone = set[str]()
        for state in [self.state(tasks) for tasks in self.states()]:
            left = state.keeping(wanted)
            if len(left.ledger) < len(state.ledger):
                gone |= {entry.sha256 for entry in state.ledger if not wanted(entry)}
                self._write_state(left)
        return len(gone)

    def forget_images(self, digests: Collection[str]) -> int:
        """Delete images from all states and lists; they stay out, also if their files are still there."""
        self._note_forgotten(self.forgotten(), [*{*self.forgotten_images(), *digests}])
        gone = self.drop(lambda entry: entry.sha256 not in digests)
        for task in self.tasks():
            self.fix_arrivals(task, [arrival for arrival in self._listed(task) if arrival[1] not in digests])
        return gone

    def forget(self, label: str) -> int:
        """Delete a class from all states and lists, for good; returns how many distinct exemplars there were.

        label: the site's own name of it, or the server's.
        """
        label = self.spelled().get(label, label)
        states = [self.state(tasks) for tasks in self.states()]
        gone = {entry.sha256 for state in states for entry in state.ledger if entry.label == label}
        known = [entry for entry in self.forgotten() if entry.label != label]
        before = sum(entry.exemplars for entry in self.forgotten() if entry.label == label)
        self._note_forgotten([*known, Forgotten(label, today(), before + len(gone))], self.forgotten_images())
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
        for pattern in ("state-*", "task-*", "method-*", "teacher-*", "broadcast-*", "*.part"):
            for path in self.root.glob(pattern):
                path.unlink()
        return gone

    def describe(self) -> dict[str, Any]:
        """What is kept, for the owner to see. Tasks count from 0."""
        states = self.states()
        ledger = self.state(states[-1]).ledger if states else ()
        exemplars = []
        for label in sorted({entry.label for entry in ledger}):
            of_class = [entry for entry in ledger if entry.label == label]
            first = min(of_class, key=lambda entry: (entry.task, entry.date))
            exemplars.append({"class": label, "count": len(of_class), "task": first.task, "date": first.date})
        return {
            "federation": self.root.name,
            "site": self._read_json(self.root / "site.json", _Owner).site,
            "tasks": [{"task": task, "images": len(self.arrivals(task) or ())} for task in self.tasks()],
            "exemplars": exemplars,
            "method": [self._method(*at).stat().st_size for at in self._method_states()],
            "teachers": self.attachments("teacher"),
            "forgotten": [
                {"class": entry.label, "count": entry.exemplars, "date": entry.date} for entry in self.forgotten()
            ],
            "forgotten_images": len(self.forgotten_images()),
        }

    def classes(self) -> list[str]:
        """All that any state or list names."""
        named = {label for tasks in self.states() for label in self.state(tasks).classes}
        return sorted(named | {label for task in self.tasks() for label, _ in self._listed(task)})


def _understood(path: Path, content: dict[str, Any]) -> _AboutState:
    """Of a state that is whole, as its hash says; what cannot be read then is another version's."""
    try:
        return read_record(_AboutState, content)
    except ValueError as error:
        version = content.get("version", "of an older version")
        raise ClientError(
            f"{path}: was written by fedclass {version}, and fedclass {fedclass.__version__} cannot read it ({error}); "
            f"go back to that version, or remove it ({LOST['state']})"
        ) from error
