"""Which classes come with which task, and who has images to learn them from."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

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
        """Those with new data, or, if what they had before counts too, with anything."""
        if self._learners[0] != task:
            e, stream = self.setup.experiment, self.setup.stream
            exemplars_count = e.train.weighting == "with-exemplars" and e.memory.keeps
            first = 0 if exemplars_count or e.method.declare().replay == "all" else task
            found = [c for c in self.everyone() if any(len(stream.new_data(c, t)) for t in range(first, task + 1))]
            self._learners = task, found
        return self._learners[1]

    def everyone(self) -> list[int]:
        return list(range(self.setup.stream.clients))
