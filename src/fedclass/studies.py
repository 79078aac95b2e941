"""Several runs, one table: `fedclass compare`, `sweep` and `table`, as commands and from Python.

rows = fedclass.compare("demo", ["fedavg", MyMethod(beta=3)], seeds=range(3), out="runs/first")
best = fedclass.sweep("demo", {"method.beta": [0, 1, 5], "data.validation": 0.1})
means = fedclass.table("runs/first")
"""

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fedclass.errors import FedclassError
from fedclass.report.collect import collect
from fedclass.report.formats import latex, markdown, run_records, runs_csv
from fedclass.report.rows import Setting, find, labels
from fedclass.report.tables import Table, comparison, row_records
from fedclass.runs.dataframe import Place, Record
from fedclass.runs.events import Event
from fedclass.runs.layout import RunDirectory, fresh, write_atomically
from fedclass.runs.order import Order
from fedclass.runs.summary import Result
from fedclass.sinks import open_sinks

if TYPE_CHECKING:  # these import torch, which tables do not need
    from fedclass.cli.budget import Found
    from fedclass.cli.foresee import Row
    from fedclass.experiment.config import Experiment
    from fedclass.experiment.grid import Choice, Member
    from fedclass.methods import Method
    from fedclass.runs.outlook import Outlook

Seeds = str | int | Iterable[int]
Overrides = Sequence[str] | Mapping[str, object]


@dataclass(frozen=True)
class How:
    """Options for carrying out several runs.

    again: how to resume after a stop, given the folder.  dry_run: only say what would be trained.
    """

    workers: int | None = None
    reuse: bool = True
    changed_code: bool = False
    sinks: Sequence[str] = ()
    progress: bool = True
    again: Callable[[Path], str] = lambda root: f"call it again with out={str(root)!r}"
    nice: int = 0
    dry_run: bool = False


@dataclass(frozen=True)
class Choosing:
    """How to choose between settings. budget: in full runs; None: all are run.  save: the best will be saved."""

    budget: float | None = None
    save: bool = False


NO_CHOICE = Choosing()


@dataclass(frozen=True)
class Study:
    """Runs, carried out or planned. failures: by the member's number.  found: the best, of a sweep with a budget."""

    root: Path
    members: "Sequence[Member]"
    results: Sequence[Result] = ()
    tables: Sequence[Table] = ()
    failures: Mapping[int, FedclassError] = field(default_factory=dict)
    against: str | None = None
    foreseen: "Sequence[Row]" = ()
    found: "Found | None" = None

    @property
    def others(self) -> list[str]:
        """Runs in the same folder that do not belong to this study."""
        own = {member.path for member in self.members}
        return sorted(events.parent.name for events in self.root.glob("*/events.jsonl") if events.parent not in own)

    def records(self) -> list[Record]:
        """One for each run, as in results.csv; of a dry run, what is left to do. Failures are raised."""
        if self.failures:
            known = names(self.members)
            told = "; ".join(f"{known[number]}: {failure}" for number, failure in self.failures.items())
            kind = type(next(iter(self.failures.values())))
            raise kind(f"{self.root}: {len(self.failures)} of {len(self.members)} runs failed: {told}")
        if self.foreseen:
            return [row.record() for row in self.foreseen]
        return run_records(self.results, against=self.against)


def compare(
    recipe: str | None = None,
    methods: "str | Sequence[str | type[Method] | Method]" = "fedavg,fedclass",
    *,
    seeds: Seeds = 0,
    overrides: Overrides = (),
    against: str | None = None,
    out: Place | None = None,
    workers: int | None = None,
    reuse: bool = True,
    changed_code: bool = False,
    nice: int = 0,
    dry_run: bool = False,
    sinks: Sequence[str] = (),
    progress: bool = True,
) -> list[Record]:
    """Run several methods on the same data, partition and seeds. Returns a record for each run, as in results.csv.

    methods: names, such as "fedclass:beta=8", your own classes, or instances of them.  against: the row to compare
    with; by default the first.  out: the folder for all runs, by default one below runs/; the same call resumes where
    it stopped.  workers: cores to use, by default all.  reuse: reuse tasks that an earlier run with the same beginning
    learned.  changed_code: use what the folder contains although code has changed since.  nice: from 0 to 19, a lower
    priority for this process, until it ends.  dry_run: train nothing; the records say what is left to do for each run,
    and how long it would take here, by a short calibration.
    """
    from fedclass.experiment.grid import methods_given

    how = How(workers, reuse, changed_code, sinks, progress, nice=nice, dry_run=dry_run)
    return compared(recipe, methods_given(methods), seeds, overrides, against=against, out=out, how=how).records()


def sweep(
    recipe: str | None = None,
    settings: Overrides = (),
    *,
    method: "str | type[Method] | Method | None" = None,
    seeds: Seeds = 0,
    budget: float | None = None,
    save: Place | None = None,
    against: str | None = None,
    out: Place | None = None,
    workers: int | None = None,
    reuse: bool = True,
    changed_code: bool = False,
    nice: int = 0,
    dry_run: bool = False,
    sinks: Sequence[str] = (),
    progress: bool = True,
) -> list[Record]:
    """Run one recipe with several values of its keys, in all combinations. Returns a record for each run.

    settings: {"method.beta": [0, 1, 3], "data.validation": 0.1}, with a list for each key that is varied. Where a value
    is itself a list, give a list of lists: {"stream.tasks": [[5, 5], [2, 8]]}. Or as typed: ["method.beta=0,1,3"].

    With data.validation, rows are compared on images that clients hold out, and only the best row has test figures.

    budget: spend no more than this many full runs (all tasks, one seed), by successive halving on validation images;
    the records are those of the best setting.  save: write the best values to this TOML file, under the method's name.
    The other arguments are those of `compare`.
    """
    from fedclass.cli.budget import save_found
    from fedclass.experiment.grid import read_sweep

    how = How(workers, reuse, changed_code, sinks, progress, nice=nice, dry_run=dry_run)
    choices = read_sweep(settings, method=method)
    choosing = Choosing(budget, save is not None)
    study = compared(recipe, choices, seeds, (), against=against, out=out, how=how, kind="sweep", choosing=choosing)
    records = study.records()
    if save is not None and not dry_run:
        save_found(study, Path(save).expanduser(), recipe=recipe)
    return records


def table(places: Place | Iterable[Place], *, against: str | None = None) -> list[Record]:
    """The results of finished runs: a record for each row, with means and deviations over seeds, and differences.

    places: run directories, or folders with runs in them.  against: the row to compare with; by default the one that
    the folder's runs were compared with, or the first.
    """
    given = [places] if isinstance(places, str) or not isinstance(places, Iterable) else places
    results, usual = collect(
        [Path(place).expanduser() for place in given], lambda text: warnings.warn(text, stacklevel=4)
    )
    return row_records(results, against=against or usual)


# Shared with the commands.


def compared(
    recipe: str | None,
    choices: "Sequence[Choice]",
    seeds: Seeds,
    overrides: Overrides,
    *,
    against: str | None,
    out: Place | None,
    how: How,
    kind: str = "compare",
    choosing: Choosing = NO_CHOICE,
    told: "Callable[[Experiment], None]" = lambda _: None,
) -> Study:
    """Run what is missing; write results.md, results.tex and results.csv. told: is called with the first experiment."""
    from fedclass.cli.budget import check_choosing, search
    from fedclass.cli.foresee import foreseen
    from fedclass.engines.starting import be_nice
    from fedclass.experiment.grid import expand, read_seeds

    be_nice(how.nice)
    root = Path(out).expanduser() if out is not None else fresh(f"{Path(recipe or 'defaults').stem}-{kind}")
    members = expand(recipe, choices, overrides=overrides, seeds=read_seeds(seeds), root=root)
    told(members[0].experiment)
    if against is not None:
        _check_reference(members, against)
    check_choosing(members, choosing, against=against, dry_run=how.dry_run)
    if how.dry_run:
        return Study(root, members, foreseen=foreseen(members, how))
    if choosing.budget is not None:
        return search(members, root, budget=choosing.budget, how=how)
    failures = carry_out(members, how, root, against=against)
    finished = [Result.read(member.path) for number, member in enumerate(members) if number not in failures]
    if not finished:
        return Study(root, members, failures=failures)
    tables = comparison(finished, against=against, differences=not failures)
    write_atomically(root / "results.md", "\n".join(map(markdown, tables)))
    write_atomically(root / "results.tex", "\n".join(map(latex, tables)))
    write_atomically(root / "results.csv", runs_csv(finished, against=against, differences=not failures))
    return Study(root, members, finished, tables, failures, against)


def carry_out(
    members: "Sequence[Member]",
    how: How,
    root: Path,
    *,
    against: str | None = None,
    until: Sequence[int] | None = None,
    prepared: Callable[[], None] = lambda: None,
) -> dict[int, FedclassError]:
    """Run what is missing, shown live. Returns failures by the member's number. root: the folder of all runs.

    `fedclass table` will show the runs in the order of the members, and differences from the row `against`.
    until: the number of tasks after which each run stops.  prepared: is called after all checks, before the first run.
    """
    from fedclass.cli.display import display
    from fedclass.experiment.parallel import run_all
    from fedclass.runs.outlook import TimeLeft

    left = TimeLeft([])

    def begin(outlooks: "Sequence[Outlook]") -> None:
        nonlocal left
        prepared()
        left = TimeLeft(outlooks)
        if shown is not None:
            shown.expect(left)
        for folder in dict.fromkeys(member.path.parent for member in members):
            inside = [member.path.name for member in members if member.path.parent == folder]
            Order(tuple(inside), against).write(folder)

    runs = [(member.experiment, member.path) for member in members]
    finished = [number for number, (_, path) in enumerate(runs) if RunDirectory(path).finished]
    with said_when_stopped(root, how.again(root)), contextlib.ExitStack() as stack:
        record = stack.enter_context(open_sinks(how.sinks, [path for _, path in runs]))
        shown = stack.enter_context(display(names(members), finished=finished)) if how.progress else None

        def listen(number: int, event: Event) -> None:
            left.tell(number, event)
            if shown is not None:
                shown.tell(number, event)
            record(number, event)

        return run_all(
            runs,
            workers=how.workers,
            listen=listen,
            reuse=how.reuse,
            changed_code=how.changed_code,
            until=until,
            prepared=begin,
            failed=lambda number: left.drop(number),
        )


@contextlib.contextmanager
def said_when_stopped(written: Path, how: str) -> Iterator[None]:
    """After Ctrl-C or a signal, say how to resume, if anything has been written."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if written.exists():
            print(f"stopped; to go on, {how}", file=sys.stderr)
        raise


def names(members: "Sequence[Member]") -> list[str]:
    several = len({member.experiment.seed for member in members}) > 1
    return [member.name if several else member.choice.name for member in members]


def setting(member: "Member") -> Setting:
    """The setting by which tables will know a run, before it is run."""
    e = member.experiment
    return Setting.of(e.to_tables(), method=e.method_name, variant=e.method.variant_name)


def _check_reference(members: "Sequence[Member]", against: str) -> None:
    """Look for the row in each future table, so that a mistake is found before hours of work."""
    tables: dict[tuple[str, str], list[Setting]] = {}
    for member in members:
        e = member.experiment
        tables.setdefault((e.data.name, str(e.stream.tasks)), []).append(setting(member))
    for settings in tables.values():
        find(list(labels(settings).values()), against)
