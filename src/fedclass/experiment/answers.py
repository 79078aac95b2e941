"""What clients have answered in a round, and how long it took."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from fedclass.federation.aggregation import distances, standing_out
from fedclass.wire import Update, Weights


@dataclass
class Answers:
    """The updates of a round, passed on one at a time, so that only their sum is ever in memory.

    asked: how many clients got a job.  before: called with a number before each update is used, and once after the
    last.  began: the model that was sent.  phases: seconds by what they were spent on.  used: all updates passed on,
    without tensors.  moved: how far each client's update is from the model that was sent.  clipped, screened,
    rejected: clients whose update was shortened, left out, or unusable.  undone: the round does not count.  blamed:
    the clients suspected of having caused that.
    """

    updates: Iterator[Update]
    asked: int
    bytes_down: int
    before: Callable[[int], None]
    began: Weights
    phases: dict[str, float]
    used: list[Update] = field(default_factory=list)
    moved: dict[int, list[float]] = field(default_factory=dict)
    clipped: list[int] = field(default_factory=list)
    screened: list[int] = field(default_factory=list)
    rejected: list[int] = field(default_factory=list)
    undone: bool = False
    blamed: tuple[int, ...] = ()

    def __iter__(self) -> Iterator[Update]:
        for update in self.updates:
            self.used.append(replace(update, weights={}, extras={}))
            self.moved[update.client] = distances(update.weights, self.began)
            self.before(len(self.used))
            yield update
        self.before(len(self.used) + 1)

    @property
    def examples(self) -> list[int]:
        return [update.examples for update in self.used]

    @property
    def claimed(self) -> dict[int, int]:
        return {update.client: update.examples for update in self.used}

    @property
    def suspects(self) -> list[int]:
        """Clients whose updates stand out in any way."""
        return sorted({*standing_out(self.moved, self.claimed), *self.clipped, *self.screened})

    @property
    def losses(self) -> list[float]:
        return [update.metrics["loss"] for update in self.used]


@contextlib.contextmanager
def spent(phases: dict[str, float], phase: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    phases[phase] = phases.get(phase, 0.0) + time.perf_counter() - began


def timed(updates: Iterator[Update], phases: dict[str, float], phase: str) -> Iterator[Update]:
    """Pass updates on, and count the time spent waiting for them."""
    while True:
        with spent(phases, phase):
            update = next(updates, None)
        if update is None:
            return
        yield update
