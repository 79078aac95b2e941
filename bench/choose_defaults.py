"""The grid behind the defaults of `fedclass`, `fedclass-tuned` and `fedeven` (docs/decisions).

    python bench/choose_defaults.py --cifar10 DIR --emnist DIR [--seeds 0,1] [--workers 2]

Four streams, each with the recipe `demo` as its base and a fifth of the clients' training images held out. In each
group of candidates the one with the highest validation accuracy, as a mean over streams and seeds, is chosen. All
candidates' validation figures are printed, and test figures once: of what was chosen, beside FedAvg.

Runs that are finished are kept in --out and not repeated. DIR are folders with the published files. One run takes two
to four minutes on one core. To see that all of it works: --streams five --candidates FedAvg,mass --set train.rounds=1
"""

import argparse
import hashlib
import json
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save

from fedclass.data.batches import as_input, normalise
from fedclass.engines.inprocess import InProcess
from fedclass.experiment.recipe import load
from fedclass.experiment.runner import run
from fedclass.experiment.setup import Setup, prepare
from fedclass.federation.store import MemoryStore
from fedclass.runs.layout import create, write_atomically
from fedclass.wire import Job, Update, Weights

RECIPE = "demo"
COMMON = ["data.validation=0.2", "server.participation=0.5", "evaluation.every=0"]

STREAMS = {
    "drawn digits {5,5}": ["train.rounds=14"],
    "drawn digits, five tasks": ["stream.tasks=B0-Inc2", "memory.per_client=20", "train.rounds=10"],
    "EMNIST-47 {17,15,15}": [
        "data.name=emnist-balanced",
        "stream.tasks={17,15,15}",
        "partition.clients=10",
        "memory.per_class=1",
        "train.rounds=10",
    ],
    "CIFAR-10 {4,3,3}": [
        "data.name=cifar10",
        "stream.tasks={4,3,3}",
        "stream.class_order=released",
        "memory.per_client=20",
        "train.rounds=12",
    ],
}


def form(
    student: float, theta: float, *, teacher: float | None = None, mass: float | None = None, stop: bool = True
) -> list[str]:
    """Temperatures of the student, of z, and, where they are not theta, of the teacher and of the old mass in z."""
    return [
        "method.name=fedclass",
        "method.variant=paper",
        f"method.student_temperature={student}",
        f"method.temperature={theta}",
        f"method.stop_gradient={str(stop).lower()}",
        *([f"method.teacher_temperature={teacher}"] if teacher else []),
        *([f"method.mass_temperature={mass}"] if mass else []),
    ]


def even(strength: float, kept: float, *, smoothing: float = 0.0) -> list[str]:
    return [
        "method.name=fedeven",
        f"method.strength={strength}",
        f"method.smoothing={smoothing}",
        f"method.distillation={kept}",
    ]


REFERENCE = "FedAvg"
GROUPS = {
    "for reference": {
        REFERENCE: ["method.name=fedavg"],
        "released": ["method.name=fedclass", "method.variant=released"],
    },
    "fedclass: Eq. 5 and 9, student at 1": {
        "theta 2, z stopped": form(1, 2),
        "theta 2, through z": form(1, 2, stop=False),
        "theta 3, z stopped": form(1, 3),
        "theta 3, through z": form(1, 3, stop=False),
    },
    "fedclass-tuned: every temperature by itself": {
        "student, teacher, mass 3, theta 5, through z": form(3, 5, teacher=3, mass=3, stop=False),
        "student, teacher, mass 3, theta 5, z stopped": form(3, 5, teacher=3, mass=3),
        "student, teacher, mass 2, theta 4, through z": form(2, 4, teacher=2, mass=2, stop=False),
    },
    "fedeven: strength, and weight of the distillation": {
        "even 1, kept 0": even(1, 0),
        "even 1, kept 0.5": even(1, 0.5),
        "even 1, kept 1": even(1, 1),
        "even 1, kept 2": even(1, 2),
        "even 0.5, kept 1": even(0.5, 1),
        "even 1, kept 1, smoothing 1": even(1, 1, smoothing=1),
    },
}
FIRST_TASK = ("method.strength", "method.smoothing")  # what a first task depends on, besides the stream
CANDIDATES = {name: settings for group in GROUPS.values() for name, settings in group.items()}


@dataclass(frozen=True)
class Cell:
    """shared: what all candidates on this stream have in common."""

    root: Path
    stream: str
    candidate: str
    seed: int
    shared: tuple[str, ...]

    @property
    def settings(self) -> tuple[str, ...]:
        return (*self.shared, *CANDIDATES[self.candidate])

    @property
    def folder(self) -> Path:
        return self.root / _name(self.stream, self.shared) / _name(self.candidate, self.settings) / str(self.seed)

    @property
    def first_task(self) -> Path:
        """Where candidates find the updates of their first task that others have made: distillation begins later."""
        ours = [word for word in CANDIDATES[self.candidate] if word.startswith(FIRST_TASK)]
        return self.root / "first-tasks" / _name(self.stream, (*self.shared, *ours)) / str(self.seed)

    @property
    def finished(self) -> bool:
        return (self.folder / "teacher.json").exists()

    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        return found

    def teachers(self) -> list[dict[str, float]]:
        found: list[dict[str, float]] = json.loads((self.folder / "teacher.json").read_text())
        return found


def _name(title: str, settings: Sequence[str]) -> str:
    """Of a folder: other settings never meet what these have left."""
    words = title.replace(" ", "-").replace(",", "")
    return f"{words}-{hashlib.sha256(repr((RECIPE, *settings)).encode()).hexdigest()[:8]}"


class Watching(InProcess):
    """In-process, with two additions.

    It looks at each task's teacher: how sharp are its scores on the classes that it knows? And it keeps the updates of
    the first task, which all candidates share to the bit, so that only one of them has to compute these.
    """

    def __init__(self, setup: Setup, shared: Path) -> None:
        super().__init__(setup.client(MemoryStore()))
        self.setup, self.shared, self.sharpness = setup, shared, list[dict[str, float]]()

    def run(self, jobs: Sequence[Job]) -> Iterator[Update]:
        first = jobs[0]
        if first.teacher is not None and first.round == 0:
            self.sharpness.append(sharpness(self.setup, first.teacher))
        if first.task > 0 or first.phase != "train":
            yield from super().run(jobs)
            return
        for job in jobs:
            path = self.shared / f"{job.round}-{job.client}.safetensors"
            if not path.exists():
                update = super().run([job])
                _keep(next(update), path)
            with safe_open(path, "pt") as file:
                weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  it is no mapping
                about = json.loads(file.metadata()["about"])
            yield Update(job.client, job.task, job.round, weights, about["examples"], about["metrics"])


def _keep(update: Update, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    about = json.dumps({"examples": update.examples, "metrics": dict(update.metrics)})
    content = save({name: tensor.contiguous() for name, tensor in update.weights.items()}, {"about": about})
    write_atomically(path.with_name(f"{os.getpid()}-{path.name}"), content)
    path.with_name(f"{os.getpid()}-{path.name}").replace(path)


@torch.no_grad()
def sharpness(setup: Setup, weights: Weights) -> dict[str, float]:
    model = setup.build()
    model.load(weights)
    model.eval()
    held_out = setup.validation
    assert held_out is not None  # every candidate holds out images
    known = torch.from_numpy((held_out.labels >= 0) & (held_out.labels < model.classes))
    images = normalise(torch.from_numpy(held_out.images)[known], *setup.normalisation)
    scores = torch.cat([model(as_input(part)) for part in images.split(256)]).softmax(dim=1)
    entropy = -(scores * scores.clamp(min=1e-12).log()).sum(dim=1)
    return {"mean_maximum": float(scores.amax(dim=1).mean()), "mean_entropy": float(entropy.mean())}


def carry_out(cell: Cell) -> Cell:
    setup = prepare(load(RECIPE, cell.settings, seed=cell.seed))
    for leftover in cell.folder.glob("*"):
        leftover.unlink()
    engine = Watching(setup, cell.first_task)
    run(setup, engine, create(cell.folder))
    (cell.folder / "teacher.json").write_text(json.dumps(engine.sharpness))
    return cell


def validation_table(cells: Sequence[Cell], stream: str) -> str:
    lines = [f"### {stream}: validation images", ""]
    lines.append("| | accuracy | forgetting | after each task | teacher's mean maximum |")
    lines.append("|---|---|---|---|---|")
    for candidate in dict.fromkeys(cell.candidate for cell in cells):
        done = [c for c in cells if (c.stream, c.candidate) == (stream, candidate) and c.finished]
        if not done:
            continue
        found, teachers = [c.summary() for c in done], [c.teachers() for c in done]
        matrices = [f["validation_accuracy_matrix"] for f in found]
        averaged = [[mean(m[t][i] for m in matrices) for i in range(t + 1)] for t in range(len(matrices[0]))]
        after = " -> ".join(", ".join(f"{a:.1f}" for a in row) for row in averaged)
        sharp = " -> ".join(f"{mean(t[i]['mean_maximum'] for t in teachers):.2f}" for i in range(len(teachers[0])))
        accuracy, forgetting = (
            mean(f[f"validation_{key}"] for f in found) for key in ("accuracy_last", "forgetting_fedclass")
        )
        lines.append(f"| {candidate} ({len(done)}) | {accuracy:.1f} | {forgetting:.1f} | {after} | {sharp} |")
    return "\n".join(lines) + "\n"


def choice(cells: Sequence[Cell], group: str) -> str | None:
    """The candidate with the highest validation accuracy over streams and seeds; None until all of them are run."""
    means = {}
    for candidate in GROUPS[group]:
        own = [cell for cell in cells if cell.candidate == candidate]
        if not all(cell.finished for cell in own):
            return None
        if own:
            means[candidate] = mean(cell.summary()["validation_accuracy_last"] for cell in own)
    return max(means, key=means.__getitem__) if means else None


def test_table(cells: Sequence[Cell], chosen: Sequence[str]) -> str:
    streams = list(dict.fromkeys(cell.stream for cell in cells))
    lines = ["### Test images, of what was chosen alone: accuracy / forgetting", ""]
    lines += [f"| | {' | '.join(streams)} |", "|---" * (len(streams) + 1) + "|"]
    for candidate in chosen:
        figures = []
        for stream in streams:
            found = [cell.summary() for cell in cells if (cell.stream, cell.candidate) == (stream, candidate)]
            figures.append(
                " / ".join(f"{mean(f[key] for f in found):.1f}" for key in ("accuracy_last", "forgetting_fedclass"))
            )
        lines.append(f"| {candidate} | {' | '.join(figures)} |")
    return "\n".join(lines) + "\n"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar10", default="", help="folder with CIFAR-10, binary version")
    parser.add_argument("--emnist", default="", help="folder with EMNIST balanced, idx files")
    parser.add_argument("--seeds", default="0", help="with commas between them")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/choose-defaults"))
    parser.add_argument("--streams", default="", help="only those with one of these words, with commas between them")
    parser.add_argument("--candidates", default="", help="likewise")
    parser.add_argument("--set", action="append", default=[], help="a key of the recipe, for all runs; repeatable")
    parser.add_argument("--only-tables", action="store_true", help="print what is there, run nothing")
    return parser.parse_args()


def picked(names: Sequence[str], words: str) -> list[str]:
    return [name for name in names if any(word in name for word in words.split(","))]


def main() -> None:
    options = parse()
    paths = {"EMNIST-47 {17,15,15}": options.emnist, "CIFAR-10 {4,3,3}": options.cifar10}
    streams = picked(list(STREAMS), options.streams)
    cells = [
        Cell(
            options.out,
            stream,
            candidate,
            int(seed),
            (f"data.path={paths.get(stream, '')}", *COMMON, *STREAMS[stream], *options.set),
        )
        for seed in options.seeds.split(",")
        for candidate in picked(list(CANDIDATES), options.candidates)
        for stream in streams
    ]
    if not options.only_tables:
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(options.workers, mp_context=spawn) as pool:
            waiting = [pool.submit(carry_out, cell) for cell in cells if not cell.finished]
            for done in as_completed(waiting):
                print("finished", done.result().folder, flush=True)
    for stream in streams:
        print(validation_table(cells, stream))
    chosen = [REFERENCE] if any(cell.candidate == REFERENCE and cell.finished for cell in cells) else []
    for group in list(GROUPS)[1:]:
        best = choice(cells, group)
        print(f"{group}: {f'chosen by validation accuracy: {best}' if best else 'not all runs are there'}\n")
        chosen += [best] if best else []
    if len(chosen) > 1:
        print(test_table(cells, chosen))


if __name__ == "__main__":
    main()
