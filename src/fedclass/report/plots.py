"""Pictures. matplotlib is imported here and, for its fonts, in data.synnum."""

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure  # without pyplot: no window system, no global state
from numpy.typing import NDArray


def _plain(names: Sequence[str]) -> list[str]:
    """Names as they are: a dollar sign does not begin a formula."""
    return [name.replace("$", r"\$") for name in names]


def partition_picture(
    counts: NDArray[np.int64], classes: Sequence[str], task_sizes: Sequence[int], path: Path, *, title: str
) -> None:
    """Who holds how many images of which class: a dot's area is the count; lines part the tasks.

    counts: (clients, classes).
    """
    clients = len(counts)
    width, height = max(5.0, 0.32 * len(classes) + 2), max(3.0, min(0.24 * clients + 1.4, 40))
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    client, label = np.nonzero(counts)
    share = counts[client, label] / counts.max()
    axes.scatter(
        label, client, s=170 * share, c=label, cmap="viridis", vmin=0, vmax=max(len(classes) - 1, 1), alpha=0.85
    )
    for edge in accumulate(task_sizes[:-1]):
        axes.axvline(edge - 0.5, color="black", linewidth=1)
    starts = list(accumulate(task_sizes, initial=0))
    for task, size in enumerate(task_sizes):
        axes.text(
            starts[task] + (size - 1) / 2, 1.01, f"task {task + 1}", ha="center", transform=axes.get_xaxis_transform()
        )
    axes.set_xticks(range(len(classes)), _plain(classes), rotation=90 if max(map(len, classes)) > 2 else 0)
    axes.set_xlim(-0.7, len(classes) - 0.3)
    axes.set_ylim(clients - 0.4, -0.6)
    if clients <= 60:
        axes.set_yticks(range(clients))
    axes.set_xlabel("class")
    axes.set_ylabel("client")
    figure.suptitle(f"{title}; largest dot: {counts.max()} images")
    figure.savefig(path, dpi=120)


def sheet_picture(sheet: NDArray[np.uint8], classes: Sequence[str], path: Path) -> None:
    """A contact sheet with a named row per class. sheet: (classes * H, columns, C)."""
    rows, columns, channels = sheet.shape
    height = rows // len(classes)
    zoom = 1.5 / 100  # inches per pixel of the sheet
    figure = Figure(figsize=(columns * zoom + 1.5, rows * zoom + 0.2), layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(sheet.squeeze(2) if channels == 1 else sheet, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    axes.set_yticks([height * (row + 0.5) - 0.5 for row in range(len(classes))], _plain(classes))
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    figure.savefig(path, dpi=150)
