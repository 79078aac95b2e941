"""What happened in a run: typed facts, one JSON line each. Reports read only these."""

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
    counts: list[list[int]]  # per client, per class in order of arrival: its training images over the whole run
    exemplars: list[int]  # that all clients together will keep after each task
    rounds: int
    seed: int
    engine: str
    machine: dict[str, str]
    sites: list[str] = field(default_factory=list)  # their names by client number, where clients have names
    images_used: int | None = None  # to train on, over all clients; None where sites have the images
    images_available: int | None = None  # training images of the whole data set
    validation_images: int = 0  # training images that are held out instead
    test_images_used: int | None = None
    test_images_available: int | None = None

    @property
    def clients(self) -> int:
        return len(self.counts)

    def name_of(self, client: int) -> str:
        """The client's site, if it has one, or its number."""
        return self.sites[client] if client < len(self.sites) else str(client)

    def called(self, client: int) -> str:
        """For messages."""
        return f"{'site' if client < len(self.sites) else 'client'} {self.name_of(client)}"

    def knowing(self, event: "SitesKnown") -> "RunStarted":
        """What would have been told at the start, had it been known then."""
        known = {name: getattr(event, name) for name in ("sites", "classes", "tasks", "counts", "exemplars")}
        return replace(self, **known)


@dataclass(frozen=True, kw_only=True)
class SitesKnown:
    """What sites with data of their own have announced, up to the task that begins; also when a site joins later.

    Takes the place of what RunStarted says of the same; a count that a site withholds is 0.
    """

    sites: list[str]
    classes: list[str]
    tasks: list[int]
    counts: list[list[int]]
    exemplars: list[int]


@dataclass(frozen=True, kw_only=True)
class Warned:
    """Something that every reader of the results should know."""

    message: str


@dataclass(frozen=True, kw_only=True)
class SiteChanged:
    """A site of a federation has gone, or has come back."""

    site: str
    connected: bool


@dataclass(frozen=True, kw_only=True)
class TaskStarted:
    task: int
    new_classes: list[str]
    clients: int  # those with new data


@dataclass(frozen=True, kw_only=True)
class UpdateReceived:
    """For live displays; its content is stored with the round."""

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
    """A client that was asked has not answered."""

    task: int
    round: int
    client: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class SetAside:
    """A client that is suspected is not asked for the next rounds."""

    task: int
    round: int
    client: int
    rounds: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class SiteTested:
    """How the model did on the images that a client holds out, by its own account: per class, right ones and all.

    capped: classes of which it has counted more images than it had announced; they count as many as announced.
    """

    task: int
    client: int
    correct: list[int]
    tested: list[int]
    capped: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class RunFailed:
    """The run has ended before its time; it goes on from its last checkpoint if it is started again."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class RunResumed:
    """A run that was stopped goes on, from a checkpoint before this round (counted from 0) of this task."""

    task: int
    round: int
    machine: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class TaskReused:
    """The task was not trained again: another run had done the same. Its events follow as they were then."""

    task: int
    key: str


@dataclass(frozen=True, kw_only=True)
class RoundFinished:
    """correct, tested: test images per class, if the global model was evaluated after this round.

    validation_correct, validation_tested: the same on validation images; a run that holds them out has these alone.

    phases: seconds spent on "clients" (waiting for updates), "aggregate", "evaluate", and "checkpoint" (the one that
    was written before this round; that of this round comes after this event).

    clipped: clients whose update was shortened to a multiple of the round's median.  screened: whose was left out,
    because it went against the others'.  rolled_back: the round's result was unusable, and the model is the one before
    it; a warning says why.
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
    """confusion: counts over all classes met so far, rows are the truth.  phases: seconds, of the task's end alone.

    at_sites: the same on images that sites hold out, if `confusion` is on test images of the server.  validation: the
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
        """Percent of all test images of classes met so far; None if nobody had any."""
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
    """Appends events to a file; each line is flushed, so that a killed run loses none that it had finished."""

    def __init__(self, path: Path, *, length: int | None = None) -> None:
        """length: bytes to keep of what is there; by default all whole lines."""
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
        """Puts all lines on the disk and returns their length in bytes."""
        os.fsync(self._file.fileno())
        return self._file.seek(0, os.SEEK_END)


def read_events(path: Path) -> Iterator[Event]:
    """The events of a run; a last line that was cut short by a crash is left out."""
    try:
        content = path.read_bytes()
        text = (lzma.decompress(content) if path.suffix == ".xz" else content).decode()
        lines = text.splitlines(keepends=True)
    except OSError as error:
        raise RunError(f"{path}: cannot read it ({error.strerror}); is {path.parent} a run directory?") from error
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
