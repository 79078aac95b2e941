"""fedclass reproduce: the paper's figures beside ours."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedclass.cli.compare import How, Seeds, Workers, carry_out, end, setting
from fedclass.cli.run import ChangedCode, Overrides, Reuse, Sinks, said_when_stopped
from fedclass.errors import ConfigError

if TYPE_CHECKING:
    from fedclass.experiment.config import Experiment
    from fedclass.experiment.grid import Choice, Member
    from fedclass.report.paper import Part

# Where files are and which device computes is no part of a setting; the rest changes no result.
FREE = {"seed", "data.path", "train.device", "evaluation.every"}


def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="A setting, table or ablation of the paper. Without it, they are listed.")
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="As in `fedclass compare`. Default: all that the paper has.")
    ] = None,
    seeds: Seeds = "0,1,2",
    overrides: Overrides = None,
    out: Annotated[
        Path, typer.Option(help="Directory for all runs; those that it holds already are not run again.")
    ] = Path("runs/reproduce"),
    workers: Workers = None,
    reuse: Reuse = True,
    changed_code: ChangedCode = False,
    sinks: Sinks = None,
) -> None:
    """Run a setting, a table or an ablation of the FedCLASS paper, and show its figures beside ours.

    Whatever --set changes (a part of the data, fewer rounds) is named below the table, which is then marked as reduced;
    give it an --out of its own.

    Example:  fedclass reproduce cifar10_2task --set data.fraction=0.1 --set train.rounds=5 --out runs/reduced
    """
    from fedclass.cli.display import console, print_table
    from fedclass.report.formats import markdown
    from fedclass.report.paper import Beside, beside_csv, beside_table, find
    from fedclass.report.rows import labels
    from fedclass.runs.layout import write_atomically
    from fedclass.runs.results import Result

    if name is None:
        _list()
        return
    parts = find(name)
    plans = [_plan(part, methods, seeds, overrides or [], out) for part in parts]
    members = [member for planned in plans for member, _, _ in planned]
    with said_when_stopped(out, "type the same again"):
        failures = carry_out(members, How(workers, reuse, changed_code, sinks or ()))
    failed = {members[number].path for number in failures}
    shown = []
    for part, planned in zip(parts, plans, strict=True):
        named = labels(setting(member) for member, _, _ in planned)
        rows: dict[str, Beside] = {}
        for member, row, changed in planned:
            beside = rows.get(member.choice.name) or Beside(named[setting(member)], row, (), changed)
            runs = () if member.path in failed else (Result.read(member.path),)
            rows[member.choice.name] = replace(beside, runs=beside.runs + runs)
        shown.append((part, list(rows.values())))
    tables = [beside_table(part, rows) for part, rows in shown]
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "results.md", "\n".join(map(markdown, tables)))
    write_atomically(folder / "results.csv", beside_csv(shown))
    for each in tables:
        print_table(each)
    console.print(f"tables: {folder}", highlight=False)
    end(members, failures)


def _plan(
    part: "Part", methods: str | None, seeds: str, overrides: Sequence[str], out: Path
) -> "list[tuple[Member, str, tuple[str, ...]]]":
    """Each run, with the paper's row that it belongs to and the keys in which it differs from the paper's recipe."""
    from fedclass.experiment.config import load
    from fedclass.experiment.grid import plan, read_methods, read_seeds

    rows: dict[str, str] = {}
    choices = []
    for choice, row in _choices(part, read_methods(methods or part.method or ",".join(part.rows))):
        choices.append(choice)
        rows[choice.name] = row
    planned = []
    for member in plan(part.setting, choices, overrides=overrides, seeds=read_seeds(seeds), root=out / part.setting):
        choice = member.choice
        own = [word for word in choice.overrides if word.startswith(("method.variant=", f"{part.key}="))]
        recipe = load(part.setting, own, method=choice.method)
        planned.append((member, rows[choice.name], _changed(member.experiment, recipe)))
    return planned


def _choices(part: "Part", entries: "Sequence[Choice]") -> "list[tuple[Choice, str]]":
    """What to run, and the paper's row for it. The recipe's own value keeps its name: its runs are shared."""
    from fedclass.experiment.config import load
    from fedclass.experiment.grid import Choice

    if part.key is None:
        return [(entry, str(entry.method)) for entry in entries]
    found = []
    for entry in entries:
        if entry.method != part.method:
            raise ConfigError(f"--methods {entry.name}: the paper has this ablation for {part.method} only")
        usual = load(part.setting, entry.overrides, method=entry.method)
        for value in part.rows:
            changes = (*entry.overrides, f"{part.key}={value}")
            same = load(part.setting, changes, method=entry.method) == usual
            name = entry.name if same else f"{entry.name}:{part.key.removeprefix('method.')}={value}"
            found.append((Choice(name, entry.method, changes), value))
    return found


def _changed(experiment: "Experiment", recipe: "Experiment") -> tuple[str, ...]:
    from fedclass.report.rows import text
    from fedclass.runs.layout import flat

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
    console.print("\nIt runs each row with seeds 0, 1, 2 and shows the paper's figures beside ours.", highlight=False)


def _rows(part: "Part") -> str:
    values = ", ".join(part.rows)
    return values if part.key is None else f"{part.method}, {part.key} = {values}"
