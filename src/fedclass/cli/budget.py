"""Sweeps with a budget: find the best of many settings without finishing every run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

from fedclass.errors import ConfigError

if TYPE_CHECKING:
    from fedclass.experiment.grid import Choice, Member
    from fedclass.experiment.halving import Rung
    from fedclass.studies import Choosing, How, Study


@dataclass(frozen=True)
class Candidate:
    """A setting, with a run for each seed."""

    choice: "Choice"
    runs: "Sequence[Member]"


@dataclass(frozen=True)
class Found:
    """The best candidate and its mean validation accuracy. budget: in full runs; 0: all were run."""

    candidate: Candidate
    score: float
    budget: float = 0


def candidates_of(members: "Sequence[Member]") -> list[Candidate]:
    found: dict[str, list[Member]] = {}
    for member in members:
        found.setdefault(member.choice.name, []).append(member)
    return [Candidate(runs[0].choice, runs) for runs in found.values()]


def check_choosing(
    members: "Sequence[Member]", choosing: "Choosing", *, against: str | None = None, dry_run: bool = False
) -> None:
    """Refuse a sweep whose best candidate could not be chosen, before anything is run."""
    if choosing.budget is not None and not math.isfinite(choosing.budget):
        raise ConfigError(f"budget {choosing.budget}: must be a finite number, of full runs")
    if choosing.budget is not None and (against is not None or dry_run):
        raise ConfigError("budget: which runs are made depends on the results; leave out against and dry run")
    asked = "budget" if choosing.budget is not None else "save" if choosing.save else None
    if asked is not None and not all(member.experiment.data.validation for member in members):
        raise ConfigError(f"{asked}: chooses by validation images, and there are none; set data.validation=0.1")


def tasks_of(members: "Sequence[Member]") -> int:
    """How many tasks the stream has. All runs must have the same tasks."""
    from fedclass.experiment.setup import prepare

    streams = {(member.experiment.data.name, str(member.experiment.stream.tasks)) for member in members}
    if len(streams) > 1:
        raise ConfigError("budget: candidates must have the same data and tasks; sweep over something else")
    return len(prepare(members[0].experiment).stream.task_sizes)


def search(members: "Sequence[Member]", root: Path, *, budget: float, how: "How") -> "Study":
    """Run one rung after the other, each shown as a table. The study returned has the winner and its results."""
    from fedclass.experiment.halving import better_half, parts, rungs
    from fedclass.report.rows import labels
    from fedclass.report.tables import results_tables
    from fedclass.runs.order import Order
    from fedclass.runs.summary import Result
    from fedclass.studies import Study, carry_out, setting

    field, tasks = candidates_of(members), tasks_of(members)
    seeds = [member.experiment.seed for member in field[0].runs]
    steps = rungs(len(field), tasks=tasks, seeds=len(seeds), budget=budget)
    if how.progress:
        _show_plan(steps, budget=budget, tasks=tasks)
    numbers = {member.path: number for number, member in enumerate(members)}
    scores = [0.0 for _ in field]
    for number, rung in enumerate(steps):
        if rung.candidates < len(field):
            field = [field[at] for at in sorted(better_half(scores, rung.candidates))]
        learned = parts(rung.tasks, tasks, seeds)
        todo = [run for candidate in field for run in candidate.runs if run.experiment.seed in learned]
        failures = carry_out(todo, how, root, until=[learned[run.experiment.seed] for run in todo])
        if failures:
            return Study(root, members, failures={numbers[todo[at].path]: error for at, error in failures.items()})
        scores = [_score(candidate, learned) for candidate in field]
        following = steps[number + 1].candidates if number + 1 < len(steps) else 1
        if how.progress:
            title = f"rung {number + 1} of {len(steps)}"
            _show(field, scores, rung, learned, better_half(scores, following), title)
    results = [Result.read(run.path) for run in field[0].runs]
    every = tuple(member.path.name for member in members)
    Order(every, dropped=tuple(name for name in every if root / name not in [r.path for r in results])).write(root)
    label = str(labels(map(setting, members))[setting(field[0].runs[0])])  # with the values that were varied
    tables = [
        replace(each, rows=tuple((label, *figures) for _, *figures in each.rows)) for each in results_tables(results)
    ]
    return Study(root, members, results, tables, found=Found(field[0], scores[0], budget))


def save_found(study: "Study", path: Path, *, recipe: str | None) -> str:
    """Save the best candidate: the one found, or the first of the best if all runs are finished. Returns it as text."""
    from fedclass.experiment.best import Best, save_best

    found, candidates = study.found, candidates_of(study.members)
    if found is None:
        scores = [score_of(candidate) for candidate in candidates]
        best = scores.index(max(scores))
        found = Found(candidates[best], scores[best])
    words = found.candidate.choice.overrides
    same = [word for word in words if all(word in candidate.choice.overrides for candidate in candidates)]
    varied = [word for word in words if word not in same]
    method = found.candidate.runs[0].experiment.method_name
    kept = Best(
        settings=varied,
        validation_accuracy=found.score,
        candidates=len(candidates),
        seeds=[run.experiment.seed for run in found.candidate.runs],
        budget=found.budget,
        recipe=recipe or "",
        beside=same,
    )
    save_best(path, method, kept)
    return f"{method} = {', '.join(varied)}"


def score_of(candidate: Candidate) -> float:
    """The mean validation accuracy of a finished candidate."""
    return _score(candidate, {run.experiment.seed: len(_accuracies(run)) for run in candidate.runs})


def _score(candidate: Candidate, learned: dict[int, int]) -> float:
    """The validation accuracy on all classes so far, averaged over seeds. learned: tasks that count, by seed."""
    runs = [run for run in candidate.runs if run.experiment.seed in learned]
    return mean(_accuracies(run)[learned[run.experiment.seed] - 1] for run in runs)


def _accuracies(run: "Member") -> list[float]:
    """On validation images, after each task."""
    from fedclass.runs.events import TaskFinished, read_events
    from fedclass.runs.layout import RunDirectory

    ends = [event for event in read_events(RunDirectory(run.path).events) if isinstance(event, TaskFinished)]
    return [event.validation_accuracy for event in ends if event.validation_accuracy is not None]


def _show_plan(steps: "Sequence[Rung]", *, budget: float, tasks: int) -> None:
    from fedclass.cli.display import console
    from fedclass.runs.counted import counted

    console.print(
        f"budget: {budget:g} full run{'s' * (budget != 1)}, {counted(tasks, 'task')} each; "
        f"{counted(steps[0].candidates, 'candidate')}, {counted(len(steps), 'rung')}: "
        + ", ".join(f"{rung.candidates} with {counted(rung.tasks, 'task')}" for rung in steps),
        highlight=False,
    )


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
