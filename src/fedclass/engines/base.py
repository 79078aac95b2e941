"""What runs clients' jobs."""

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from fedclass.federation.evaluate import Counts, Part
from fedclass.federation.server import Missing
from fedclass.wire import Job, Update


class Engine(Protocol):
    """Runs client jobs somewhere; knows nothing of methods, losses or tasks.

    Updates come in the order of the jobs, so that sums do not depend on who was fastest. A job may stay unanswered: the
    engine hands on why, or nothing.
    """

    name: str

    def run(self, jobs: Sequence[Job]) -> Iterator[Update | Missing]: ...


@runtime_checkable
class Tests(Protocol):
    """An engine whose processes have the test images too. With any other engine, the caller tests the model itself."""

    def test(self, parts: Sequence[Part]) -> Iterator[Counts]:
        """What each part counts; in any order, since they are added up."""
