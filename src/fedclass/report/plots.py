"""Pictures. matplotlib is imported here and nowhere else."""

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import matplotlib
import numpy as np
from numpy.typing import NDArray

matplotlib.use("Agg")
from matplotlib import pyplot


def partition_picture(
    counts: NDArray[np.int64], classes: Sequence[str], task_sizes: Sequence[int], path: Path, *, title: str
) -> None:
    """Who holds how many images of which class: a dot's area is the count; lines part the tasks.

    counts: (clients, classes).
    """
    clients = len(counts)
    width, height = max(5.0, 0.32 * len(classes) + 2), max(3.0, min(0.24 * clients + 1.4, 40))
    figure, axes = pyplot.subplots(figsize=(width, height), layout="constrained")
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
    names = [name.replace("$", r"\$") for name in classes]  # no formulas
    axes.set_xticks(range(len(classes)), names, rotation=90 if max(map(len, classes)) > 2 else 0)
    axes.set_xlim(-0.7, len(classes) - 0.3)
    axes.set_ylim(clients - 0.4, -0.6)
    if clients <= 60:
        axes.set_yticks(range(clients))
    axes.set_xlabel("class")
    axes.set_ylabel("client")
    figure.suptitle(f"{title}; largest dot: {counts.max()} images")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
