"""Charts, drawn with matplotlib. Only `report` and, for its fonts, data.synnum import matplotlib."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure  # without pyplot: no window system, no global state
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedclass.report.style import HATCHES, HEAT, HEIGHT, INK, PALETTE, PARTS, WIDTH, Style, plain, styled


@dataclass(frozen=True)
class Curve:
    """low, high: the band around it, such as the spread over seeds."""

    label: str
    style: Style
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


@styled
def curves(
    lines: Sequence[Curve],
    *,
    x_label: str,
    y_label: str,
    edges: Sequence[float] = (),
    x_ticks: Sequence[int] | None = None,
    x_range: tuple[float, float] | None = None,
    x_names: Sequence[str] | None = None,
) -> Figure:
    """Lines over a common axis that starts at zero, with thin vertical lines at `edges`, where a task ends.

    x_names: names of the places 0, 1, ... on the axis, if these are not numbers.
    """
    labels = [line.label for line in lines] if len(lines) > 1 else []
    figure, axes = _canvas(HEIGHT, labels)
    for edge in edges:
        axes.axvline(edge, color=INK, linewidth=0.7, linestyle=(0, (1, 3)))
    for line in lines:
        axes.plot(
            line.x,
            line.y,
            color=line.style.colour,
            linestyle=line.style.dash if labels else "-",
            marker=line.style.marker,
            markevery=max(1, math.ceil(len(line.x) / 16)),
        )
        if line.low is not None and line.high is not None:
            axes.fill_between(line.x, line.low, line.high, color=line.style.colour, alpha=0.18, linewidth=0)
    axes.set(xlabel=x_label, ylabel=y_label)
    if x_names is not None:
        _name_ticks(axes, "x", x_names)
    elif x_ticks is None:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        axes.set_xticks(_thinned(x_ticks, 20))
    if x_range is not None:
        axes.set_xlim(x_range)
    _from_zero(axes)
    _legend(figure, axes.lines[-len(lines) :], labels)
    return figure


@styled
def heat_map(
    values: NDArray[np.float64],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    x_label: str,
    y_label: str,
    bar_label: str,
    top: float = 100.0,
    edges: Sequence[int] = (),
    row_edges: Sequence[int] = (),
    height: float | None = None,
    zeros: bool = True,
) -> Figure:
    """A coloured cell per value, with the number in it if there is room and it is not NaN.

    zeros: whether to write zeros, too.
    """
    figure, axes = _canvas(height or min(6.5, max(1.9, 0.26 * len(rows) + 1.3)))
    image = axes.imshow(
        np.ma.masked_invalid(values), cmap=HEAT, vmin=0, vmax=top, aspect="auto", interpolation="nearest"
    )
    if len(columns) <= 12 and values.size <= 150:
        size, digits = (8, 1) if len(columns) <= 6 else (7, 0)
        for (row, column), value in np.ndenumerate(values):
            if value > 0 or (zeros and value == 0):
                axes.text(column, row, f"{value:.{digits}f}", ha="center", va="center", size=size)
    for edge in edges:
        axes.axvline(edge - 0.5, color=INK, linewidth=0.8 if len(columns) <= 26 else 0.3)
    for edge in row_edges:
        axes.axhline(edge - 0.5, color=INK, linewidth=0.8 if len(rows) <= 26 else 0.3)
    _name_ticks(axes, "x", columns)
    _name_ticks(axes, "y", rows)
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.grid(False)
    axes.spines[:].set_visible(True)
    axes.tick_params(length=0)
    bar = figure.colorbar(image, ax=axes, pad=0.02, fraction=0.05)
    bar.set_label(bar_label)
    bar.outline.set_linewidth(0.6)
    return figure


@styled
def bars(rows: Sequence[str], parts: Mapping[str, Sequence[float]], *, x_label: str, stacked: bool) -> Figure:
    """Horizontal bars, a row each: the parts end to end if `stacked`, otherwise one below the other."""
    thick = 0.7 if stacked else 0.8 / len(parts)
    per_row = 0.3 if stacked else 0.18 * len(parts) + 0.1
    figure, axes = _canvas(min(7.0, max(1.7, per_row * len(rows) + 0.8)), list(parts))
    left, places = np.zeros(len(rows)), np.arange(len(rows), dtype=float)
    for number, values in enumerate(parts.values()):
        where = places if stacked else places + (number - (len(parts) - 1) / 2) * thick
        axes.barh(
            where,
            values,
            thick,
            left=left if stacked else None,
            facecolor=PALETTE[PARTS[number % len(PARTS)]],
            hatch=HATCHES[number % len(HATCHES)],
            edgecolor=INK,
            linewidth=0.5,
        )
        left = left + np.asarray(values, dtype=float)
    _name_ticks(axes, "y", rows)
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.set_xlabel(x_label)
    axes.set_xlim(left=0)
    _legend(figure, [container.patches[0] for container in axes.containers], list(parts))  # type: ignore[attr-defined]
    return figure


@styled
def changes(
    names: Sequence[str],
    before: Sequence[float],
    after: Sequence[float],
    *,
    colour: str,
    edges: Sequence[int],
    y_label: str,
) -> Figure:
    """Two values per name with a line between them: hollow before, filled after."""
    labels = ["when learned", "now"]
    figure, axes = _canvas(HEIGHT, labels)
    places = range(len(names))
    axes.vlines(places, before, after, color=colour, linewidth=2.2 if len(names) <= 40 else 1.1)
    size = 26 if len(names) <= 40 else 9
    was = axes.scatter(places, before, s=size, facecolor="none", edgecolor=INK, linewidth=1, zorder=3)
    now = axes.scatter(places, after, s=size, color=colour, zorder=3)
    for edge in edges:
        axes.axvline(edge - 0.5, color=INK, linewidth=0.7, linestyle=(0, (1, 3)))
    _name_ticks(axes, "x", names)
    axes.grid(False, axis="x")
    axes.set(ylabel=y_label, xlabel="class", ylim=(-3, 103))
    _legend(figure, [was, now], labels)
    return figure


@styled
def scatter(x: Sequence[float], y: Sequence[float], weights: Sequence[float], *, x_label: str, y_label: str) -> Figure:
    """A dot per pair; its area grows with its weight."""
    figure, axes = _canvas(HEIGHT)
    largest = 80 * min(1.0, 40 / len(x)) / (max(weights) or 1)
    axes.scatter(
        x, y, s=[8 + largest * weight for weight in weights], color=PALETTE[0], alpha=0.65, edgecolor=INK, linewidth=0.5
    )
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.set_xlim(0, 1.06 * max(x) or 1.0)  # sites may withhold how many images they have
    _from_zero(axes)
    return figure


@styled
def partition_figure(
    counts: NDArray[np.int64], classes: Sequence[str], task_sizes: Sequence[int], *, title: str
) -> Figure:
    """How many images of each class each client holds: the area of a dot is the count; lines separate the tasks.

    counts: (clients, classes).
    """
    clients = len(counts)
    width, height = max(5.0, 0.32 * len(classes) + 2), max(3.0, min(0.24 * clients + 1.4, 40))
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    client, label = np.nonzero(counts)
    share = counts[client, label] / counts.max()
    task = np.repeat(np.arange(len(task_sizes)), task_sizes)
    colours = [PALETTE[0 if number % 2 == 0 else 6] for number in task[label]]  # neighbours differ
    axes.scatter(label, client, s=170 * share, c=colours, alpha=0.85, linewidth=0)
    for edge in accumulate(task_sizes[:-1]):
        axes.axvline(edge - 0.5, color=INK, linewidth=1)
    starts = list(accumulate(task_sizes, initial=0))
    for number, size in enumerate(task_sizes):
        axes.text(
            starts[number] + (size - 1) / 2,
            1.01,
            f"task {number + 1}",
            ha="center",
            transform=axes.get_xaxis_transform(),
        )
    names = [plain(name) for name in classes]
    axes.set_xticks(range(len(classes)), names, rotation=90 if max(map(len, names)) > 2 else 0)
    axes.set_xlim(-0.7, len(classes) - 0.3)
    axes.set_ylim(clients - 0.4, -0.6)
    if clients <= 60:
        axes.set_yticks(range(clients))
    axes.set_xlabel("class")
    axes.set_ylabel("client")
    figure.suptitle(f"{title}; largest dot: {counts.max()} images")
    return figure


def _canvas(height: float, legend: Sequence[str] = ()) -> tuple[Figure, Axes]:
    """A figure with room for the legend, so that a long one does not squeeze the chart."""
    rows = math.ceil(len(legend) / _columns(legend)) if legend else 0
    figure = Figure(figsize=(WIDTH, height + 0.18 * rows), layout="constrained")
    return figure, figure.add_subplot()


def _from_zero(axes: Axes) -> None:
    """Start the y axis at zero, with room above the highest point, and below the lowest if it is negative."""
    low, high = axes.dataLim.intervaly
    room = 0.06 * (max(high, 0.0) - min(low, 0.0)) or 1.0
    if 0 <= low < room:
        low = 0.0  # half a marker would be cut off
    axes.set_ylim(low - room if low <= 0 else 0.0, high + room)


def _thinned(values: Sequence[int], most: int) -> Sequence[int]:
    return values[:: max(1, math.ceil(len(values) / most))]


def _name_ticks(axes: Axes, side: Literal["x", "y"], names: Sequence[str]) -> None:
    """Names along an axis: smaller if there are many; only some of them if not all fit."""
    shown = range(len(names)) if len(names) <= 26 else _thinned(range(len(names)), 13)
    texts = [plain(names[place]) for place in shown]
    size = 9 if len(texts) <= 12 else 7
    if side == "y":
        axes.set_yticks(shown, texts, size=size)
        return
    upright = sum(map(len, texts)) + len(texts) > 50
    axes.set_xticks(shown, texts, rotation=90 if upright else 0, size=size)


def _legend(figure: Figure, handles: Sequence[Artist], labels: Sequence[str]) -> None:
    """Above the chart, in as many columns as there is room for."""
    if labels:
        names = [plain(label, 56) for label in labels]
        figure.legend(
            handles,
            names,
            loc="outside upper left",
            ncols=_columns(labels),
            handlelength=3.4,
            columnspacing=1.2,
            fontsize=8,
        )


def _columns(labels: Sequence[str]) -> int:
    return max(1, min(len(labels), 66 // (max(map(len, labels)) + 7)))
