"""What several runs still have to train, and how long that may take."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from fedclass.runs.events import Event, RoundFinished, RunFinished, RunStarted, TaskReused


@dataclass(frozen=True)
class Outlook:
    """What is left to do for a run, before it begins or is resumed.

    images: how many images clients will see in each task, if all of it is trained; empty for a finished run.  rounds:
    per task.  done: rounds that the directory has.  ended: tasks that the directory has to their end.  cached: tasks in
    the cache, from earlier runs with the same beginning.  shared: the first task is the same as in another run of this
    command, which learns it for both.  until: the number of tasks after which the run stops for now.
    """

    images: tuple[int, ...]
    rounds: int
    done: int = 0
    ended: int = 0
    cached: int = 0
    shared: bool = False
    until: int | None = None

    @property
    def finished(self) -> bool:
        return not self.images

    @property
    def reached(self) -> bool:
        """Whether the run has reached `until`."""
        return self.until is not None and (self.finished or self.until <= self.ended < len(self.images))

    @property
    def untrained(self) -> list[float]:
        """Images still to be seen, by task."""
        last = len(self.images) if self.until is None else self.until
        ready = max(self.cached, int(self.shared)) if self.done == 0 else 0  # a run that has begun reuses no more tasks
        return [
            0.0 if task < ready or task >= last else images * (1 - self._part_done(task))
            for task, images in enumerate(self.images)
        ]

    def _part_done(self, task: int) -> float:
        return min(max(self.done - task * self.rounds, 0), self.rounds) / self.rounds


class TimeLeft:
    """The time left for all runs together, from their speed since the first of them began.

    Reused tasks take no time, and say nothing about how long the rest will take.
    """

    def __init__(self, outlooks: Sequence[Outlook], clock: Callable[[], float] = time.monotonic) -> None:
        self.outlooks, self.clock = outlooks, clock
        self.left = [outlook.untrained for outlook in outlooks]
        self.began: float | None = None
        self.trained = 0.0  # images
        self._reused: set[tuple[int, int]] = set()  # run, task

    def tell(self, number: int, event: Event) -> None:
        match event:
            case RunStarted():
                self.began = self.clock() if self.began is None else self.began
            case TaskReused():
                self._reused.add((number, event.task))
            case RoundFinished() if not self.outlooks[number].finished:
                outlook, left = self.outlooks[number], self.left[number]
                after = outlook.images[event.task] * (1 - (event.round + 1) / outlook.rounds)
                if after < left[event.task]:
                    if (number, event.task) not in self._reused:
                        self.trained += left[event.task] - after
                    left[event.task] = after
            case RunFinished():
                self.drop(number)

    def drop(self, number: int) -> None:
        """Expect nothing more from this run."""
        self.left[number] = [0.0 for _ in self.left[number]]

    @property
    def seconds(self) -> float | None:
        """None if nothing has been trained yet, or nothing is left."""
        left = sum(map(sum, self.left))
        if self.began is None or not self.trained or not left:
            return None
        return left / self.trained * (self.clock() - self.began)

    @property
    def share_done(self) -> float:
        """The share of all training that is done."""
        total = self.trained + sum(map(sum, self.left))
        return self.trained / total if total else 1.0


def duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
