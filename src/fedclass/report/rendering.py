"""Figures as parts of a page and as files: SVG, PDF, PNG, the same bytes each time."""

import html
import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure  # without pyplot: no window system, no global state
from numpy.typing import NDArray

from fedclass.report.drawing import partition_figure
from fedclass.report.style import INK, PALETTE, RULE, plain

FORMATS = ("svg", "pdf", "png")  # for papers; in the SVG, letters are outlines, which look the same everywhere
UNTOLD = {  # metadata that would differ each time
    "svg": ("Date", "Creator", "Format", "Type"),
    "pdf": ("CreationDate", "Creator", "Producer"),
    "png": ("Software",),
}


@dataclass(frozen=True)
class Wanted:
    """A figure that is to be drawn. name, label: as in `inline_svg`. formats: of its files."""

    figure: Figure
    name: str
    label: str
    formats: Sequence[str] = FORMATS


@dataclass(frozen=True)
class Drawn:
    """inline: the figure as a part of a page.  files: its files, by format."""

    inline: str
    files: dict[str, bytes]


def draw(wanted: Wanted) -> Drawn:
    inline = inline_svg(wanted.figure, wanted.name, label=wanted.label)
    return Drawn(inline, {format: _drawn(wanted.figure, format, fonts="path") for format in wanted.formats})


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


def side_by_side(figures: Sequence[Figure], *, label: str) -> bytes:
    """Several charts as one SVG picture on white. label: what it shows, for screen readers."""
    parts, left, height = list[str](), 0.0, 0.0
    for figure in figures:
        text = _drawn(figure, "svg", fonts="path").decode()
        wide, high = (72 * float(inches) for inches in figure.get_size_inches())
        text = re.sub(
            r'="([\d.]+)pt"', r'="\1"', text[text.index("<svg") :], count=2
        )  # its size, in units of the whole picture
        parts.append(text.replace("<svg ", f'<svg x="{left:g}" ', 1))
        left, height = left + wide, max(height, high)
    size = f'width="{left:g}pt" height="{height:g}pt" viewBox="0 0 {left:g} {height:g}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{html.escape(label)}">'
    sheet = f'<rect width="{left:g}" height="{height:g}" fill="white"/>'
    return "\n".join([head, sheet, *parts, "</svg>", ""]).encode()


def inline_svg(figure: Figure, prefix: str, *, label: str) -> str:
    """For a page: text stays text, ids begin with `prefix`, and colours follow the page's light or dark mode.

    label: what the picture shows, for screen readers.
    """
    text = _drawn(figure, "svg", fonts="none").decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)  # would apply to the whole page
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
    """The same bytes each time: no date, and ids derived from the content."""
    buffer = io.BytesIO()
    settings: dict[Any, Any] = {"svg.hashsalt": "fedclass", "svg.fonttype": fonts, "pdf.fonttype": 42}  # 42: TrueType
    with _quiet(), matplotlib.rc_context(settings):
        layout = figure.get_layout_engine()
        if layout is not None:  # computed once, for all formats: it takes as long as drawing
            layout.execute(figure)
            figure.set_layout_engine(None)  # with any other engine, matplotlib draws everything again before saving
        figure.savefig(
            buffer, format=format, dpi=200, metadata=dict.fromkeys(UNTOLD[format]), transparent=fonts == "none"
        )
    return buffer.getvalue()


@contextmanager
def _quiet() -> Iterator[None]:
    """Names of classes may have letters that the font lacks: a box in a picture needs no warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield
