"""The paper's tables at the paper's scale: runs kept as data, and all that is made of them.

    python bench/reproduction.py keep RUN...    # take finished runs over, as small data, into results/reproduction
    python bench/reproduction.py page           # docs/REPRODUCTION.md, its figures and the recipes' headers, from these

Nothing is trained. `fedclass table` and `fedclass report` read the kept runs, too. Remarks on a recipe's results are
written by hand, into results/reproduction/RECIPE.md, and become part of the page.
"""

import argparse
import hashlib
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import Any

from fedclass.cli.reproduce import changed_keys
from fedclass.errors import FedclassError, RunError
from fedclass.experiment.config import Experiment
from fedclass.experiment.recipe import experiment, load, recipes
from fedclass.report.curve_charts import learning
from fedclass.report.groups import group
from fedclass.report.history import History, read_history
from fedclass.report.html import PICTURED
from fedclass.report.paper import ABLATED, RELEASED, Beside, Part, claimed, names
from fedclass.report.rendering import side_by_side
from fedclass.report.rows import rows, text
from fedclass.report.tables import MeanDeviation, listed, mean_deviation
from fedclass.report.units import show_seconds
from fedclass.runs.config_file import flat, read_config
from fedclass.runs.find import find_runs
from fedclass.runs.kept import Kept, check, keep
from fedclass.runs.layout import RunDirectory
from fedclass.runs.summary import Result

ROOT = Path(__file__).parents[1]
DATA = ROOT / "results" / "reproduction"
OURS_ANYWAY = ("train.rounds=", "train.local_epochs=")  # the paper names none: another choice reduces nothing
MEASURED = re.compile(r"^# Measured:.*\n(?:#   .*\n)*", re.MULTILINE)
DATA_NAMES = {
    "emnist-balanced": "EMNIST-47",
    "cifar10": "CIFAR-10",
    "synnum": "digits of our own drawing",
    "svhn": "SVHN",
}


@dataclass(frozen=True)
class Run:
    """A kept run, the recipe it is nearest to, and the keys in which it differs from that, its method's included."""

    result: Result
    kept: Kept
    experiment: Experiment
    recipe: str
    changed: tuple[str, ...]

    @property
    def ablated(self) -> tuple[str, ...]:
        """Which of the keys that the paper varies have another value than the recipe's."""
        return tuple(key for key in ABLATED.values() if any(word.startswith(f"{key}=") for word in self.changed))

    @property
    def setting(self) -> tuple[str, ...]:
        """Changes that all rows of a table have to share."""
        return tuple(word for word in self.changed if not word.startswith(("method.", *ABLATED.values())))


@dataclass(frozen=True)
class Group:
    """Runs that can share a table: of one recipe, with the same changes to it, if any."""

    recipe: str
    part: Part
    changed: tuple[str, ...]
    runs: tuple[Run, ...]

    @property
    def reduced(self) -> tuple[str, ...]:
        return tuple(word for word in self.changed if not word.startswith(OURS_ANYWAY))

    @property
    def data(self) -> str:
        """What the images are, partial ones by name."""
        first = self.runs[0].result.summary
        name = DATA_NAMES.get(first["dataset"], first["dataset"])
        return f"{name}, partial" if first["official_data"] is False else name

    @cached_property
    def members(self) -> list[Beside]:
        """The rows of the table, in the order of the paper's, then ours."""
        found = self._beside([run for run in self.runs if not run.ablated])
        order = list(self.part.rows)
        return sorted(found, key=lambda member: order.index(member.row) if member.row in order else len(order))

    def ablation(self, part: Part) -> dict[str, dict[str, Beside]]:
        """By method and variant, then by the value of the key; only what was run with several values."""
        assert part.key is not None
        other = {key for key in ABLATED.values() if key != part.key}
        of_method: dict[str, dict[str, list[Run]]] = {}
        for run in self.runs:
            value = flat(run.experiment.to_tables()).get(part.key)
            if value is not None and not other & set(run.ablated):
                about = run.result.summary
                of_method.setdefault(f"{about['method']} ({about['variant']})", {}).setdefault(text(value), []).append(
                    run
                )
        found = {}
        for name, by_value in of_method.items():
            if len(by_value) > 1:
                each = {value: self._beside(runs)[0] for value, runs in by_value.items()}
                found[name] = dict(sorted(each.items(), key=lambda entry: float(entry[0])))
        return found

    def _beside(self, runs: Sequence[Run]) -> list[Beside]:
        by_path = {run.result.path: run for run in runs}
        found = []
        for row in rows([run.result for run in runs]):
            run = by_path[row.runs[0].path]
            variant = getattr(run.experiment.method, "variant", None)
            own = tuple(word for word in run.changed if not word.startswith(tuple(ABLATED.values())))
            claim = claimed(run.experiment.method_name, variant)
            found.append(Beside(row.label, claim, row.runs, own, flat(run.experiment.to_tables())))
        return found

    def histories(self) -> list[History]:
        return [read_history(run.result.path) for run in self.runs if not run.ablated]


# Reading.


def parts() -> dict[str, Part]:
    """The paper's settings, by name."""
    return {name: found[0] for name, found in names().items() if name in recipes()}


def read_runs(folder: Path) -> list[Run]:
    return [_read(check(root), Kept.read(root)) for root in (find_runs(folder) if folder.exists() else [])]


def _read(result: Result, kept: Kept) -> Run:
    ran = experiment(read_config(result.path), where=str(result.path))
    recipe, changed = nearest(ran, result)
    return Run(result, kept, ran, recipe, changed)


def nearest(ran: Experiment, result: Result) -> tuple[str, tuple[str, ...]]:
    """The recipe of the paper that has fewest other values, and these."""
    about = result.summary
    found = [
        name for name, part in parts().items() if (part.dataset, list(part.tasks)) == (about["dataset"], about["tasks"])
    ]
    if not found:
        raise RunError(f"{result.path}: {about['dataset']} in tasks of {about['tasks']} is no setting of the paper")
    variant = getattr(ran.method, "variant", None)
    own = [] if variant is None else [f"method.variant={variant}"]
    changes = {
        name: changed_keys(ran, load(name, own, method=ran.method_name)) for name in (found[0], found[0] + RELEASED)
    }
    return min(changes.items(), key=lambda entry: len(entry[1]))


def grouped(runs: Iterable[Run]) -> list[Group]:
    """By recipe, in the paper's order; those that differ least from it first."""
    found: dict[tuple[str, tuple[str, ...]], list[Run]] = {}
    for run in runs:
        found.setdefault((run.recipe, run.setting), []).append(run)
    known = parts()
    order = [name + ending for name in known for ending in ("", RELEASED)]
    keys = sorted(found, key=lambda key: (order.index(key[0]), len(key[1]), key[1]))
    return [
        Group(recipe, known[recipe.removesuffix(RELEASED)], changed, tuple(found[recipe, changed]))
        for recipe, changed in keys
    ]


# What is made of it.


def measured(recipe: str, groups: Sequence[Group]) -> str:
    """What the header of a recipe promises: the result of the recipe as it is, nothing changed."""
    for group_ in groups:
        own = [run for run in group_.runs if not run.changed and run.experiment.method_name == load(recipe).method_name]
        own = [run for run in own if run.experiment.method == load(recipe).method]
        if group_.recipe == recipe and own:
            results = [run.result for run in own]
            about, seeds = results[0].summary, sorted(result.summary["seed"] for result in results)
            took = show_seconds(mean(result.summary["seconds"] for result in results))
            return (
                f"# Measured: {about['method']} ({about['variant']}) {mean_deviation(results, 'accuracy_last')} % "
                f"global accuracy, {mean_deviation(results, 'forgetting_fedclass')} forgetting, {took} a run\n"
                f"#   ({group_.data}; {listed(seeds)}; {made_by(own)}; docs/REPRODUCTION.md).\n"
            )
    return "# Measured: not run at full scale yet; no result of ours is promised.\n"


def made_by(runs: Sequence[Run]) -> str:
    """Version and commit of the code."""
    found = dict[str, None]()
    for run in runs:
        commit, _, changes = (run.kept.commit or "unknown").partition(" ")
        found[f"fedclass {run.kept.version}, commit {commit[:7]}{' ' if changes else ''}{changes}"] = None
    return " and ".join(found)


def picture(shown: Group) -> bytes:
    """Accuracy and forgetting over rounds, all methods. The last line of it says which data it was made of."""
    charts = [chart for chart in learning(group(shown.histories())) if chart.name in PICTURED]
    drawn = side_by_side([chart.figure for chart in charts], label=". ".join(chart.alt for chart in charts))
    return drawn + f"<!-- data: {stamp(shown)} -->\n".encode()


def stamp(shown: Group) -> str:
    """Known by the events that a figure is made of."""
    events = sorted(run.kept.sha256["events.jsonl"] for run in shown.runs if not run.ablated)
    return hashlib.sha256("".join(events).encode()).hexdigest()


def picture_name(groups: Sequence[Group], shown: Group) -> str:
    """reproduction-emnist_3task.svg, and -2 for other runs of the same recipe."""
    number = [other for other in groups if other.recipe == shown.recipe].index(shown) + 1
    return f"reproduction-{shown.recipe}{'' if number == 1 else f'-{number}'}.svg"


def headers(groups: Sequence[Group]) -> Mapping[Path, str]:
    """The paper's recipes with their headers as the data have them."""
    found: dict[Path, str] = {}
    for name, path in recipes().items():
        if name.removesuffix(RELEASED) not in parts():
            continue
        before, mark, after = path.read_text(encoding="utf-8").partition("# Measured:")
        if not mark:
            raise RunError(f"{path}: its header needs a line that begins with '# Measured:'")
        found[path] = before + measured(name, groups) + MEASURED.sub("", mark + after, count=1)
    return found


def learned(runs: Sequence[Result]) -> MeanDeviation:
    """Accuracy on a task right after it was learned, mean of all tasks but the last: what rounds are chosen by."""
    matrices: list[Any] = [run.summary["accuracy_matrix"] for run in runs]
    return MeanDeviation(tuple(mean(matrix[i][i] for i in range(len(matrix) - 1)) for matrix in matrices))


def learned_printed(part: Part, row: str) -> float:
    """The same of the paper, by its arithmetic: the tasks' accuracies at the end, and what was forgotten of each."""
    figures, earlier = part.rows[row], len(part.tasks) - 1
    last = figures[f"t{earlier + 1}_forgetting"] if earlier > 1 else figures["average_forgetting"]
    return mean(figures[f"t{task}_accuracy"] for task in range(1, earlier + 1)) + last


def take_over(paths: Sequence[Path]) -> None:
    for path in paths:
        for root in find_runs(path):
            if not RunDirectory(root).finished:
                print(f"{root}: not finished, left out", file=sys.stderr)
                continue
            recipe, _ = nearest(experiment(read_config(root), where=str(root)), Result.read(root))
            keep(root, DATA / recipe / root.name)
            print(f"{root} -> {(DATA / recipe / root.name).relative_to(ROOT)}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Keep full-scale runs as data, and make the page of them.")
    commands = parser.add_subparsers(dest="command", required=True)
    taking = commands.add_parser("keep", help="take finished runs over")
    taking.add_argument("runs", nargs="+", type=Path, help="run directories, or folders with runs in them")
    commands.add_parser("page", help="make the page, its figures and the recipes' headers")
    words = parser.parse_args()
    try:
        if words.command == "keep":
            take_over(words.runs)
            return
        from reproduction_page import write

        write(grouped(read_runs(DATA)))
    except FedclassError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
