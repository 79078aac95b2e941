"""One client after the other, in this process."""

from collections.abc import Iterator, Sequence

from fedclass.federation.client import Client
from fedclass.wire import Job, Update


class InProcess:
    name = "inprocess"

    def __init__(self, client: Client) -> None:
        self.client = client

    def run(self, jobs: Sequence[Job]) -> Iterator[Update]:
        return map(self.client.run, jobs)
