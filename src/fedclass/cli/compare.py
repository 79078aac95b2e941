"""fedclass compare, fedclass sweep, fedclass table: several runs, one table."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedclass.cli.foresee import show_foreseen
from fedclass.cli.run import (
    ChangedCode,
    Nice,
    Overrides,
    Recipe,
    Reuse,
    Sinks,
    say_what_is_quick,
)
from fedclass.errors import FedclassError

if TYPE_CHECKING:
    from fedclass.experiment.grid import Member
    from fedclass.studies import How, Study

Seeds = Annotated[str, typer.Option(help="Seeds, such as 0,1,2 or 0-4. Everything is run with each of them.")]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Cores to use. The results do not depend on it. Default: all.")
]
Against = Annotated[
    str | None,
    typer.Option(help="The row to compare with, such as fedavg or fedclass:beta=5. Default: the first."),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Only print what would be trained, what exists already, and how long training would take here, by a short "
        "calibration.",
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--out", help="Directory for all runs. The same command resumes where it stopped. Default: below runs/."
    ),
]
MOST_NAMED = 5  # runs, in one line


class Format(StrEnum):
    markdown = "markdown"
    latex = "latex"
    csv = "csv"


def compare(
    recipe: Recipe = None,
    methods: Annotated[
        str,
        typer.Option(
            help="Methods, separated by commas. A colon adds a variant or a parameter: "
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

    With several seeds, the table shows mean and standard deviation. A second table shows the differences from the first
    method, with 95 % intervals. Both are written to results.md, results.tex and results.csv.

    To choose between settings, use `fedclass sweep`, or --set data.validation=0.1 here.

    Example:  fedclass compare demo --methods fedavg,fedclass,fedclass:paper,fedwa --seeds 0,1,2
    """
    from fedclass.experiment.grid import read_methods
    from fedclass.studies import How, compared

    how = How(workers, reuse, changed_code, sinks or (), again=again, nice=nice, dry_run=dry_run)
    told = partial(say_what_is_quick, recipe)
    study = compared(
        recipe, read_methods(methods), seeds, overrides or [], against=against, out=out, how=how, told=told
    )
    show(study, how)


def sweep(
    recipe: Recipe = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="A key and its values, separated by commas: method.beta=0,1,3. Repeatable; all combinations are run. "
            "A single value applies to all runs. A list is one value in brackets: stream.tasks=[5,5],[2,8].",
        ),
    ] = None,
    method: Annotated[str | None, typer.Option(help="Default: the recipe's.")] = None,
    seeds: Seeds = "0",
    budget: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="Spend no more than this many full runs (all tasks, one seed), by successive halving on validation "
            "images: all candidates learn the first tasks, the better half goes on, with more seeds, and so on.",
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Write the best values to this TOML file, under the method's name. Other entries are kept."),
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
    row only. Without it, rows are compared on test images: choosing a row by them makes its figures too good.

    Example:  fedclass sweep demo --set method.beta=0,1,3,5,8 --set data.validation=0.1 --seeds 0,1,2
              fedclass sweep demo --set method.beta=0,1,3,5,8 --set data.validation=0.1 --seeds 0-2 --budget 9
    """
    from fedclass.cli.budget import save_found
    from fedclass.cli.display import console
    from fedclass.experiment.grid import read_sweep
    from fedclass.studies import Choosing, How, compared

    how = How(workers, reuse, changed_code, sinks or (), again=again, nice=nice, dry_run=dry_run)
    choices, told = read_sweep(settings or [], method=method), partial(say_what_is_quick, recipe)
    choosing = Choosing(budget, save is not None)
    study = compared(
        recipe, choices, seeds, [], against=against, out=out, how=how, kind="sweep", choosing=choosing, told=told
    )
    show(study, how)
    if save is not None and not dry_run:
        console.print(f"{save}: {save_found(study, save, recipe=recipe)}", highlight=False)


def table(
    paths: Annotated[list[Path], typer.Argument(help="Run directories, or folders with runs in them.")],
    format: Annotated[
        Format | None, typer.Option(help="Print this format. csv: a line per run, nothing rounded.")
    ] = None,
    against: Against = None,
) -> None:
    """Show the results of finished runs: mean and deviation over seeds, and differences from one of the rows.

    Runs with validation images and runs without have separate tables; columns say which images they are on. For a
    folder made by `fedclass compare` or `fedclass sweep`, rows and reference are the same as there.

    Example:  fedclass table runs/mine --against fedavg --format latex
    """
    from fedclass.cli.display import print_table
    from fedclass.report.collect import collect
    from fedclass.report.formats import latex, markdown, runs_csv
    from fedclass.report.tables import comparison

    results, usual = collect(paths, lambda text: print(f"warning: {text}", file=sys.stderr))
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


def show(study: "Study", how: "How") -> None:
    """Print the tables, where they are, and what failed; or what would be trained."""
    from fedclass.cli.display import console, print_table
    from fedclass.runs.counted import counted

    if study.foreseen:
        show_foreseen(study.foreseen, how)
        return
    for each in study.tables:
        print_table(each)
    if study.results and study.failures:
        console.print("Nothing is compared or chosen until all runs are finished.", highlight=False)
    if study.found is not None:
        found = study.found
        console.print(f"best: {found.candidate.choice.name}, validation accuracy {found.score:.2f} %", highlight=False)
    written = "runs" if study.found is not None else "runs and tables"
    console.print(f"{written}: {study.root}", highlight=False)
    if others := study.others:
        named = ", ".join(others[:MOST_NAMED]) + (", ..." if len(others) > MOST_NAMED else "")
        console.print(
            f"not in these tables: {counted(len(others), 'other run')} in that folder ({named}); "
            f"`fedclass table {study.root}` shows all",
            highlight=False,
        )
    end(study.members, study.failures)


def end(members: "Sequence[Member]", failures: Mapping[int, FedclassError]) -> None:
    """Print what failed, and exit with the code of the first failure."""
    from fedclass.studies import names

    for number, failure in failures.items():
        print(f"error: {names(members)[number]}: {failure}", file=sys.stderr)
    if failures:
        raise typer.Exit(next(iter(failures.values())).exit_code)


def again(root: Path) -> str:
    return f"type the same again with --out {shlex.quote(str(root))}"
