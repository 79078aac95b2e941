"""Which classes arrive when: their names, in order of arrival, cut into tasks. No images."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

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


@dataclass(frozen=True, eq=False)
class Schedule:
    """classes: names in order of arrival; from here on, a class is its position.  task_sizes: new classes per task."""

    classes: tuple[str, ...]
    task_sizes: tuple[int, ...]

    def classes_until(self, task: int) -> int:
        """How many classes have arrived once `task` (from 0) has begun."""
        return sum(self.task_sizes[: task + 1])

    def new_classes(self, task: int) -> range:
        """Those that arrive with the task."""
        until = self.classes_until(task)
        return range(until - self.task_sizes[task], until)

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
