"""A run as its events describe it, finished or not: the data of reports. Read without torch."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from fedclass import metrics
from fedclass.errors import RunError
from fedclass.metrics import Row
from fedclass.report.rows import data_title
from fedclass.runs.config_file import read_config
from fedclass.runs.events import (
    Event,
    RoundFinished,
    RunFinished,
    RunResumed,
    RunStarted,
    SitesKnown,
    TaskFinished,
    TaskReused,
    UpdateMissing,
    UpdateRejected,
    Warned,
    read_events,
)
from fedclass.runs.layout import RunDirectory


@dataclass(frozen=True)
class Tested:
    """A test of the global model. after: rounds since the start of the run. on_tasks: class-balanced, per task met."""

    after: int
    task: int
    accuracy: float | None  # per image, over all classes met so far
    on_tasks: Row
    forgetting: float | None  # of the tasks before this one; None in the first


@dataclass(frozen=True)
class Cost:
    """What a task cost. phases: seconds by phase, which add up to `seconds`."""

    task: int
    bytes_up: int
    bytes_down: int
    seconds: float
    phases: dict[str, float]


@dataclass(frozen=True)
class ClientRecord:
    client: int
    images: int
    classes: int
    rounds: int  # in which its update was used
    loss: float | None  # in the last of them
    rejected: int
    accuracy: float | None  # of the last model, on test images weighted by the client's own class shares


@dataclass
class History:
    """The facts of a run. What a resumed run did a second time counts once."""

    path: Path
    started: RunStarted
    config: dict[str, Any]
    config_text: str
    rounds: list[RoundFinished] = field(default_factory=list)
    tasks: list[TaskFinished] = field(default_factory=list)
    rejected: list[UpdateRejected] = field(default_factory=list)
    missing: list[UpdateMissing] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    resumed: list[RunResumed] = field(default_factory=list)
    reused: list[TaskReused] = field(default_factory=list)
    finished: bool = False
    images: str = "test images"  # behind its accuracies

    def shown(self) -> "History":
        """The run as charts show it: on validation images, if it has any, so that nothing is chosen on test images."""
        if not self.started.validation_images:
            return self
        return replace(
            self,
            rounds=[replace(e, correct=e.validation_correct, tested=e.validation_tested) for e in self.rounds],
            tasks=[replace(e, confusion=e.validation or []) for e in self.tasks],
            images="validation images",
        )

    @property
    def data_title(self) -> str:
        """The data set's name, or the title that the user gave it."""
        return data_title(self.config, self.started.dataset)

    @property
    def label(self) -> str:
        return f"{self.started.method} ({self.started.variant})"

    @property
    def left_out(self) -> list[UpdateRejected | UpdateMissing]:
        """Updates that were asked for but not used."""
        return [*self.rejected, *self.missing]

    @property
    def rounds_planned(self) -> int:
        return self.started.rounds * len(self.started.tasks)

    @property
    def rounds_done(self) -> int:
        return len(self.rounds)

    @cached_property
    def edges(self) -> list[int]:
        """Task i has the classes edges[i]..edges[i+1]-1."""
        return list(accumulate(self.started.tasks, initial=0))

    @cached_property
    def metrics(self) -> metrics.Summary | None:
        """None until a task is finished."""
        if not self.tasks:
            return None
        return metrics.summarise([task.confusion for task in self.tasks], self.started.tasks)

    @cached_property
    def validation_metrics(self) -> dict[str, Any]:
        """{} without validation images."""
        found = [task.validation for task in self.tasks if task.validation is not None]
        return metrics.summarise_validation(found, self.started.tasks)

    @property
    def matrix(self) -> list[Row]:
        return self.metrics["accuracy_matrix"] if self.metrics else []

    @cached_property
    def tests(self) -> list[Tested]:
        """All tests: those after rounds, and those at the end of each task."""
        in_rounds = [self._test_of_round(event) for event in self.rounds if event.correct and event.tested]
        return sorted([*in_rounds, *self.ends], key=lambda test: test.after)

    @cached_property
    def ends(self) -> list[Tested]:
        """The test at the end of each finished task, after the method's own work at the end."""
        return [
            Tested(
                after=(event.task + 1) * self.started.rounds,
                task=event.task,
                accuracy=metrics.accuracy_micro_or_none(event.confusion),
                on_tasks=row,
                forgetting=self._forgetting(row),
            )
            for event, row in zip(self.tasks, self.matrix, strict=True)
        ]

    def _test_of_round(self, event: RoundFinished) -> Tested:
        assert event.correct is not None
        assert event.tested is not None
        pairs = list(zip(event.correct, event.tested, strict=True))
        spans = list(pairwise(self.edges))[: event.task + 1]
        found = [[100 * right / images for right, images in pairs[first:end] if images] for first, end in spans]
        row = [metrics.mean_of_known(of_task) for of_task in found]
        return Tested(self.position(event), event.task, event.accuracy, row, self._forgetting(row))

    def _forgetting(self, row: Row) -> float | None:
        """Mean over the tasks before the newest of: accuracy when it was learned, minus accuracy now."""
        return metrics.mean_of_known(metrics.lost(self.matrix[i][i], row[i]) for i in range(len(row) - 1))

    def position(self, event: RoundFinished) -> int:
        """Rounds since the start of the run, this one included."""
        return event.task * self.started.rounds + event.round + 1

    @cached_property
    def costs(self) -> list[Cost]:
        """Per task that has at least one finished round."""
        ends = {event.task: event for event in self.tasks}
        costs = []
        for task in sorted({event.task for event in self.rounds} | ends.keys()):
            rounds, end = [event for event in self.rounds if event.task == task], ends.get(task)
            in_rounds = sum(event.seconds for event in rounds)
            seconds = max(
                in_rounds, end.seconds if end else 0.0
            )  # the end of a resumed task may not count its first part
            costs.append(
                Cost(
                    task=task,
                    bytes_up=end.bytes_up if end else sum(event.bytes_up for event in rounds),
                    bytes_down=end.bytes_down if end else sum(event.bytes_down for event in rounds),
                    seconds=seconds,
                    phases=_phases([*(e.phases for e in rounds), end.phases if end else {}], in_rounds, seconds),
                )
            )
        return costs

    @cached_property
    def clients(self) -> list[ClientRecord]:
        took_part, loss = [0] * self.started.clients, dict[int, float]()
        for event in self.rounds:
            for client, value in zip(event.clients, event.losses, strict=True):
                took_part[client] += 1
                loss[client] = value
        refused = [event.client for event in self.rejected]
        counts = self.started.counts
        last = self.tasks[-1].confusion if self.tasks else []
        tested = metrics.accuracy_per_client(last, counts) if last else [None] * len(counts)
        return [
            ClientRecord(
                client,
                sum(held),
                sum(n > 0 for n in held),
                took_part[client],
                loss.get(client),
                refused.count(client),
                accuracy,
            )
            for client, (held, accuracy) in enumerate(zip(counts, tested, strict=True))
        ]

    @cached_property
    def classes(self) -> list[tuple[str, float, float]]:
        """For each class tested at the end of its task and of the last one: name, accuracy then, accuracy now."""
        found = []
        for event, (first, end) in zip(self.tasks, pairwise(self.edges), strict=False):
            last = self.tasks[-1]
            for i in range(first, end):
                if any(event.confusion[i]) and any(last.confusion[i]):
                    (learned,), (now,) = (metrics.class_accuracy(e.confusion, [i]) for e in (event, last))
                    found.append((self.started.classes[i], learned, now))
        return found


def _phases(told: list[dict[str, float]], in_rounds: float, seconds: float) -> dict[str, float]:
    sums: dict[str, float] = {}
    for part in told:
        for name, value in part.items():
            sums[name] = sums.get(name, 0.0) + value
    if not sums:  # an old run, which did not measure phases
        return {"rounds": in_rounds, "end of task": seconds - in_rounds}
    return {**sums, "other": max(0.0, seconds - sum(sums.values()))}


def read_history(root: Path) -> History:
    """Read a run from its events.jsonl and config.toml. RunError if they do not fit together."""
    directory = RunDirectory(root)
    events = list(read_events(directory.events))
    started = next((event for event in events if isinstance(event, RunStarted)), None)
    if started is None:
        raise RunError(f"{directory.events}: the run has not started yet; wait some seconds, or leave it out")
    config = read_config(root)
    try:
        history = _replay(History(root, started, config, directory.config.read_text(encoding="utf-8")), events)
        _check(history)
    except (ValueError, TypeError, LookupError, ArithmeticError) as error:
        raise RunError(f"{directory.events}: its events do not fit together ({error}); is it damaged?") from error
    return history


def _replay(history: History, events: Iterable[Event]) -> History:
    for event in events:
        match event:
            case RoundFinished():
                history.rounds.append(event)
            case TaskFinished():
                history.tasks.append(event)
            case SitesKnown():
                history.started = history.started.knowing(event)
            case UpdateRejected():
                history.rejected.append(event)
            case UpdateMissing():
                history.missing.append(event)
            case Warned() if event.message not in history.warnings:
                history.warnings.append(event.message)
            case TaskReused():
                history.reused.append(event)
            case RunResumed():
                history.resumed.append(event)
                again = (event.task, event.round)  # from here on, everything is done again
                history.rounds = [e for e in history.rounds if (e.task, e.round) < again]
                history.tasks = [e for e in history.tasks if e.task < event.task]
                history.rejected = [e for e in history.rejected if (e.task, e.round) < again]
                history.missing = [e for e in history.missing if (e.task, e.round) < again]
                history.reused = [e for e in history.reused if e.task < event.task]
            case RunFinished():
                history.finished = True
            case _:
                pass
    return history


def _check(history: History) -> None:
    """Compute everything once, so that damaged events are found here and not halfway through a page."""
    started = history.started
    wanted = [(task, round) for task in range(len(started.tasks)) for round in range(started.rounds)]
    if [(event.task, event.round) for event in history.rounds] != wanted[: len(history.rounds)]:
        raise ValueError("rounds are missing or out of order")
    if [event.task for event in history.tasks] != list(range(len(history.tasks))):
        raise ValueError("tasks are missing or out of order")
    if history.finished and len(history.tasks) != len(started.tasks):
        raise ValueError("the run is finished, but not all of its tasks are")
    if any(len(row) != len(started.classes) for row in started.counts) or history.edges[-1] != len(started.classes):
        raise ValueError("clients and tasks have different numbers of classes")
    if any((task.validation is None) == bool(started.validation_images) for task in history.tasks):
        raise ValueError("some tasks have no validation counts")
    for seen in (history, history.shown()):
        _ = seen.metrics, seen.validation_metrics, seen.tests, seen.costs, seen.clients, seen.classes
