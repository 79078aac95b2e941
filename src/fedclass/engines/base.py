"""What runs clients' jobs."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from fedclass.federation.server import Missing
from fedclass.wire import Job, Update


class Engine(Protocol):
    """Runs client jobs somewhere; knows nothing of methods, losses or tasks.

    Updates come in the order of the jobs, so that sums do not depend on who was fastest. A job may stay unanswered: the
    engine hands on why, or nothing.
    """

    name: str

    def run(self, jobs: Sequence[Job]) -> Iterator[Update | Missing]: ...
