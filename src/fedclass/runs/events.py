"""What happened in a run: typed facts, one JSON line each. Reports read nothing else."""

import json
import lzma
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, get_args

from fedclass.errors import RunError
from fedclass.schema import read_record


@dataclass(frozen=True, kw_only=True)
class RunStarted:
    version: str
    method: str
    variant: str
    dataset: str
    dataset_sha256: str
    official: bool | None  # None: a user's own data
    tasks: list[int]
    classes: list[str]
    counts: list[list[int]]  # training images over the whole run, per client and per class in order of arrival
    exemplars: list[int]  # kept by all clients together, after each task
    rounds: int
    seed: int
    engine: str
    machine: dict[str, str]
    sites: list[str] = field(default_factory=list)  # names of sites by client number, if clients are sites
    images_used: int | None = None  # training images over all clients; None if sites have the images
    images_available: int | None = None  # training images of the whole data set
    validation_images: int = 0  # training images that are held out
    test_images_used: int | None = None
    test_images_available: int | None = None

    @property
    def clients(self) -> int:
        return len(self.counts)

    def name_of(self, client: int) -> str:
        """The name of the client's site, or the client's number."""
        return self.sites[client] if client < len(self.sites) else str(client)

    def called(self, client: int) -> str:
        """The client in messages: "site north" or "client 3"."""
        return f"{'site' if client < len(self.sites) else 'client'} {self.name_of(client)}"

    def knowing(self, event: "SitesKnown") -> "RunStarted":
        """The start event with what became known later."""
        known = {name: getattr(event, name) for name in ("sites", "classes", "tasks", "counts", "exemplars")}
        return replace(self, **known)


@dataclass(frozen=True, kw_only=True)
class SitesKnown:
    """What sites have announced about their data, up to the task that begins; also when a site joins later.

    Replaces the same fields of RunStarted. A count that a site withholds is 0.
    """

    sites: list[str]
    classes: list[str]
    tasks: list[int]
    counts: list[list[int]]
    exemplars: list[int]


@dataclass(frozen=True, kw_only=True)
class Warned:
    """A warning for every reader of the results."""

    message: str


@dataclass(frozen=True, kw_only=True)
class SiteChanged:
    """A site of a federation has disconnected or reconnected."""

    site: str
    connected: bool


@dataclass(frozen=True, kw_only=True)
class TaskStarted:
    task: int
    new_classes: list[str]
    clients: int  # with new data


@dataclass(frozen=True, kw_only=True)
class UpdateReceived:
    """For live displays only; not stored. Its content is part of RoundFinished."""

    task: int
    round: int
    done: int
    of: int


@dataclass(frozen=True, kw_only=True)
class UpdateRejected:
    task: int
    round: int
    client: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class UpdateMissing:
    """A client was asked for an update and did not answer."""

    task: int
    round: int
    client: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class SetAside:
    """A suspicious client is left out of the next rounds."""

    task: int
    round: int
    client: int
    rounds: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class SiteTested:
    """The model's results on images that a client holds out, as the client reports them: per class, correct and all.

    capped: classes for which the client counted more images than announced; the announced number is used.
    """

    task: int
    client: int
    correct: list[int]
    tested: list[int]
    capped: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class RunFailed:
    """The run ended early. If started again, it resumes from its last checkpoint."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class RunResumed:
    """A stopped run resumes from a checkpoint before this round of this task (both count from 0)."""

    task: int
    round: int
    machine: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class TaskReused:
    """The task was not trained but taken from another run that had done the same. That run's events follow."""

    task: int
    key: str


@dataclass(frozen=True, kw_only=True)
class RoundFinished:
    """correct, tested: test images per class, if the global model was evaluated after this round.

    validation_correct, validation_tested: the same on validation images; a run with validation images has only these.

    phases: seconds spent on "clients" (waiting for updates), "aggregate", "evaluate", and "checkpoint" (the one written
    before this round; this round's checkpoint follows this event).

    clipped: clients whose update was shortened to a multiple of the round's median.  screened: clients whose update was
    left out because of its size or direction.  rolled_back: the round's result was unusable, and the previous
    model was restored; a warning says why.
    """

    task: int
    round: int
    clients: list[int]
    examples: list[int]
    losses: list[float]
    loss: float
    bytes_up: int
    bytes_down: int
    seconds: float
    correct: list[int] | None = None
    tested: list[int] | None = None
    phases: dict[str, float] = field(default_factory=dict)
    validation_correct: list[int] | None = None
    validation_tested: list[int] | None = None
    clipped: list[int] = field(default_factory=list)
    rolled_back: bool = False
    screened: list[int] = field(default_factory=list)

    @property
    def accuracy(self) -> float | None:
        """Percent of all test images of classes met so far."""
        if self.correct is None or self.tested is None or not any(self.tested):
            return None
        return 100 * sum(self.correct) / sum(self.tested)

    @property
    def validation_accuracy(self) -> float | None:
        """Percent of all validation images of classes met so far."""
        if self.validation_correct is None or self.validation_tested is None:
            return None
        return 100 * sum(self.validation_correct) / sum(self.validation_tested)


@dataclass(frozen=True, kw_only=True)
class TaskFinished:
    """confusion: counts over all classes met so far; rows are true classes.  phases: seconds, of the task's end only.

    at_sites: the same on images that sites hold out, if `confusion` is on the server's test images.  validation: the
    same on validation images, if the run holds out any.
    """

    task: int
    confusion: list[list[int]]
    exemplars: int
    bytes_up: int
    bytes_down: int
    seconds: float
    phases: dict[str, float] = field(default_factory=dict)
    at_sites: list[list[int]] | None = None
    validation: list[list[int]] | None = None

    @property
    def accuracy(self) -> float | None:
        """Percent of all test images of classes met so far; None without test images."""
        return _right(self.confusion)

    @property
    def validation_accuracy(self) -> float | None:
        """Percent of all validation images of classes met so far."""
        return None if self.validation is None else _right(self.validation)


def _right(confusion: list[list[int]]) -> float | None:
    images = sum(map(sum, confusion))
    return 100 * sum(row[i] for i, row in enumerate(confusion)) / images if images else None


@dataclass(frozen=True, kw_only=True)
class RunFinished:
    summary: dict[str, Any]


Stored = (
    RunStarted
    | RunResumed
    | Warned
    | SitesKnown
    | SiteChanged
    | TaskStarted
    | TaskReused
    | UpdateRejected
    | UpdateMissing
    | SetAside
    | RoundFinished
    | SiteTested
    | TaskFinished
    | RunFinished
    | RunFailed
)
Event = Stored | UpdateReceived

KINDS: dict[str, type[Event]] = {kind.__name__: kind for kind in get_args(Stored)}


class EventLog:
    """Appends events to a file. Each line is flushed, so that a killed run loses no finished line."""

    def __init__(self, path: Path, *, length: int | None = None) -> None:
        """length: bytes of an existing file to keep; by default all whole lines."""
        self.path, self._keep = path, length

    def __enter__(self) -> Self:
        self._file = self.path.open("a+b")
        if self._keep is None:
            self._file.seek(0)
            *_, cut_short = self._file.read().split(b"\n")
            self._keep = self._file.tell() - len(cut_short)
        self._file.truncate(self._keep)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def write(self, event: Event) -> None:
        if type(event).__name__ not in KINDS:
            return
        record = {"event": type(event).__name__, "time": round(time.time(), 3), **asdict(event)}
        self._file.write((json.dumps(record, allow_nan=False) + "\n").encode())
        self._file.flush()

    def settle(self) -> int:
        """Write all lines to disk; return their length in bytes."""
        os.fsync(self._file.fileno())
        return self._file.seek(0, os.SEEK_END)


def read_events(path: Path) -> Iterator[Event]:
    """The events of a run. A last line cut short by a crash is left out."""
    try:
        content = path.read_bytes()
        text = (lzma.decompress(content) if path.suffix == ".xz" else content).decode()
        lines = text.splitlines(keepends=True)
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror}); is {path.parent} a run directory?") from error
    except (UnicodeDecodeError, lzma.LZMAError) as error:
        raise RunError(f"{path}: is damaged ({error})") from error
    for number, line in enumerate(lines, start=1):
        try:
            event = parsed(line, path=path, number=number)
        except RunError:
            if number == len(lines) and not line.endswith("\n"):
                return
            raise
        yield event


def parsed(line: str | bytes, *, path: Path, number: int) -> Event:
    """The event of line `number` of `path`."""
    try:
        record = json.loads(line)
        return read_record(KINDS[record["event"]], record)
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path}, line {number}: not an event of fedclass ({error})") from error
