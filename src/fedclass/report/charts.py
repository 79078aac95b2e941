"""Which charts a report has, and what is in them. Each comes with its numbers, and with words for the blind."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedclass.report import drawing
from fedclass.report.drawing import Curve, Style
from fedclass.report.groups import Group
from fedclass.report.history import Cost, History
from fedclass.report.tables import Table

MOST_TASK_LINES = 5  # more lines in a chart cannot be told apart
MOST_DOTS = 1200  # clients x classes; above, a heat map
MOST_CONFUSIONS = 10
MOST_OPEN = 12  # rows of a table that is shown without a click
Values = dict[int, float]  # by round or task


@dataclass(frozen=True)
class Chart:
    """name: of its files. alt: what it shows, in words. numbers: the same as a table."""

    name: str
    title: str
    caption: str
    alt: str
    figure: Figure
    numbers: Table
    open: bool = False  # whether the numbers show without a click


def learning(groups: Sequence[Group]) -> list[Chart]:
    """Accuracy, forgetting and loss, over rounds and over tasks."""
    start = groups[0].runs[0].started
    ends = [start.rounds * task + 0.5 for task in range(1, len(start.tasks))] if _same_rounds(groups) else []
    charts = [
        *_accuracy_over_rounds(groups, ends),
        _over(
            groups,
            lambda run: {test.after: test.forgetting for test in run.tests if test.forgetting is not None},
            name="forgetting-over-rounds",
            title="Forgetting over rounds",
            caption="Accuracy on each earlier task when it was learned, minus its accuracy now; the mean of these.",
            x_label="round",
            y_label="forgetting (points)",
            edges=ends,
        ),
        _over(
            groups,
            lambda run: {test.task + 1: test.accuracy for test in run.ends},
            name="accuracy-over-tasks",
            title="Accuracy over tasks",
            caption=f"Accuracy on the {_images(groups)} of all classes so far, at the end of each task.",
            x_label="task",
            y_label="accuracy (%)",
            ticks=range(1, len(start.tasks) + 1),
        ),
        _over(
            groups,
            lambda run: {test.task + 1: test.forgetting for test in run.ends if test.forgetting is not None},
            name="forgetting-over-tasks",
            title="Forgetting over tasks",
            caption="Forgetting at the end of each task but the first; forgetting_fedclass is the mean of these.",
            x_label="task",
            y_label="forgetting (points)",
            ticks=range(2, len(start.tasks) + 1),
        ),
        _over(
            groups,
            lambda run: {run.position(event): event.loss for event in run.rounds},
            name="loss-over-rounds",
            title="Training loss over rounds",
            caption="The clients' mean loss, weighted by their images. Methods with other losses are on other scales.",
            x_label="round",
            y_label="loss",
            edges=ends,
        ),
    ]
    shown = [chart for chart in charts if chart is not None]
    return [*_matrices(groups), *shown] if len(groups) == 1 else [*shown, *_matrices(groups)]


def _matrices(groups: Sequence[Group]) -> list[Chart]:
    """The accuracy matrix of each group, as a mean over its seeds."""
    charts = []
    for group, suffix in _named(groups):
        done = min(len(run.matrix) for run in group.runs)
        if not done:
            continue
        mean = [[fmean(run.matrix[t][i] for run in group.runs) for i in range(t + 1)] for t in range(done)]
        values = np.full((done, done), np.nan)
        for t, row in enumerate(mean):
            values[t, : t + 1] = row
        tasks = [f"task {t + 1}" for t in range(done)]
        charts.append(
            Chart(
                name=f"accuracy-matrix{suffix}",
                title=_title("Accuracy matrix", group, groups),
                caption="Class-balanced accuracy on each task (columns) after each task (rows)." + _over_seeds(group),
                alt=f"{group.label}: after the last row, " + _list(zip(tasks, mean[-1], strict=True)),
                figure=drawing.heat_map(
                    values,
                    [str(t + 1) for t in range(done)],
                    [str(t + 1) for t in range(done)],
                    x_label="accuracy on task",
                    y_label="after task",
                    bar_label="accuracy (%)",
                    height=drawing.HEIGHT + 0.36,
                ),
                numbers=Table(
                    "Accuracy in percent",
                    ("", *(f"on {task}" for task in tasks)),
                    tuple(
                        (f"after {tasks[t]}", *(f"{value:.1f}" for value in row), *[""] * (done - len(row)))
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
    for group, suffix in _named(groups):
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
        seeds = "" if len(group.runs) == 1 else f" Counts of seeds {_seeds(alike)} together."
        worst_words = f"most often, {rows[0][0]} was taken for {rows[0][1]}, {rows[0][3]} % of the time" if rows else ""
        charts.append(
            Chart(
                name=f"confusion{suffix}",
                title=_title("Confusion matrix", group, groups),
                caption=f"Share of each class's {_images(groups)} (rows) by predicted class (columns), after task "
                f"{done}.{' Lines part the tasks.' if edges else ''}{seeds}",
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
                    height=drawing.WIDTH - 0.5,
                    zeros=False,
                ),
                numbers=Table("Most frequent mistakes", ("truth", "predicted", "images", "% of class"), rows, ()),
            )
        )
    return charts


def classes(groups: Sequence[Group]) -> list[Chart]:
    """Accuracy per class: when learned and now for one run; now, side by side, for several groups."""
    known = [group for group in groups if all(run.classes for run in group.runs)]
    if not known:
        return []
    if single := _single(groups):
        return [_classes_of(single, groups[0].style.colour)]
    names = list(dict.fromkeys(name for group in known for run in group.runs for name, _, _ in run.classes))
    learned, now = (_by_class(known, names, column) for column in (1, 2))
    columns = [column for group in known for column in (f"{group.label}: learned", "now")]
    rows = tuple(
        (name, *(_figure(value) for g in range(len(known)) for value in (learned[g, c], now[g, c])))
        for c, name in enumerate(names)
    )
    first = groups[0].runs[0]
    aligned = first.started.classes[: len(names)] == names
    return [
        Chart(
            name="classes",
            title="Accuracy per class",
            caption="Accuracy on each class after the last finished task" + _mean_of_seeds(known),
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


def clients(run: History) -> Chart | None:
    """Images against loss: a dot per client that took part."""
    part = [(record, record.loss) for record in run.clients if record.loss is not None]
    if not part:
        return None
    rounds, losses = [record.rounds for record in run.clients], [loss for _, loss in part]
    rows = tuple(
        (
            run.started.name_of(record.client),
            *(str(n) for n in (record.images, record.classes, record.rounds)),
            _figure(record.loss, 3),
            str(record.rejected),
        )
        for record in run.clients
    )
    return Chart(
        name="clients",
        title="Clients",
        caption="Each client's training images over the whole run, and its loss in the last round it took part in. "
        "Larger dots took part in more rounds.",
        alt=f"{len(part)} of {len(run.clients)} clients took part; of {run.rounds_done} rounds, a client saw "
        f"{min(rounds)} to {max(rounds)}; last losses go from {min(losses):.3f} to {max(losses):.3f}",
        figure=drawing.scatter(
            [record.images for record, _ in part],
            losses,
            [record.rounds for record, _ in part],
            x_label="training images",
            y_label="last loss",
        ),
        numbers=Table(
            "Clients", ("client", "images", "classes", "rounds taken part", "last loss", "rejected updates"), rows, ()
        ),
        open=len(rows) <= MOST_OPEN,
    )


def partition(run: History) -> Chart:
    start = run.started
    counts = np.array(start.counts)
    held = counts.sum(axis=1)
    if counts.size <= MOST_DOTS and len(start.classes) <= 20:
        figure = drawing.partition_figure(counts, start.classes, start.tasks, title=f"seed {start.seed}")
        how = "A dot's area is the number of images."
    else:
        figure = drawing.heat_map(
            counts.astype(float),
            [start.name_of(client) for client in range(len(counts))],
            start.classes,
            x_label="class",
            y_label="client",
            bar_label="training images",
            top=float(max(1, counts.max())),
            edges=run.edges[1:-1],
            height=drawing.WIDTH - 0.5,
        )
        how = "Darker cells are more images; lines part the tasks."
    per_task = [[int(row[a:b].sum()) for a, b in pairwise(run.edges)] for row in counts]
    return Chart(
        name="partition",
        title="Data partition",
        caption=f"Training images by client and class, seed {start.seed}. {how}",
        alt=f"{len(counts)} clients hold {held.min()} to {held.max()} training images each, {held.sum()} in all",
        figure=figure,
        numbers=Table(
            "Training images per client and task",
            ("client", *(f"task {t + 1}" for t in range(len(start.tasks))), "all"),
            tuple((start.name_of(c), *map(str, row), str(sum(row))) for c, row in enumerate(per_task)),
            (),
        ),
    )


def costs(groups: Sequence[Group]) -> list[Chart]:
    """Bytes and time: per task for one run, per group (a mean over seeds) for several."""
    if single := _single(groups):
        parts = [(f"task {cost.task + 1}", [cost], 1) for cost in single.costs]
        what = "per task"
    else:
        parts = [(g.label, [cost for run in g.runs for cost in run.costs], len(g.runs)) for g in groups]
        what = "per run" + _mean_of_seeds(groups).rstrip(".")
    if not any(costs for _, costs, _ in parts):
        return []

    def mean(value: Callable[[Cost], float]) -> list[float]:
        return [sum(map(value, costs)) / runs for _, costs, runs in parts]

    rows = [row for row, _, _ in parts]
    up, down = mean(lambda cost: cost.bytes_up), mean(lambda cost: cost.bytes_down)
    sent = list(zip(rows, up, down, strict=True))
    unit, scale = byte_unit(max(*up, *down))
    phases = dict.fromkeys(name for _, costs, _ in parts for cost in costs for name in cost.phases)
    spent = {
        name: [sum(cost.phases.get(name, 0.0) for cost in costs) / runs for _, costs, runs in parts] for name in phases
    }
    total = mean(lambda cost: cost.seconds)
    return [
        Chart(
            name="bytes",
            title="Bytes sent",
            caption=f"Weights, and what a method declares besides them, {what}.",
            alt="; ".join(f"{row}: {show_bytes(u)} up, {show_bytes(d)} down" for row, u, d in sent),
            figure=drawing.bars(
                rows,
                {"up, to the server": [n / scale for n in up], "down, to the clients": [n / scale for n in down]},
                x_label=unit,
                stacked=False,
            ),
            numbers=Table("Bytes", ("", "up", "down"), tuple((r, f"{u:,.0f}", f"{d:,.0f}") for r, u, d in sent), ()),
        ),
        Chart(
            name="time",
            title="Time per phase",
            caption=f"Seconds {what}, by what they were spent on.",
            alt="; ".join(f"{row}: {show_seconds(value)}" for row, value in zip(rows, total, strict=True)),
            figure=drawing.bars(rows, {k: v for k, v in spent.items() if any(v)}, x_label="seconds", stacked=True),
            numbers=Table(
                "Seconds",
                ("", *spent, "all"),
                tuple(
                    (row, *(f"{value:.1f}" for value in values))
                    for row, *values in zip(rows, *spent.values(), total, strict=True)
                ),
                (),
            ),
        ),
    ]


# Numbers as people read them.


def byte_unit(largest: float) -> tuple[str, float]:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if largest >= scale:
            return unit, scale
    return "bytes", 1.0


def show_bytes(count: float) -> str:
    unit, scale = byte_unit(count)
    return f"{count / scale:.1f} {unit}" if scale > 1 else f"{count:.0f} bytes"


def show_seconds(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _images(groups: Sequence[Group]) -> str:
    """What accuracies are on: "test images" or "validation images", the same for all groups."""
    return groups[0].runs[0].images


# Curves.


def _accuracy_over_rounds(groups: Sequence[Group], ends: Sequence[float]) -> list[Chart]:
    caption = (
        f"Accuracy on the {_images(groups)} of all classes so far. Points within a task test the averaged weights; the "
        "last point of a task has all that the method does at its end."
    )
    tests = [test for group in groups for run in group.runs for test in run.tests]
    if len({test.after for test in tests}) <= max((test.task for test in tests), default=0) + 1:
        caption += " Tested at the end of each task only: evaluation.every=1 tests after every round."
    name, title = "accuracy-over-rounds", "Accuracy over rounds"
    x_label, y_label = "round", "accuracy (%)"
    run = _single(groups)
    if run is None or len(run.started.tasks) == 1:
        chart = _over(
            groups,
            lambda run: {test.after: test.accuracy for test in run.tests},
            name=name,
            title=title,
            caption=caption,
            x_label=x_label,
            y_label=y_label,
            edges=ends,
        )
        return [chart] if chart else []
    if not run.tests:
        return []
    tasks = len(run.started.tasks)
    columns: dict[str, Values] = {"all classes so far": {test.after: test.accuracy for test in run.tests}}
    if tasks <= MOST_TASK_LINES:
        for i in range(tasks):
            columns[f"task {i + 1}"] = {test.after: test.on_tasks[i] for test in run.tests if test.task >= i}
    else:
        columns["task 1"] = {test.after: test.on_tasks[0] for test in run.tests}
        columns["newest task"] = {test.after: test.on_tasks[-1] for test in run.tests}
    looks = [groups[0].style, *(Style(slot) for slot in range(7) if slot != groups[0].style.slot)]
    lines = [
        Curve(label, look, list(values), list(values.values()))
        for (label, values), look in zip(columns.items(), looks, strict=False)
        if values
    ]
    last = run.tests[-1]
    return [
        Chart(
            name=name,
            title=title,
            caption=f"{caption} Single tasks are class-balanced.",
            alt=f"{run.label}: {last.accuracy:.1f} % on all classes after round {last.after}; "
            + _list((f"task {i + 1}", value) for i, value in enumerate(last.on_tasks)),
            figure=drawing.curves(lines, x_label=x_label, y_label=y_label, edges=ends, x_range=_round_axis(groups)),
            numbers=_points("Accuracy in percent", "round", list(columns), list(columns.values())),
        )
    ]


def _over(
    groups: Sequence[Group],
    values: Callable[[History], Values],
    *,
    name: str,
    title: str,
    caption: str,
    x_label: str,
    y_label: str,
    edges: Sequence[float] = (),
    ticks: Sequence[int] | None = None,
) -> Chart | None:
    """A line per group: the mean over its seeds where all of them have a value, in a band of one deviation."""
    lines, columns, labels = [], [], []
    for group in groups:
        own = [values(run) for run in group.runs]
        shared = [x for x in own[0] if all(x in other for other in own)]
        if not shared:
            continue
        mean = {x: fmean(other[x] for other in own) for x in shared}
        spread = [stdev(other[x] for other in own) for x in shared] if len(own) > 1 else None
        low = high = None
        if spread is not None:
            low = [mean[x] - s for x, s in zip(shared, spread, strict=True)]
            high = [mean[x] + s for x, s in zip(shared, spread, strict=True)]
        lines.append(Curve(group.label, group.style, shared, list(mean.values()), low, high))
        columns.append(mean)
        labels.append(group.label)
    if not lines:
        return None
    ends = _list(((label, list(column.values())[-1]) for label, column in zip(labels, columns, strict=True)), unit="")
    seeds = " Lines are means over seeds, bands one standard deviation." if any(line.low for line in lines) else ""
    return Chart(
        name=name,
        title=title,
        caption=caption + seeds,
        alt=f"{title}, last values: {ends}",
        figure=drawing.curves(
            lines,
            x_label=x_label,
            y_label=y_label,
            edges=edges,
            x_ticks=ticks,
            x_range=_round_axis(groups) if ticks is None else None,
        ),
        numbers=_points(y_label, x_label, labels, columns),
    )


def _points(title: str, x: str, labels: Sequence[str], columns: Sequence[Values]) -> Table:
    places = sorted({place for column in columns for place in column})
    digits = 3 if title == "loss" else 1
    rows = tuple((str(p), *(_figure(column.get(p), digits) for column in columns)) for p in places)
    return Table(title, (x, *labels), rows, ())


def _classes_of(run: History, colour: str) -> Chart:
    names, learned, now = zip(*run.classes, strict=True)
    labels = [run.started.classes.index(name) for name in names]  # not 0, 1, ...: some may not have been tested
    lost = [(was - is_, name) for name, was, is_ in run.classes]
    most, which = max(lost)
    return Chart(
        name="classes",
        title="Accuracy per class",
        caption=f"Accuracy on each class after the task that brought it (hollow), and after task {len(run.tasks)} "
        "(full). Dotted lines part the tasks.",
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
    """(groups, classes): a mean over the seeds that met the class. Seeds may have the classes in another order."""
    table = np.full((len(groups), len(names)), np.nan)
    for g, group in enumerate(groups):
        found = [{row[0]: row[column] for row in run.classes} for run in group.runs]
        for c, name in enumerate(names):
            values = [own[name] for own in found if name in own]
            if values:
                table[g, c] = fmean(float(value) for value in values)
    return table


def _single(groups: Sequence[Group]) -> History | None:
    """The run, if it is the only one."""
    return groups[0].runs[0] if len(groups) == 1 and len(groups[0].runs) == 1 else None


def _figure(value: float | None, digits: int = 1) -> str:
    return "-" if value is None or np.isnan(value) else f"{value:.{digits}f}"


def _list(pairs: Iterable[tuple[str, float]], unit: str = " %") -> str:
    return ", ".join(f"{name} {value:.1f}{unit}" for name, value in pairs)


def _round_axis(groups: Sequence[Group]) -> tuple[float, float]:
    """All charts over rounds have the same axis."""
    return 0.5, max(run.rounds_planned for group in groups for run in group.runs) + 0.5


def _same_rounds(groups: Sequence[Group]) -> bool:
    return len({run.started.rounds for group in groups for run in group.runs}) == 1


def _named(groups: Sequence[Group]) -> list[tuple[Group, str]]:
    """Each group with an ending for its files: none if it is the only one."""
    if len(groups) == 1:
        return [(groups[0], "")]
    words = [re.sub(r"[^a-z0-9.]+", "-", group.label.lower()).strip("-") for group in groups]
    seen = Counter[str]()
    endings = []
    for word in words:
        seen[word] += 1
        endings.append(f"-{word}" if seen[word] == 1 else f"-{word}-{seen[word]}")
    return list(zip(groups, endings, strict=True))


def _title(what: str, group: Group, groups: Sequence[Group]) -> str:
    return what if len(groups) == 1 else f"{what}: {group.label}"


def _seeds(runs: Sequence[History]) -> str:
    return ", ".join(str(run.started.seed) for run in runs)


def _over_seeds(group: Group) -> str:
    return "" if len(group.runs) == 1 else f" Mean over seeds {_seeds(group.runs)}."


def _mean_of_seeds(groups: Sequence[Group]) -> str:
    return ", mean over seeds." if any(len(group.runs) > 1 for group in groups) else "."
