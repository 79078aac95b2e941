"""fedclass plan: which client holds which images, before anything is trained."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedclass.cli.run import Overrides, Recipe
from fedclass.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.table import Table

    from fedclass.data.memory import MemorySettings
    from fedclass.data.partition import Index
    from fedclass.data.stream import Stream
    from fedclass.experiment.config import Experiment

    Counts = NDArray[np.int64]

WIDEST = 12  # classes with a column each; more do not fit on a terminal


def plan(
    recipe: Recipe = None,
    overrides: Overrides = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the partition.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Also draw the plan to this .png, .svg or .pdf file.")] = None,
    save: Annotated[Path | None, typer.Option(help='Write the partition to a file, for partition.kind="file".')] = None,
) -> None:
    """Show how many images of each class each client holds in each task, and the memory plan. Nothing is trained.

    Example:  fedclass plan demo --set partition.alpha=0.1 --picture plan.png
    """
    from fedclass.cli.display import console
    from fedclass.data.coverage import coverage
    from fedclass.data.memory import exemplar_counts, remarks
    from fedclass.experiment.recipe import load
    from fedclass.experiment.setup import prepare
    from fedclass.runs.counted import counted
    from fedclass.runs.progress import left_out

    experiment = load(recipe, overrides or [], seed=seed)
    stream = prepare(experiment).stream
    counts = stream.counts()
    memory = exemplar_counts(experiment.memory, counts, stream.task_sizes, offered=stream.offered)
    console.print(_images_table(stream, memory))
    if stream.delays is not None:
        console.print(_arrival_table(stream, stream.delays))
    chosen = experiment.method.declare().select or experiment.memory.select
    lines = [
        *left_out(coverage(stream)),
        *_lacking(stream),
        f"memory: {_rule(experiment.memory)}; chosen by {chosen}; {counted(int(memory[:, -1].sum()), 'exemplar')} on "
        "all clients at the end",
    ]
    for line in lines:
        console.print(line, highlight=False)
    for remark in remarks(experiment.memory, counts, stream.task_sizes, offered=stream.offered):
        console.print(f"note: {remark}", style="yellow", highlight=False)
    if picture:
        _draw(experiment, stream, picture)
        console.print(f"picture: {picture}", highlight=False)
    if save:
        _save(stream, save)
        console.print(f'partition: {save}; use it with partition.kind="file" partition.path="{save}"', highlight=False)


# Tables: a row per client; for each task, a column per class, or two columns in all if there are many classes.


def _table(title: str) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left", padding=(0, 1, 0, 0))
    table.add_column("\nclient", justify="right")
    return table


def _task_columns(table: "Table", stream: "Stream", several: Callable[[int], tuple[str, str]]) -> None:
    """several: the headings of a task's two columns, given its number of classes."""
    for task, size in enumerate(stream.task_sizes):
        new = stream.new_classes(task)
        heads = stream.names(new) if _by_class(stream) else list(several(size))
        for number, head in enumerate(heads):
            top = f"T{task + 1}\n" if _by_class(stream) or number == 0 else ""
            table.add_column(top + head, justify="right")


def _by_class(stream: "Stream") -> bool:
    return len(stream.classes) <= WIDEST


def _images_table(stream: "Stream", memory: "Counts") -> "Table":
    table = _table(f"{stream.data.name}: training images per client")
    _task_columns(table, stream, lambda size: ("images", f"of {size}\nclasses"))
    table.add_column("\nall", justify="right")
    for task in range(len(stream.task_sizes) - 1):
        table.add_column(f"kept\nin T{task + 2}", justify="right")
    for client, row in enumerate(stream.counts()):
        cells: list[str] = []
        for part in _by_task(stream, row):
            cells += [str(n or "·") for n in part] if _by_class(stream) else [str(part.sum()), str((part > 0).sum())]
        table.add_row(str(client), *cells, str(row.sum()), *(str(n) for n in memory[client, :-1]))
    return table


def _arrival_table(stream: "Stream", delays: "Counts") -> "Table":
    """Rounds count from 1, as in everything that people read."""
    table = _table("rounds of arrival")
    _task_columns(table, stream, lambda _: ("first", "\nlast"))
    for client, row in enumerate(stream.counts()):
        cells: list[str] = []
        for held, late in zip(_by_task(stream, row), _by_task(stream, delays[client]), strict=True):
            if _by_class(stream):
                cells += [str(rounds + 1) if images else "·" for images, rounds in zip(held, late, strict=True)]
            else:
                reached = late[held > 0] + 1
                cells += [str(reached.min()), str(reached.max())] if len(reached) else ["·", "·"]
        table.add_row(str(client), *cells)
    return table


def _by_task(stream: "Stream", row: "Counts") -> "Iterator[Counts]":
    for task in range(len(stream.task_sizes)):
        new = stream.new_classes(task)
        yield row[new.start : new.stop]


# Lines.


def _lacking(stream: "Stream") -> Iterator[str]:
    counts = stream.counts()
    starts = [sum(stream.task_sizes[:task]) for task in range(len(stream.task_sizes) + 1)]
    idle = [
        f"{(counts[:, a:b].sum(axis=1) == 0).sum()} in task {t + 1}"
        for t, (a, b) in enumerate(pairwise(starts))
        if (counts[:, a:b].sum(axis=1) == 0).any()
    ]
    if idle:
        yield f"clients without new data: {', '.join(idle)}"
    if lacking := (counts[:, -1] == 0).sum():
        yield f"clients that lack the last class ({stream.classes[-1]}): {lacking}"


def _rule(budget: "MemorySettings") -> str:
    if budget.per_class is not None:
        return f"{budget.per_class} per class"
    if budget.quota == "floor":
        return f"{budget.per_client} per client, over all classes so far, rounded down"
    if budget.quota == "balanced":
        return f"{budget.per_client} per client, divided by the server so that all exemplars together are balanced"
    return f"{budget.per_client} per client, shared evenly among the classes that the client has met"


# Files.


def _draw(experiment: "Experiment", stream: "Stream", picture: Path) -> None:
    from fedclass.report.rendering import partition_picture

    settings = experiment.partition
    drawn = settings.kind in ("dirichlet", "fedml", "released")
    kind = f"{settings.kind} {settings.alpha:g}" if drawn else settings.kind
    title = f"{stream.data.name}, {kind}, seed {experiment.seed_of('partition')}"
    try:
        partition_picture(stream.counts(), stream.classes, stream.task_sizes, picture, title=title)
    except (OSError, ValueError) as error:  # ValueError: an extension that matplotlib does not know
        raise ConfigError(f"--picture {picture}: cannot be written ({error}); choose another name") from error


def _save(stream: "Stream", path: Path) -> None:
    from fedclass.data.partition import save_partition

    try:
        save_partition(_with_held_out(stream), path, dataset=stream.data.sha256)
    except OSError as error:
        raise ConfigError(f"--save {path}: cannot be written ({error.strerror}); choose another name") from error


def _with_held_out(stream: "Stream") -> "list[Index]":
    """Each client's images, including those held out: runs draw their validation images from these again."""
    import numpy as np

    if not stream.held_out:
        return stream.shares
    return [np.sort(np.concatenate(both)) for both in zip(stream.shares, stream.held_out, strict=True)]
