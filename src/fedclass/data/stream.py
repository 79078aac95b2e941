"""Classes arrive in tasks: class order -> tasks -> clients."""

import re
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedclass.data.images import ImageSet
from fedclass.data.partition import Index, PartitionSettings, classes_offered, partition, released_generator
from fedclass.errors import ConfigError, DataError
from fedclass.rng import array_generator


@dataclass(frozen=True, kw_only=True)
class StreamSettings:
    """Table [stream]."""

    tasks: Annotated[
        int | list[int] | str, Field(description='classes per task: "halves", [5, 5], "5,5", "{17,15,15}", "B0-Inc10"')
    ] = "halves"
    class_order: Annotated[
        Literal["natural", "seeded", "released", "released-by-seed"] | list[int],
        Field(
            description='order of arrival: "natural" or "released", the same for all seeds; "seeded" or '
            '"released-by-seed" (seed 0 has the released one), another for each; or a list of labels'
        ),
    ] = "natural"


@dataclass(frozen=True, eq=False)
class Stream:
    """A data set cut into tasks and clients. From here on, classes are numbered in order of arrival.

    targets, test_targets: (N,) such numbers, -1 for classes that never arrive.  shares: the images of each client.
    offered: how many classes of each task a client may have images of.
    held_out: training images of each client that validate and are in no share; [] if there are none.
    """

    data: ImageSet
    classes: tuple[str, ...]
    task_sizes: tuple[int, ...]
    targets: Index
    test_targets: Index
    shares: list[Index]
    offered: tuple[int, ...]
    held_out: list[Index] = field(default_factory=list)

    @property
    def clients(self) -> int:
        return len(self.shares)

    def classes_until(self, task: int) -> int:
        """How many classes have arrived once `task` (from 0) has begun."""
        return sum(self.task_sizes[: task + 1])

    def new_data(self, client: int, task: int) -> Index:
        """D_t^k: what arrives at the client in the task."""
        share = self.shares[client]
        targets = self.targets[share]
        first = self.classes_until(task) - self.task_sizes[task]
        return share[(targets >= first) & (targets < self.classes_until(task))]

    def counts(self) -> NDArray[np.int64]:
        """(clients, classes): how many images of each class each client holds."""
        width = len(self.classes)
        rows = [np.bincount(self.targets[share], minlength=width) for share in self.shares]
        return np.array(rows, np.int64).reshape(len(rows), width)


def build_stream(
    data: ImageSet, stream: StreamSettings, shares: PartitionSettings, *, seed: int, order_seed: int | None = None
) -> Stream:
    """order_seed: of the class order, if it has another one."""
    order, sizes = _order_and_sizes(stream, len(data.classes), seed if order_seed is None else order_seed)
    number = np.full(len(data.classes), -1, np.int64)
    number[order] = np.arange(len(order))
    targets, test_targets = number[data.train.labels], number[data.test.labels]
    names = tuple(data.classes[label] for label in order)
    for split, found in (("training", targets), ("test", test_targets)):
        missing = np.flatnonzero(np.bincount(found[found >= 0], minlength=len(order)) == 0)
        if len(missing):
            raise DataError(f"{data.name}: no {split} image of class {names[missing[0]]!r}, which is in the stream")
    held = partition(targets, sizes, shares, seed=seed, dataset=data.sha256)
    made = Stream(data, names, sizes, targets, test_targets, held, classes_offered(sizes, shares))
    unheld = np.flatnonzero(made.counts().sum(axis=0) == 0)
    if len(unheld):
        advice = "check partition.path" if shares.kind == "file" else "raise partition.classes_per_task or clients"
        raise DataError(f"[partition] no client holds an image of class {names[unheld[0]]!r}; {advice}")
    return made


def _order_and_sizes(stream: StreamSettings, classes: int, seed: int) -> tuple[list[int], tuple[int, ...]]:
    if isinstance(stream.class_order, list):
        order = stream.class_order
        if len(set(order)) != len(order) or not set(order) <= set(range(classes)):
            raise ConfigError(f"[stream] class_order: must list different labels from 0 to {classes - 1}, got {order}")
    elif stream.class_order == "natural":
        order = list(range(classes))
    elif stream.class_order == "seeded":
        order = array_generator(seed, "class order").permutation(classes).tolist()
    else:
        own = seed if stream.class_order == "released-by-seed" else 0
        order = released_generator(own).permutation(classes).tolist()
    sizes = task_sizes(stream.tasks, len(order))
    if sum(sizes) != len(order):
        raise ConfigError(
            f"[stream] tasks: {list(sizes)} make {sum(sizes)} classes, but there are {len(order)}; "
            "change tasks, or give class_order the list of labels to use"
        )
    return order, sizes


def task_sizes(tasks: int | list[int] | str, classes: int) -> tuple[int, ...]:
    """[5, 5], "5,5", "{5,5}", or "B50-Inc10": fifty classes first, then ten at a time (B0: ten from the start).

    "halves": two tasks; of an odd number of classes the first has one more, and a single class is a single task.
    """
    if isinstance(tasks, str):
        if tasks.strip() == "halves":
            return tuple(size for size in (classes - classes // 2, classes // 2) if size)
        base_and_step = re.fullmatch(r"B(\d+)-?Inc(\d+)", tasks.strip(), re.IGNORECASE)
        if base_and_step:
            base, step = map(int, base_and_step.groups())
            if step < 1 or base + step > classes:
                raise ConfigError(f"[stream] tasks: {tasks!r} does not fit {classes} classes")
            rest = classes - base
            steps = [step] * (rest // step) + ([rest % step] if rest % step else [])
            return tuple([base, *steps] if base else steps)
        listed = tasks.strip()
        if listed.startswith("{") and listed.endswith("}"):
            listed = listed[1:-1]
        try:
            tasks = [int(size) for size in listed.split(",")]
        except ValueError:
            raise ConfigError(
                f'[stream] tasks: cannot read {tasks!r}; write [5, 5], "5,5", "{{17,15,15}}" or "B0-Inc10"'
            ) from None
    if isinstance(tasks, int):
        tasks = [tasks]
    if not tasks or min(tasks) < 1:
        raise ConfigError(f"[stream] tasks: every task needs at least one class, got {tasks}")
    return tuple(tasks)
