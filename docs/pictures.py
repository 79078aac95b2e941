"""Draws the pictures of docs/concepts.md: `python docs/pictures.py`."""

from itertools import accumulate
from pathlib import Path

import matplotlib
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fedclass.losses import augmented_log_target
from fedclass.report.rendering import UNTOLD
from fedclass.report.style import INK, PALETTE, SETTINGS

HERE = Path(__file__).parent / "images"
OLD, NEW = PALETTE[0], PALETTE[1]


def equation_5() -> Figure:
    """One made-up image: the teacher over three old classes, the student over them and two new ones, and z."""
    previous = torch.tensor([[2.2, 1.0, 0.2]])
    current = torch.tensor([[0.6, 0.9, 0.1, 1.5, 0.4]])
    teacher = previous.softmax(1)[0].tolist()
    student = current.softmax(1)[0].tolist()
    z = augmented_log_target(current, previous, temperature=1.0).exp()[0].tolist()
    figure = Figure(figsize=(7.2, 2.6), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    for axes, title, values in zip(panels, ("teacher", "student", "target z"), (teacher, student, z), strict=True):
        _bars(axes, title, values)
    panels[0].set_ylabel("probability")
    panels[2].annotate("shared out as the\nteacher does", (1, z[1]), xytext=(1.0, 0.42), ha="center", size=8, color=OLD)
    panels[2].annotate("as the\nstudent has it", (3.5, z[3]), xytext=(3.5, 0.52), ha="center", size=8, color=NEW)
    return figure


def _bars(axes: Axes, title: str, values: list[float]) -> None:
    colours = [OLD] * 3 + [NEW] * (len(values) - 3)
    for bar in axes.bar(range(len(values)), values, color=colours):
        axes.text(
            bar.get_x() + bar.get_width() / 2, bar.get_height() + 0.015, f"{bar.get_height():.2f}", ha="center", size=8
        )
    axes.set(title=title, xlim=(-0.6, 4.6), ylim=(0, 0.8))
    axes.set_xticks(range(5), ["cat", "dog", "cow", "car", "bus"])
    axes.grid(visible=False, axis="x")


def stream() -> Figure:
    """Three tasks of two rounds: what clients have of each, and when the model is tested."""
    figure = Figure(figsize=(7.2, 2.9), layout="constrained")
    axes = figure.add_subplot()
    names = ("classes 0, 1, 2", "classes 3, 4", "classes 5, 6")
    for task, name in enumerate(names):
        axes.add_patch(Rectangle((task, 2 - task), 0.94, 0.62, facecolor=PALETTE[task], alpha=0.85, linewidth=0))
        axes.text(task + 0.47, 2.31 - task, f"{name}\nall images", ha="center", va="center", color="white", size=8)
        for later in range(task + 1, len(names)):
            axes.add_patch(Rectangle((later, 2 - task), 0.94, 0.24, facecolor=PALETTE[task], alpha=0.35, linewidth=0))
            axes.text(later + 0.47, 2.12 - task, "exemplars", ha="center", va="center", size=8)
        axes.text(task + 0.47, -0.28, f"task {task + 1}: rounds", ha="center", size=8)
    for tasks, known in enumerate(accumulate((3, 2, 2)), start=1):
        axes.axvline(tasks - 0.03, color=INK, linewidth=0.8, linestyle=(0, (1, 3)))
        axes.text(tasks - 0.03, 2.78, f"test on {known} classes", ha="right", size=8)
    axes.set(xlim=(-0.05, 3.05), ylim=(-0.4, 3.0))
    axes.set_axis_off()
    return figure


def main() -> None:
    settings = {**SETTINGS, "svg.hashsalt": "fedclass", "svg.fonttype": "path"}
    with matplotlib.rc_context(settings):
        for name, draw in (("equation-5", equation_5), ("stream", stream)):
            draw().savefig(HERE / f"{name}.svg", metadata=dict.fromkeys(UNTOLD["svg"]))


if __name__ == "__main__":
    main()
