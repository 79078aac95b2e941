"""fedclass compare, fedclass sweep, fedclass table: several runs, one table."""

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedclass.cli.foresee import foresee
from fedclass.cli.run import (
    ChangedCode,
    Nice,
    Overrides,
    Recipe,
    Reuse,
    Sinks,
    be_nice,
    fresh,
    said_when_stopped,
    say_what_is_quick,
)
from fedclass.errors import ConfigError, FedclassError, RunError

if TYPE_CHECKING:
    from fedclass.experiment.grid import Member
    from fedclass.report.rows import Setting
    from fedclass.runs.outlook import Outlook
    from fedclass.runs.summary import Result

Seeds = Annotated[str, typer.Option(help="Seeds, such as 0,1,2 or 0-4; everything is run with each.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Cores to use; the results are the same. Default: all.")]
Against = Annotated[
    str | None,
    typer.Option(
        help="The row that differences are taken from, such as fedavg or fedclass:beta=5. Default: the first."
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Only print what would be trained, what is there already, and how long it would take here, by a short "
        "calibration.",
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--out", help="Directory for all runs. The same command goes on where it stopped. Default: below runs/."
    ),
]


class Format(StrEnum):
    markdown = "markdown"
    latex = "latex"
    csv = "csv"


def compare(
    recipe: Recipe = None,
    methods: Annotated[
        str,
        typer.Option(
            help="Methods, with commas between them. A colon adds a variant or a parameter: "
            "fedclass:paper, fedclass:beta=8, fedclass:paper:beta=8, my.module:Mine:mu=0.1."
        ),
    ] = "fedavg,fedclass",
    seeds: Seeds = "0",
    overrides: Overrides = None,
    against: Against = None,
    out: Folder = None,
    workers: Workers = None,
    reuse: Reuse = True,
    changed_code: ChangedCode = False,
    nice: Nice = 0,
    dry_run: DryRun = False,
    sinks: Sinks = None,
) -> None:
    """Run several methods on the same data, partition and seeds, and put them into one table.

    Over several seeds, the table shows the mean and the standard deviation, and a second one the differences from the
    first method with their 95 % intervals. Both are written to results.md, results.tex and results.csv.

    To choose between settings, use `fedclass sweep`, or --set data.validation=0.1 here.

    Example:  fedclass compare demo --methods fedavg,fedclass,fedclass:paper,fedwa --seeds 0,1,2
    """
    from fedclass.experiment.grid import expand, read_methods, read_seeds

    be_nice(nice)
    choices, numbers = read_methods(methods), read_seeds(seeds)
    root = out or fresh(f"{Path(recipe or 'defaults').stem}-compare")
    members = expand(recipe, choices, overrides=overrides or [], seeds=numbers, root=root)
    say_what_is_quick(recipe, members[0].experiment)
    how = How(workers, reuse, changed_code, sinks or ())
    if dry_run:
        foresee(members, how)
        return
    _run_and_show(members, root, against=against, how=how)


def sweep(
    recipe: Recipe = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="A key and its values, with commas between them: method.beta=0,1,3. Repeatable; all combinations are "
            "run. One value is the same in all runs; a list is one value in brackets: stream.tasks=[5,5],[2,8].",
        ),
    ] = None,
    method: Annotated[str | None, typer.Option(help="Default: the recipe's.")] = None,
    seeds: Seeds = "0",
    budget: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="Spend no more than this many full runs (all tasks, one seed), by successive halving on validation "
            "images: all candidates learn the first tasks, the better half learns on, with more seeds, and so forth.",
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Write the best values to this TOML file, under the method's name; others in it stay."),
    ] = None,
    against: Against = None,
    out: Folder = None,
    workers: Workers = None,
    reuse: Reuse = True,
    changed_code: ChangedCode = False,
    nice: Nice = 0,
    dry_run: DryRun = False,
    sinks: Sinks = None,
) -> None:
    """Run one recipe with several values of its keys, and put them into one table.

    With data.validation, rows are compared on images that clients hold out, and test figures are shown for the best
    row alone. Without it, rows are compared on test images, and whoever chooses one of them chooses on test images.

    Example:  fedclass sweep demo --set method.beta=0,1,3,5,8 --set data.validation=0.1 --seeds 0,1,2
              fedclass sweep demo --set method.beta=0,1,3,5,8 --set data.validation=0.1 --seeds 0-2 --budget 9
    """
    from fedclass.cli.budget import check_validation, save_found, search_and_show
    from fedclass.experiment.grid import expand, read_seeds, read_sweep

    be_nice(nice)
    choices, numbers = read_sweep(settings or [], method=method), read_seeds(seeds)
    root = out or fresh(f"{Path(recipe or 'defaults').stem}-sweep")
    members = expand(recipe, choices, seeds=numbers, root=root)
    say_what_is_quick(recipe, members[0].experiment)
    how = How(workers, reuse, changed_code, sinks or ())
    if budget is not None and (against is not None or dry_run):
        raise ConfigError("--budget: what is run depends on what comes out; leave --against and --dry-run out")
    if budget is not None or save is not None:
        check_validation(members, "--save" if budget is None else "--budget")
    if dry_run:
        foresee(members, how)
        return
    if budget is not None:
        search_and_show(members, root, budget=budget, how=how, save=save, recipe=recipe)
        return
    _run_and_show(members, root, against=against, how=how)
    if save is not None:
        save_found(members, save, recipe=recipe)


def table(
    paths: Annotated[list[Path], typer.Argument(help="Run directories, or folders with runs in them.")],
    format: Annotated[
        Format | None, typer.Option(help="Print this instead. csv: a line per run, nothing rounded.")
    ] = None,
    against: Against = None,
) -> None:
    """Show the results of finished runs: mean and deviation over seeds, and differences from one of the rows.

    Runs with validation images and runs without have tables of their own, and columns say which images they are on.
    Of a folder that `fedclass compare` or `fedclass sweep` made, the rows and the reference are the same as there.

    Example:  fedclass table runs/mine --against fedavg --format latex
    """
    from fedclass.cli.display import print_table
    from fedclass.report.formats import latex, markdown, runs_csv
    from fedclass.report.tables import comparison

    results, usual = collect(paths)
    against = against or usual
    tables = comparison(results, against=against)
    match format:
        case None:
            for each in tables:
                print_table(each)
        case Format.markdown:
            print("\n".join(map(markdown, tables)), end="")
        case Format.latex:
            print("\n".join(map(latex, tables)), end="")
        case Format.csv:
            print(runs_csv(results, against=against), end="")


def collect(paths: Sequence[Path]) -> "tuple[list[Result], str | None]":
    """The finished runs that paths name or contain, each once, and the row that they were compared with, if any.

    Runs in a folder come in the order in which they were compared there; others in the order of their names.
    """
    from fedclass.runs.layout import RunDirectory
    from fedclass.runs.order import Order
    from fedclass.runs.summary import Result

    found: dict[Path, Result] = {}
    against = None
    for path in paths:
        if not path.is_dir():
            raise RunError(f"{path}: no such folder; `fedclass list` shows the runs")
        roots = [events.parent for events in path.rglob("events.jsonl")]
        orders = {folder: Order.read(folder) for folder in sorted({root.parent for root in roots}, key=_natural)}
        places = {folder: number for number, folder in enumerate(orders)}
        roots.sort(key=lambda root: (places[root.parent], orders[root.parent].place(root.name), _natural(root)))
        finished = [root for root in roots if RunDirectory(root).summary.exists()]
        if not finished:
            raise RunError(f"{path}: no finished runs to compare there; `fedclass list {path}` shows how far they got")
        for root in roots:
            if root not in finished:
                print(f"warning: {root}: not finished, left out", file=sys.stderr)
        found |= {root.resolve(): Result.read(root) for root in finished if root.resolve() not in found}
        if path not in roots:  # a run that is named itself comes in the order of the names
            against = against or next((order.against for order in orders.values() if order.against), None)
    return list(found.values()), against


def _natural(path: Path) -> list[tuple[float, str]]:
    """beta=3 before beta=10."""
    numbers_and_words = re.findall(r"(\d+(?:\.\d+)?)|(\D+)", str(path))
    return [(float(number) if number else -1.0, word) for number, word in numbers_and_words]


@dataclass(frozen=True)
class How:
    """The options of all commands that carry out several runs."""

    workers: int | None
    reuse: bool
    changed_code: bool
    sinks: Sequence[str]


def carry_out(
    members: "Sequence[Member]", how: How, *, against: str | None = None, until: Sequence[int] | None = None
) -> dict[int, FedclassError]:
    """Run what is missing, shown live. Returns failures by the member's number. until: tasks after which each stops.

    `fedclass table` will show the runs in the order of the members, and differences from the row `against`.
    """
    from fedclass.cli.display import display
    from fedclass.experiment.parallel import run_all
    from fedclass.runs.events import Event
    from fedclass.runs.layout import RunDirectory
    from fedclass.runs.order import Order
    from fedclass.runs.outlook import TimeLeft
    from fedclass.sinks import open_sinks

    left = TimeLeft([])

    def prepared(outlooks: "Sequence[Outlook]") -> None:
        nonlocal left
        left = TimeLeft(outlooks)
        shown.expect(left)
        for folder in dict.fromkeys(member.path.parent for member in members):
            names = [member.path.name for member in members if member.path.parent == folder]
            Order(tuple(names), against).write(folder)

    runs = [(member.experiment, member.path) for member in members]
    finished = [number for number, (_, path) in enumerate(runs) if RunDirectory(path).finished]
    with (
        open_sinks(how.sinks, [path for _, path in runs]) as record,
        display(names_of(members), finished=finished) as shown,
    ):

        def listen(number: int, event: Event) -> None:
            left.tell(number, event)
            shown.tell(number, event)
            record(number, event)

        return run_all(
            runs,
            workers=how.workers,
            listen=listen,
            reuse=how.reuse,
            changed_code=how.changed_code,
            until=until,
            prepared=prepared,
            failed=lambda number: left.drop(number),
        )


def end(members: "Sequence[Member]", failures: Mapping[int, FedclassError]) -> None:
    """Say what failed, and leave with the first one's code."""
    for number, failure in failures.items():
        print(f"error: {names_of(members)[number]}: {failure}", file=sys.stderr)
    if failures:
        raise typer.Exit(next(iter(failures.values())).exit_code)


def setting(member: "Member") -> "Setting":
    """What tables will know of a run, before it is run."""
    from fedclass.report.rows import Setting

    e = member.experiment
    return Setting.of(e.to_tables(), method=e.method_name, variant=e.method.variant_name)


def names_of(members: "Sequence[Member]") -> list[str]:
    several = len({member.experiment.seed for member in members}) > 1
    return [member.name if several else member.choice.name for member in members]


def _check_reference(members: "Sequence[Member]", against: str) -> None:
    """In each of the tables to come, so that a mistake is found before hours of work."""
    from fedclass.report.rows import find, labels

    tables: dict[tuple[str, str], list[Setting]] = {}
    for member in members:
        e = member.experiment
        tables.setdefault((e.data.name, str(e.stream.tasks)), []).append(setting(member))
    for settings in tables.values():
        find(list(labels(settings).values()), against)


def _run_and_show(members: "Sequence[Member]", root: Path, *, against: str | None, how: How) -> None:
    from fedclass.cli.display import console, print_table
    from fedclass.report.formats import latex, markdown, runs_csv
    from fedclass.report.tables import comparison
    from fedclass.runs.layout import write_atomically
    from fedclass.runs.summary import Result

    if against is not None:
        _check_reference(members, against)
    with said_when_stopped(root, f"type the same again with --out {shlex.quote(str(root))}"):
        failures = carry_out(members, how, against=against)
    finished = [Result.read(member.path) for number, member in enumerate(members) if number not in failures]
    if finished:
        tables = comparison(finished, against=against, differences=not failures)
        write_atomically(root / "results.md", "\n".join(map(markdown, tables)))
        write_atomically(root / "results.tex", "\n".join(map(latex, tables)))
        write_atomically(root / "results.csv", runs_csv(finished, against=against, differences=not failures))
        for each in tables:
            print_table(each)
    if finished and failures:
        console.print("Nothing is compared or chosen until all runs are there.", highlight=False)
    console.print(f"runs and tables: {root}", highlight=False)
    end(members, failures)
