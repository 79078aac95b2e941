"""fedclass reproduce: the paper's figures beside ours."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedclass.cli.compare import DryRun, Seeds, Workers, end
from fedclass.cli.foresee import foreseen, show_foreseen
from fedclass.cli.run import ChangedCode, Nice, Overrides, Reuse, Sinks
from fedclass.errors import ConfigError

if TYPE_CHECKING:
    from fedclass.experiment.config import Experiment
    from fedclass.experiment.grid import Choice, Member
    from fedclass.report.paper import Part

# Keys that do not belong to a setting of the paper: they change no result, or are given by the user.
FREE = {"seed", "data.path", "train.device", "evaluation.every"}


class System(StrEnum):
    """Which recipes to run: those of the paper, or those of its authors' released code."""

    paper = "paper"
    released = "released"


# In the order of the paper's tables. Rows without figures in the paper come last.
ROWS = {
    System.paper: "fedavg,glfc,fedicarl:released,fedwa:released,fedclass:paper,fedclass:released,"
    "fedicarl:icarl,fedwa:wa",
    System.released: "fedavg,glfc,fedicarl:released,fedwa:released,fedclass:released",
}


@dataclass(frozen=True)
class PaperRun:
    """A run, the row of the paper that it stands beside, and the keys in which it differs from the recipe."""

    member: "Member"
    row: str | None
    changed: tuple[str, ...]


def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="A setting, table or ablation of the paper. Without a name, all are listed.")
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(help="As in `fedclass compare`. Default: all rows of the paper, and proper iCaRL and WA."),
    ] = None,
    system: Annotated[
        System, typer.Option(help="Settings as in the paper, or as in its authors' released code.")
    ] = System.paper,
    seeds: Seeds = "0,1,2",
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(help="Directory for all runs. Finished runs in it are not repeated.")] = Path(
        "runs/reproduce"
    ),
    workers: Workers = None,
    reuse: Reuse = True,
    changed_code: ChangedCode = False,
    nice: Nice = 0,
    dry_run: DryRun = False,
    sinks: Sinks = None,
) -> None:
    """Run a setting, a table or an ablation of the FedCLASS paper, and show its figures beside ours.

    Each row stands beside the matching row of the paper: FedICARL and FedWA as the authors' code computes them,
    FedCLASS as in the paper and as in that code. Proper iCaRL and WA have separate rows. --system released uses the
    recipes *_released, which follow the authors' code in everything else, too. Notes below the table say how each row
    differs from the paper.

    If --set changes a setting (a part of the data, fewer rounds), the table is marked as reduced and lists the changes.
    Use a separate --out for such runs.

    Example:  fedclass reproduce cifar10_2task --set data.fraction=0.1 --set train.rounds=5 --out runs/reduced
    """
    from fedclass.cli.display import console, print_table
    from fedclass.engines.starting import be_nice
    from fedclass.report.formats import markdown
    from fedclass.report.paper import Beside, beside_csv, beside_table, find
    from fedclass.report.rows import labels
    from fedclass.runs.config_file import flat
    from fedclass.runs.layout import write_atomically
    from fedclass.runs.summary import Result
    from fedclass.studies import How, carry_out, setting

    if name is None:
        _list()
        return
    be_nice(nice)
    parts = find(name)
    runs_by_part = [_runs_of(part, methods, system, seeds, overrides or [], out) for part in parts]
    members = [run.member for runs in runs_by_part for run in runs]
    how = How(workers, reuse, changed_code, sinks or (), again=lambda _: "type the same again")
    if dry_run:
        show_foreseen(foreseen(members, how), how)
        return
    failures = carry_out(members, how, out)
    failed = {members[number].path for number in failures}
    shown = []
    for part, runs in zip(parts, runs_by_part, strict=True):
        named = labels(setting(run.member) for run in runs)
        rows: dict[str, Beside] = {}
        for run in runs:
            member = run.member
            beside = rows.get(member.choice.name) or Beside(
                named[setting(member)], run.row, (), run.changed, flat(member.experiment.to_tables())
            )
            finished = () if member.path in failed else (Result.read(member.path),)
            rows[member.choice.name] = replace(beside, runs=beside.runs + finished)
        shown.append((part, list(rows.values())))
    tables = [beside_table(part, rows) for part, rows in shown]
    folder = out / (name + _ending(system))
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "results.md", "\n".join(map(markdown, tables)))
    write_atomically(folder / "results.csv", beside_csv(shown))
    for each in tables:
        print_table(each)
    console.print(f"tables: {folder}", highlight=False)
    end(members, failures)


def _ending(system: System) -> str:
    from fedclass.report.paper import RELEASED

    return RELEASED if system is System.released else ""


def _runs_of(
    part: "Part", methods: str | None, system: System, seeds: str, overrides: Sequence[str], out: Path
) -> list[PaperRun]:
    from fedclass.experiment.grid import expand, read_methods, read_seeds
    from fedclass.experiment.recipe import load
    from fedclass.report.paper import claimed

    recipe = part.setting + _ending(system)
    usual = ROWS[system] if part.method is None else f"{part.method}:{system}"
    values: dict[str, str | None] = {}
    choices = []
    for choice, value in _choices(part, recipe, read_methods(methods or usual)):
        choices.append(choice)
        values[choice.name] = value
    runs = []
    for member in expand(recipe, choices, overrides=overrides, seeds=read_seeds(seeds), root=out / recipe):
        choice = member.choice
        own = [word for word in choice.overrides if word.startswith(("method.variant=", f"{part.key}="))]
        changed = changed_keys(member.experiment, load(recipe, own, method=choice.method))
        method = member.experiment.method
        row = claimed(member.experiment.method_name, getattr(method, "variant", None))
        runs.append(PaperRun(member, values[choice.name] if row and part.key else row, changed))
    return runs


def _choices(part: "Part", recipe: str, entries: "Sequence[Choice]") -> "list[tuple[Choice, str | None]]":
    """What to run, and its value in an ablation. The recipe's own value keeps its name: its runs are shared."""
    from fedclass.experiment.grid import Choice
    from fedclass.experiment.recipe import load

    if part.key is None:
        return [(entry, None) for entry in entries]
    found: list[tuple[Choice, str | None]] = []
    for entry in entries:
        if entry.method != part.method:
            raise ConfigError(f"--methods {entry.name}: the paper has this ablation only for {part.method}")
        usual = load(recipe, entry.overrides, method=entry.method)
        for value in part.rows:
            changes = (*entry.overrides, f"{part.key}={value}")
            same = load(recipe, changes, method=entry.method) == usual
            name = entry.name if same else f"{entry.name}:{part.key.removeprefix('method.')}={value}"
            found.append((Choice(name, entry.method, changes), value))
    return found


def changed_keys(experiment: "Experiment", recipe: "Experiment") -> tuple[str, ...]:
    """The keys in which an experiment differs from its recipe, each with both values."""
    from fedclass.report.rows import text
    from fedclass.runs.config_file import flat

    now, usual = (flat(e.to_tables()) for e in (experiment, recipe))
    return tuple(
        f"{key}={text(now.get(key, 'none'))} (recipe: {text(usual.get(key, 'none'))})"
        for key in now | usual
        if key not in FREE and now.get(key) != usual.get(key)
    )


def _list() -> None:
    from rich.table import Table

    from fedclass.cli.display import console
    from fedclass.report.paper import names

    table = Table(box=None, padding=(0, 2))
    for column in ("name", "recipes", "rows", "command"):
        table.add_column(column)
    for name, parts in names().items():
        recipes = ", ".join(part.setting for part in parts)
        table.add_row(name, recipes, _rows(parts[0]), f"fedclass reproduce {name}")
    console.print(table)
    console.print(
        "\nEach command runs all rows with seeds 0, 1, 2 and shows the paper's figures beside ours.\n"
        "--system released: settings as in the authors' released code.",
        highlight=False,
    )


def _rows(part: "Part") -> str:
    values = ", ".join(part.rows)
    return values if part.key is None else f"{part.method}, {part.key} = {values}"
