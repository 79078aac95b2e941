"""Which classes arrive when: their names in order of arrival, divided into tasks. No images."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedclass.data.partition import released_generator
from fedclass.errors import ConfigError
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
    arrival: Annotated[
        Literal["together", "staggered", "own-order"],
        Field(
            description='when the classes of a task reach a client: "together", as the task begins; "staggered", all '
            'at once, but later; "own-order", one after the other, in an order of the client\'s own'
        ),
    ] = "together"
    arrival_delay: Annotated[
        int, Field(ge=0, description='"staggered" and "own-order": rounds by which a class may be late; 0: none is')
    ] = 0

    def check(self, rounds: int) -> None:
        """rounds: of a task."""
        if self.arrival == "together" and self.arrival_delay:
            raise ConfigError(
                f"[stream] arrival_delay = {self.arrival_delay} has no effect if classes arrive together; "
                "set stream.arrival=staggered or own-order"
            )
        if self.arrival_delay >= rounds:
            raise ConfigError(
                f"[stream] arrival_delay = {self.arrival_delay}: every class must arrive before its task ends, and a "
                f"task has {rounds} rounds (train.rounds); give at most {rounds - 1}"
            )


@dataclass(frozen=True, eq=False)
class Schedule:
    """classes: names in order of arrival; from here on, a class is its position.  task_sizes: new classes per task.

    delays: (clients, classes) rounds from the beginning of its task until a class reaches a client; None: every class
    reaches all clients as its task begins.
    """

    classes: tuple[str, ...]
    task_sizes: tuple[int, ...]
    delays: NDArray[np.int64] | None = None

    def classes_until(self, task: int) -> int:
        """How many classes have arrived once `task` (from 0) has begun."""
        return sum(self.task_sizes[: task + 1])

    def new_classes(self, task: int) -> range:
        """The classes that arrive with the task."""
        until = self.classes_until(task)
        return range(until - self.task_sizes[task], until)

    def awaited(self, client: int, task: int, round: int) -> list[int]:
        """Classes of the task that have not reached the client as this round of it begins."""
        delays = self.delays
        return [] if delays is None else [label for label in self.new_classes(task) if delays[client, label] > round]

    def names(self, numbers: Sequence[int]) -> list[str]:
        return [self.classes[number] for number in numbers]


def order_and_sizes(stream: StreamSettings, classes: int, seed: int) -> tuple[list[int], tuple[int, ...]]:
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


def arrival_delays(
    stream: StreamSettings, held: NDArray[np.bool_], sizes: tuple[int, ...], *, seed: int
) -> NDArray[np.int64] | None:
    """As in Schedule. held: (clients, classes), whether the client has images of the class.

    A task begins when the first of its classes reaches a client, so one delay is always 0.
    """
    if stream.arrival == "together":
        return None
    delays = np.zeros(held.shape, np.int64)
    for task in range(len(sizes)):
        new = slice(sum(sizes[:task]), sum(sizes[: task + 1]))
        for client, own in enumerate(held[:, new]):
            rng = array_generator(seed, "arrival", "client", client, "task", task)
            if stream.arrival == "staggered":
                delays[client, new] = rng.integers(stream.arrival_delay + 1)
            else:
                order, count = rng.permutation(np.flatnonzero(own)), int(own.sum())
                delays[client, new][order] = np.arange(count) * (stream.arrival_delay + 1) // max(count, 1)
        delays[:, new] -= delays[:, new][held[:, new]].min()
    return delays


def task_sizes(tasks: int | list[int] | str, classes: int) -> tuple[int, ...]:
    """[5, 5], "5,5", "{5,5}", or "B50-Inc10": fifty classes first, then ten at a time (B0: ten from the start).

    "halves": two tasks, the first with one more if the number is odd; a single class is a single task.
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
