"""fedclass plan: who holds what, when, before anything is trained."""

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedclass.cli.run import Overrides, Recipe
from fedclass.errors import ConfigError

if TYPE_CHECKING:
    from fedclass.data.partition import Index
    from fedclass.data.stream import Stream

WIDEST = 12  # more columns of single classes do not fit on a terminal


def plan(
    recipe: Recipe = None,
    overrides: Overrides = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the partition.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Also draw it, to this .png, .svg or .pdf file.")] = None,
    save: Annotated[Path | None, typer.Option(help='Write the partition to a file, for partition.kind="file".')] = None,
) -> None:
    """Show who holds how many images of which class in which task, and the memory plan. Nothing is trained.

    Example:  fedclass plan demo --set partition.alpha=0.1 --picture plan.png
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from fedclass.cli.display import console
    from fedclass.data.coverage import coverage
    from fedclass.data.memory import planned, remarks
    from fedclass.data.partition import save_partition
    from fedclass.experiment.config import load
    from fedclass.experiment.setup import prepare
    from fedclass.runs.lines import left_out

    experiment = load(recipe, overrides or [], seed=seed)
    stream = prepare(experiment).stream
    counts = stream.counts()
    memory = planned(experiment.memory, counts, stream.task_sizes, offered=stream.offered)
    starts = [sum(stream.task_sizes[:task]) for task in range(len(stream.task_sizes) + 1)]
    by_class = len(stream.classes) <= WIDEST

    table = Table(
        title=f"{stream.data.name}: training images per client",
        box=SIMPLE_HEAD,
        title_justify="left",
        padding=(0, 1, 0, 0),
    )
    table.add_column("\nclient", justify="right")
    for task, size in enumerate(stream.task_sizes):
        if by_class:
            for label in range(starts[task], starts[task + 1]):
                table.add_column(f"T{task + 1}\n{stream.classes[label]}", justify="right")
        else:
            table.add_column(f"T{task + 1}\nimages", justify="right")
            table.add_column(f"of {size}\nclasses", justify="right")
    table.add_column("\nall", justify="right")
    for task in range(len(stream.task_sizes) - 1):
        table.add_column(f"kept\nin T{task + 2}", justify="right")
    for client, row in enumerate(counts):
        cells: list[str] = []
        for first, after in pairwise(starts):
            part = row[first:after]
            cells += [str(n or "·") for n in part] if by_class else [str(part.sum()), str((part > 0).sum())]
        table.add_row(str(client), *cells, str(row.sum()), *(str(n) for n in memory[client, :-1]))
    console.print(table)
    for part in left_out(coverage(stream)):
        console.print(part, highlight=False)
    idle = [
        f"{(counts[:, a:b].sum(axis=1) == 0).sum()} in task {t + 1}"
        for t, (a, b) in enumerate(pairwise(starts))
        if (counts[:, a:b].sum(axis=1) == 0).any()
    ]
    if idle:
        console.print(f"clients without new data: {', '.join(idle)}", highlight=False)
    lacking = (counts[:, -1] == 0).sum()
    if lacking:
        console.print(f"clients that lack the last class ({stream.classes[-1]}): {lacking}", highlight=False)
    budget = experiment.memory
    if budget.per_class is not None:
        rule = f"{budget.per_class} per class"
    elif budget.quota == "floor":
        rule = f"{budget.per_client} per client, over all classes that have arrived, rounded down"
    else:
        rule = f"{budget.per_client} per client, shared evenly among the classes it has met"
    chosen = experiment.method.declare().select or budget.select
    console.print(
        f"memory: {rule}; chosen by {chosen}; {memory[:, -1].sum()} exemplars on all clients at the end",
        highlight=False,
    )
    for remark in remarks(budget, counts, stream.task_sizes, offered=stream.offered):
        console.print(f"note: {remark}", style="yellow", highlight=False)
    if picture:
        from fedclass.report.plots import partition_picture

        settings = experiment.partition
        drawn = settings.kind in ("dirichlet", "fedml", "released")
        kind = f"{settings.kind} {settings.alpha:g}" if drawn else settings.kind
        title = f"{stream.data.name}, {kind}, seed {experiment.seed_of('partition')}"
        try:
            partition_picture(counts, stream.classes, stream.task_sizes, picture, title=title)
        except (OSError, ValueError) as error:  # ValueError: an ending that matplotlib does not know
            raise ConfigError(f"--picture {picture}: cannot be written ({error}); choose another name") from error
        console.print(f"picture: {picture}", highlight=False)
    if save:
        try:
            save_partition(_with_held_out(stream), save, dataset=stream.data.sha256)
        except OSError as error:
            raise ConfigError(f"--save {save}: cannot be written ({error.strerror}); choose another name") from error
        console.print(f'partition: {save}; use it with partition.kind="file" partition.path="{save}"', highlight=False)


def _with_held_out(stream: "Stream") -> "list[Index]":
    """Whose images are which: what validates is drawn again from these by each run that wants it."""
    import numpy as np

    if not stream.held_out:
        return stream.shares
    return [np.sort(np.concatenate(both)) for both in zip(stream.shares, stream.held_out, strict=True)]
