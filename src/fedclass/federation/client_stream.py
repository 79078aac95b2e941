"""What a client sees of a stream."""

from typing import Protocol

from fedclass.data.image_set import Split
from fedclass.data.partition import Index


class ClientStream(Protocol):
    """What a client sees of a stream: images with their classes, and which of them arrive when."""

    @property
    def train(self) -> Split: ...
    @property
    def task_sizes(self) -> tuple[int, ...]: ...
    @property
    def offered(self) -> tuple[int, ...]: ...
    def classes_until(self, task: int) -> int: ...
    def new_data(self, client: int, task: int, round: int | None = None) -> Index: ...
