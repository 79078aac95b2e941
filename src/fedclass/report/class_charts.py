"""Charts of single tasks and classes: accuracy matrices, confusions, accuracy per class."""

from collections.abc import Sequence
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from fedclass.metrics import mean_of_known
from fedclass.report import drawing, style
from fedclass.report.charts import (
    Chart,
    mean_of_seeds,
    only_run,
    over_seeds,
    rounded,
    seed_list,
    spoken,
    tested_on,
    titled,
    with_file_names,
)
from fedclass.report.groups import Group
from fedclass.report.history import History
from fedclass.report.tables import Table

MOST_CONFUSIONS = 10


def matrices(groups: Sequence[Group]) -> list[Chart]:
    """The accuracy matrix of each group, as a mean over its seeds."""
    charts = []
    for group, suffix in with_file_names(groups):
        done = min(len(run.matrix) for run in group.runs)
        if not done:
            continue
        mean = [[mean_of_known(run.matrix[t][i] for run in group.runs) for i in range(t + 1)] for t in range(done)]
        values = np.full((done, done), np.nan)
        for t, row in enumerate(mean):
            values[t, : t + 1] = [np.nan if value is None else value for value in row]
        tasks = [f"task {t + 1}" for t in range(done)]
        charts.append(
            Chart(
                name=f"accuracy-matrix{suffix}",
                title=titled("Accuracy matrix", group, groups),
                caption="Class-balanced accuracy on each task (columns) after each task (rows)." + over_seeds(group),
                alt=f"{group.label}: after the last row, " + spoken(zip(tasks, mean[-1], strict=True)),
                figure=drawing.heat_map(
                    values,
                    [str(t + 1) for t in range(done)],
                    [str(t + 1) for t in range(done)],
                    x_label="accuracy on task",
                    y_label="after task",
                    bar_label="accuracy (%)",
                    height=style.HEIGHT + 0.36,
                ),
                numbers=Table(
                    "Accuracy in percent",
                    ("", *(f"on {task}" for task in tasks)),
                    tuple(
                        (f"after {tasks[t]}", *map(rounded, row), *[""] * (done - len(row)))
                        for t, row in enumerate(mean)
                    ),
                    (),
                ),
            )
        )
    return charts


def confusions(groups: Sequence[Group]) -> list[Chart]:
    """The confusion matrix of each group after its last finished task, summed over seeds where classes agree."""
    charts = []
    for group, suffix in with_file_names(groups):
        done = min(len(run.tasks) for run in group.runs)
        if not done:
            continue
        first = group.runs[0]
        alike = [run for run in group.runs if run.started.classes == first.started.classes]
        counts = sum((np.array(run.tasks[done - 1].confusion) for run in alike), np.zeros((), np.int64))
        names = first.started.classes[: len(counts)]
        edges = [edge for edge in first.edges[1:-1] if edge < len(counts)]
        with np.errstate(invalid="ignore"):  # a class without test images has no share
            share = 100 * counts / counts.sum(axis=1, keepdims=True)
        mistakes = [(int(n), t, p) for (t, p), n in np.ndenumerate(counts) if t != p and n]
        worst = sorted(mistakes, key=lambda found: (-found[0], found[1:]))[:MOST_CONFUSIONS]
        rows = tuple((names[t], names[p], str(n), f"{share[t, p]:.1f}") for n, t, p in worst)
        seeds = "" if len(group.runs) == 1 else f" Counts of seeds {seed_list(alike)} together."
        worst_words = f"most often, {rows[0][0]} was taken for {rows[0][1]}, {rows[0][3]} % of the time" if rows else ""
        charts.append(
            Chart(
                name=f"confusion{suffix}",
                title=titled("Confusion matrix", group, groups),
                caption=f"Share of each class's {tested_on(groups)} (rows) by predicted class (columns), after task "
                f"{done}.{' Lines separate the tasks.' if edges else ''}{seeds}",
                alt=f"{group.label}: {worst_words or 'no mistakes'}",
                figure=drawing.heat_map(
                    share,
                    names,
                    names,
                    x_label="predicted",
                    y_label="truth",
                    bar_label="share of the class (%)",
                    edges=edges,
                    row_edges=edges,
                    height=style.WIDTH - 0.5,
                    zeros=False,
                ),
                numbers=Table("Most frequent mistakes", ("truth", "predicted", "images", "% of class"), rows, ()),
            )
        )
    return charts


def classes(groups: Sequence[Group]) -> list[Chart]:
    """Accuracy per class: for one run, when learned and now; for several groups, now, side by side."""
    known = [group for group in groups if all(run.classes for run in group.runs)]
    if not known:
        return []
    if single := only_run(groups):
        return [_classes_of(single, groups[0].style.colour)]
    names = list(dict.fromkeys(name for group in known for run in group.runs for name, _, _ in run.classes))
    learned, now = (_by_class(known, names, column) for column in (1, 2))
    columns = [column for group in known for column in (f"{group.label}: learned", "now")]
    rows = tuple(
        (name, *(rounded(value) for g in range(len(known)) for value in (learned[g, c], now[g, c])))
        for c, name in enumerate(names)
    )
    first = groups[0].runs[0]
    aligned = first.started.classes[: len(names)] == names
    return [
        Chart(
            name="classes",
            title="Accuracy per class",
            caption="Accuracy on each class after the last finished task" + mean_of_seeds(known),
            alt="; ".join(
                f"{group.label}: from {np.nanmin(row):.0f} to {np.nanmax(row):.0f} %"
                for group, row in zip(known, now, strict=True)
            ),
            figure=drawing.heat_map(
                now,
                [group.label for group in known],
                names,
                x_label="class",
                y_label="",
                bar_label="accuracy (%)",
                edges=[edge for edge in first.edges[1:-1] if edge < len(names)] if aligned else [],
            ),
            numbers=Table("Accuracy per class, in percent", ("class", *columns), rows, ()),
        )
    ]


def _classes_of(run: History, colour: str) -> Chart:
    names, learned, now = zip(*run.classes, strict=True)
    labels = [run.started.classes.index(name) for name in names]  # not 0, 1, ...: some classes may not have been tested
    lost = [(was - is_, name) for name, was, is_ in run.classes]
    most, which = max(lost)
    return Chart(
        name="classes",
        title="Accuracy per class",
        caption=f"Accuracy on each class after the task that brought it (hollow), and after task {len(run.tasks)} "
        "(filled). Dotted lines separate the tasks.",
        alt=f"Now from {min(now):.0f} to {max(now):.0f} %; {which} lost most since it was learned, {most:.1f} points",
        figure=drawing.changes(
            names,
            learned,
            now,
            colour=colour,
            edges=[sum(label < e for label in labels) for e in run.edges[1:-1] if e <= labels[-1]],
            y_label="accuracy (%)",
        ),
        numbers=Table(
            "Accuracy per class, in percent",
            ("class", "task", "when learned", "now", "change"),
            tuple(
                (name, str(_task_of(run, label) + 1), f"{was:.1f}", f"{is_:.1f}", f"{is_ - was:+.1f}")
                for label, (name, was, is_) in zip(labels, run.classes, strict=True)
            ),
            (),
        ),
    )


def _task_of(run: History, label: int) -> int:
    return sum(edge <= label for edge in run.edges[1:])


def _by_class(groups: Sequence[Group], names: Sequence[str], column: int) -> NDArray[np.float64]:
    """(groups, classes): the mean over seeds that met the class. Seeds may have different class orders."""
    table = np.full((len(groups), len(names)), np.nan)
    for g, group in enumerate(groups):
        found = [{row[0]: row[column] for row in run.classes} for run in group.runs]
        for c, name in enumerate(names):
            values = [own[name] for own in found if name in own]
            if values:
                table[g, c] = fmean(float(value) for value in values)
    return table
