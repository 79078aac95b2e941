"""What each part of FedEven is worth, and its adjustment in other methods, on validation images, for docs/fedeven.md.

    python bench/ablation.py --emnist DIR [--seeds 0,1,2] [--streams '2;5'] [--parts 'smoothing 1'] [--out DIR]
    python bench/ablation.py --only-tables      # write the tables of docs/fedeven.md from docs/ablation.json

Four reduced protocols of the benchmark, with two, three, five and ten tasks. DIR holds EMNIST's published files. Runs
are kept in --out, and each cell, a run of a minute or two on one core, in docs/ablation.json: neither is made again.
"""

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from cells import chosen, filled, stored
from torch import Tensor

import fedclass
from fedclass.experiment.protocol import find_protocol
from fedclass.losses import balanced_cross_entropy, distillation, log_prior, stored_logits_error
from fedclass.methods.analytic import AT_ONCE, FEWEST, ridge
from fedclass.methods.base import Batch, ClientContext, FedAvg, Method, ServerContext, State
from fedclass.methods.declare import Declaration, Spec
from fedclass.methods.fedclass import FedCLASS
from fedclass.methods.fedclass_tuned import FedCLASSTuned
from fedclass.methods.fedeven import FedEven
from fedclass.methods.fedprox import FedProx
from fedclass.methods.lwf import LwF
from fedclass.methods.wa import FedWA
from fedclass.models.incremental import IncrementalModel
from fedclass.report.statistics import paired
from fedclass.runs.layout import write_atomically
from fedclass.wire import Tensors, Weights

DOCS = Path(__file__).parents[1] / "docs"
DATA, PAGE = DOCS / "ablation.json", DOCS / "fedeven.md"
STREAMS = {
    "2": ("synnum_2task-reduced", "digits, 2 tasks"),
    "3": ("emnist_3task-reduced", "EMNIST-47, 3 tasks"),
    "5": ("digits_5task-reduced", "digits, 5 tasks"),
    "10": ("characters_10task-reduced", "characters, 10 tasks"),
}
FIGURES = {"accuracy": "accuracy_last", "forgetting": "forgetting_fedclass"}
PENALTY = 0.01  # of the re-fitted head, times the mean square of a feature


# Parts that are not settings of FedEven.


@dataclass(frozen=True, kw_only=True)
class NewCounts(LwF):
    """Shares of new images alone; a class of which there are only exemplars counts as one image."""

    def declare(self) -> Declaration:
        return replace(super().declare(), balances=False)

    def loss(self, client: ClientContext, batch: Batch) -> Tensor:
        counts = client.counts.clone()
        counts[: client.old_classes] = 0
        logits = client.model(batch.images)
        loss = balanced_cross_entropy(logits, batch.labels, log_prior(counts, smoothing=1))
        if batch.previous is None:
            return loss
        return loss + self.distillation * distillation(logits, batch.previous, temperature=self.temperature)


@dataclass(frozen=True, kw_only=True)
class StoredLogits(FedEven):
    """DER++'s term in place of a teacher: logits that were stored when an exemplar was chosen."""

    distillation: float = 0.0
    alpha: float = 0.1

    def declare(self) -> Declaration:
        return replace(super().declare(), rows={"logits": Spec(("classes",))})

    def loss(self, client: ClientContext, batch: Batch) -> Tensor:
        loss = super().loss(client, batch)
        if not len((drawn := client.replay(len(batch.labels))).labels):
            return loss
        return loss + self.alpha * stored_logits_error(client.model(drawn.images), drawn.rows["logits"])

    def annotate(self, client: ClientContext, images: Tensor, labels: Tensor) -> Tensors:  # noqa: ARG002
        return {"logits": client.model(images)}


@dataclass(frozen=True, kw_only=True)
class HeadRefit(FedEven):
    """Predicts by a ridge regression for even classes, from sums over the task's images and older exemplars."""

    def declare(self) -> Declaration:
        sums = {
            "gram": Spec(("classes", "features", "features"), torch.float64),
            "sum": Spec(("classes", "features"), torch.float64),
            "count": Spec(("classes",), torch.float64),
        }
        fit = {"fit": Spec(("classes", "features"))}
        return replace(
            super().declare(), task_data=True, server=fit, predicts_with=("fit",), uploads={"end_task": sums}
        )

    @torch.no_grad()
    def report(self, client: ClientContext, exemplars: Batch) -> Tensors:
        classes, width = client.model.classes, client.model.head.in_features
        sums = {
            "gram": torch.zeros(classes, width, width, dtype=torch.float64),
            "sum": torch.zeros(classes, width, dtype=torch.float64),
            "count": torch.zeros(classes, dtype=torch.float64),
        }
        for batch in [*client.task_data(AT_ONCE), exemplars]:
            older = batch is exemplars
            for label in batch.labels.unique().tolist():
                if (older and label >= client.old_classes) or client.counts[label] < FEWEST:
                    continue
                x = client.model.features(batch.images[batch.labels == label]).double().cpu()
                sums["gram"][label] += x.T @ x
                sums["sum"][label] += x.sum(dim=0)
                sums["count"][label] += len(x)
        return sums

    def end_task(self, server: ServerContext, reports: Sequence[Tensors]) -> tuple[Weights, State]:
        total = {name: torch.stack([report[name] for report in reports]).sum(dim=0) for name in reports[0]}
        n = total["count"].clamp(min=1)
        gram, cross = (total["gram"] / n[:, None, None]).sum(dim=0), (total["sum"] / n[:, None]).T
        head = ridge(gram, cross, strength=PENALTY * float(gram.diagonal().mean()))
        return server.weights, {"fit": head.T.float().contiguous()}

    def predict(self, model: IncrementalModel, images: Tensor, state: State) -> Tensor:
        return model.features(images) @ state["fit"].T


@dataclass(frozen=True)
class Part:
    """method: as it is then.  overrides: of the recipe.  streams: where it is measured."""

    method: Method
    overrides: tuple[str, ...] = ()
    streams: tuple[str, ...] = tuple(STREAMS)


WHOLE = "FedEven"
PARTS = {
    WHOLE: Part(FedEven()),
    "no adjustment (LwF)": Part(LwF()),
    "half the adjustment": Part(FedEven(strength=0.5)),
    "smoothing 1": Part(FedEven(smoothing=1)),
    "smoothing 1, exemplars not counted": Part(NewCounts()),
    "no distillation": Part(FedEven(distillation=0)),
    "distillation 2": Part(FedEven(distillation=2)),
    "stored logits in place of a teacher": Part(StoredLogits()),
    "Eq. 9 at one temperature in place of LwF's loss": Part(
        FedCLASS(beta=1, temperature=1, student_temperature=1), ("train.balanced=true",)
    ),
    "balanced quotas of exemplars": Part(FedEven(), ("memory.quota=balanced",), ("2", "5")),  # others count per class
    "head re-fitted for predictions": Part(HeadRefit()),
    "neither (FedAvg)": Part(FedAvg()),
}
SWITCH, SWITCHED_ON = "train.balanced=true", ("5",)
OTHERS = {
    "fedprox": FedProx(),
    "fedclass (paper)": FedCLASS(),
    "fedclass (released)": FedCLASS(variant="released"),
    "fedclass-tuned": FedCLASSTuned(),
    "fedwa": FedWA(),
}
ROWS = (
    PARTS
    | {name: Part(method, streams=SWITCHED_ON) for name, method in OTHERS.items()}
    | {f"{name}, balanced": Part(method, (SWITCH,), SWITCHED_ON) for name, method in OTHERS.items()}
)
PAIRS = {  # rows without and with the switch; the first two are parts of FedEven, bit for bit
    "fedavg": ("neither (FedAvg)", "no distillation"),
    "lwf": ("no adjustment (LwF)", WHOLE),
    **{name: (name, f"{name}, balanced") for name in OTHERS},
}


def measured(stream: str, part: str, seeds: Sequence[int], *, data: Sequence[str], out: Path) -> dict[str, Any]:
    """Accuracy and forgetting on validation images, by cell."""
    recipe, each = STREAMS[stream][0], ROWS[part]
    validation = f"data.validation={find_protocol(recipe).settings.validation}"
    records = fedclass.compare(
        recipe,
        [each.method],
        seeds=seeds,
        overrides=[*data, validation, *each.overrides],
        out=out / recipe / re.sub(r"\W+", "-", part),
    )
    return {
        f"{stream}/{part}/{record['seed']}": {
            figure: round(float(str(record[f"validation_{name}"])), 2) for figure, name in FIGURES.items()
        }
        for record in records
    }


# The tables.


def figures(cells: Mapping[str, Mapping[str, float]], stream: str, part: str, figure: str) -> dict[int, float]:
    """By seed."""
    found = {tuple(key.split("/")): cell[figure] for key, cell in cells.items()}
    return {int(seed): value for (known, named, seed), value in found.items() if (known, named) == (stream, part)}


def table(cells: Mapping[str, Mapping[str, float]]) -> list[str]:
    """A row per part: accuracy / forgetting on each stream, and the paired difference of accuracy over all of them."""
    titles = [title for _, title in STREAMS.values()]
    lines = [f"| | {' | '.join(titles)} | accuracy, less FedEven's |", f"|---|{'---:|' * (len(titles) + 1)}"]
    for part in PARTS:
        shown = [_cell(cells, stream, part) for stream in STREAMS]
        if any(cell != "–" for cell in shown):
            less = "" if part == WHOLE else _difference(cells, part, WHOLE)
            lines.append(f"| {part} | {' | '.join(shown)} | {less} |")
    return lines


def switch_table(cells: Mapping[str, Mapping[str, float]]) -> list[str]:
    """A row per method: without and with the switch, and the paired difference of accuracy."""
    lines = ["| | as it is | balanced | accuracy gained |", "|---|---:|---:|---:|"]
    for name, (off, on) in PAIRS.items():
        shown = [_cell(cells, stream, part) for stream in SWITCHED_ON for part in (off, on)]
        if "–" not in shown:
            lines.append(f"| {name} | {' | '.join(shown)} | {_difference(cells, on, off, SWITCHED_ON)} |")
    return lines


def _cell(cells: Mapping[str, Mapping[str, float]], stream: str, part: str) -> str:
    accuracy, forgetting = (figures(cells, stream, part, figure) for figure in ("accuracy", "forgetting"))
    if not accuracy:
        return "–"
    few = "" if len(accuracy) == 3 else f" ({len(accuracy)})"
    return f"{mean(accuracy.values()):.1f} / {mean(forgetting.values()):.1f}{few}"


def _difference(
    cells: Mapping[str, Mapping[str, float]], part: str, reference: str, streams: Sequence[str] = tuple(STREAMS)
) -> str:
    """Of accuracy: per seed, the mean over the streams that have both rows; then over seeds."""
    both = [{stream: figures(cells, stream, each, "accuracy") for stream in streams} for each in (part, reference)]
    most = max((len(found[stream]) for found in both for stream in streams), default=0)
    common = [stream for stream in streams if all(len(found[stream]) == most for found in both)]  # no seed is missing
    seeds = [seed for seed in range(99) if all(seed in found[stream] for found in both for stream in common)]
    if not common or not seeds:
        return "–"
    gap = paired(*[[mean(found[stream][seed] for stream in common) for seed in seeds] for found in both])
    reach = "" if gap.interval is None else f" ({gap.interval[0]:+.1f} to {gap.interval[1]:+.1f})"
    return f"{gap.mean:+.1f}{reach}"


def page(text: str, cells: Mapping[str, Mapping[str, Any]]) -> str:
    """The page with its tables as the data say."""
    return filled(text, {"ablation": table(cells), "switch": switch_table(cells)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--streams", default="", help="separated by semicolons")
    parser.add_argument("--parts", default="", help="separated by semicolons")
    parser.add_argument("--emnist", default="", help="a folder with the published files")
    parser.add_argument("--out", type=Path, default=Path("runs/ablation"))
    parser.add_argument("--only-tables", action="store_true")
    given = parser.parse_args()
    if given.only_tables:
        write_atomically(PAGE, page(PAGE.read_text(encoding="utf-8"), stored(DATA)))
        return
    seeds = [int(seed) for seed in given.seeds.split(",")]
    for part in chosen(given.parts, list(ROWS), ";"):
        for stream in chosen(given.streams, list(STREAMS), ";"):
            missing = [seed for seed in seeds if f"{stream}/{part}/{seed}" not in stored(DATA)]
            if not missing or stream not in ROWS[part].streams:
                continue
            data = [f"data.path={given.emnist}"] if stream == "3" and given.emnist else []
            found = measured(stream, part, missing, data=data, out=given.out)
            write_atomically(DATA, json.dumps(dict(sorted((stored(DATA) | found).items())), indent=0) + "\n")


if __name__ == "__main__":
    main()
