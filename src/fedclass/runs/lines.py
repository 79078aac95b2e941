"""What happened in a run, in words: a line per event, for log files, pipes and terminals."""

from dataclasses import dataclass, field

from fedclass.runs.events import (
    Event,
    RoundFinished,
    RunFinished,
    RunResumed,
    RunStarted,
    SitesKnown,
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
    """How fast a run is, by its own account of its rounds: the clock says nothing where a log is read later."""

    started: RunStarted
    seconds: list[float] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.started.rounds * len(self.started.tasks)

    def done(self, task: int, round: int) -> int:
        """Rounds before this one."""
        return task * self.started.rounds + round

    def left_after(self, event: RoundFinished) -> float:
        """Takes note of a round. Returns the seconds left, if the rounds to come are like those so far."""
        self.seconds.append(event.seconds)
        return sum(self.seconds) / len(self.seconds) * (self.total - self.done(event.task, event.round) - 1)

    def where(self, task: int, round: int) -> str:
        return f"task {task + 1}/{len(self.started.tasks)}, round {round + 1}/{self.started.rounds}"


class Lines:
    """The lines of one run, which begins with RunStarted."""

    pace: Pace

    def line(self, event: Event) -> str | None:
        match event:
            case RunStarted():
                self.pace = Pace(event)
                sizes = ",".join(map(str, event.tasks))
                return f"{event.dataset} {{{sizes}}}, seed {event.seed}: {plan(event)}"
            case RoundFinished():
                pace = self.pace
                accuracy = "" if event.accuracy is None else f", accuracy {event.accuracy:.1f} %"
                return (
                    f"{pace.where(event.task, event.round)}, {len(event.clients)} clients, "
                    f"loss {event.loss:.3f}{accuracy}, about {pace.left_after(event):.0f} s left"
                )
            case TaskFinished():
                return f"task {event.task + 1} learned: accuracy {accuracy_after(event):.1f} % on all classes so far"
            case RunFinished():
                return "finished"
            case SitesKnown():
                self.pace.started = self.pace.started.knowing(event)
                return remark(event)
            case RunResumed() | TaskReused() | Warned() | UpdateRejected() | UpdateMissing():
                return remark(event)
            case TaskStarted() | UpdateReceived():
                return None


def plan(event: RunStarted) -> str:
    """Who holds what, in a line; `fedclass plan` has the rest."""
    if not event.classes:
        return "waiting for sites to say what they hold"
    held = [sum(row) for row in event.counts]
    kept = ", ".join(f"{n} after task {t + 1}" for t, n in enumerate(event.exemplars))
    return (
        f"{event.clients} clients hold {min(held)} to {max(held)} training images each, {sum(held)} in all; "
        f"exemplars on all clients: {kept}"
    )


def accuracy_after(event: TaskFinished) -> float:
    """Percent of all test images, per image."""
    right = sum(row[i] for i, row in enumerate(event.confusion))
    return 100 * right / sum(map(sum, event.confusion))


def remark(event: RunResumed | TaskReused | Warned | UpdateRejected | UpdateMissing | SitesKnown) -> str:
    match event:
        case RunResumed():
            return f"goes on from task {event.task + 1}, round {event.round + 1}"
        case TaskReused():
            return f"task {event.task + 1} taken from an earlier run with the same beginning"
        case Warned():
            return f"warning: {event.message}"
        case UpdateRejected():
            where = f"task {event.task + 1}, round {event.round + 1}"
            return f"{where}: update of client {event.client} rejected: {event.reason}"
        case UpdateMissing():
            return f"task {event.task + 1}, round {event.round + 1}: no update of client {event.client}: {event.reason}"
        case SitesKnown():
            new = event.classes[len(event.classes) - event.tasks[-1] :]
            return f"sites {', '.join(event.sites)}; task {len(event.tasks)} brings {', '.join(new)}"
