"""Tables for other programs: Markdown, LaTeX, CSV."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fedclass.report.known_methods import KNOWN
from fedclass.report.rows import Row, Setting, rows, with_seeds_of
from fedclass.report.tables import TEST, VALIDATION, Table, chosen, images_of, reference_row, streams
from fedclass.runs.summary import Result

COMPARED = re.compile(r"(global|forgetting|task \d+|tasks \d+ to \d+)$")  # endings of the columns that hold figures
COLUMN, PAGE, SMALL = 46, 90, 110  # characters that fit into one column of a page of two, into both, and when small
LONGEST = 125  # in the smallest letters
TITLES = {method: known.title for method, known in KNOWN.items() if known.title is not None}
DATA = {
    "cifar10": "CIFAR-10",
    "svhn": "SVHN",
    "emnist-balanced": "EMNIST Balanced",
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "synnum": "Drawn digits",
    "drawn-characters": "Drawn characters",
}
MEASURED = ("accuracy_", "worst_client", "forgetting_", "bwt")  # figures on test images

LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    "|": r"\textbar{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
}


def markdown(table: Table) -> str:
    head, *body = [" | ".join(cell.replace("|", r"\|") for cell in row) for row in (table.columns, *table.rows)]
    rule = " | ".join(["---", *["---:"] * (len(table.columns) - 1)])
    lines = [f"| {line} |" for line in (head, rule, *body)]
    return "\n".join([f"### {table.title}", "", *lines, "", *(f"{note}\n" for note in table.notes)])


def latex(table: Table) -> str:
    r"""A table environment for \usepackage{booktabs}, over both columns of a page if it is wide.

    One that would be wider than the page is set in smaller letters, and in several parts if that is not enough. Methods
    and data have the names used in papers. Where figures are means over seeds, the best of each column is bold, the
    upper bound `joint` aside; one seed ranks nothing.
    """
    bold = best_cells(table)
    rows = [
        [rf"\textbf{{{_latex(cell)}}}" if (number, i) in bold else _latex(cell) for i, cell in enumerate(_titled(row))]
        for number, row in enumerate(table.rows)
    ]
    notes = [*table.notes, *(["Bold: the best mean of a column, an upper bound aside."] if bold else [])]
    widths = [max(map(len, column)) for column in zip(table.columns, *table.rows, strict=True)]
    width = sum(widths) + 2 * len(widths)
    environment = "table*" if width > COLUMN else "table"
    letters = r"\scriptsize" if width > SMALL else r"\footnotesize"
    small = [rf"{letters}\setlength{{\tabcolsep}}{{2pt}}"] if width > PAGE else []
    cells = [list(map(_latex, table.columns)), *rows]
    parts = [_tabular([[row[i] for i in part] for row in cells]) for part in _parts(widths)]
    return "\n".join(
        [
            rf"\begin{{{environment}}}",
            r"\centering",
            rf"\caption{{{_latex(_caption(table.title))}}}",
            rf"\label{{tab:{_slug(table.title)}}}",
            *small,
            "\n\\par\\smallskip\n".join(parts),
            r"\par\smallskip\footnotesize",
            *map(_latex, notes),
            rf"\end{{{environment}}}",
            "",
        ]
    )


def _parts(widths: Sequence[int]) -> list[list[int]]:
    """Columns in parts that fit the page, each with the first column."""
    parts, used = [[0]], 0
    for i, width in enumerate(widths[1:], start=1):
        if used and widths[0] + used + width + 2 * len(parts[-1]) > LONGEST:
            parts.append([0])
            used = 0
        parts[-1].append(i)
        used += width
    return parts


def _tabular(rows: Sequence[Sequence[str]]) -> str:
    head, *body = [" & ".join(cells) + r" \\" for cells in rows]
    columns = "l" + "r" * (len(rows[0]) - 1)
    lines = [
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        head,
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines)


def best_cells(table: Table) -> set[tuple[int, int]]:
    """Row and column of the highest mean accuracy and the lowest forgetting, if there are several seeds and rows.

    The upper bound `joint` would be best everywhere and is left out.
    """
    methods = [(number, row) for number, row in enumerate(table.rows) if not row[0].startswith("joint (")]
    found = set()
    for column, name in enumerate(table.columns):
        if not COMPARED.search(name):
            continue
        cells = [(float(row[column].split()[0]), number) for number, row in methods if "±" in row[column]]
        if len(cells) > 1:
            best = (min if name.endswith("forgetting") else max)(cells)[0]
            found |= {(number, column) for value, number in cells if value == best}
    return found


def _titled(row: Sequence[str]) -> list[str]:
    """A row with the method named as in papers."""
    return [_named(row[0], TITLES).replace(" (standard)", "", 1), *row[1:]]


def _caption(title: str) -> str:
    """A title with the data set, or the reference row, named as in papers."""
    start = "Differences from "
    if title.startswith(start):
        return start + _named(title.removeprefix(start), TITLES).replace(" (standard)", "", 1)
    return _named(title, DATA)


def _named(text: str, names: Mapping[str, str]) -> str:
    """The text with its first word replaced by its name."""
    word, space, rest = text.partition(" ")
    return names.get(word, word) + space + rest


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.partition(":")[0].lower()).strip("-")


def _latex(cell: str) -> str:
    escaped = "".join(LATEX.get(character, character) for character in cell)
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", escaped)  # a minus, not a hyphen


def runs_csv(results: Sequence[Result], *, against: str | None = None, differences: bool = True) -> str:
    """A line per run; see `run_records`."""
    return csv_text(run_records(results, against=against, differences=differences))


def run_records(
    results: Sequence[Result], *, against: str | None = None, differences: bool = True
) -> list[dict[str, Any]]:
    """A record per run, nothing rounded: its settings, all plain figures of its summary, and its differences from the
    reference's run with the same seed. With validation images, only runs of the best setting have test figures."""
    settings = {result.path: Setting.read(result) for result in results}
    values = {path: dict(setting.values) for path, setting in settings.items()}
    keys = dict.fromkeys(key for found in values.values() for key in found)
    swept = [key for key in keys if len({found.get(key) for found in values.values()}) > 1]
    tasks = max(len(result.summary["tasks"]) for result in results)
    records = []
    for members in streams(results):
        found = rows(members)
        reference = reference_row(found, against) if differences and len(found) > 1 else None
        alike = with_seeds_of(reference, found) if reference else []
        images = images_of(members)
        best = chosen(found) if images == VALIDATION and differences else None
        for row in found:
            for number, run in enumerate(row.runs):
                figures = _figures(run, tasks)
                shown = figures if images != VALIDATION or row is best else _without(figures, MEASURED)
                records.append(
                    _identity(row, run)
                    | {key: values[run.path].get(key) for key in swept}
                    | shown
                    | (_gaps(figures, reference, number, tasks, images) if reference and row in alike else {})
                    | {"run": str(run.path)}
                )
    return records


def csv_text(records: Sequence[Mapping[str, Any]]) -> str:
    buffer = io.StringIO()
    columns = dict.fromkeys(column for record in records for column in record)
    writer = csv.DictWriter(buffer, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return buffer.getvalue()


def _identity(row: Row, run: Result) -> dict[str, Any]:
    s = run.summary
    same = {key: s[key] for key in ("method", "variant", "dataset", "official_data", "seed")}
    return {"label": str(row.label), **same, "tasks": ",".join(map(str, s["tasks"]))}


def _figures(run: Result, tasks: int) -> dict[str, Any]:
    """`tasks`: how many columns there are; a run with fewer leaves the last ones empty."""
    found: dict[str, Any] = {}
    for images in (TEST, VALIDATION):
        if matrix := run.summary.get(f"{images}accuracy_matrix"):
            on_tasks = dict(enumerate(matrix[-1], start=1))
            found |= {f"{images}accuracy_task_{i}": on_tasks.get(i) for i in range(1, tasks + 1)}
    return found | {key: value for key, value in run.summary.items() if not isinstance(value, list | dict)}


def _without(figures: Mapping[str, Any], beginnings: tuple[str, ...]) -> dict[str, Any]:
    return {key: None if key.startswith(beginnings) else value for key, value in figures.items()}


def _gaps(figures: Mapping[str, Any], reference: Row, number: int, tasks: int, images: str) -> dict[str, Any]:
    other = _figures(reference.runs[number], tasks)
    wanted = f"{images}accuracy", f"{images}forgetting"
    figures = {key: value for key, value in figures.items() if key.startswith(wanted)}
    gaps = {
        f"difference_{key}": None if value is None or other.get(key) is None else value - other[key]
        for key, value in figures.items()
    }
    return {"reference": str(reference.label), **gaps}
