"""A chart of a report: a figure with its numbers and a text for screen readers; and texts that charts share."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from fedclass.report.groups import Group
from fedclass.report.history import History
from fedclass.report.tables import Table


@dataclass(frozen=True)
class Chart:
    """name: of its files. alt: what it shows, as text. numbers: the same as a table."""

    name: str
    title: str
    caption: str
    alt: str
    figure: Figure
    numbers: Table
    open: bool = False  # whether the numbers show without a click


def tested_on(groups: Sequence[Group]) -> str:
    """The images behind the accuracies: "test images" or "validation images", the same for all groups."""
    return groups[0].runs[0].images


def only_run(groups: Sequence[Group]) -> History | None:
    """The run, if it is the only one."""
    return groups[0].runs[0] if len(groups) == 1 and len(groups[0].runs) == 1 else None


def rounded(value: float | None, digits: int = 1) -> str:
    return "-" if value is None or np.isnan(value) else f"{value:.{digits}f}"


def spoken(pairs: Iterable[tuple[str, float | None]], unit: str = " %") -> str:
    return ", ".join(f"{name} {rounded(value)}{unit}" for name, value in pairs)


def with_file_names(groups: Sequence[Group]) -> list[tuple[Group, str]]:
    """Each group with a suffix for the names of its files; empty for a single group."""
    if len(groups) == 1:
        return [(groups[0], "")]
    words = [re.sub(r"[^a-z0-9.]+", "-", group.label.lower()).strip("-") for group in groups]
    seen = Counter[str]()
    endings = []
    for word in words:
        seen[word] += 1
        endings.append(f"-{word}" if seen[word] == 1 else f"-{word}-{seen[word]}")
    return list(zip(groups, endings, strict=True))


def titled(what: str, group: Group, groups: Sequence[Group]) -> str:
    return what if len(groups) == 1 else f"{what}: {group.label}"


def seed_list(runs: Sequence[History]) -> str:
    return ", ".join(str(run.started.seed) for run in runs)


def over_seeds(group: Group) -> str:
    return "" if len(group.runs) == 1 else f" Mean over seeds {seed_list(group.runs)}."


def mean_of_seeds(groups: Sequence[Group]) -> str:
    return ", mean over seeds." if any(len(group.runs) > 1 for group in groups) else "."
