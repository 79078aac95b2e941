"""Charts of a sweep: accuracy and forgetting by the value of a key."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from fedclass.report import drawing
from fedclass.report.charts import Chart, rounded, tested_on
from fedclass.report.drawing import Curve
from fedclass.report.groups import Group, differing
from fedclass.report.history import History
from fedclass.report.rows import text
from fedclass.report.style import Style
from fedclass.report.tables import Table
from fedclass.runs.config_file import flat

FEWEST = 3  # values that make a line worth drawing


def sweeps(groups: Sequence[Group]) -> list[Chart]:
    """For each key with several values: accuracy and forgetting at the end against the value.

    Only for finished runs of one method. Runs that also differ in other keys are on different lines.
    """
    done = [group for group in groups if group.finished]
    if len({group.method for group in done}) != 1:
        return []
    settings = [flat(group.runs[0].config) for group in done]
    keys = [key for key in differing([group.runs[0] for group in done]) if all(key in own for own in settings)]
    charts = []
    for key in keys:
        if len({str(own[key]) for own in settings}) >= FEWEST:
            charts += _against(key, done, settings, [other for other in keys if other != key])
    return charts


def _against(
    key: str, groups: Sequence[Group], settings: Sequence[Mapping[str, Any]], others: Sequence[str]
) -> list[Chart]:
    values = sorted((own[key] for own in settings), key=_order)
    shown = list(dict.fromkeys(map(text, values)))
    lines: dict[str, dict[str, Group]] = {}
    for group, own in zip(groups, settings, strict=True):
        label = ", ".join(f"{other.removeprefix('method.')}={text(own[other])}" for other in others) or group.method
        lines.setdefault(label, {})[text(own[key])] = group
    word = key.removeprefix("method.")
    return [
        _chart(
            lines,
            shown,
            lambda run: run.ends[-1].accuracy,
            name=f"accuracy-against-{word}",
            title=f"Accuracy against {word}",
            caption=f"Accuracy on the {tested_on(groups)} of all classes after the last task.",
            x_label=key,
            y_label="accuracy (%)",
        ),
        _chart(
            lines,
            shown,
            lambda run: run.ends[-1].forgetting,
            name=f"forgetting-against-{word}",
            title=f"Forgetting against {word}",
            caption="Accuracy on each earlier task when it was learned, minus accuracy after the last task; the mean.",
            x_label=key,
            y_label="forgetting (points)",
        ),
    ]


def _order(value: Any) -> tuple[bool, float, str]:
    """Numbers by size, then all else as text."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return not number, float(value) if number else 0.0, str(value)


def _chart(
    lines: Mapping[str, Mapping[str, Group]],
    values: Sequence[str],
    figure_of: Callable[[History], float | None],
    *,
    name: str,
    title: str,
    caption: str,
    x_label: str,
    y_label: str,
) -> Chart:
    """Values are equally spaced, whatever they are: the steps of a sweep are often powers."""
    curves, columns = [], []
    for slot, (label, own) in enumerate(lines.items()):
        x, y, spread = list[float](), list[float](), list[float]()
        for place, value in enumerate(values):
            found = [figure_of(run) for run in own[value].runs] if value in own else []
            figures = [figure for figure in found if figure is not None]
            if figures:
                x.append(place)
                y.append(fmean(figures))
                spread.append(stdev(figures) if len(figures) > 1 else 0.0)
        low = [mean - s for mean, s in zip(y, spread, strict=True)] if any(spread) else None
        high = [mean + s for mean, s in zip(y, spread, strict=True)] if any(spread) else None
        look = next(iter(own.values())).style if len(lines) == 1 else Style(slot)
        curves.append(Curve(label, look, x, y, low, high))
        columns.append(dict(zip(x, y, strict=True)))
    rows = tuple((value, *(rounded(column.get(place)) for column in columns)) for place, value in enumerate(values))
    bands = " Points are means over seeds, bands one standard deviation." if any(line.low for line in curves) else ""
    best = ", ".join(f"{row[0]}: {' and '.join(row[1:])}" for row in rows)
    return Chart(
        name=name,
        title=title,
        caption=caption + bands,
        alt=f"{y_label} by {x_label}: {best}",
        figure=drawing.curves(curves, x_label=x_label, y_label=y_label, x_names=values),
        numbers=Table(y_label, (x_label, *lines), rows, ()),
    )
