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
    """What is known of the images as a run begins.

    sha256: of images that are here; "" if clients alone have images.  official: as in ImageSet.  partition_sha256: of
    who holds which images, where a file says so.  counts: (clients, classes) training images.  exemplars: that all
    clients together will keep after each task.  coverage: how much of the data set is used, if that is known.
    remarks: what else to tell about them.  fixed: whether a run can go on with these images only.
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

    here: on images that are here.  at_clients: by these clients, each on images of its own; those that answer usably.
    """

    task: int
    here: Callable[[Split], Counts]
    at_clients: Callable[[Sequence[int]], Iterator[Update]]


@dataclass(frozen=True)
class Tested:
    """confusion: None if the images for it cannot be had now.  at_clients: beside it, on images of the clients' own."""

    confusion: Counts | None
    at_clients: Counts | None = None


class Curriculum(Protocol):
    """What asks for classes. Known from the start, as in a recipe, or found out as sites announce what they hold."""

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
    def schedule(self) -> Schedule:
        """As far as it is known."""

    @property
    def registry(self) -> Mapping[str, Any]:
        """What has been found out so far, as plain JSON; part of every checkpoint."""

    def restore(self, registry: Mapping[str, Any]) -> None: ...

    def facts(self) -> DataFacts: ...

    def begin(self, task: int, tell: Tell) -> bool:
        """Whether there is such a task, which the schedule then has. May wait for one."""

    def learners(self, task: int, round: int, tell: Tell) -> list[int]:
        """The clients whose update would count, as this round of the task begins."""

    def everyone(self) -> list[int]: ...

    def named(self, client: int) -> str:
        """For messages."""

    def holds(self, client: int) -> Collection[int]:
        """The classes that the client has images of, by number: as the stream says, or as the site has announced."""

    def most_examples(self, client: int) -> int | None:
        """More images than the client has announced, it cannot have; None: it is not asked to announce."""

    def test(self, trial: Trial, tell: Tell, *, must: bool) -> Tested:
        """must: wait for images without which a task could not be tested; RoundError if they do not come."""

    @property
    def validation(self) -> Split | None:
        """Images to choose by, with their classes, if there are any."""

    @property
    def watched(self) -> Split | None:
        """The server's own images, if it has any, on which it sees whether a round has turned the model to chance."""
