"""How charts look.

All charts have a width that a phone shows without shrinking the text, and colours that colour-blind readers can tell
apart (Okabe and Ito). Lines also differ in dashes and markers, bars in hatching, so that a grey print is readable.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec

import matplotlib
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure  # without pyplot: no window system, no global state

from fedclass.report.known_methods import about_method

INK, RULE = "#1b1f24", "#c9ced6"
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a7a7a")
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "++++", "oooo")
PARTS = (5, 6, 3, 4, 2, 0, 1)  # colours of bars; the first are not those of common methods
# Transparent to blue: light to dark on a white page, dark to light on a black one. Grey where there is no value.
HEAT = LinearSegmentedColormap.from_list("heat", [(0.13, 0.5, 0.78, 0.0), (0.13, 0.5, 0.78, 0.92)]).with_extremes(
    bad=(0.5, 0.5, 0.5, 0.15)
)
WIDTH, HEIGHT = 4.6, 3.0  # inches; the height is without the legend
LONGEST = 18  # characters of a name beside an axis
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
    """A style for each: a known method has its own; its other variants and unknown methods get free ones, in order.

    usual: which settings are a method's usual ones. The first of these has the method's own style; if there is none,
    the method's first setting has it.
    """
    slots: list[int | None] = [None] * len(methods)
    for number in sorted(range(len(methods)), key=lambda number: not (usual and usual[number])):
        home = about_method(methods[number]).colour
        slots[number] = None if home in slots else home
    left = (slot for slot in (6, 5, 0, 1, 2, 3, 4, *range(7, 7 + len(methods))) if slot not in slots)
    return [Style(next(left) if slot is None else slot) for slot in slots]


def plain(name: str, longest: int = LONGEST) -> str:
    """A name as plain text: a dollar sign does not begin a formula, and a long name is cut in the middle."""
    name = "".join(letter if letter.isprintable() else "?" for letter in name)
    if len(name) > longest:
        name = f"{name[: longest - longest // 3 - 1]}…{name[-(longest // 3) :]}"
    return name.replace("$", r"\$")
