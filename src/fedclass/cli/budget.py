"""fedclass sweep --budget: the best of many settings, without running all of them to the end."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

from fedclass.cli.run import said_when_stopped
from fedclass.errors import ConfigError

if TYPE_CHECKING:
    from fedclass.cli.compare import How
    from fedclass.experiment.grid import Choice, Member
    from fedclass.experiment.halving import Rung


@dataclass(frozen=True)
class Candidate:
    """A setting, with a run for each seed."""

    choice: "Choice"
    runs: "Sequence[Member]"


def candidates_of(members: "Sequence[Member]") -> list[Candidate]:
    found: dict[str, list[Member]] = {}
    for member in members:
        found.setdefault(member.choice.name, []).append(member)
    return [Candidate(runs[0].choice, runs) for runs in found.values()]


def check_validation(members: "Sequence[Member]", option: str) -> None:
    if not all(member.experiment.data.validation for member in members):
        raise ConfigError(
            f"{option}: chooses by validation images, of which there are none; add --set data.validation=0.1"
        )


def tasks_of(members: "Sequence[Member]") -> int:
    """How many tasks the stream has, which must be the same in all runs."""
    from fedclass.experiment.setup import prepare

    streams = {(member.experiment.data.name, str(member.experiment.stream.tasks)) for member in members}
    if len(streams) > 1:
        raise ConfigError("--budget: candidates must have the same data and tasks; sweep over something else")
    return len(prepare(members[0].experiment).stream.task_sizes)


def search(members: "Sequence[Member]", root: Path, *, budget: float, how: "How") -> tuple[Candidate, float]:
    """Carry out the rungs, each shown as a table. Returns the winner, finished, and its validation accuracy."""
    from fedclass.cli.compare import carry_out, end
    from fedclass.cli.display import console
    from fedclass.experiment.halving import better_half, parts, rungs

    field, tasks = candidates_of(members), tasks_of(members)
    seeds = [member.experiment.seed for member in field[0].runs]
    steps = rungs(len(field), tasks=tasks, seeds=len(seeds), budget=budget)
    console.print(
        f"budget: {budget:g} full runs, {tasks} tasks each; {len(field)} candidates, {len(steps)} rungs: "
        + ", ".join(f"{rung.candidates} with {rung.tasks} tasks" for rung in steps),
        highlight=False,
    )
    scores = [0.0 for _ in field]
    for number, rung in enumerate(steps):
        if rung.candidates < len(field):
            field = [field[at] for at in sorted(better_half(scores, rung.candidates))]
        learned = parts(rung.tasks, tasks, seeds)
        todo = [(run, learned[run.experiment.seed]) for c in field for run in c.runs if run.experiment.seed in learned]
        with said_when_stopped(root, f"type the same again with --out {shlex.quote(str(root))}"):
            failures = carry_out([run for run, _ in todo], how, until=[until for _, until in todo])
        end([run for run, _ in todo], failures)
        scores = [_score(candidate, learned) for candidate in field]
        following = steps[number + 1].candidates if number + 1 < len(steps) else 1
        _show(field, scores, rung, learned, better_half(scores, following), f"rung {number + 1} of {len(steps)}")
    return field[0], scores[0]


def search_and_show(
    members: "Sequence[Member]", root: Path, *, budget: float, how: "How", save: Path | None, recipe: str | None
) -> None:
    from fedclass.cli.display import console, print_table
    from fedclass.report.tables import results_tables
    from fedclass.runs.summary import Result

    found, score = search(members, root, budget=budget, how=how)
    for each in results_tables([Result.read(run.path) for run in found.runs]):
        print_table(each)
    console.print(f"best: {found.choice.name}, validation accuracy {score:.2f} %", highlight=False)
    if save is not None:
        _save(save, found, score, members, budget=budget, recipe=recipe)
    console.print(f"runs: {root}", highlight=False)


def save_found(members: "Sequence[Member]", path: Path, *, recipe: str | None) -> None:
    """The best of runs that are all finished; of equal ones, the first."""
    found = candidates_of(members)
    scores = [score_of(candidate) for candidate in found]
    best = scores.index(max(scores))
    _save(path, found[best], scores[best], members, budget=0, recipe=recipe)


def _save(
    path: Path, found: Candidate, score: float, members: "Sequence[Member]", *, budget: float, recipe: str | None
) -> None:
    from fedclass.cli.display import console
    from fedclass.experiment.best import Best, save_best

    choices = [candidate.choice for candidate in candidates_of(members)]
    same = [word for word in found.choice.overrides if all(word in choice.overrides for choice in choices)]
    best = Best(
        settings=[word for word in found.choice.overrides if word not in same],
        validation_accuracy=score,
        candidates=len(choices),
        seeds=[run.experiment.seed for run in found.runs],
        budget=budget,
        recipe=recipe or "",
        beside=same,
    )
    method = found.runs[0].experiment.method_name
    save_best(path, method, best)
    console.print(f"{path}: {method} = {', '.join(best.settings)}", highlight=False)


def score_of(candidate: Candidate) -> float:
    """The mean validation accuracy of a candidate that is finished."""
    return _score(candidate, {run.experiment.seed: len(_accuracies(run)) for run in candidate.runs})


def _score(candidate: Candidate, learned: dict[int, int]) -> float:
    """The mean over its seeds of the validation accuracy on all classes so far, after so many tasks of each."""
    runs = [run for run in candidate.runs if run.experiment.seed in learned]
    return mean(_accuracies(run)[learned[run.experiment.seed] - 1] for run in runs)


def _accuracies(run: "Member") -> list[float]:
    """On validation images, after each task."""
    from fedclass.runs.events import TaskFinished, read_events
    from fedclass.runs.layout import RunDirectory

    ends = [event for event in read_events(RunDirectory(run.path).events) if isinstance(event, TaskFinished)]
    return [event.validation_accuracy for event in ends if event.validation_accuracy is not None]


def _show(
    field: Sequence[Candidate],
    scores: Sequence[float],
    rung: "Rung",
    learned: dict[int, int],
    going_on: Sequence[int],
    title: str,
) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from fedclass.cli.display import console

    so_far = ", ".join(f"seed {seed}: {tasks}" for seed, tasks in learned.items())
    console.print(f"\n{title}: tasks learned, {so_far}", highlight=False)
    table = Table(box=SIMPLE_HEAD)
    for column in ("candidate", "validation accuracy", ""):
        table.add_column(column, justify="right" if column.startswith("valid") else "left")
    last = rung.candidates == 1
    for number, (candidate, score) in enumerate(zip(field, scores, strict=True)):
        mark = "best" if last else "goes on" if number in going_on else ""
        table.add_row(candidate.choice.name, f"{score:.2f}", mark)
    console.print(table)
