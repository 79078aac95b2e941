"""One page about one run or several runs side by side, from events and recipes only. It needs no network."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedclass.errors import ConfigError, RunError
from fedclass.report import class_charts, client_charts, curve_charts, rendering, style, sweep_charts
from fedclass.report.charts import Chart, rounded
from fedclass.report.groups import Group, differing, group, names
from fedclass.report.history import History
from fedclass.report.painters import draw_all
from fedclass.report.rows import Row, find, rows
from fedclass.report.tables import Table, comparison, headlines_first
from fedclass.report.units import show_bytes, show_seconds
from fedclass.runs.config_file import flat
from fedclass.runs.counted import counted
from fedclass.runs.layout import write_atomically
from fedclass.runs.order import Order
from fedclass.runs.progress import left_out

PICTURED = ("accuracy-over-rounds", "forgetting-over-rounds")
MOST_REJECTED = 50  # in the table; events.jsonl has all


@dataclass(frozen=True)
class Tile:
    """A headline figure."""

    name: str
    value: str
    about: str


@dataclass(frozen=True)
class Section:
    id: str
    title: str
    charts: list[Chart]
    tables: list[Table]


@dataclass(frozen=True)
class Report:
    """files: the charts for papers, by name."""

    page: str
    charts: list[Chart]
    files: dict[str, bytes]


def write_report(runs: Sequence[History], page: Path, pictures: Path, *, picture: Path | None = None) -> None:
    """The page, and its charts as .svg, .pdf and .png files for papers.

    picture: an SVG file for accuracy and forgetting over rounds, side by side.
    """
    report = build(runs, formats=rendering.FORMATS)
    try:
        pictures.mkdir(parents=True, exist_ok=True)
        write_atomically(page, report.page.encode(errors="replace"))
        for name, content in report.files.items():
            write_atomically(pictures / name, content)
        if picture is not None:
            shown = [chart for chart in report.charts if chart.name in PICTURED]
            if not shown:
                raise RunError(f"{picture}: the model has not been tested yet, so that there is nothing to draw")
            label = ". ".join(chart.alt for chart in shown)
            write_atomically(picture, rendering.side_by_side([chart.figure for chart in shown], label=label))
    except OSError as error:
        raise RunError(
            f"{error.filename or page}: cannot be written ({error.strerror}); choose another place"
        ) from error


def build(
    runs: Sequence[History],
    *,
    title: str | None = None,
    tables: Sequence[Table] = (),
    notes: Sequence[str] = (),
    formats: Sequence[str] = (),
) -> Report:
    """Build a report; nothing is written.

    title, tables: replace the usual title and tables of results.  notes: come before the other notes.
    formats: of the files that are made of the charts besides the page.
    """
    groups, shown = group(runs), group([run.shown() for run in runs])
    called = names(runs)
    single = runs[0] if len(runs) == 1 else None
    finished = [g for g in groups if g.finished]
    sections = [
        Section("sweep", "What the values do", _titled(sweep_charts.sweeps(shown), shown), []),
        Section("learning", "Accuracy and forgetting", _titled(curve_charts.learning(shown), shown), []),
        Section(
            "classes", "Classes", _titled([*class_charts.classes(shown), *class_charts.confusions(shown)], shown), []
        ),
        Section("clients", "Clients and data", _about_clients(runs), _rejected(runs, called)),
        Section("cost", "Communication and time", client_charts.costs(groups), []),
    ]
    sections = [section for section in sections if section.charts or section.tables]
    charts = [chart for section in sections for chart in section.charts]
    drawn = draw_all([rendering.Wanted(c.figure, c.name, f"{c.title}. {c.alt}", formats) for c in charts])
    page = (
        _environment()
        .get_template("report.html.j2")
        .render(
            title=title or f"{single.label if single else _methods(groups)} on {runs[0].data_title}",
            facts=_facts(runs),
            notes=[*notes, *_other_seeds(finished), *_notes(runs, called, remarks)],
            reused=_notes(runs, called, reuses),
            tiles=_tiles(single) if single else [],
            results=tables or ([] if single else _results(finished)),
            looks={g.label: g.style.slot % len(style.PALETTE) for g in groups},
            listed=None if single else _run_table(shown, called),
            settings=None if single else _settings_table(groups),
            sections=sections,
            drawings={c.name: Markup(made.inline) for c, made in zip(charts, drawn, strict=True)},
            recipes=[
                (called[run.path], run.config_text) for run in ([single] if single else [g.runs[0] for g in groups])
            ],
            machines=_machines(runs),
            palette=style.PALETTE,
        )
    )
    made = zip(charts, drawn, strict=True)
    return Report(page, charts, {f"{c.name}.{kind}": file for c, one in made for kind, file in one.files.items()})


def _titled(charts: Sequence[Chart], groups: Sequence[Group]) -> list[Chart]:
    """Charts of accuracies on validation images say so in their title."""
    if groups[0].runs[0].images == "test images":
        return list(charts)
    measured = [chart.name != "loss-over-rounds" for chart in charts]
    return [
        replace(chart, title=f"{chart.title}, on validation images") if on else chart
        for chart, on in zip(charts, measured, strict=True)
    ]


def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("fedclass.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _methods(groups: Sequence[Group]) -> str:
    found = list(dict.fromkeys(g.method for g in groups))
    if len(found) > 4:
        return f"{len(found)} methods"
    *first, last = found
    return f"{', '.join(first)} and {last}" if first else last


def _facts(runs: Sequence[History]) -> list[str]:
    start = runs[0].started
    seeds = sorted({run.started.seed for run in runs})
    clients = sorted({run.started.clients for run in runs})
    rounds = sorted({run.started.rounds for run in runs})
    return [
        f"{runs[0].data_title}, {counted(len(start.classes), 'class', 'classes')}",
        "tasks {" + ",".join(map(str, start.tasks)) + "}",
        f"{' or '.join(map(str, clients))} client{'s' * (clients != [1])}",
        f"{' or '.join(map(str, rounds))} round{'s' * (rounds != [1])} per task",
        f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}",
        *([f"{len(runs)} runs"] if len(runs) > 1 else []),
    ]


def _tiles(run: History) -> list[Tile]:
    done = run.metrics
    up, down = sum(cost.bytes_up for cost in run.costs), sum(cost.bytes_down for cost in run.costs)
    seconds = sum(cost.seconds for cost in run.costs)
    tiles = []
    if done is not None:
        so_far = "" if run.finished else f", after task {len(run.tasks)}"
        so_far += ", test images" if run.validation_metrics else ""
        tiles = [
            Tile("Global accuracy", f"{rounded(done['accuracy_last'])} %", f"per image, all classes{so_far}"),
            Tile("Class-balanced", f"{rounded(done['accuracy_last_macro'])} %", f"mean over classes{so_far}"),
            Tile("Incremental", f"{rounded(done['accuracy_average_incremental'])} %", "global, mean over tasks"),
        ]
        if done["forgetting_fedclass"] is not None:
            tiles.append(Tile("Forgetting", f"{done['forgetting_fedclass']:.1f}", "points, forgetting_fedclass"))
        if run.validation_metrics:
            value = run.validation_metrics["validation_accuracy_last"]
            tiles.append(Tile("Validation accuracy", f"{value:.1f} %", "per image, all classes, images held out"))
    return [
        *tiles,
        Tile("Sent", show_bytes(up + down), f"{show_bytes(up)} up, {show_bytes(down)} down"),
        Tile("Time", show_seconds(seconds), f"{run.rounds_done} of {run.rounds_planned} rounds"),
    ]


def _about_clients(runs: Sequence[History]) -> list[Chart]:
    first = runs[0]
    shown = first.shown()
    about = [client_charts.clients(shown), client_charts.client_accuracy(shown)] if len(runs) == 1 else []
    partition = (
        [client_charts.partition(first)] if first.started.classes else []
    )  # sites may not have announced theirs yet
    return [*partition, *(chart for chart in about if chart is not None)]


def _other_seeds(groups: Sequence[Group]) -> list[str]:
    """A note if rows and curves are means over different seeds."""
    every = sorted({run.started.seed for g in groups for run in g.runs})
    lacking = [
        f"{g.label} lacks {', '.join(map(str, missing))}"
        for g in groups
        if (missing := [seed for seed in every if seed not in [run.started.seed for run in g.runs]])
    ]
    if not lacking:
        return []
    return [f"Seeds differ: {'; '.join(lacking)}. Differences between methods may be differences between seeds."]


def _results(finished: Sequence[Group]) -> list[Table]:
    """Rows, and paired differences of those with the reference's seeds; headline columns first, for narrow screens."""
    results = [result for g in finished for result in g.results()]
    if not results:
        return []
    found = rows(results)
    tables = comparison(results, against=_reference(found), must=False)
    return [headlines_first(table) for table in tables]


def _reference(found: Sequence[Row]) -> str | None:
    """The reference row of the folder's comparison, if it is among these; None: the first."""
    folders = {run.path.parent for row in found for run in row.runs}
    named = Order.read(folders.pop()).against if len(folders) == 1 else None
    try:
        return str(find([row.label for row in found], named)) if named else None
    except ConfigError:  # missing or unfinished; the table's title names the row used instead
        return None


def _notes(runs: Sequence[History], called: dict[Path, str], remarks: Callable[[History], list[str]]) -> list[str]:
    """The remarks on all runs. The same remark on several runs becomes one note."""
    about: dict[str, list[str]] = {}
    for run in runs:
        for remark in remarks(run):
            about.setdefault(remark, []).append(called[run.path])
    if len(runs) == 1:
        return list(about)
    everywhere = len(runs)
    return [
        f"{'All runs' if len(which) == everywhere else ', '.join(which)}: {remark}" for remark, which in about.items()
    ]


def remarks(run: History) -> list[str]:
    """Warnings for every reader of the run's results."""
    found = []
    if not run.finished:
        found.append(
            f"The run is not finished: {run.rounds_done} of {run.rounds_planned} rounds, {len(run.tasks)} of "
            f"{len(run.started.tasks)} tasks. Figures are preliminary."
        )
    if run.started.official is False and not any("published checksums" in message for message in run.warnings):
        found.append(f"Unofficial data: the files of {run.started.dataset} do not have the published checksums.")
    if parts := left_out(vars(run.started)):
        found.append(f"Not all images are used to train and test: the run {', '.join(parts)}.")
    if run.started.validation_images:
        found.append("Charts and the table of all runs are on validation images.")
    found += run.warnings
    if run.rejected:
        clients = len({event.client for event in run.rejected})
        found.append(
            f"{counted(len(run.rejected), 'update')} of {counted(clients, 'client')} left out: see the table of "
            "rejected updates."
        )
    if run.missing:
        found.append(f"Clients did not answer {counted(len(run.missing), 'time')}: see the table of missing updates.")
    for event in run.resumed:
        other = (
            ""
            if event.machine == run.started.machine
            else ", on another machine or with other versions: bits may differ"
        )
        found.append(f"Stopped, and resumed before task {event.task + 1}, round {event.round + 1}{other}.")
    return found


def reuses(run: History) -> list[str]:
    """Which tasks came from the cache. The bits are the same, so that this is no warning."""
    return [
        f"Task {reused.task + 1} was not trained but taken from the cache ({reused.key[:12]}); its times are those of "
        "the run that trained it."
        for reused in run.reused
    ]


def _rejected(runs: Sequence[History], called: dict[Path, str]) -> list[Table]:
    found = [(run, event) for run in runs for event in run.left_out]
    if not found:
        return []
    rows = [
        (called[run.path], str(e.task + 1), _round(run, e.round), run.started.name_of(e.client), e.reason)
        for run, e in found[:MOST_REJECTED]
    ]
    reasons = Counter(event.reason for _, event in found).most_common(5)
    notes = [f"{counted(count, 'time')}: {reason}" for reason, count in reasons]
    if len(found) > MOST_REJECTED:
        notes.append(f"The first {MOST_REJECTED} of {len(found)}; events.jsonl has all of them.")
    return [
        Table("Rejected and missing updates", ("run", "task", "round", "client", "reason"), tuple(rows), tuple(notes))
    ]


def _round(run: History, round: int) -> str:
    return "end" if round == run.started.rounds else str(round + 1)


def _run_table(groups: Sequence[Group], called: dict[Path, str]) -> Table:
    rows = []
    for g in groups:
        for run in g.runs:
            done = run.metrics
            forgetting = done and done["forgetting_fedclass"]
            rows.append(
                (
                    called[run.path],
                    g.label,
                    str(run.started.seed),
                    f"{run.rounds_done}/{run.rounds_planned}",
                    rounded(done["accuracy_last"] if done else None),
                    "-" if forgetting is None else f"{forgetting:.1f}",
                    show_bytes(sum(cost.bytes_up for cost in run.costs)),
                    show_bytes(sum(cost.bytes_down for cost in run.costs)),
                    show_seconds(sum(cost.seconds for cost in run.costs)),
                )
            )
    word = "validation " if groups[0].runs[0].images == "validation images" else ""
    figures = f"{word}global", f"{word}forgetting"
    columns = ("run", "method (variant)", "seed", "rounds", *figures, "up", "down", "time")
    return Table("All runs", columns, tuple(rows), ())


def _settings_table(groups: Sequence[Group]) -> Table | None:
    """The keys in which the groups differ."""
    keys = [key for key in differing([g.runs[0] for g in groups]) if key != "method.name"]
    if not keys:
        return None
    own = [flat(g.runs[0].config) for g in groups]
    rows = tuple((key, *(str(table.get(key, "-")) for table in own)) for key in keys)
    return Table("Settings that differ", ("key", *(g.label for g in groups)), rows, ())


def _machines(runs: Sequence[History]) -> list[str]:
    told = (
        f"fedclass {run.started.version}, engine {run.started.engine}, "
        + ", ".join(f"{name} {value}" for name, value in run.started.machine.items())
        for run in runs
    )
    return list(dict.fromkeys(told))
