"""The figures of the FedCLASS paper (arXiv 2401.00622), and ours beside them."""

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
from fedclass.report.rows import Label, text
from fedclass.report.tables import MeanDeviation, Table, listed, mixed_code, one_order, sizes, unofficial
from fedclass.runs.summary import Result
from fedclass.schema import did_you_mean

ABLATED = {"beta": "method.beta", "memory_per_class": "memory.per_class"}  # the key that each ablation varies
RELEASED = "_released"  # ends the names of recipes that follow the authors' released code
# The row of the paper for each method and variant. FedICARL and FedWA in the authors' code are not iCaRL and WA; the
# paper's rows were presumably made with that code.
CLAIMS = {
    ("fedavg", "standard"): "fedavg",
    ("glfc", "released"): "glfc",
    ("fedicarl", "released"): "fedicarl",
    ("fedwa", "released"): "fedwa",
    ("fedclass", "paper"): "fedclass",
    ("fedclass", "paper-literal"): "fedclass",
    ("fedclass", "released"): "fedclass",
}
# How each differs from what the paper says.
DIFFERS = {
    ("fedavg", "standard"): "it replays exemplars, as the paper's row with beta = 0 implies",
    ("glfc", "released"): "the loss of GLFC's clients alone, at the paper's learning rate",
    ("fedicarl", "released"): "what the authors' code computes, which is not iCaRL: no herding, no nearest mean",
    ("fedwa", "released"): "what the authors' code computes, which is not WA: no weights are aligned",
    (
        "fedclass",
        "paper",
    ): "Eq. 5 and 9; theta = {temperature} is ours, and z is a constant to the gradient, our reading",
    ("fedclass", "paper-literal"): "Eq. 5 and 9; theta = {temperature} is ours",
    (
        "fedclass",
        "released",
    ): "what the authors' code computes, which is not Eq. 5: other temperatures, z is not normalised",
}
NOT_IN_THE_PAPER = "not in the paper"
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
    """Our runs, and the name of the paper's row that they stand beside, if any.

    changed: keys that differ from the recipe.  recipe: all keys of the runs, such as train.rounds, with their values.
    """

    label: Label
    row: str | None
    runs: tuple[Result, ...]
    changed: tuple[str, ...]
    recipe: Mapping[str, Any]


@cache
def _paper() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(
        (resources.files("fedclass.report") / "paper.json").read_text(encoding="utf-8")
    )
    return content


def names() -> dict[str, list[Part]]:
    """What can be reproduced: settings, tables of several settings, ablations."""
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


def claimed(method: str, variant: str | None) -> str | None:
    """The paper's row for a method's variant, if any."""
    return CLAIMS.get((method, variant or "standard"))


def find(name: str) -> list[Part]:
    known = names()
    if name not in known:
        hint = did_you_mean(name, known, cutoff=0.5) or f"there are {', '.join(known)}"
        raise ConfigError(f"reproduce: the paper has no {name!r}; {hint}")
    return known[name]


def ours(run: Result, figure: str) -> float | None:
    """Our value of a figure, by its name in the paper; None if the run has fewer tasks."""
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
    """The readable name of a figure such as t2_forgetting."""
    task, _, kind = figure.partition("_")
    if task in ("global", "average"):
        return "global" if task == "global" else "forgetting"
    return f"task {task[1:]}" if kind == "accuracy" else f"forgetting after task {task[1:]}"


def beside_table(part: Part, members: Sequence[Beside]) -> Table:
    """A line per figure in the paper: its value, ours, the difference."""
    cells, doubts = [], dict[str, None]()
    for member in members:
        for figure in part.figures:
            printed, doubt = _printed(part, member, figure)
            found = _values(member, figure)
            if doubt:
                doubts[f"† {part.setting}, {member.row}: {doubt}."] = None
            shown = NOT_IN_THE_PAPER if printed is None else f"{printed:.2f}" + (" †" if doubt else "")
            gap = "-" if printed is None or not found else f"{mean(found) - printed:+.1f}"
            cells.append((str(member.label), described(figure), shown, str(MeanDeviation(found)), gap))
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
            f"The paper does not state: {', '.join(_paper()['common']['not_stated'])}.",
            f"From the paper, all rows differ in this: {'; '.join(_setting(members[0].recipe))}.",
            *map(_row_note, members),
            *_changes(members),
            *([OUR_DIGITS] if part.dataset == "synnum" else []),
            *one_order(runs),
            *unofficial(runs),
            *mixed_code(runs),
            *doubts,
        ),
    )


def beside_csv(parts: Sequence[tuple[Part, Sequence[Beside]]]) -> str:
    """The same, nothing rounded, with the paper's names of figures."""
    records = []
    for part, members in parts:
        for member in members:
            for figure in part.figures:
                found = _values(member, figure)
                printed, doubt = _printed(part, member, figure)
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
                        "doubt": doubt,
                    }
                )
    return csv_text(records)


def _printed(part: Part, member: Beside, figure: str) -> tuple[float | None, str | None]:
    """The paper's figure, if there is one, and what is doubtful about it."""
    if member.row is None or member.row not in part.rows:
        return None, None
    return part.rows[member.row].get(figure), part.doubt(member.row, figure)


def _setting(recipe: Mapping[str, Any]) -> list[str]:
    """Where a setting goes beyond the paper or differs from it."""
    rounds, epochs = recipe["train.rounds"], recipe["train.local_epochs"]
    told = [f"{rounds} rounds a task and {epochs} local epochs are chosen by us"]
    kind = recipe["partition.kind"]
    if kind != "fedml":
        told.append(f"the partition is {kind!r}, the paper's is FedML's")
    told.append(f"exemplars: {recipe['memory.select']}, the paper does not say which")
    if recipe["server.weighting"] != "new-data":
        told.append("clients count with their exemplars, in the paper with new data only")
    if recipe["data.orientation"] != "upright":
        told.append("images as EMNIST's files have them, the paper does not say")
    if recipe["model.head_init"] != "linear":
        told.append("the head begins as in the release, the paper does not say")
    order = recipe["stream.class_order"]
    told.append(f"class order: {order if isinstance(order, str) else 'as listed'}, the paper names none")
    return told


def _row_note(member: Beside) -> str:
    variant = member.recipe.get("method.variant", "standard")
    if member.row is None:
        return f"{member.label}: {NOT_IN_THE_PAPER}."
    temperature = text(member.recipe.get("method.temperature"))
    return f"{member.label}: {DIFFERS[member.label.method, variant].format(temperature=temperature)}."


def _official(member: Beside) -> bool | None:
    """False if a run used unofficial files; None without runs, or with a user's own data."""
    found = {run.summary["official_data"] for run in member.runs}
    return next((value for value in (False, None, True) if value in found), None)


def _values(member: Beside, figure: str) -> tuple[float, ...]:
    found = (ours(run, figure) for run in member.runs)
    return tuple(value for value in found if value is not None)


def _reductions(members: Sequence[Beside]) -> list[str]:
    """Changes of the setting itself. Changes of a method's parameters concern only its row."""
    changes = dict.fromkeys(change for member in members for change in member.changed)
    return [change for change in changes if not change.startswith("method.")]


def _changes(members: Sequence[Beside]) -> list[str]:
    reductions = _reductions(members)
    told = [f"REDUCED, not the paper's setting: {', '.join(reductions)}."] if reductions else []
    for member in members:
        if own := [change for change in member.changed if change not in reductions]:
            told.append(f"{member.label} differs from the recipe: {', '.join(own)}.")
    return told
