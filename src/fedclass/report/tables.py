"""Tables of results, from the summaries of runs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev
from typing import Any

from fedclass.errors import RunError
from fedclass.metrics import known, mean_of_known
from fedclass.report.rows import Row, Setting, data_title, find, rows, with_seeds_of
from fedclass.report.statistics import paired
from fedclass.runs.config_file import read_config
from fedclass.runs.progress import left_out
from fedclass.runs.summary import Result

OWN_ORDERS = {"seeded", "released-by-seed"}  # values of stream.class_order with a different order for each seed
HEADLINES = {"global": "accuracy_last", "forgetting": "forgetting_fedclass"}
TEST, VALIDATION = "", "validation_"  # prefix of a figure's name in a summary, by the images behind it
MARK = " *"
MOST_TASKS = 10  # columns; more tasks are put together

ONE_SEED = ("Percentage points. One seed ranks nothing; several, such as 0,1,2, give intervals.",)
SEVERAL_SEEDS = (
    "Percentage points. Intervals: Student's t over seeds, not corrected for several comparisons.",
    "Not distinguishable: the interval contains 0. Few seeds make wide intervals.",
)


@dataclass(frozen=True)
class MeanDeviation:
    """A mean over seeds, with its standard deviation if there are several."""

    values: tuple[float, ...]

    def __str__(self) -> str:
        if not self.values:
            return "-"
        spread = f" ± {stdev(self.values):.1f}" if len(self.values) > 1 else ""
        return f"{mean(self.values):.1f}{spread}"


@dataclass(frozen=True)
class Table:
    """A row per method, with a cell per column; `notes` explain the columns."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def mean_deviation(results: Sequence[Result], key: str) -> str:
    found = (result.summary[key] for result in results)
    return str(MeanDeviation(tuple(value for value in found if value is not None)))


def comparison(
    results: Sequence[Result], *, against: str | None = None, differences: bool = True, must: bool = True
) -> list[Table]:
    """For each stream (data and tasks) among the runs: a table of results and, if it has several rows, of differences.

    against: the row to compare with; by default the first.  differences: without them, no row is chosen.  must:
    RunError where no row has the seeds of the row to compare with; else, there are no differences then. Runs that hold
    out validation images are compared on these.
    """
    tables = []
    for members in streams(results):
        first, *on_test = results_tables(members, choose=differences)
        tables.append(first)
        found = rows(members)
        if differences and len(found) > 1:
            reference = reference_row(found, against)
            if must or any(row.seeds == reference.seeds for row in found if row is not reference):
                tables.append(differences_table(found, reference, images=images_of(members)))
        tables += on_test
    return tables


def streams(results: Sequence[Result]) -> list[list[Result]]:
    """Runs that share a table: on the same data with the same tasks, all with validation images or all without."""
    groups: dict[tuple[str, tuple[int, ...], bool], list[Result]] = {}
    for result in results:
        about = result.summary
        key = about["dataset"], tuple(about["tasks"]), f"{VALIDATION}accuracy_last" in about
        groups.setdefault(key, []).append(result)
    return list(groups.values())


def images_of(results: Sequence[Result]) -> str:
    """The images on which runs of one stream are compared."""
    return VALIDATION if f"{VALIDATION}accuracy_last" in results[0].summary else TEST


def reference_row(found: Sequence[Row], against: str | None) -> Row:
    if against is None:
        return found[0]
    label = find([row.label for row in found], against)
    return next(row for row in found if row.label == label)


def results_tables(results: Sequence[Result], *, choose: bool = True) -> list[Table]:
    """A table of runs on one stream. If it is on validation images, a second one has the best row on test images.

    Only that row has test figures: choosing by test images would make them too good.
    """
    if len(streams(results)) > 1:
        raise RunError(f"{results[0].path} and others: not all on the same data and tasks; make separate tables")
    found = rows(results)
    if images_of(results) == TEST:
        return [_table(found, TEST)]
    best = chosen(found) if choose else None
    return [_table(found, VALIDATION, best), *([] if best is None else [_table([best], TEST, best)])]


def chosen(found: Sequence[Row]) -> Row | None:
    """The row with the highest validation accuracy over its seeds; None if rows have different seeds."""
    if len({row.seeds for row in found}) > 1:
        return None
    return max(found, key=lambda row: mean(run.summary[f"{VALIDATION}accuracy_last"] for run in row.runs))


def _table(found: Sequence[Row], images: str, best: Row | None = None) -> Table:
    """Accuracy on each task at the end, global accuracy and forgetting; a row per setting, over its seeds."""
    results = [run for row in found for run in row.runs]
    first, word = results[0].summary, images.replace("_", " ")
    tasks = first["tasks"]
    seeds = sorted({result.summary["seed"] for result in results})
    cells = []
    for row in found:
        own_seeds = "" if list(row.seeds) == seeds else f", {listed(row.seeds)}"
        on_tasks = zip(*(_together(run.summary[f"{images}accuracy_matrix"][-1]) for run in row.runs), strict=True)
        overall, forgetting = (mean_deviation(row.runs, images + key) for key in HEADLINES.values())
        mark = MARK if images == VALIDATION and row is best and len(found) > 1 else ""
        cells.append(
            (
                f"{row.label}{own_seeds}",
                *(str(MeanDeviation(tuple(known(values)))) for values in on_tasks),
                overall + mark,
                forgetting,
            )
        )
    notes = [
        "All in percent. Tasks: class-balanced accuracy after the last task. Global: accuracy per image, all classes.",
        "Forgetting: accuracy on a task when it was learned minus accuracy later, averaged (forgetting_fedclass).",
    ]
    if len(tasks) > MOST_TASKS:
        notes.insert(1, "Columns of several tasks: the mean of their accuracies.")
    if images == VALIDATION:
        notes.append("Validation: on training images that clients held out (data.validation), by which to choose.")
        notes += [f"{MARK.strip()} the highest validation accuracy"] if best is not None and len(found) > 1 else []
    elif best is None and len({row.label.method for row in found}) < len(found):
        notes.append("Rows are compared on test images; to choose between them use data.validation=0.1")
    if parts := left_out(*(run.summary for run in results)):
        notes.append(f"Each run {', '.join(parts)}.")
    spread = ": mean ± deviation" if len(seeds) > 1 else ""
    called = data_title(read_config(results[0].path), first["dataset"])
    on = "" if best is None else ", on test images" if images == TEST else ", on validation images"
    return Table(
        title=f"{called} {sizes(tasks)}{on}, {listed(seeds)}{spread}",
        columns=("method (variant)", *(f"{word}{name}" for name in (*_task_columns(len(tasks)), *HEADLINES))),
        rows=tuple(cells),
        notes=(*notes, *one_order(results), *unofficial(results), *mixed_code(results)),
    )


def headlines_first(table: Table) -> Table:
    """The same table with global accuracy and forgetting before the tasks, for narrow screens."""
    last = len(table.columns) - len(HEADLINES)
    if not table.columns[last].endswith(next(iter(HEADLINES))):
        return table  # a table of differences

    def moved(cells: tuple[str, ...]) -> tuple[str, ...]:
        return cells[0], *cells[last:], *cells[1:last]

    return replace(table, columns=moved(table.columns), rows=tuple(map(moved, table.rows)))


def _task_groups(tasks: int) -> list[range]:
    """One task each, or several that follow each other where there would be too many columns."""
    step = -(-tasks // MOST_TASKS)
    return [range(start, min(start + step, tasks)) for start in range(0, tasks, step)]


def _task_columns(tasks: int) -> list[str]:
    groups = _task_groups(tasks)
    return [
        f"task {group[0] + 1}" if len(group) == 1 else f"tasks {group[0] + 1} to {group[-1] + 1}" for group in groups
    ]


def _together(accuracies: Sequence[float | None]) -> list[float | None]:
    """Accuracies on tasks, by column: means over each column's tasks."""
    return [mean_of_known(accuracies[task] for task in group) for group in _task_groups(len(accuracies))]


def differences_table(found: Sequence[Row], reference: Row, *, images: str = "") -> Table:
    """Every other row that has the reference's seeds minus the reference, seed by seed; the rest are named."""
    alike = with_seeds_of(reference, found)
    cells = []
    for row in alike:
        for name, key in HEADLINES.items():
            both = zip(row.runs, reference.runs, strict=True)
            pairs = [(a.summary[images + key], b.summary[images + key]) for a, b in both]
            if row is reference or any(None in pair for pair in pairs):
                continue
            gap = paired(*zip(*pairs, strict=True))
            reach = "-" if gap.interval is None else f"[{gap.interval[0]:+.1f}, {gap.interval[1]:+.1f}]"
            cells.append((str(row.label), f"{images.replace('_', ' ')}{name}", f"{gap.mean:+.1f}", reach, gap.verdict))
    return Table(
        title=f"Differences from {reference.label}, paired over {listed(reference.seeds)}",
        columns=("method (variant)", "figure", "difference", "95 % interval", "verdict"),
        rows=tuple(cells),
        notes=(*(ONE_SEED if len(reference.seeds) == 1 else SEVERAL_SEEDS), *_not_compared(found, alike)),
    )


def _not_compared(found: Sequence[Row], alike: Sequence[Row]) -> list[str]:
    others = [str(row.label) for row in found if row not in alike]
    return [f"Not compared, because their seeds are others: {', '.join(others)}."] if others else []


def row_records(results: Sequence[Result], *, against: str | None = None) -> list[dict[str, Any]]:
    """The rows of `comparison` as plain values, nothing rounded. Each figure is a mean over seeds, with `_deviation`.
    The headline figures also have `difference_`, from the reference row, with its 95 % interval, `_low` and `_high`
    and its `_verdict`.

    With validation images, figures are on these; only the best row also has test figures.
    """
    records = []
    for members in streams(results):
        found, images = rows(members), images_of(members)
        reference = reference_row(found, against) if len(found) > 1 else None
        alike = with_seeds_of(reference, found) if reference else []
        best = chosen(found) if images == VALIDATION else None
        for row in found:
            shown = {images, TEST} if row is best else {images}
            record = _about(row) | {key: value for each in sorted(shown) for key, value in _means(row, each).items()}
            compared = reference is not row and row in alike
            records.append(record | (_differences(row, reference, images) if compared else {}))
    return records


def _about(row: Row) -> dict[str, Any]:
    s = row.runs[0].summary
    same = {key: s[key] for key in ("method", "variant", "dataset", "official_data")}
    return {"label": str(row.label), **same, "tasks": ",".join(map(str, s["tasks"])), "seeds": len(row.seeds)}


def _means(row: Row, images: str) -> dict[str, float | None]:
    figures = {f"accuracy_task_{i + 1}": [run.summary[f"{images}accuracy_matrix"][-1][i] for run in row.runs]
               for i in range(len(row.runs[0].summary["tasks"]))}  # fmt: skip
    figures |= {key: [run.summary[images + key] for run in row.runs] for key in HEADLINES.values()}
    made: dict[str, float | None] = {}
    for key, values in figures.items():
        known = [value for value in values if value is not None]
        made[images + key] = mean(known) if known else None
        made[f"{images}{key}_deviation"] = stdev(known) if len(known) > 1 else None
    return made


def _differences(row: Row, reference: Row | None, images: str) -> dict[str, Any]:
    assert reference is not None
    made: dict[str, Any] = {"reference": str(reference.label)}
    for key in HEADLINES.values():
        both = zip(row.runs, reference.runs, strict=True)
        pairs = [(a.summary[images + key], b.summary[images + key]) for a, b in both]
        if any(None in pair for pair in pairs):
            continue
        gap = paired(*zip(*pairs, strict=True))
        low, high = gap.interval or (None, None)
        name = f"difference_{images}{key}"
        made |= {name: gap.mean, f"{name}_low": low, f"{name}_high": high, f"{name}_verdict": gap.verdict}
    return made


def sizes(tasks: Sequence[int]) -> str:
    if len(tasks) > MOST_TASKS:
        return "{" + f"{','.join(map(str, tasks[:2]))},...,{tasks[-1]}" + "}" + f" in {len(tasks)} tasks"
    return "{" + ",".join(map(str, tasks)) + "}"


def listed(seeds: Sequence[int]) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))}"


def one_order(results: Sequence[Result]) -> list[str]:
    """A note if all seeds have the same class order: their deviation then says less than it seems to."""
    if len({result.summary["seed"] for result in results}) < 2:
        return []
    recipes = [read_config(result.path) for result in results]
    orders = (recipe.get("stream", {}).get("class_order") for recipe in recipes)
    fixed = any("class_order" in recipe.get("seeds", {}) for recipe in recipes)
    if not fixed and all(isinstance(order, str) and order in OWN_ORDERS for order in orders):
        return []
    return ["One class order for all seeds: the deviation leaves out its variance (stream.class_order)."]


def unofficial(results: Sequence[Result]) -> list[str]:
    names = dict.fromkeys(r.summary["dataset"] for r in results if r.summary["official_data"] is False)
    return [f"UNOFFICIAL DATA: the files of {name} do not have the published checksums." for name in names]


def mixed_code(results: Sequence[Result]) -> list[str]:
    """Notes on figures that no single version of the code would give."""
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
