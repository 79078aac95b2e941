"""Events as text: a line each, for log files, pipes and terminals."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedclass.runs.counted import counted
from fedclass.runs.events import (
    Event,
    RoundFinished,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
    SetAside,
    SiteChanged,
    SitesKnown,
    SiteTested,
    TaskFinished,
    TaskReused,
    TaskStarted,
    UpdateMissing,
    UpdateReceived,
    UpdateRejected,
    Warned,
)


@dataclass
class Pace:
    """How fast a run is, from the times in its events: a log may be read later, so that the clock says nothing."""

    started: RunStarted
    seconds: list[float] = field(default_factory=list)
    reused: set[int] = field(default_factory=set)  # reused tasks: their rounds take no time
    before: int = 0  # rounds done before this process began; their events are read again

    @property
    def total(self) -> int:
        return self.started.rounds * len(self.started.tasks)

    def done(self, task: int, round: int) -> int:
        """Rounds before this one."""
        return task * self.started.rounds + round

    def left_after(self, event: RoundFinished) -> float | None:
        """Count a round. Returns the seconds left if the next rounds take as long as those so far.

        None if the round was reused from an earlier run, or trained before this process began.
        """
        if event.task in self.reused:
            return None
        self.seconds.append(event.seconds)
        if self.done(event.task, event.round) < self.before:
            return None
        return sum(self.seconds) / len(self.seconds) * (self.total - self.done(event.task, event.round) - 1)

    def where(self, task: int, round: int) -> str:
        return f"task {task + 1}/{len(self.started.tasks)}, round {round + 1}/{self.started.rounds}"


class ProgressLines:
    """The lines of one run. Its first event is RunStarted."""

    pace: Pace
    before = 0  # as in Pace

    def line(self, event: Event) -> str | None:
        match event:
            case RunStarted():
                self.pace = Pace(event, before=self.before)
                sizes = ",".join(map(str, event.tasks))
                return f"{event.dataset} {{{sizes}}}, seed {event.seed}: {partition_summary(event)}"
            case RoundFinished():
                pace = self.pace
                accuracy = f", {told}" if (told := accuracy_after(event)) else ""
                seconds = pace.left_after(event)
                left = "" if seconds is None else f", about {seconds:.0f} s left"
                return (
                    f"{pace.where(event.task, event.round)}, {counted(len(event.clients), 'client')}, "
                    f"loss {event.loss:.3f}{accuracy}{left}"
                )
            case TaskFinished():
                told = accuracy_after(event) or "not tested, for lack of test images,"
                return f"task {event.task + 1} learned: {told} on all classes so far"
            case RunFinished():
                return "finished"
            case SitesKnown():
                self.pace.started = self.pace.started.knowing(event)
                return remark(event)
            case TaskReused():
                self.pace.reused.add(event.task)
                return remark(event)
            case UpdateRejected() | UpdateMissing() | SetAside():
                return remark(event, self.pace.started.called)
            case RunResumed() | Warned() | SiteChanged() | RunFailed():
                return remark(event)
            case TaskStarted() | UpdateReceived() | SiteTested():
                return None


def partition_summary(event: RunStarted) -> str:
    """How many images clients hold, in a line. `fedclass plan` shows more."""
    if not event.classes:
        return "waiting for sites to say what they hold"
    held = [sum(row) for row in event.counts]
    kept = ", ".join(f"{n} after task {t + 1}" for t, n in enumerate(event.exemplars))
    return f"{holdings(held)}; exemplars on all clients: {kept}" + "".join(
        f"; {part}" for part in left_out(vars(event))
    )


def holdings(held: Sequence[int]) -> str:
    """held: the number of each client's training images."""
    if len(held) == 1:
        return f"1 client holds {held[0]} training images"
    each = f"{min(held)} to {max(held)}" if min(held) < max(held) else f"{held[0]}"
    return f"{len(held)} clients hold {each} training images each, {sum(held)} in all"


def left_out(*runs: Mapping[str, Any]) -> list[str]:
    """Which part of the data set is used, so that nobody takes a part for the whole.

    runs: the fields of RunStarted, or summaries. Federations and older versions have no such fields.
    """

    def span(key: str) -> str:
        numbers = sorted({run[key] for run in runs})
        return " to ".join(str(n) for n in (numbers if len(numbers) < 2 else (numbers[0], numbers[-1])))

    runs = tuple(run for run in runs if run.get("images_available") is not None)
    parts = []
    for does, images in (("trains", "images"), ("tests", "test_images")):
        if any(run[f"{images}_used"] != run[f"{images}_available"] for run in runs):
            parts.append(f"{does} on {span(f'{images}_used')} of {span(f'{images}_available')} images")
    if any(run["validation_images"] for run in runs):
        parts.append(f"holds out {span('validation_images')} images for validation")
    return parts


def accuracy_after(event: RoundFinished | TaskFinished) -> str | None:
    """Accuracy per image in percent, on validation images if the run has any, otherwise on test images."""
    if event.validation_accuracy is not None:
        return f"validation accuracy {event.validation_accuracy:.1f} %"
    return None if event.accuracy is None else f"accuracy {event.accuracy:.1f} %"


Remark = (
    RunResumed | TaskReused | Warned | UpdateRejected | UpdateMissing | SetAside | SitesKnown | SiteChanged | RunFailed
)


def remark(event: Remark, called: Callable[[int], str] = "client {}".format) -> str:
    """An event as text. called: how to name a client."""
    match event:
        case RunResumed():
            return f"resumed before task {event.task + 1}, round {event.round + 1}"
        case TaskReused():
            return f"task {event.task + 1} reused from an earlier run with the same beginning"
        case Warned():
            return f"warning: {event.message}"
        case UpdateRejected():
            where = f"task {event.task + 1}, round {event.round + 1}"
            return f"{where}: update of {called(event.client)} rejected: {event.reason}"
        case UpdateMissing():
            where = f"task {event.task + 1}, round {event.round + 1}"
            return f"{where}: no update of {called(event.client)}: {event.reason}"
        case SetAside():
            where = f"task {event.task + 1}, round {event.round + 1}"
            return f"{where}: {called(event.client)} is set aside for {counted(event.rounds, 'round')}: {event.reason}"
        case RunFailed():
            return f"failed: {event.reason}"
        case SiteChanged():
            return f"site {event.site} is {'back' if event.connected else 'away'}"
        case SitesKnown():
            new = event.classes[len(event.classes) - event.tasks[-1] :]
            return f"sites {', '.join(event.sites)}; task {len(event.tasks)} brings {', '.join(new)}"
