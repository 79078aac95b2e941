"""Results as rows, from summaries alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from fedclass.errors import RunError
from fedclass.runs.results import Result


@dataclass(frozen=True)
class Figure:
    """A mean over seeds, with its standard deviation where there is more than one."""

    values: tuple[float, ...]

    def __str__(self) -> str:
        if not self.values:
            return "-"
        spread = f" ± {stdev(self.values):.1f}" if len(self.values) > 1 else ""
        return f"{mean(self.values):.1f}{spread}"


@dataclass(frozen=True)
class Table:
    """columns, and one row of as many cells per method; `notes` say what the columns mean."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def figure(results: Sequence[Result], key: str) -> str:
    found = (result.summary[key] for result in results)
    return str(Figure(tuple(value for value in found if value is not None)))


def results_table(results: Sequence[Result]) -> Table:
    """Accuracy on each task at the end, global accuracy and forgetting; a row per method, over its seeds."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.label, []).append(result)
    first = results[0].summary
    tasks = first["tasks"]
    for result in results:
        if (result.summary["dataset"], result.summary["tasks"]) != (first["dataset"], tasks):
            raise RunError(f"{result.path}: other data or tasks")
    rows = []
    for label, members in groups.items():
        on_tasks = zip(*(member.summary["accuracy_matrix"][-1] for member in members), strict=True)
        overall = (figure(members, "accuracy_last"), figure(members, "forgetting_fedclass"))
        rows.append((label, *(str(Figure(values)) for values in on_tasks), *overall))
    seeds = sorted({result.summary["seed"] for result in results})
    notes = [
        "All in percent. Tasks: class-balanced accuracy after the last task. Global: accuracy per image, all classes.",
        "Forgetting: accuracy on a task when it was learned minus accuracy later, averaged (forgetting_fedclass).",
    ]
    if not all(result.summary["official_data"] for result in results):
        notes.append(f"UNOFFICIAL DATA: the files of {first['dataset']} do not have the published checksums.")
    sizes = "{" + ",".join(map(str, tasks)) + "}"
    seed_text = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))}: mean ± deviation"
    return Table(
        title=f"{first['dataset']} {sizes}, {seed_text}",
        columns=("method (variant)", *(f"task {i + 1}" for i in range(len(tasks))), "global", "forgetting"),
        rows=tuple(rows),
        notes=tuple(notes),
    )
