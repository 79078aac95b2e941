"""Results as rows, from what runs have stored."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from fedclass.errors import RunError
from fedclass.report.rows import Row, Setting, check_seeds, find, rows
from fedclass.report.statistics import paired
from fedclass.runs.results import Result

HEADLINES = {"global": "accuracy_last", "forgetting": "forgetting_fedclass"}

ONE_SEED = ("Percentage points. One seed ranks nothing; several, such as --seeds 0,1,2, give intervals.",)
SEVERAL_SEEDS = (
    "Percentage points. Intervals: Student's t over seeds, not corrected for several comparisons.",
    "Not distinguishable: the interval contains 0. Few seeds make wide intervals.",
)


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


def comparison(results: Sequence[Result], *, against: str | None = None, differences: bool = True) -> list[Table]:
    """For each stream (data and tasks) among the runs: a table of results and, if it has several rows, of differences.

    `against` names the row that others are compared with; without it, that is the first.
    """
    tables = []
    for members in streams(results):
        tables.append(results_table(members))
        found = rows(members)
        if differences and len(found) > 1:
            tables.append(differences_table(found, reference_row(found, against)))
    return tables


def streams(results: Sequence[Result]) -> list[list[Result]]:
    """Runs on the same data with the same tasks: no others share a table."""
    groups: dict[tuple[str, tuple[int, ...]], list[Result]] = {}
    for result in results:
        groups.setdefault((result.summary["dataset"], tuple(result.summary["tasks"])), []).append(result)
    return list(groups.values())


def reference_row(found: Sequence[Row], against: str | None) -> Row:
    if against is None:
        return found[0]
    label = find([row.label for row in found], against)
    return next(row for row in found if row.label == label)


def results_table(results: Sequence[Result]) -> Table:
    """Accuracy on each task at the end, global accuracy and forgetting; a row per setting, over its seeds."""
    if len(streams(results)) > 1:
        raise RunError(f"{results[0].path} and others: not all on the same data and tasks; they need separate tables")
    first = results[0].summary
    tasks = first["tasks"]
    cells = []
    for row in rows(results):
        on_tasks = zip(*(run.summary["accuracy_matrix"][-1] for run in row.runs), strict=True)
        overall = (figure(row.runs, key) for key in HEADLINES.values())
        cells.append((str(row.label), *(str(Figure(values)) for values in on_tasks), *overall))
    seeds = sorted({result.summary["seed"] for result in results})
    notes = [
        "All in percent. Tasks: class-balanced accuracy after the last task. Global: accuracy per image, all classes.",
        "Forgetting: accuracy on a task when it was learned minus accuracy later, averaged (forgetting_fedclass).",
    ]
    spread = ": mean ± deviation" if len(seeds) > 1 else ""
    return Table(
        title=f"{first['dataset']} {sizes(tasks)}, {listed(seeds)}{spread}",
        columns=("method (variant)", *(f"task {i + 1}" for i in range(len(tasks))), *HEADLINES),
        rows=tuple(cells),
        notes=(*notes, *unofficial(results), *mixed_code(results)),
    )


def differences_table(found: Sequence[Row], reference: Row) -> Table:
    """Every other row minus the reference, seed by seed."""
    check_seeds(found)
    cells = []
    for row in found:
        for name, key in HEADLINES.items():
            pairs = [(a.summary[key], b.summary[key]) for a, b in zip(row.runs, reference.runs, strict=True)]
            if row is reference or any(None in pair for pair in pairs):
                continue
            gap = paired(*zip(*pairs, strict=True))
            reach = "-" if gap.interval is None else f"[{gap.interval[0]:+.1f}, {gap.interval[1]:+.1f}]"
            cells.append((str(row.label), name, f"{gap.mean:+.1f}", reach, gap.verdict))
    return Table(
        title=f"Differences from {reference.label}, paired over {listed(reference.seeds)}",
        columns=("method (variant)", "figure", "difference", "95 % interval", "verdict"),
        rows=tuple(cells),
        notes=ONE_SEED if len(reference.seeds) == 1 else SEVERAL_SEEDS,
    )


def sizes(tasks: Sequence[int]) -> str:
    return "{" + ",".join(map(str, tasks)) + "}"


def listed(seeds: Sequence[int]) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))}"


def unofficial(results: Sequence[Result]) -> list[str]:
    names = dict.fromkeys(r.summary["dataset"] for r in results if r.summary["official_data"] is False)
    return [f"UNOFFICIAL DATA: the files of {name} do not have the published checksums." for name in names]


def mixed_code(results: Sequence[Result]) -> list[str]:
    """Figures that no single program would give."""
    notes = []
    for result in results:
        if result.summary.get("mixed_code"):
            notes.append(f"MIXED CODE: {result.path} went on after its code had changed; source.json says which files.")
    codes = [result.summary["code"] for result in results if "code" in result.summary]
    if len({code["fedclass"] for code in codes}) > 1:
        notes.append("MIXED CODE: these runs were made by different versions of fedclass's code.")
    own: dict[Setting, set[str]] = {}
    for result in results:
        own.setdefault(Setting.read(result), set()).add(result.summary.get("code", {}).get("own", ""))
    for setting, found in own.items():
        if len(found) > 1:
            notes.append(f"MIXED CODE: the seeds of {setting.method} ({setting.variant}) were run by different code.")
    return notes
