"""Plans, Jobs, Updates and Announcements as frames, and back. Nothing else can be said in a frame.

Whatever arrives is checked for its form here, and for its sense by whoever uses it: the site (jobs), the server
(updates).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedclass.engines.flower.frames import Frame
from fedclass.errors import ClientError
from fedclass.models.weights import plain
from fedclass.schema import read_record
from fedclass.wire import Announcement, Job, Phase, Plan, Update, Weights

T = TypeVar("T")


@dataclass(frozen=True)
class AnnouncementAsked:
    """federation, task: for which the site says what is fresh.  returns: as in a Plan."""

    federation: str
    task: int
    returns: tuple[int, ...] = ()


@dataclass(frozen=True)
class Refusal:
    """A site's answer if it will not or cannot do what it is asked. lacks: because it lacks what the plan names."""

    reason: str
    lacks: bool


@dataclass(frozen=True)
class _Job:
    client: int
    task: int
    round: int
    phase: Phase
    frozen: str
    quotas: tuple[int, ...] | None


@dataclass(frozen=True)
class _Update:
    client: int
    task: int
    round: int
    examples: int
    metrics: dict[str, float]


# What the server sends.


def announcement_asked(federation: str, task: int, returns: Sequence[int] = ()) -> Frame:
    return Frame({"ask": "announcement", **asdict(AnnouncementAsked(federation, task, tuple(returns)))})


def job(plan: Plan, job: Job, *, teacher: bool, broadcast: bool) -> Frame:
    """The teacher goes along only if the site asks for it: most have kept it from the end of the task before."""
    head = {f.name: getattr(job, f.name) for f in fields(_Job)}
    tensors = {"weights": packed(job.weights)}
    if teacher and job.teacher is not None:
        tensors["teacher"] = packed(job.teacher)
    if broadcast and job.broadcast:
        tensors["broadcast"] = packed(job.broadcast)
    return Frame({"ask": "job", "plan": asdict(plan), "job": head}, tensors)


def read_ask(frame: Frame) -> AnnouncementAsked | tuple[Plan, Job]:
    head = dict(frame.header)
    match head.pop("ask", None):
        case "announcement":
            _only(frame, ())
            return _read(AnnouncementAsked, head)
        case "job" if set(head) == {"plan", "job"}:
            _only(frame, ("weights", "teacher", "broadcast"))
            plan, sent = _read(Plan, head["plan"]), _read(_Job, head["job"])
            teacher = _unpacked(frame, "teacher") if "teacher" in frame.tensors else None
            broadcast = _unpacked(frame, "broadcast") if "broadcast" in frame.tensors else {}
            return plan, Job(**asdict(sent), weights=_unpacked(frame, "weights"), teacher=teacher, broadcast=broadcast)
        case other:
            raise ClientError(f"asks for {other!r}, which fedclass does not do")


# What a site sends.


def announcement(said: Announcement) -> Frame:
    return Frame({"answer": "announcement", "announcement": asdict(said)})


def update(done: Update) -> Frame:
    if odd := [name for name, value in done.metrics.items() if not math.isfinite(value)]:
        raise ClientError(f"{odd[0]} is {done.metrics[odd[0]]}; optimizer.learning_rate may be too high")
    head = {f.name: getattr(done, f.name) for f in fields(_Update)}
    head["metrics"] = dict(done.metrics)
    return Frame({"answer": "update", "update": head}, {"weights": packed(done.weights), "extras": packed(done.extras)})


def refused(reason: str, *, lacks: bool) -> Frame:
    return Frame({"answer": "refused", **asdict(Refusal(reason, lacks))})


def read_answer(frame: Frame) -> Announcement | Update | Refusal:
    head = dict(frame.header)
    match head.pop("answer", None):
        case "announcement" if set(head) == {"announcement"}:
            _only(frame, ())
            return _read(Announcement, head["announcement"])
        case "update" if set(head) == {"update"}:
            _only(frame, ("weights", "extras"))
            sent = _read(_Update, head["update"])
            return Update(**vars(sent), weights=_unpacked(frame, "weights"), extras=_unpacked(frame, "extras"))
        case "refused":
            _only(frame, ())
            return _read(Refusal, head)
        case other:
            raise ClientError(f"answers with {other!r}, which fedclass does not know")


# Parts.


def packed(weights: Weights) -> bytes:
    return save({name: plain(tensor) for name, tensor in weights.items()})


def _unpacked(frame: Frame, name: Literal["weights", "teacher", "broadcast", "extras"]) -> Mapping[str, Tensor]:
    try:
        return load(frame.tensors[name])
    except (SafetensorError, KeyError, ValueError) as error:
        raise ClientError(f"{name}: cannot be read ({error})") from error


def _only(frame: Frame, names: Sequence[str]) -> None:
    if unknown := sorted(set(frame.tensors) - set(names)):
        raise ClientError(f"carries tensors that nobody asked for: {', '.join(unknown)}")


def _read(kind: type[T], table: Any) -> T:
    try:
        return read_record(kind, table, exact=True)
    except ValueError as error:
        raise ClientError(f"{kind.__name__}: {error}") from error
