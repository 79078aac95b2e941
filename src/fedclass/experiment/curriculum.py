"""Which classes come with which task, who has images to learn them from, and on which images a model is tested."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedclass.data.image_set import Split
from fedclass.data.schedule import Schedule
from fedclass.experiment.config import Experiment
from fedclass.federation.evaluate import Counts
from fedclass.models.incremental import IncrementalModel
from fedclass.runs.events import Event
from fedclass.wire import Update

Tell = Callable[[Event], None]


@dataclass(frozen=True)
class DataFacts:
    """What is known about the images as a run begins.

    sha256: of the images on this machine; "" if only clients have images.  official: as in ImageSet.
    partition_sha256: of the partition, if it comes from a file.  counts: (clients, classes) training images.
    exemplars: how many all clients together will keep after each task.  coverage: how much of the data set is used,
    if known.  remarks: warnings about the images.  fixed: whether a resumed run must have exactly these images.
    """

    name: str
    sha256: str
    official: bool | None
    counts: Sequence[Sequence[int]]
    exemplars: Sequence[int]
    partition_sha256: str | None = None
    coverage: Mapping[str, Any] = field(default_factory=dict)
    remarks: Sequence[str] = ()
    fixed: bool = True


@dataclass(frozen=True)
class Trial:
    """A global model to be tested during or after a task.

    here: tests on images of this machine.  at_clients: asks these clients to test on their own images, and returns
    the usable answers.
    """

    task: int
    here: Callable[[Split], Counts]
    at_clients: Callable[[Sequence[int]], Iterator[Update]]


@dataclass(frozen=True)
class Tested:
    """confusion: None if its images are not available now.  at_clients: counts on the clients' own images as well."""

    confusion: Counts | None
    at_clients: Counts | None = None


class Curriculum(Protocol):
    """Decides which classes come next: known from the start, as in a recipe, or as sites announce their classes."""

    @property
    def experiment(self) -> Experiment: ...

    @property
    def image(self) -> tuple[int, int, int]:
        """(H, W, C)."""

    @property
    def normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]]: ...

    def build(self) -> IncrementalModel:
        """A new model, for no classes yet."""

    @property
    def initial(self) -> IncrementalModel:
        """The same, built once, to look at; it is never changed."""

    @property
    def schedule(self) -> Schedule:
        """The part that is known so far."""

    @property
    def registry(self) -> Mapping[str, Any]:
        """What has been learned about clients so far, as plain JSON; part of every checkpoint."""

    def restore(self, registry: Mapping[str, Any]) -> None: ...

    def facts(self) -> DataFacts: ...

    def begin(self, task: int, tell: Tell) -> bool:
        """Whether there is such a task; if so, the schedule includes it. May wait for one."""

    def learners(self, task: int, round: int, tell: Tell) -> list[int]:
        """The clients whose update would count at the beginning of this round."""

    def everyone(self) -> list[int]: ...

    def named(self, client: int) -> str:
        """For messages."""

    def holds(self, client: int, task: int, round: int) -> Collection[int]:
        """The classes that the client has images of as this round begins, by number: as the stream says, or as the site
        has announced.
        """

    def most_examples(self, client: int) -> int | None:
        """An upper limit from what the client has announced; None if clients do not announce."""

    def test(self, trial: Trial, tell: Tell, *, must: bool) -> Tested:
        """must: wait for images without which a task could not be tested; RoundError if they do not come."""

    @property
    def validation(self) -> Split | None:
        """Validation images with their classes, if there are any."""

    @property
    def watched(self) -> Split | None:
        """The server's own images, if any. They show whether a round has reduced the model to chance."""
