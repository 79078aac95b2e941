"""A simulation's stream: the schedule of its classes, and which client holds which images."""

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedclass.data.image_set import ImageSet, Split
from fedclass.data.partition import Index, PartitionSettings, classes_offered, partition
from fedclass.data.schedule import Schedule, StreamSettings, arrival_delays, order_and_sizes
from fedclass.errors import DataError


@dataclass(frozen=True, eq=False, kw_only=True)
class Stream(Schedule):
    """A schedule, and a data set divided into its tasks and among clients.

    targets, test_targets: (N,) classes, -1 for those that never arrive.  shares: the images of each client.
    offered: how many classes of each task a client may hold.
    held_out: each client's validation images, which are in no share; [] if there are none.
    """

    data: ImageSet
    targets: Index
    test_targets: Index
    shares: list[Index]
    offered: tuple[int, ...]
    held_out: list[Index] = field(default_factory=list)

    @property
    def clients(self) -> int:
        return len(self.shares)

    @property
    def train(self) -> Split:
        """All training images, with their classes."""
        return Split(self.data.train.images, self.targets)

    @property
    def test(self) -> Split:
        return Split(self.data.test.images, self.test_targets)

    @property
    def validation(self) -> Split | None:
        """Training images with the classes of those held out; all others have class -1."""
        if not self.held_out:
            return None
        held = np.concatenate(self.held_out)
        targets = np.full(len(self.targets), -1, np.int64)
        targets[held] = self.targets[held]
        return Split(self.data.train.images, targets)

    def new_data(self, client: int, task: int, round: int | None = None) -> Index:
        """D_t^k: the client's images of the task. round: only those that have arrived when this round begins."""
        share, new = self.shares[client], self.new_classes(task)
        targets = self.targets[share]
        found = share[(targets >= new.start) & (targets < new.stop)]
        return found if round is None else without(found, self.targets, self.awaited(client, task, round))

    def new_images(self, task: int, round: int) -> NDArray[np.int64]:
        """(clients,): how many new images each client has when this round of the task begins."""
        new = self.new_classes(task)
        arrived = self.counts()[:, new.start : new.stop]
        if self.delays is not None:
            arrived = np.where(self.delays[:, new.start : new.stop] <= round, arrived, 0)
        total: NDArray[np.int64] = arrived.sum(axis=1)
        return total

    def counts(self) -> NDArray[np.int64]:
        """(clients, classes): how many images of each class each client holds."""
        return self._counts

    @cached_property
    def _counts(self) -> NDArray[np.int64]:
        width = len(self.classes)
        rows = [np.bincount(self.targets[share], minlength=width) for share in self.shares]
        return np.array(rows, np.int64).reshape(len(rows), width)


def without(images: Index, targets: Index, classes: list[int]) -> Index:
    """The images that are not of these classes."""
    return images[~np.isin(targets[images], classes)] if classes else images


def build_stream(
    data: ImageSet, stream: StreamSettings, shares: PartitionSettings, *, seed: int, order_seed: int | None = None
) -> Stream:
    """order_seed: of the class order; by default `seed`."""
    order, sizes = order_and_sizes(stream, len(data.classes), seed if order_seed is None else order_seed)
    number = np.full(len(data.classes), -1, np.int64)
    number[order] = np.arange(len(order))
    targets, test_targets = number[data.train.labels], number[data.test.labels]
    names = tuple(data.classes[label] for label in order)
    for split, found in (("training", targets), ("test", test_targets)):
        missing = np.flatnonzero(np.bincount(found[found >= 0], minlength=len(order)) == 0)
        if len(missing):
            raise DataError(f"{data.name}: no {split} image of class {names[missing[0]]!r}, which is in the stream")
    held = partition(targets, sizes, shares, seed=seed, dataset=data.sha256)
    made = Stream(
        names,
        sizes,
        data=data,
        targets=targets,
        test_targets=test_targets,
        shares=held,
        offered=classes_offered(sizes, shares),
    )
    counts = made.counts()
    unheld = np.flatnonzero(counts.sum(axis=0) == 0)
    if len(unheld):
        advice = "check partition.path" if shares.kind == "file" else "raise partition.classes_per_task or clients"
        raise DataError(f"[partition] no client holds an image of class {names[unheld[0]]!r}; {advice}")
    return replace(made, delays=arrival_delays(stream, counts > 0, sizes, seed=seed))
