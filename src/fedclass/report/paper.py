"""The figures of the FedCLASS paper (arXiv 2401.00622), and ours beside them."""

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from statistics import mean, stdev
from typing import Any

from fedclass import metrics
from fedclass.errors import ConfigError
from fedclass.report.formats import csv_text
from fedclass.report.rows import Label
from fedclass.report.tables import Figure, Table, listed, mixed_code, sizes, unofficial
from fedclass.runs.results import Result

ABLATED = {"beta": "method.beta", "memory_per_class": "memory.per_class"}  # the key of a recipe that each one varies
OUR_DIGITS = "The digits are our own drawing, not the paper's data set: the figures cannot be compared one to one."


@dataclass(frozen=True)
class Part:
    """Rows of the paper that share a recipe.

    rows: figures by method, or, where `key` is a recipe's key, by its value, all with `method`.
    notes: doubts about printed figures, by row or row.figure.
    """

    setting: str  # also the recipe's name
    dataset: str
    tasks: tuple[int, ...]
    rows: Mapping[str, Mapping[str, float]]
    notes: Mapping[str, str]
    method: str | None = None
    key: str | None = None

    @property
    def figures(self) -> list[str]:
        return list(next(iter(self.rows.values())))

    def doubt(self, row: str, figure: str) -> str | None:
        return self.notes.get(row) or self.notes.get(f"{row}.{figure}")


@dataclass(frozen=True)
class Beside:
    """A row of the paper, by its name there, and our runs of it.  changed: keys that differ from the paper's recipe."""

    label: Label
    row: str
    runs: tuple[Result, ...]
    changed: tuple[str, ...]


@cache
def _paper() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(
        (resources.files("fedclass.report") / "paper.json").read_text(encoding="utf-8")
    )
    return content


def names() -> dict[str, list[Part]]:
    """What can be reproduced: settings, the tables that gather them, ablations."""
    paper = _paper()
    found = {setting: [_part(setting, rows)] for setting, rows in paper["results"].items()}
    for setting, about in paper["settings"].items():
        found.setdefault(about["table"], []).extend(found[setting])
    ablations = paper["ablations"]
    for name, key in ABLATED.items():
        found[name] = [_part(ablations["setting"], ablations[name], method=ablations["method"], key=key)]
    return found


def _part(setting: str, rows: Mapping[str, Mapping[str, float]], **ablated: str) -> Part:
    paper = _paper()
    about = paper["settings"][setting]
    prefix = f"{setting}."
    notes = {} if ablated else {k.removeprefix(prefix): v for k, v in paper["notes"].items() if k.startswith(prefix)}
    return Part(setting, about["dataset"], tuple(about["tasks"]), rows, notes, **ablated)


def find(name: str) -> list[Part]:
    known = names()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
        raise ConfigError(f"reproduce: the paper has no {name!r}; {hint}")
    return known[name]


def ours(run: Result, figure: str) -> float | None:
    """Our value of a figure by its name in the paper; None where the run has none, having fewer tasks."""
    matrix: list[list[float]] = run.summary["accuracy_matrix"]
    if figure == "global_accuracy":
        return float(run.summary["accuracy_last"])
    if figure == "average_forgetting":
        return run.summary["forgetting_fedclass"]  # type: ignore[no-any-return]
    task = int(figure[1 : figure.index("_")]) - 1  # t2_accuracy, t2_forgetting
    if task >= len(matrix):
        return None
    return matrix[-1][task] if figure.endswith("_accuracy") else metrics.forgetting_after(matrix, task)


def described(figure: str) -> str:
    """t2_forgetting as people say it."""
    task, _, kind = figure.partition("_")
    if task in ("global", "average"):
        return "global" if task == "global" else "forgetting"
    return f"task {task[1:]}" if kind == "accuracy" else f"forgetting after task {task[1:]}"


def beside_table(part: Part, members: Sequence[Beside]) -> Table:
    """A line per figure that the paper prints: its value, ours, the difference."""
    cells, doubts = [], dict[str, None]()
    for member in members:
        for figure in part.figures:
            printed = part.rows.get(member.row, {}).get(figure)
            found = _values(member, figure)
            doubt = part.doubt(member.row, figure) if printed is not None else None
            if doubt:
                doubts[f"† {part.setting}, {member.row}: {doubt}."] = None
            shown = "-" if printed is None else f"{printed:.2f}" + (" †" if doubt else "")
            gap = "-" if printed is None or not found else f"{mean(found) - printed:+.1f}"
            cells.append((str(member.label), described(figure), shown, str(Figure(found)), gap))
    runs = [run for member in members for run in member.runs]
    seeds = sorted({run.summary["seed"] for run in runs})
    reduced = ", reduced" if _reductions(members) else ""
    ran = listed(seeds) if seeds else "no finished runs"
    return Table(
        title=f"{part.setting} {sizes(part.tasks)}: the paper beside ours, {ran}{reduced}",
        columns=("method (variant)", "figure", "paper", "ours", "difference"),
        rows=tuple(cells),
        notes=(
            "Percent; ours: mean ± deviation over seeds; difference: ours minus the paper's.",
            f"The paper does not state: {', '.join(_paper()['common']['not_stated'])}. Ours are chosen.",
            *_changes(members),
            *([OUR_DIGITS] if part.dataset == "synnum" else []),
            *unofficial(runs),
            *mixed_code(runs),
            *doubts,
        ),
    )


def beside_csv(parts: Sequence[tuple[Part, Sequence[Beside]]]) -> str:
    """The same, nothing rounded, with the paper's own names of figures."""
    records = []
    for part, members in parts:
        for member in members:
            for figure in part.figures:
                found = _values(member, figure)
                printed = part.rows.get(member.row, {}).get(figure)
                records.append(
                    {
                        "setting": part.setting,
                        "label": str(member.label),
                        "method": member.label.method,
                        "variant": member.label.variant,
                        "figure": figure,
                        "paper": printed,
                        "ours": mean(found) if found else None,
                        "deviation": stdev(found) if len(found) > 1 else None,
                        "difference": mean(found) - printed if found and printed is not None else None,
                        "seeds": ",".join(str(run.summary["seed"]) for run in member.runs),
                        "official_data": _official(member),
                        "changed": "; ".join(member.changed),
                        "doubt": part.doubt(member.row, figure),
                    }
                )
    return csv_text(records)


def _official(member: Beside) -> bool | None:
    """False if one of the runs was not; None without runs, or on data of the user's own."""
    found = {run.summary["official_data"] for run in member.runs}
    return next((value for value in (False, None, True) if value in found), None)


def _values(member: Beside, figure: str) -> tuple[float, ...]:
    found = (ours(run, figure) for run in member.runs)
    return tuple(value for value in found if value is not None)


def _reductions(members: Sequence[Beside]) -> list[str]:
    """Changes of the setting itself; those of a method's parameters concern its row alone."""
    changes = dict.fromkeys(change for member in members for change in member.changed)
    return [change for change in changes if not change.startswith("method.")]


def _changes(members: Sequence[Beside]) -> list[str]:
    reductions = _reductions(members)
    told = [f"REDUCED, not the paper's setting: {', '.join(reductions)}."] if reductions else []
    for member in members:
        if own := [change for change in member.changed if change not in reductions]:
            told.append(f"{member.label} differs from the recipe: {', '.join(own)}.")
    return told
