"""The grid behind the defaults of FedCLASS (docs/decisions): temperatures and gradients, on four streams.

    python bench/choose_defaults.py --cifar10 DIR --emnist DIR [--seeds 0,1] [--workers 2]

Runs that are finished are kept in runs/choose-defaults and not repeated; the tables are printed at the end. DIR are
folders with the published files. One run takes two to four minutes on one core.
"""

import argparse
import json
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import torch
from safetensors import safe_open
from safetensors.torch import save

from fedclass.data.batches import as_input, normalise
from fedclass.engines.inprocess import InProcess
from fedclass.experiment.config import load
from fedclass.experiment.runner import run
from fedclass.experiment.setup import Setup, prepare
from fedclass.federation.store import MemoryStore
from fedclass.runs.layout import create, write_atomically
from fedclass.wire import Job, Update, Weights

ROOT = Path("runs/choose-defaults")

COMMON = ["train.participation=0.5", "evaluation.every=4"]

STREAMS = {
    "drawn digits {5,5}": ["train.rounds=14"],
    "drawn digits, five tasks": [
        "stream.tasks=B0-Inc2",
        "memory.per_client=20",
        "train.rounds=10",
        "evaluation.every=0",
    ],
    "EMNIST-47 {17,15,15}": [
        "data.name=emnist-balanced",
        "stream.tasks={17,15,15}",
        "partition.clients=10",
        "memory.per_class=1",
        "train.rounds=10",
        "evaluation.every=0",
    ],
    "CIFAR-10 {4,3,3}": [
        "data.name=cifar10",
        "stream.tasks={4,3,3}",
        "stream.class_order=released",
        "memory.per_client=20",
        "train.rounds=12",
        "evaluation.every=0",
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


CANDIDATES = {
    "FedAvg": ["method.name=fedavg"],
    "student, teacher, mass 3, theta 5, through z": form(3, 5, teacher=3, mass=3, stop=False),  # tuned
    "released": ["method.name=fedclass", "method.variant=released"],
    "student 1, theta 3, z stopped": form(1, 3),  # paper
    "student 1, theta 2, z stopped": form(1, 2),
    "student 1, theta 2, through z": form(1, 2, stop=False),
    "student, teacher 1, theta 1.5, z stopped": form(1, 1.5, teacher=1),
    "student 3, theta 5, z stopped": form(3, 5),
    "student 1, theta 1": form(1, 1),
    "student 3, theta 5, through z": form(3, 5, stop=False),
}


@dataclass(frozen=True)
class Cell:
    stream: str
    candidate: str
    seed: int
    settings: tuple[str, ...]

    @property
    def folder(self) -> Path:
        words = [word.replace(" ", "-").replace(",", "") for word in (self.stream, self.candidate)]
        return ROOT / words[0] / words[1] / str(self.seed)


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
    known = torch.from_numpy(setup.stream.test_targets) < model.classes
    images = normalise(torch.from_numpy(setup.stream.data.test.images)[known], *setup.normalisation)
    scores = torch.cat([model(as_input(part)) for part in images.split(256)]).softmax(dim=1)
    entropy = -(scores * scores.clamp(min=1e-12).log()).sum(dim=1)
    return {"mean_maximum": float(scores.amax(dim=1).mean()), "mean_entropy": float(entropy.mean())}


def carry_out(cell: Cell) -> Cell:
    setup = prepare(load(None, cell.settings, seed=cell.seed))
    for leftover in cell.folder.glob("*"):
        leftover.unlink()
    engine = Watching(setup, ROOT / "first-tasks" / cell.folder.parts[-3] / str(cell.seed))
    run(setup, engine, create(cell.folder))
    (cell.folder / "teacher.json").write_text(json.dumps(engine.sharpness))
    return cell


def table(cells: list[Cell], stream: str) -> str:
    lines = [f"### {stream}", "", "| | global accuracy | forgetting | after each task | teacher's mean maximum |"]
    lines.append("|---|---|---|---|---|")
    for candidate in CANDIDATES:
        done = [c.folder for c in cells if (c.stream, c.candidate) == (stream, candidate) and finished(c)]
        if not done:
            continue
        found = [json.loads((folder / "summary.json").read_text()) for folder in done]
        teachers = [json.loads((folder / "teacher.json").read_text()) for folder in done]
        rows = found[0]["accuracy_matrix"]
        averaged = [
            [mean(f["accuracy_matrix"][t][i] for f in found) for i in range(len(r))] for t, r in enumerate(rows)
        ]
        after = " -> ".join(", ".join(f"{a:.1f}" for a in row) for row in averaged)
        sharp = " -> ".join(f"{mean(t[i]['mean_maximum'] for t in teachers):.2f}" for i in range(len(teachers[0])))
        lines.append(
            f"| {candidate} ({len(done)}) | {mean(f['accuracy_last'] for f in found):.1f} "
            f"| {mean(f['forgetting_fedclass'] for f in found):.1f} | {after} | {sharp} |"
        )
    return "\n".join(lines) + "\n"


def finished(cell: Cell) -> bool:
    return (cell.folder / "teacher.json").exists()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar10", default="", help="folder with CIFAR-10, binary version")
    parser.add_argument("--emnist", default="", help="folder with EMNIST balanced, idx files")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only-tables", action="store_true", help="print what is there, run nothing")
    options = parser.parse_args()
    paths = {"EMNIST-47 {17,15,15}": options.emnist, "CIFAR-10 {4,3,3}": options.cifar10}
    cells = [
        Cell(stream, candidate, int(seed), (f"data.path={paths.get(stream, '')}", *COMMON, *settings, *method))
        for seed in options.seeds.split(",")
        for candidate, method in CANDIDATES.items()
        for stream, settings in STREAMS.items()
    ]
    if not options.only_tables:
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(options.workers, mp_context=spawn) as pool:
            waiting = [pool.submit(carry_out, cell) for cell in cells if not finished(cell)]
            for done in as_completed(waiting):
                print("finished", done.result().folder, flush=True)
    for stream in STREAMS:
        print(table(cells, stream))


if __name__ == "__main__":
    main()
