"""Charts of clients and costs: images, losses, bytes, time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import pstdev

import numpy as np

from fedclass.report import drawing, style
from fedclass.report.charts import Chart, mean_of_seeds, only_run, rounded
from fedclass.report.groups import Group
from fedclass.report.history import Cost, History
from fedclass.report.tables import Table
from fedclass.report.units import byte_unit, show_bytes, show_seconds
from fedclass.runs.progress import holdings

MOST_DOTS = 1200  # clients x classes; with more, a heat map
MOST_OPEN = 12  # rows of a table that is shown without a click


def clients(run: History) -> Chart | None:
    """Images against loss: a dot per client that took part."""
    part = [(record, record.loss) for record in run.clients if record.loss is not None]
    if not part:
        return None
    rounds, losses = [record.rounds for record in run.clients], [loss for _, loss in part]
    rows = tuple(
        (
            run.started.name_of(record.client),
            *(str(n) for n in (record.images, record.classes, record.rounds)),
            rounded(record.loss, 3),
            rounded(record.accuracy, 1),
            str(record.rejected),
        )
        for record in run.clients
    )
    return Chart(
        name="clients",
        title="Clients",
        caption="Each client's training images over the whole run, and its loss in its last round. Larger dots: "
        "clients that took part in more rounds.",
        alt=f"{len(part)} of {len(run.clients)} clients took part; of {run.rounds_done} rounds, a client saw "
        f"{min(rounds)} to {max(rounds)}; last losses go from {min(losses):.3f} to {max(losses):.3f}",
        figure=drawing.scatter(
            [record.images for record, _ in part],
            losses,
            [record.rounds for record, _ in part],
            x_label="training images",
            y_label="last loss",
        ),
        numbers=Table(
            "Clients",
            ("client", "images", "classes", "rounds taken part", "last loss", "accuracy", "rejected updates"),
            rows,
            (),
        ),
        open=len(rows) <= MOST_OPEN,
    )


def client_accuracy(run: History) -> Chart | None:
    """Images against accuracy: a dot per client whose classes are known and tested."""
    found = [(record, record.accuracy) for record in run.clients if record.accuracy is not None]
    if not found:
        return None
    accuracies = [accuracy for _, accuracy in found]
    worst, lowest = min(found, key=lambda pair: pair[1])
    rows = tuple(
        (run.started.name_of(record.client), str(record.images), str(record.classes), f"{accuracy:.1f}")
        for record, accuracy in sorted(found, key=lambda pair: pair[1])
    )
    return Chart(
        name="client-accuracy",
        title="Accuracy for each client",
        caption=f"Accuracy of the last global model on {run.images}, weighted by the client's own training classes "
        "(accuracy_per_client). Larger dots: clients with more classes.",
        alt=f"From {lowest:.1f} % (client {run.started.name_of(worst.client)}) to {max(accuracies):.1f} %, with a "
        f"deviation of {pstdev(accuracies):.1f} over {len(found)} clients",
        figure=drawing.scatter(
            [record.images for record, _ in found],
            accuracies,
            [record.classes for record, _ in found],
            x_label="training images",
            y_label="accuracy (%)",
        ),
        numbers=Table("Accuracy for each client", ("client", "images", "classes", "accuracy"), rows, ()),
        open=len(rows) <= MOST_OPEN,
    )


def partition(run: History) -> Chart:
    start = run.started
    counts = np.array(start.counts)
    held = counts.sum(axis=1)
    if counts.size <= MOST_DOTS and len(start.classes) <= 20:
        figure = drawing.partition_figure(counts, start.classes, start.tasks, title=f"seed {start.seed}")
        how = "The area of a dot shows the number of images."
    else:
        figure = drawing.heat_map(
            counts.astype(float),
            [start.name_of(client) for client in range(len(counts))],
            start.classes,
            x_label="class",
            y_label="client",
            bar_label="training images",
            top=float(max(1, counts.max())),
            edges=run.edges[1:-1],
            height=style.WIDTH - 0.5,
        )
        how = "Darker cells: more images. Lines separate the tasks."
    per_task = [[int(row[a:b].sum()) for a, b in pairwise(run.edges)] for row in counts]
    return Chart(
        name="partition",
        title="Data partition",
        caption=f"Training images by client and class, seed {start.seed}. {how}",
        alt=holdings(held.tolist()),
        figure=figure,
        numbers=Table(
            "Training images per client and task",
            ("client", *(f"task {t + 1}" for t in range(len(start.tasks))), "all"),
            tuple((start.name_of(c), *map(str, row), str(sum(row))) for c, row in enumerate(per_task)),
            (),
        ),
    )


@dataclass(frozen=True)
class _Spent:
    """A bar of the charts: the costs of some runs, or of one task of a run."""

    label: str
    costs: list[Cost]
    runs: int

    def mean(self, value: Callable[[Cost], float]) -> float:
        """Per run."""
        return sum(map(value, self.costs)) / self.runs


def costs(groups: Sequence[Group]) -> list[Chart]:
    """Bytes and time: per task for one run, per group (a mean over seeds) for several."""
    if single := only_run(groups):
        parts = [_Spent(f"task {cost.task + 1}", [cost], 1) for cost in single.costs]
        what = "per task"
    else:
        parts = [_Spent(g.label, [cost for run in g.runs for cost in run.costs], len(g.runs)) for g in groups]
        what = "per run" + mean_of_seeds(groups).rstrip(".")
    return [_bytes_sent(parts, what), _time_spent(parts, what)] if any(part.costs for part in parts) else []


def _bytes_sent(parts: Sequence[_Spent], what: str) -> Chart:
    rows = [part.label for part in parts]
    up = [part.mean(lambda cost: cost.bytes_up) for part in parts]
    down = [part.mean(lambda cost: cost.bytes_down) for part in parts]
    sent = list(zip(rows, up, down, strict=True))
    unit, scale = byte_unit(max(*up, *down))
    return Chart(
        name="bytes",
        title="Bytes sent",
        caption=f"Weights and everything else that a method sends, {what}.",
        alt="; ".join(f"{row}: {show_bytes(u)} up, {show_bytes(d)} down" for row, u, d in sent),
        figure=drawing.bars(
            rows,
            {"up, to the server": [n / scale for n in up], "down, to the clients": [n / scale for n in down]},
            x_label=unit,
            stacked=False,
        ),
        numbers=Table("Bytes", ("", "up", "down"), tuple((r, f"{u:,.0f}", f"{d:,.0f}") for r, u, d in sent), ()),
    )


def _seconds_on(phase: str, cost: Cost) -> float:
    return cost.phases.get(phase, 0.0)


def _time_spent(parts: Sequence[_Spent], what: str) -> Chart:
    rows = [part.label for part in parts]
    phases = dict.fromkeys(name for part in parts for cost in part.costs for name in cost.phases)
    spent = {name: [part.mean(partial(_seconds_on, name)) for part in parts] for name in phases}
    total = [part.mean(lambda cost: cost.seconds) for part in parts]
    return Chart(
        name="time",
        title="Time per phase",
        caption=f"Seconds {what}, by phase.",
        alt="; ".join(f"{row}: {show_seconds(value)}" for row, value in zip(rows, total, strict=True)),
        figure=drawing.bars(rows, {k: v for k, v in spent.items() if any(v)}, x_label="seconds", stacked=True),
        numbers=Table(
            "Seconds",
            ("", *spent, "all"),
            tuple(
                (row, *(f"{value:.1f}" for value in values))
                for row, *values in zip(rows, *spent.values(), total, strict=True)
            ),
            (),
        ),
    )
