"""Draws the pictures of docs/concepts.md, and the README's badges: `python docs/pictures.py`.

With a folder of runs, `python docs/pictures.py runs/first`, it draws docs/images/live.svg instead: what
`fedclass compare` showed on a terminal while they were under way, replayed from their events. The runs must
have been trained by that command: what comes from the cache takes no time.
"""

import io
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import matplotlib
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from rich.console import Console

import fedclass
from fedclass.cli import display
from fedclass.cli.display import Live
from fedclass.experiment.launch import prepare
from fedclass.experiment.parallel import images_seen
from fedclass.losses import augmented_log_target
from fedclass.report.rendering import UNTOLD
from fedclass.report.style import INK, PALETTE, SETTINGS
from fedclass.runs.events import Event, TaskReused, parsed
from fedclass.runs.find import find_runs
from fedclass.runs.layout import RunDirectory
from fedclass.runs.outlook import Outlook, TimeLeft

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


def badge(name: str, value: str) -> str:
    """A fact that holds for this copy, so that no service has to be asked."""
    left, right = 7 * len(name) + 12, 7 * len(value) + 12
    words = "".join(
        f'<text x="{x}" y="14" text-anchor="middle">{text}</text>'
        for text, x in ((name, left / 2), (value, left + right / 2))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f'aria-label="{name}: {value}"><rect width="{left + right}" height="20" rx="3" fill="#4051b5"/>'
        f'<path d="M3 0h{left - 3}v20H3a3 3 0 0 1-3-3V3a3 3 0 0 1 3-3z" fill="#555"/>'
        f'<g fill="#fff" font-family="Verdana, DejaVu Sans, sans-serif" font-size="11">{words}</g></svg>\n'
    )


def badges() -> dict[str, str]:
    about = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    python, paper = about["requires-python"].removeprefix(">="), about["urls"]["Paper"].rpartition("/")[2]
    return {
        "badge-python": badge("Python", f"{python} or newer"),
        "badge-license": badge("license", about["license"]),
        "badge-paper": badge("arXiv", paper),
    }


def recorded(run: Path) -> Iterator[tuple[float, Event]]:
    """The events of a run, each with the time at which it was written."""
    path = RunDirectory(run).events
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        yield json.loads(line)["time"], parsed(line, path=path, number=number)


def outlook(run: Path) -> Outlook:
    """What was to be trained when the run began."""
    experiment = fedclass.load(RunDirectory(run).config)
    shared = any(isinstance(event, TaskReused) for _, event in recorded(run))
    return Outlook(images_seen(prepare(experiment)), experiment.train.rounds, shared=shared)


def live(folder: Path, *, share: float = 0.6) -> str:
    """The display as it was after that share of the time from the first event to the last, as SVG."""
    runs = find_runs(folder)
    told = sorted(
        ((*event, number) for number, run in enumerate(runs) for event in recorded(run)), key=lambda entry: entry[0]
    )
    first, last = told[0][0], told[-1][0]
    now = [first]
    display.console = Console(record=True, file=io.StringIO(), width=112, force_terminal=True, markup=False)
    shown = Live([run.name.rpartition("-s")[0] for run in runs])
    shown.progress.get_time = lambda: now[0]  # of the recording, not of the replay
    left = TimeLeft([outlook(run) for run in runs], clock=shown.progress.get_time)
    shown.expect(left)
    for task in shown.progress.tasks:
        task._get_time = shown.progress.get_time
    for time, event, number in told:
        if time <= first + share * (last - first):
            now[0] = time
            left.tell(number, event)
            shown.tell(number, event)
    now[0] = first + share * (last - first)
    display.console.print(shown.progress.get_renderable())
    drawn = display.console.export_svg(title=f"fedclass compare demo, after {now[0] - first:.0f} s")
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)  # would be fetched from elsewhere


def main() -> None:
    if sys.argv[1:]:
        (HERE / "live.svg").write_text(live(Path(sys.argv[1])), encoding="utf-8")
        return
    for name, drawn in badges().items():
        (HERE / f"{name}.svg").write_text(drawn, encoding="utf-8")
    settings = {**SETTINGS, "svg.hashsalt": "fedclass", "svg.fonttype": "path"}
    with matplotlib.rc_context(settings):
        for name, draw in (("equation-5", equation_5), ("stream", stream)):
            draw().savefig(HERE / f"{name}.svg", metadata=dict.fromkeys(UNTOLD["svg"]))


if __name__ == "__main__":
    main()
