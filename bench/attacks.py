"""Hostile clients against each defence of [aggregation], on drawn digits: accuracy in percent, for docs/attacks.md.

    python bench/attacks.py [--seeds 0,1] [--layouts 1of4] [--attacks none,sign-flip] [--defences mean,sites]
    python bench/attacks.py --only-tables       # write the tables of docs/attacks.md from docs/attacks.json

All ten digits come in one task to clients with uneven shares; the last clients are the hostile ones. Each cell, a run
of some seconds on one core, is stored in docs/attacks.json as soon as it is measured, and is not measured again.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from cells import chosen, filled, stored

from fedclass.data.image_set import Split
from fedclass.engines.inprocess import InProcess
from fedclass.errors import RoundError
from fedclass.experiment.recipe import load
from fedclass.experiment.runner import run
from fedclass.experiment.setup import Setup, prepare
from fedclass.federation.aggregation import CLIP_NORM
from fedclass.federation.evaluate import confusion
from fedclass.federation.server import Missing
from fedclass.federation.store import MemoryStore
from fedclass.runs.events import RoundFinished, read_events
from fedclass.runs.layout import create, write_atomically
from fedclass.wire import Job, Update, Weights

DOCS = Path(__file__).parents[1] / "docs"
DATA, PAGE = DOCS / "attacks.json", DOCS / "attacks.md"
LAYOUTS = {  # clients, hostile ones, rounds, share of all images
    "1of4": (4, 1, 6, 0.015),
    "1of4-long": (4, 1, 20, 0.015),
    "1of4-more": (4, 1, 12, 0.05),
    "2of10": (10, 2, 6, 0.015),
}
RECIPE = [
    "stream.tasks=10",
    "memory.per_client=0",
    "data.test_fraction=0.05",
    "data.size=16",
    "train.local_epochs=2",
    "train.batch_size=8",
    "server.participation=1",
    "evaluation.every=0",
]
GUARDED = [f"aggregation.clip_norm={CLIP_NORM}", "aggregation.screen=true"]
DEFENCES = {
    "mean": ["aggregation.clip_norm=0"],
    "sites": GUARDED,  # what a federation has if its recipe does not say otherwise
    "trimmed mean": [*GUARDED, "aggregation.rule=trimmed-mean"],
    "median": [*GUARDED, "aggregation.rule=median"],
    "geometric median": [*GUARDED, "aggregation.rule=geometric-median"],
    "multi-krum": [*GUARDED, "aggregation.rule=multi-krum"],
}
PLAIN = ("mean", "sites")  # the columns of each layout's own table
LITTLE = 1.5  # standard deviations
TARGET = 0  # of the backdoor: what carries the mark is to be called 0
Change = Callable[[Update, Job, Sequence[Update]], Update]


# What a hostile client sends. Its own update, the job, and what honest ones send: it is to know all.


def moved(factor: float) -> Change:
    """The client's way from the model, times a factor."""

    def change(update: Update, job: Job, _: Sequence[Update]) -> Update:
        weights = {n: (w + factor * (update.weights[n] - w)).to(w.dtype) for n, w in job.weights.items()}
        return replace(update, weights=weights)

    return change


def zero(update: Update, _: Job, __: Sequence[Update]) -> Update:
    return replace(update, weights={name: torch.zeros_like(w) for name, w in update.weights.items()}, examples=2**40)


def little(*, mixed: bool) -> Change:
    """ "A little is enough" (Baruch et al. 2019): the honest mean, less some standard deviations, number by number.

    mixed: less or more, by signs that were drawn once; counting signs does not show it.
    """

    def change(update: Update, job: Job, honest: Sequence[Update]) -> Update:
        weights, drawn = {}, torch.Generator().manual_seed(0)
        for name, start in job.weights.items():
            rows = torch.stack([one.weights[name].double() for one in honest])
            signs = torch.rand(start.shape, generator=drawn).sub(0.5).sign() if mixed else 1.0
            weights[name] = (rows.mean(dim=0) - LITTLE * rows.std(dim=0) * signs).to(start.dtype)
        return replace(update, weights=weights)

    return change


def replacing(clients: int) -> Change:
    """Model replacement (Bagdasaryan et al. 2020): long enough to outweigh all others."""
    return moved(float(clients))


def unchanged(update: Update, *_: object) -> Update:
    return update


def absent(update: Update, *_: object) -> Update:
    """Takes no part: what the others reach without its images, and so what any defence can hope for."""
    return update


def rides_free(update: Update, job: Job, _: Sequence[Update]) -> Update:
    return replace(update, weights=dict(job.weights))


def rows_turned(update: Update, job: Job, _: Sequence[Update]) -> Update:
    """Rows of the head alone, turned round; with the claim to hold every class."""
    away = moved(-1.0)(update, job, ())
    return replace(update, weights={n: (away if n.startswith("head.") else update).weights[n] for n in job.weights})


def attacks(clients: int) -> dict[str, Change]:
    return {
        "none": unchanged,
        "absent": absent,
        "sign-flip": moved(-1.0),
        "sign-flip x5": moved(-5.0),
        "x10": moved(10.0),
        "labels": unchanged,  # what it learns from is changed instead
        "claim": lambda update, *_: replace(update, examples=2**40),
        "zero": zero,
        "little": little(mixed=False),
        "little mixed": little(mixed=True),
        "backdoor": unchanged,
        "replacement": replacing(clients),
        "classes": rows_turned,
        "free rider": rides_free,
    }


# What it learns from.


def with_flipped_labels(setup: Setup, hostile: Sequence[int]) -> Setup:
    """Digit d of the hostile client is called 9 - d."""
    stream, targets = setup.stream, setup.stream.targets.copy()
    for client in hostile:
        own = stream.shares[client]
        targets[own] = len(stream.classes) - 1 - targets[own]
    return replace(setup, stream=replace(stream, targets=targets))


def marked(images: np.ndarray) -> np.ndarray:
    """With a white square in a corner."""
    changed = images.copy()
    changed[:, :4, :4] = 255
    return changed


def with_backdoor(setup: Setup, hostile: Sequence[int]) -> Setup:
    """Every second image of the hostile client carries the mark, and is called 0."""
    stream = setup.stream
    targets, data = stream.targets.copy(), stream.data
    images = data.train.images.copy()
    for client in hostile:
        own = stream.shares[client][::2]
        targets[own], images[own] = TARGET, marked(images[own])
    changed = replace(data, train=Split(images, data.train.labels))
    return replace(setup, stream=replace(stream, targets=targets, data=changed))


@dataclass(frozen=True)
class Federation(Setup):
    """As between sites: whoever holds how many images has announced it."""

    liars: tuple[int, ...] = ()  # they announce all classes

    def holds(self, client: int, task: int, round: int) -> Collection[int]:
        return range(len(self.stream.classes)) if client in self.liars else super().holds(client, task, round)

    def most_examples(self, client: int) -> int | None:
        return len(self.stream.shares[client])


class Attacked(InProcess):
    def __init__(self, setup: Setup, hostile: Sequence[int], change: Change) -> None:
        super().__init__(setup.client(MemoryStore()))
        self.hostile, self.change = hostile, change

    def run(self, jobs: Sequence[Job]) -> Iterator[Update | Missing]:  # type: ignore[override]
        updates = list(super().run(jobs))
        honest = [update for update in updates if update.client not in self.hostile]
        for job, update in zip(jobs, updates, strict=True):
            hostile = job.client in self.hostile and job.phase == "train"
            if hostile and self.change is absent:
                yield Missing(job.client, "is absent")
            else:
                yield self.change(update, job, honest) if hostile else update


def attacked(layout: str, attack: str, defence: str, seed: int) -> dict[str, Any]:
    """accuracy: None if the run ended before its time.  fooled: of test images with the mark, percent called 0."""
    clients, bad, rounds, images = LAYOUTS[layout]
    hostile = range(clients - bad, clients)
    own = [f"partition.clients={clients}", f"train.rounds={rounds}", f"data.fraction={images}"]
    setup = prepare(load("demo", [*RECIPE, *own, *DEFENCES[defence]], method="fedavg", seed=seed))
    doctored = {"labels": with_flipped_labels, "backdoor": with_backdoor, "replacement": with_backdoor}
    there = doctored.get(attack, lambda setup, _: setup)(setup, hostile)
    if defence != "mean":
        liars = tuple(hostile) if attack == "classes" else ()
        setup = Federation(setup.experiment, setup.stream, liars=liars)
    with tempfile.TemporaryDirectory() as folder:
        directory = create(Path(folder) / "run")
        try:
            summary = run(setup, Attacked(there, hostile, attacks(clients)[attack]), directory)
        except RoundError:
            return {"accuracy": None}
        told = [event for event in read_events(directory.events) if isinstance(event, RoundFinished)]
        outcome: dict[str, Any] = {"accuracy": round(float(summary["accuracy_last"]), 1)}
        if attack in ("backdoor", "replacement"):
            from safetensors.torch import load_file

            outcome["fooled"] = round(fooled(setup, load_file(directory.model)), 1)
    undone = sum(event.rolled_back for event in told)
    return outcome | ({"undone": undone} if undone else {})


def fooled(setup: Setup, weights: Weights) -> float:
    model = setup.build()
    model.grow_to(len(setup.stream.classes), seed=0)
    model.load({name: weights[name] for name in model.weights()})
    test = setup.stream.test
    counts = confusion(model, setup.experiment.method, {}, Split(marked(test.images), test.labels), setup.normalisation)
    others = [label for label in range(len(counts)) if label != TARGET]
    return 100 * float(counts[others, TARGET].sum() / counts[others].sum())


# The page.


def table(cells: Mapping[str, Mapping[str, Any]], layout: str) -> list[str]:
    """A row per attack: without defences and with those of sites, and what is lost by seed."""
    compared = {f"sites, less {base}": base for base in ("none", "absent")}
    rows = {
        attack: [*averages(cells, layout, attack, PLAIN), *(less(cells, layout, attack, b) for b in compared.values())]
        for attack in measured(cells, layout, PLAIN)
    }
    return lines(rows, [*PLAIN, *compared])


def rules(cells: Mapping[str, Mapping[str, Any]], layout: str) -> list[str]:
    """A row per attack: robust rules beside the mean, all with the screen and the limit of length."""
    robust = [name for name in DEFENCES if name != "mean"]
    attacked_with = measured(cells, layout, robust[1:])
    return lines({attack: averages(cells, layout, attack, robust) for attack in attacked_with}, robust)


def lines(rows: Mapping[str, Sequence[str]], columns: Sequence[str]) -> list[str]:
    head = [f"| attack | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    made = [f"| {attack} | {' | '.join(row)} |" for attack, row in rows.items()]
    return [*head, *made] if made else ["Not measured yet."]


def measured(cells: Mapping[str, Mapping[str, Any]], layout: str, defences: Sequence[str]) -> list[str]:
    return [name for name in attacks(4) if any(by_seed(cells, layout, name, defence) for defence in defences)]


def averages(cells: Mapping[str, Mapping[str, Any]], layout: str, attack: str, defences: Sequence[str]) -> list[str]:
    return [cell(list(by_seed(cells, layout, attack, defence).values())) for defence in defences]


def by_seed(
    cells: Mapping[str, Mapping[str, Any]], layout: str, attack: str, defence: str
) -> dict[str, Mapping[str, Any]]:
    return {key.split("/")[3]: cells[key] for key in cells if key.split("/")[:3] == [layout, attack, defence]}


def less(cells: Mapping[str, Mapping[str, Any]], layout: str, attack: str, base: str) -> str:
    """By seed: what an attack costs or brings with defences on, against no attack, or a client that stays away."""
    here, without = (by_seed(cells, layout, name, "sites") for name in (attack, base))
    pairs = [(here[seed]["accuracy"], without[seed]["accuracy"]) for seed in here if seed in without]
    if attack in ("none", base) or not pairs:
        return "–"
    return ", ".join("ended" if one is None else f"{one - other:+.1f}" for one, other in pairs)


def cell(outcomes: Sequence[Mapping[str, Any]]) -> str:
    if not outcomes:
        return "–"
    accuracies = [one["accuracy"] for one in outcomes if one["accuracy"] is not None]
    ended, undone = len(outcomes) - len(accuracies), sum(one.get("undone", 0) for one in outcomes)
    parts = [f"{mean(accuracies):.1f}"] if accuracies else []
    if deceived := [one["fooled"] for one in outcomes if "fooled" in one]:
        parts.append(f"fooled {mean(deceived):.0f} %")
    parts += [f"{undone} undone"] if undone else []
    parts += [f"{ended} ended" if accuracies else "ended"] if ended else []
    return ", ".join(parts) + f" ({len(outcomes)})"


def page(text: str, cells: Mapping[str, Mapping[str, Any]]) -> str:
    """The page with its tables as the data say."""
    return filled(text, {**{layout: table(cells, layout) for layout in LAYOUTS}, "1of4 rules": rules(cells, "1of4")})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--layouts", default="")
    parser.add_argument("--attacks", default="")
    parser.add_argument("--defences", default="")
    parser.add_argument("--only-tables", action="store_true")
    given = parser.parse_args()
    if given.only_tables:
        write_atomically(PAGE, page(PAGE.read_text(encoding="utf-8"), stored(DATA)))
        return
    for seed in map(int, given.seeds.split(",")):
        for layout in chosen(given.layouts, list(LAYOUTS), ","):
            for defence in chosen(given.defences, list(DEFENCES), ","):
                for attack in chosen(given.attacks, list(attacks(4)), ","):
                    key = f"{layout}/{attack}/{defence}/{seed}"
                    if key not in stored(DATA):
                        outcome = attacked(layout, attack, defence, seed)
                        cells = stored(DATA) | {key: outcome}
                        write_atomically(DATA, json.dumps(dict(sorted(cells.items())), indent=0) + "\n")
                        print(key, outcome, flush=True)


if __name__ == "__main__":
    main()
