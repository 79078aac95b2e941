"""Which classes come with which task, and who has images to learn them from."""

from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedclass.experiment.setup import Setup
from fedclass.runs.events import Event


class Course(Protocol):
    """Known from the start, as in a recipe, or found out as sites announce what they hold.

    at_server, at_sites: where there are test images.  patience: seconds to wait for sites without which a model cannot
    be tested, asking again every `ask_every` seconds.
    """

    at_server: bool
    at_sites: bool
    patience: float
    ask_every: float

    @property
    def registry(self) -> Mapping[str, Any]:
        """What has been found out so far, as plain JSON; part of every checkpoint."""

    def restore(self, registry: Mapping[str, Any]) -> None: ...

    def begin(self, task: int, tell: Callable[[Event], None]) -> Setup | None:
        """The experiment with its stream up to this task; None if there is no such task. May wait for one."""

    def learners(self, task: int, tell: Callable[[Event], None]) -> list[int]:
        """The clients whose update would count, as the next round of the task begins."""

    def everyone(self) -> list[int]: ...

    def named(self, client: int) -> str:
        """For messages."""

    def holds(self, client: int) -> Collection[int]:
        """The classes that the client has images of, by number: as the stream says, or as the site has announced."""

    def most_examples(self, client: int) -> int | None:
        """More images than the client has announced, it cannot have; None: it is not asked to announce."""


class StreamCourse:
    """All is known: the stream says who holds what."""

    at_server, at_sites = True, False
    patience = ask_every = 0.0

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._learners: tuple[int, list[int]] = -1, []

    @property
    def registry(self) -> Mapping[str, Any]:
        return {}

    def restore(self, registry: Mapping[str, Any]) -> None:
        pass

    def begin(self, task: int, tell: Callable[[Event], None]) -> Setup | None:  # noqa: ARG002
        return self.setup if task < len(self.setup.stream.task_sizes) else None

    def learners(self, task: int, tell: Callable[[Event], None]) -> list[int]:  # noqa: ARG002
        """Those with new data, or, if exemplars count, with anything."""
        if self._learners[0] != task:
            e, stream = self.setup.experiment, self.setup.stream
            first = 0 if e.server.weighting == "with-exemplars" and e.memory.keeps else task
            found = [c for c in self.everyone() if any(len(stream.new_data(c, t)) for t in range(first, task + 1))]
            self._learners = task, found
        return self._learners[1]

    def everyone(self) -> list[int]:
        return list(range(self.setup.stream.clients))

    def named(self, client: int) -> str:
        return f"client {client}"

    @cached_property
    def _held(self) -> NDArray[np.bool_]:
        return self.setup.stream.counts() > 0

    def holds(self, client: int) -> Collection[int]:
        found: list[int] = np.flatnonzero(self._held[client]).tolist()
        return found

    def most_examples(self, client: int) -> int | None:  # noqa: ARG002
        return None
