"""Pictures. matplotlib is imported here and, for its fonts, in data.synnum.

All charts share a width that a phone shows without shrinking the text, and colours that can be told apart by the
colour-blind (Okabe and Ito). Lines also differ in dashes and markers, bars in hatching, so that a grey print will do.
"""

import html
import io
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, ParamSpec

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure  # without pyplot: no window system, no global state
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedclass.runs.layout import write_atomically

INK, RULE = "#1b1f24", "#c9ced6"
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a7a7a")
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "++++", "oooo")
PARTS = (5, 6, 3, 4, 2, 0, 1)  # colours of bars, so that two or three of them are none of a common method
# Clear to blue, which is light to dark on a white page and dark to light on a black one; grey where there is no value.
HEAT = LinearSegmentedColormap.from_list("heat", [(0.13, 0.5, 0.78, 0.0), (0.13, 0.5, 0.78, 0.92)]).with_extremes(
    bad=(0.5, 0.5, 0.5, 0.15)
)
# The same colour in every report, for the method's default variant if there are several.
HOMES = {"fedavg": 0, "fedclass": 1, "glfc": 2, "fedicarl": 3, "fedwa": 4, "fedclass-tuned": 5, "fedeven": 6}
USUAL = {
    "fedavg": "standard",
    "fedclass": "paper",
    "fedclass-tuned": "standard",
    "glfc": "released",
    "fedicarl": "icarl, nearest mean",
    "fedwa": "wa",
    "scaffold": "standard",
    "derpp": "standard",
    "fedeven": "standard",
    "lga": "standard",
    "fedprox": "standard",
    "lwf": "standard",
    "ewc": "standard",
    "fedgkd": "standard",
    "finetune": "no exemplars",
    "joint": "bound, all images",
}

UNTOLD = {  # what a file would say of itself
    "svg": ("Date", "Creator", "Format", "Type"),
    "pdf": ("CreationDate", "Creator", "Producer"),
    "png": ("Software",),
}

WIDTH, HEIGHT = 4.6, 3.0  # inches; the height is without the legend
LONGEST = 18  # letters of a name beside an axis
SETTINGS: dict[Any, Any] = {
    "font.size": 9,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
P = ParamSpec("P")


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    @wraps(draw)
    def drawn(*words: P.args, **settings: P.kwargs) -> Figure:
        with matplotlib.rc_context(SETTINGS):
            return draw(*words, **settings)

    return drawn


@dataclass(frozen=True)
class Style:
    """How a method looks in every chart of a report."""

    slot: int

    @property
    def colour(self) -> str:
        return PALETTE[self.slot % len(PALETTE)]

    @property
    def dash(self) -> str:
        return DASHES[self.slot % len(DASHES)]

    @property
    def marker(self) -> str:
        return MARKERS[self.slot % len(MARKERS)]


def styles(methods: Sequence[str], usual: Sequence[bool] = ()) -> list[Style]:
    """A style for each: a known method has its own, its further variants and the others take what is left, in order.

    usual: of several settings of a method, the first that is has the method's own style; if none is, the first.
    """
    slots: list[int | None] = [None] * len(methods)
    for number in sorted(range(len(methods)), key=lambda number: not (usual and usual[number])):
        home = HOMES.get(methods[number])
        slots[number] = None if home in slots else home
    left = (slot for slot in (6, 5, 0, 1, 2, 3, 4, *range(7, 7 + len(methods))) if slot not in slots)
    return [Style(next(left) if slot is None else slot) for slot in slots]


@dataclass(frozen=True)
class Curve:
    """low, high: the band around it, such as the spread over seeds."""

    label: str
    style: Style
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


def plain(name: str, longest: int = LONGEST) -> str:
    """A name as it is: a dollar sign does not begin a formula, and a long one keeps its two ends."""
    name = "".join(letter if letter.isprintable() else "?" for letter in name)
    if len(name) > longest:
        name = f"{name[: longest - longest // 3 - 1]}…{name[-(longest // 3) :]}"
    return name.replace("$", r"\$")


@styled
def curves(
    lines: Sequence[Curve],
    *,
    x_label: str,
    y_label: str,
    edges: Sequence[float] = (),
    x_ticks: Sequence[int] | None = None,
    x_range: tuple[float, float] | None = None,
) -> Figure:
    """Lines over a common axis, from zero upwards; thin upright rules at `edges`, where a task ends."""
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
    if x_ticks is None:
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
    """A coloured cell per value, with the number in it as long as that can be read, if it is not NaN.

    zeros: whether they are written too.
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
    """Level bars, a row each: the parts end to end if `stacked`, else one below the other."""
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
    """Two values per name, one stroke between them: hollow before, full after."""
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
    axes.set_xlim(0, 1.06 * max(x) or 1.0)  # sites may keep to themselves how many images they have
    _from_zero(axes)
    return figure


@styled
def partition_figure(
    counts: NDArray[np.int64], classes: Sequence[str], task_sizes: Sequence[int], *, title: str
) -> Figure:
    """Who holds how many images of which class: a dot's area is the count; lines part the tasks.

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


def partition_picture(
    counts: NDArray[np.int64], classes: Sequence[str], task_sizes: Sequence[int], path: Path, *, title: str
) -> None:
    """partition_figure, to a file."""
    with _quiet():
        partition_figure(counts, classes, task_sizes, title=title).savefig(path, dpi=120)


def sheet_picture(sheet: NDArray[np.uint8], classes: Sequence[str], path: Path) -> None:
    """A contact sheet with a named row per class. sheet: (classes * H, columns, C)."""
    rows, columns, channels = sheet.shape
    height = rows // len(classes)
    zoom = 1.5 / 100  # inches per pixel of the sheet
    figure = Figure(figsize=(columns * zoom + 1.5, rows * zoom + 0.2), layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(sheet.squeeze(2) if channels == 1 else sheet, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    axes.set_yticks([height * (row + 0.5) - 0.5 for row in range(len(classes))], [plain(name) for name in classes])
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    with _quiet():
        figure.savefig(path, dpi=150)


def save(figure: Figure, folder: Path, name: str) -> None:
    """For papers: NAME.svg, with letters as outlines that look the same everywhere, NAME.pdf and NAME.png."""
    for format in ("svg", "pdf", "png"):
        write_atomically(folder / f"{name}.{format}", _drawn(figure, format, fonts="path"))


def side_by_side(figures: Sequence[Figure], *, label: str) -> bytes:
    """Several charts as one SVG picture on white. label: what it shows, for those who do not see it."""
    parts, left, height = list[str](), 0.0, 0.0
    for figure in figures:
        text = _drawn(figure, "svg", fonts="path").decode()
        wide, high = (72 * float(inches) for inches in figure.get_size_inches())
        text = re.sub(r'="([\d.]+)pt"', r'="\1"', text[text.index("<svg") :], count=2)  # its size, in the sheet's units
        parts.append(text.replace("<svg ", f'<svg x="{left:g}" ', 1))
        left, height = left + wide, max(height, high)
    size = f'width="{left:g}pt" height="{height:g}pt" viewBox="0 0 {left:g} {height:g}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{html.escape(label)}">'
    sheet = f'<rect width="{left:g}" height="{height:g}" fill="white"/>'
    return "\n".join([head, sheet, *parts, "</svg>", ""]).encode()


def inline_svg(figure: Figure, prefix: str, *, label: str) -> str:
    """For a page: text stays text, ids begin with `prefix`, and ink and colours follow the page's light or dark.

    label: what the picture shows, for those who do not see it.
    """
    text = _drawn(figure, "svg", fonts="none").decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)  # would reach all of the page
    text = re.sub(r"<!--.*?-->\n?", "", text, flags=re.DOTALL)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", text)
    text = text.replace("<svg ", f'<svg role="img" aria-label="{html.escape(label)}" ', 1)
    text = text.replace(INK, "currentColor").replace(RULE, "var(--rule)")
    for number, colour in enumerate(PALETTE):
        text = text.replace(colour, f"var(--c{number})")
    return text


def _drawn(figure: Figure, format: str, *, fonts: str) -> bytes:
    """The same bytes each time: no date, and ids that derive from what is drawn."""
    buffer = io.BytesIO()
    settings: dict[Any, Any] = {"svg.hashsalt": "fedclass", "svg.fonttype": fonts, "pdf.fonttype": 42}  # 42: TrueType
    with _quiet(), matplotlib.rc_context(settings):
        if figure.get_layout_engine() is not None:
            figure.draw_without_rendering()
            figure.set_layout_engine("none")  # found once: it takes as long as drawing, and holds for every format
        figure.savefig(
            buffer, format=format, dpi=200, metadata=dict.fromkeys(UNTOLD[format]), transparent=fonts == "none"
        )
    return buffer.getvalue()


@contextmanager
def _quiet() -> Iterator[None]:
    """Names of classes may have letters that the font has not: a box in a picture is no reason for a warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def _canvas(height: float, legend: Sequence[str] = ()) -> tuple[Figure, Axes]:
    """With room for a legend, so that a long one does not squeeze the chart."""
    rows = math.ceil(len(legend) / _columns(legend)) if legend else 0
    figure = Figure(figsize=(WIDTH, height + 0.18 * rows), layout="constrained")
    return figure, figure.add_subplot()


def _from_zero(axes: Axes) -> None:
    """With some room above the highest point, and below the lowest where that is negative."""
    low, high = axes.dataLim.intervaly
    room = 0.06 * (max(high, 0.0) - min(low, 0.0)) or 1.0
    if 0 <= low < room:
        low = 0.0  # half a marker would be cut off
    axes.set_ylim(low - room if low <= 0 else 0.0, high + room)


def _thinned(values: Sequence[int], most: int) -> Sequence[int]:
    return values[:: max(1, math.ceil(len(values) / most))]


def _name_ticks(axes: Axes, side: Literal["x", "y"], names: Sequence[str]) -> None:
    """Names along an axis: smaller if they are many, and every second or tenth where all would not fit."""
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
