"""One hostile client of four, against each rule of [aggregation], on drawn digits: accuracy in percent, as Markdown.

    python bench/attacks.py [--seeds 0,1,2] [--attacks none,sign-flip] [--rules mean,median] [--set train.rounds=8]

All ten digits come in one task to four clients with uneven shares; the last client is the hostile one. A cell is the
mean over seeds of the accuracy on all test images, with how many rounds were undone; "ended": a round had no usable
update, and so the run. A run takes about a minute on one core. To see that all of it works:
--seeds 0 --attacks none,zero --rules mean,median --set train.rounds=1
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

import torch

from fedclass.engines.inprocess import InProcess
from fedclass.errors import RoundError
from fedclass.experiment.recipe import load
from fedclass.experiment.runner import run
from fedclass.experiment.setup import Setup, prepare
from fedclass.federation.store import MemoryStore
from fedclass.runs.events import RoundFinished, read_events
from fedclass.runs.layout import create
from fedclass.wire import Job, Update

CLIENTS = 4
HOSTILE = CLIENTS - 1
RECIPE = [
    "stream.tasks=10",
    f"partition.clients={CLIENTS}",
    "memory.per_client=0",
    "train.rounds=10",
    "server.participation=1",
    "evaluation.every=0",
]
RULES = {
    "mean": ["aggregation.clip_norm=0"],
    "clipped mean": ["aggregation.clip_norm=2"],
    "trimmed mean": ["aggregation.rule=trimmed-mean"],
    "median": ["aggregation.rule=median"],
    "geometric median": ["aggregation.rule=geometric-median"],
    "multi-krum": ["aggregation.rule=multi-krum"],
}


def moved(factor: float) -> Callable[[Update, Job], Update]:
    """The client's way from the model, times a factor."""

    def change(update: Update, job: Job) -> Update:
        weights = {n: (w + factor * (update.weights[n] - w)).to(w.dtype) for n, w in job.weights.items()}
        return replace(update, weights=weights)

    return change


def zero(update: Update, _: Job) -> Update:
    return replace(update, weights={name: torch.zeros_like(w) for name, w in update.weights.items()}, examples=2**40)


ATTACKS: dict[str, Callable[[Update, Job], Update]] = {
    "none": lambda update, _: update,
    "sign-flip": moved(-1.0),
    "sign-flip x5": moved(-5.0),
    "x10": moved(10.0),
    "labels": lambda update, _: update,  # what it learns from is changed instead
    "claim": lambda update, _: replace(update, examples=2**40),
    "zero": zero,
}


class Attacked(InProcess):
    def __init__(self, setup: Setup, change: Callable[[Update, Job], Update]) -> None:
        super().__init__(setup.client(MemoryStore()))
        self.change = change

    def run(self, jobs: Sequence[Job]) -> Iterator[Update]:
        for job, update in zip(jobs, super().run(jobs), strict=True):
            hostile = job.client == HOSTILE and job.phase == "train"
            yield self.change(update, job) if hostile else update


def with_flipped_labels(setup: Setup) -> Setup:
    """Digit d of the hostile client is called 9 - d."""
    stream, targets = setup.stream, setup.stream.targets.copy()
    own = stream.shares[HOSTILE]
    targets[own] = len(stream.classes) - 1 - targets[own]
    return replace(setup, stream=replace(stream, targets=targets))


@dataclass(frozen=True)
class Outcome:
    accuracy: float | None  # None: the run ended before its time
    undone: int


def attacked(attack: str, rule: str, seed: int, settings: Sequence[str]) -> Outcome:
    setup = prepare(load("demo", [*RECIPE, *RULES[rule], *settings], method="fedavg", seed=seed))
    there = with_flipped_labels(setup) if attack == "labels" else setup
    with tempfile.TemporaryDirectory() as folder:
        directory = create(Path(folder) / "run")
        try:
            summary = run(setup, Attacked(there, ATTACKS[attack]), directory)
        except RoundError:
            return Outcome(None, 0)
        rounds = [event for event in read_events(directory.events) if isinstance(event, RoundFinished)]
    return Outcome(float(summary["accuracy_last"]), sum(event.rolled_back for event in rounds))


def cell(outcomes: Sequence[Outcome]) -> str:
    accuracies = [outcome.accuracy for outcome in outcomes if outcome.accuracy is not None]
    ended, undone = len(outcomes) - len(accuracies), sum(outcome.undone for outcome in outcomes)
    parts = [f"{mean(accuracies):.1f}"] if accuracies else []
    parts += [f"{undone} undone"] if undone else []
    parts += [f"{ended} ended" if accuracies else "ended"] if ended else []
    return ", ".join(parts)


def listed(text: str, known: Sequence[str]) -> list[str]:
    chosen = text.split(",") if text else list(known)
    if unknown := [name for name in chosen if name not in known]:
        raise SystemExit(f"unknown: {unknown[0]!r}; known are {'; '.join(known)}")
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--attacks", default="")
    parser.add_argument("--rules", default="")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    seeds = [int(seed) for seed in given.seeds.split(",")]
    attacks = listed(given.attacks, list(ATTACKS))
    rules = listed(given.rules, list(RULES))
    print(f"| attack | {' | '.join(rules)} |\n|---|{'---|' * len(rules)}", flush=True)
    for attack in attacks:
        cells = [cell([attacked(attack, rule, seed, given.set) for seed in seeds]) for rule in rules]
        print(f"| {attack} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
