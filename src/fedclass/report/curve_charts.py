"""Charts over rounds and tasks: accuracy, forgetting, loss."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev

from fedclass.report import drawing
from fedclass.report.charts import Chart, only_run, rounded, spoken, tested_on
from fedclass.report.class_charts import matrices
from fedclass.report.drawing import Curve
from fedclass.report.groups import Group
from fedclass.report.history import History
from fedclass.report.style import Style
from fedclass.report.tables import Table

MOST_TASK_LINES = 5  # more lines in a chart are hard to tell apart
Values = dict[int, float]  # by round or task


def learning(groups: Sequence[Group]) -> list[Chart]:
    """Accuracy, forgetting and loss, over rounds and over tasks."""
    start = groups[0].runs[0].started
    ends = [start.rounds * task + 0.5 for task in range(1, len(start.tasks))] if _same_rounds(groups) else []
    charts = [
        _accuracy_over_rounds(groups, ends),
        _over(
            groups,
            lambda run: {test.after: test.forgetting for test in run.tests if test.forgetting is not None},
            name="forgetting-over-rounds",
            title="Forgetting over rounds",
            caption="Accuracy on each earlier task when it was learned, minus its accuracy now; the mean over tasks.",
            x_label="round",
            y_label="forgetting (points)",
            edges=ends,
        ),
        _over(
            groups,
            lambda run: {test.task + 1: test.accuracy for test in run.ends if test.accuracy is not None},
            name="accuracy-over-tasks",
            title="Accuracy over tasks",
            caption=f"Accuracy on the {tested_on(groups)} of all classes so far, at the end of each task.",
            x_label="task",
            y_label="accuracy (%)",
            ticks=range(1, len(start.tasks) + 1),
        ),
        _over(
            groups,
            lambda run: {test.task + 1: test.forgetting for test in run.ends if test.forgetting is not None},
            name="forgetting-over-tasks",
            title="Forgetting over tasks",
            caption="Forgetting at the end of each task but the first; forgetting_fedclass is their mean.",
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
    return [*matrices(groups), *shown] if len(groups) == 1 else [*shown, *matrices(groups)]


def _accuracy_over_rounds(groups: Sequence[Group], ends: Sequence[float]) -> Chart | None:
    """A line per group; for a single run, also a line per task."""
    caption = (
        f"Accuracy on the {tested_on(groups)} of all classes so far. Points within a task test the averaged weights; "
        "the last point of a task includes what the method does at the end of the task."
    )
    tests = [test for group in groups for run in group.runs for test in run.tests]
    if len({test.after for test in tests}) <= max((test.task for test in tests), default=0) + 1:
        caption += " Tested at the end of each task only: evaluation.every=1 tests after every round."
    run = only_run(groups)
    if run is not None and len(run.started.tasks) > 1:
        return _accuracy_of_tasks(run, groups, ends, f"{caption} Single tasks are class-balanced.")
    return _over(
        groups,
        lambda run: _known({test.after: test.accuracy for test in run.tests}),
        name="accuracy-over-rounds",
        title="Accuracy over rounds",
        caption=caption,
        x_label="round",
        y_label="accuracy (%)",
        edges=ends,
    )


def _accuracy_of_tasks(run: History, groups: Sequence[Group], ends: Sequence[float], caption: str) -> Chart | None:
    if not run.tests:
        return None
    columns = _task_columns(run)
    looks = [groups[0].style, *(Style(slot) for slot in range(7) if slot != groups[0].style.slot)]
    lines = [
        Curve(label, look, list(values), list(values.values()))
        for (label, values), look in zip(columns.items(), looks, strict=False)
        if values
    ]
    last = run.tests[-1]
    return Chart(
        name="accuracy-over-rounds",
        title="Accuracy over rounds",
        caption=caption,
        alt=f"{run.label}: {rounded(last.accuracy)} % on all classes after round {last.after}; "
        + spoken((f"task {i + 1}", value) for i, value in enumerate(last.on_tasks)),
        figure=drawing.curves(lines, x_label="round", y_label="accuracy (%)", edges=ends, x_range=_round_axis(groups)),
        numbers=_points("Accuracy in percent", "round", list(columns), list(columns.values())),
    )


def _task_columns(run: History) -> dict[str, Values]:
    """Accuracy on all classes and on each task; if there are many tasks, on the first and the newest."""
    columns: dict[str, Values] = {"all classes so far": _known({test.after: test.accuracy for test in run.tests})}
    tasks = len(run.started.tasks)
    if tasks > MOST_TASK_LINES:
        columns["task 1"] = _known({test.after: test.on_tasks[0] for test in run.tests})
        columns["newest task"] = _known({test.after: test.on_tasks[-1] for test in run.tests})
        return columns
    for i in range(tasks):
        columns[f"task {i + 1}"] = _known({test.after: test.on_tasks[i] for test in run.tests if test.task >= i})
    return columns


def _known(values: Mapping[int, float | None]) -> Values:
    return {at: value for at, value in values.items() if value is not None}


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
    """A line per group: the mean over its seeds where all have a value, with a band of one standard deviation."""
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
    ends = spoken(((label, list(column.values())[-1]) for label, column in zip(labels, columns, strict=True)), unit="")
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
    rows = tuple((str(p), *(rounded(column.get(p), digits) for column in columns)) for p in places)
    return Table(title, (x, *labels), rows, ())


def _round_axis(groups: Sequence[Group]) -> tuple[float, float]:
    """The same axis for all charts over rounds."""
    return 0.5, max(run.rounds_planned for group in groups for run in group.runs) + 0.5


def _same_rounds(groups: Sequence[Group]) -> bool:
    return len({run.started.rounds for group in groups for run in group.runs}) == 1
