"""fedclass benchmark: fixed protocols, results that anyone can check."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedclass.cli.catalogue import stored
from fedclass.cli.compare import Against, Workers, again, end
from fedclass.cli.run import ChangedCode, Reuse, Sinks
from fedclass.errors import ConfigError, RunError

if TYPE_CHECKING:
    from fedclass.experiment.config import Experiment
    from fedclass.experiment.protocol import Protocol
    from fedclass.report.tables import Table
    from fedclass.runs.summary import Result

app = typer.Typer(
    help="Fixed protocols for comparing methods, and results that anyone can check.", no_args_is_help=True
)

FREE = ("data.path", "partition.path", "train.device", "evaluation.every")  # none of them changes a result
VERIFIED = "verified"  # apart from runs/, where tables would find each result twice
Places = Annotated[
    list[str] | None,
    typer.Option("--set", help=f"One of {', '.join(FREE)}. All other keys are fixed. Repeatable."),
]
Folders = Annotated[
    list[Path],
    typer.Argument(help="Folders made by `benchmark run` or `benchmark keep`, or folders that contain such folders."),
]


@app.command("list")
def list_() -> None:
    """List the protocols. Each has a reduced version that takes minutes on two cores.

    `fedclass benchmark run NAME` runs a protocol, NAME-reduced its reduced version. Results say which it was.
    """
    from rich.table import Table

    from fedclass.cli.display import console

    table = Table(box=None, padding=(0, 2))
    for column in ("protocol", "version", "data", "tasks", "clients", "exemplars", "rounds", "seeds"):
        table.add_column(column, no_wrap=True)
    for name, about in stored()["protocols"].items():
        table.add_row(name, *about["facts"])
    console.print(table)
    console.print(
        "\nExemplars: per client. Rounds: per task, times local epochs. `fedclass benchmark show NAME` says what is "
        "published and what is ours.",
        highlight=False,
    )


@app.command()
def show(
    protocol: Annotated[str, typer.Argument(help="A protocol from `benchmark list`, or your own file.")],
) -> None:
    """Show what a protocol fixes, where it comes from, and what it runs by default."""
    from fedclass.cli.display import console

    about = None if Path(protocol).is_file() else stored()["protocols"].get(protocol)
    if about is None:
        from fedclass.experiment.protocol import find_protocol

        lines = described(find_protocol(protocol))
    else:
        lines = about["lines"]
    for line in lines:
        console.print(line, highlight=False, markup=False)


def facts(protocol: "Protocol") -> list[str]:
    """Its row in `benchmark list`, after its name."""
    from fedclass.data.datasets import find_source
    from fedclass.data.schedule import task_sizes

    about, e = protocol.settings, protocol.experiment()
    memory = f"{e.memory.per_class} per class" if e.memory.per_class is not None else f"{e.memory.per_client}"
    tasks = task_sizes(e.stream.tasks, len(find_source(e.data.name).classes))
    rounds = f"{e.train.rounds} x {e.train.local_epochs}"
    return [str(about.version), e.data.name, f"{len(tasks)}", f"{e.partition.clients}", memory, rounds, about.seeds]


def described(protocol: "Protocol") -> list[str]:
    """What `benchmark show` prints."""
    from fedclass.report.rows import text

    about, reduced = protocol.settings, protocol.settings.reduced_by
    return [
        f"{protocol.title}: {about.about}",
        f"origin: {about.origin}",
        *([f"REDUCED, to take minutes on two cores: {', '.join(reduced)}"] if reduced else []),
        f"methods: {about.methods}; seeds {about.seeds}; tuned on {about.validation:g} of the training images",
        f"best settings: {', '.join(f'{name}:best' for name in about.best) or 'none yet'}",
        f"fixed (sha256 {protocol.sha256[:16]}):",
        *(f"  {key} = {text(value)}" for key, value in protocol.fixed().items()),
    ]


@app.command()
def run(
    protocol: Annotated[str, typer.Argument(help="A protocol from `benchmark list`, or your own file.")],
    methods: Annotated[
        str | None,
        typer.Option(help="As in `fedclass compare`; NAME:best uses the settings tuned for this protocol."),
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Such as 0,1,2 or 0-4. Default: the protocol's.")] = None,
    places: Places = None,
    against: Against = None,
    out: Annotated[
        Path, typer.Option(help="Folder for protocols and their runs. The same command resumes where it stopped.")
    ] = Path("runs/benchmark"),
    workers: Workers = None,
    reuse: Reuse = True,
    changed_code: ChangedCode = False,
    sinks: Sinks = None,
) -> None:
    """Run methods on a protocol, with the same images, partition and first weights for each seed.

    A protocol is fixed, except for where its files are. Methods have their own parameters, as in
    --methods fedclass:beta=8. Results go to OUT/PROTOCOL-vVERSION; more methods or seeds can be added later.

    Example:  fedclass benchmark run digits_5task-reduced --methods fedavg,fedeven --seeds 0-2
    """
    from fedclass.experiment.grid import Member, expand
    from fedclass.experiment.protocol import find_protocol
    from fedclass.studies import How, carry_out

    found = find_protocol(protocol)
    _only_places(places or ())
    root = out / found.folder
    choices, numbers = found.choices(methods), found.seeds(seeds)
    members: list[Member] = expand(found.recipe, choices, overrides=places or (), seeds=numbers, root=root)
    for member in members:
        found.check(member.experiment, where=f"--methods {member.choice.name}")
    found.check_folder(root)
    how = How(workers, reuse, changed_code, sinks or (), again=lambda _: "type the same again")
    failures = carry_out(members, how, root, against=against, prepared=lambda: found.write(root))
    if len(failures) < len(members):
        _print([root], against=against)
    end(members, failures)


@app.command()
def table(
    folders: Folders,
    against: Against = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown instead.")] = False,
) -> None:
    """Show results by protocol: mean and deviation, paired intervals, bytes sent, memory, time, a hash for each run.

    Example:  fedclass benchmark table runs/benchmark --against fedavg
    """
    from fedclass.report.benchmark import benchmark_markdown

    if markdown:
        print(benchmark_markdown([_block(*found, against=against) for found in _read(folders)]), end="")
    else:
        _print(folders, against=against)


@app.command()
def page(
    folder: Annotated[Path, typer.Argument(help="The folder of one protocol. For Markdown, it may contain several.")],
    out: Annotated[
        Path | None, typer.Option(help="An .html or .md file. Default: benchmark.html in the folder.")
    ] = None,
    against: Against = None,
) -> None:
    """Write a page of results: one HTML file with all tables and charts, which needs no network; or Markdown tables.

    Example:  fedclass benchmark page runs/benchmark/digits_5task-reduced-v1
    """
    from fedclass.report.benchmark import benchmark_markdown, benchmark_tables
    from fedclass.report.history import read_history
    from fedclass.report.html import build
    from fedclass.runs.layout import write_atomically

    out = out or folder / "benchmark.html"
    if out.suffix not in (".html", ".md"):
        raise ConfigError(f"--out {out}: the name must end in .html or .md")
    found = _read([folder])
    if out.suffix == ".md":
        blocks = [_block(*each, against=against) for each in found]
        content = f"{PAGE_TITLE}\n{benchmark_markdown(blocks)}"
    else:
        if len(found) > 1:
            raise ConfigError(
                f"{folder}: contains several protocols; name the folder of one, such as {found[0][0].folder}"
            )
        ((protocol, results, usual),) = found
        histories = [read_history(result.path) for result in results]
        content = build(
            histories,
            title=f"Benchmark: {protocol.title}",
            tables=benchmark_tables(results, against=against or usual),
            notes=_about(protocol),
        ).page
    write_atomically(out, content)
    typer.echo(f"page: {out}")


@app.command()
def keep(
    folders: Folders,
    out: Annotated[Path, typer.Option(help="Where to keep them, by protocol.")] = Path("results/benchmark"),
) -> None:
    """Keep finished runs as small data: recipe, summary, compressed events, and the SHA-256 of each.

    `benchmark table`, `page` and `verify` read the kept data; nothing is trained again.
    """
    from fedclass.runs.counted import counted
    from fedclass.runs.kept import keep as keep_run
    from fedclass.runs.order import Order

    for protocol, results, against in _read(folders):
        folder = out / protocol.folder
        protocol.write(folder)
        for result in results:
            keep_run(result.path, folder / result.path.name)
        Order(tuple(result.path.name for result in results), against).write(folder)
        typer.echo(f"{folder}: {counted(len(results), 'run')}")


@app.command()
def verify(
    result: Annotated[Path, typer.Argument(help="The folder of a run, kept or not, or a file in it.")],
    places: Places = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Directory for the new run, or of one that was stopped. Default: below verified/."),
    ] = None,
    workers: Workers = None,
) -> None:
    """Run a result again and compare: the hash of its weights, and every figure. Exit code 0 if they are the same.

    A result that was changed after it was kept is refused before anything is run. So are other images.

    Example:  fedclass benchmark verify results/benchmark/digits_5task-reduced-v1/fedavg-s0
    """
    from fedclass.cli.display import console, display, print_table
    from fedclass.experiment.launch import run_one
    from fedclass.experiment.setup import prepare
    from fedclass.report.verify import compared
    from fedclass.runs.kept import read_result
    from fedclass.runs.layout import RunDirectory, fresh
    from fedclass.runs.summary import Result
    from fedclass.studies import said_when_stopped

    root = result.parent if result.is_file() else result
    known = read_result(root)
    experiment = _again(root, places or ())
    _check_images(root, prepare(experiment).stream.data.sha256)
    target = out or fresh(root.name, below=VERIFIED)
    if RunDirectory(target).finished:
        raise RunError(
            f"--out {target}: is a finished run, which would be compared and not repeated; name a new folder"
        )
    with said_when_stopped(target, again(target)), display([root.name]) as shown:
        run_one(experiment, target, lambda event: shown.tell(0, event), engine=None, workers=workers, go_on=True)
    found = compared(known, Result.read(target))
    print_table(found.table)
    console.print(found.verdict, highlight=False)
    if not found.same:
        raise typer.Exit(1)


PAGE_TITLE = """\
# Benchmark results

Made from the runs in `results/benchmark` by `fedclass benchmark page`; a test compares it with them.
[Benchmark](benchmark.md) says what is compared, and how to add a result or check one.
"""


def _only_places(overrides: Sequence[str]) -> None:
    for word in overrides:
        if word.partition("=")[0].strip() not in FREE:
            raise ConfigError(
                f"--set {word}: a protocol is fixed; only {', '.join(FREE)} can be set. `fedclass compare` takes any "
                "key; write parameters of a method as in --methods fedclass:beta=8, and seeds as --seeds 0,1"
            )


def _again(root: Path, places: Sequence[str]) -> "Experiment":
    from fedclass.experiment.recipe import load
    from fedclass.runs.layout import RunDirectory

    _only_places(places)
    return load(str(RunDirectory(root).config), places)


def _check_images(root: Path, sha256: str) -> None:
    from fedclass.runs.events import RunStarted, read_events
    from fedclass.runs.layout import RunDirectory

    started = next(event for event in read_events(RunDirectory(root).events) if isinstance(event, RunStarted))
    if started.dataset_sha256 != sha256:
        raise RunError(
            f"{root}: was made with images of {started.dataset} with sha256 {started.dataset_sha256[:16]}, but the "
            f"images here have {sha256[:16]}; --set data.path=FOLDER names the right ones"
        )


def _read(folders: Sequence[Path]) -> "list[tuple[Protocol, list[Result], str | None]]":
    """Finished runs by protocol, and the row that they were compared with.

    Runs that do not belong to the folder's protocol are refused. So are kept runs that were changed.
    """
    from fedclass.experiment.protocol import STORED, Protocol
    from fedclass.experiment.recipe import experiment
    from fedclass.report.collect import collect
    from fedclass.runs.config_file import read_config

    def warn(message: str) -> None:
        print(f"warning: {message}", file=sys.stderr)

    found = []
    for folder in folders:
        if not folder.is_dir():
            raise RunError(f"{folder}: no such folder; `fedclass benchmark run` makes one")
        stored = sorted(path.parent for path in folder.rglob(STORED))
        if not stored:
            raise RunError(
                f"{folder}: contains no results of a protocol (no {STORED}); `fedclass benchmark run` makes some"
            )
        for each in stored:
            protocol = Protocol.stored(each)
            results, usual = collect([each], warn)
            for result in results:
                protocol.check(experiment(read_config(result.path), where=str(result.path)), where=str(result.path))
            found.append((protocol, results, usual))
    return found


def _about(protocol: "Protocol") -> list[str]:
    about = protocol.settings
    lines = [f"{about.about}. Origin: {about.origin}."]
    if protocol.settings.reduced_by:
        lines.append(f"REDUCED, so that it takes minutes on two cores: {', '.join(protocol.settings.reduced_by)}.")
    return lines


def _block(
    protocol: "Protocol", results: "list[Result]", usual: str | None, *, against: str | None
) -> "tuple[str, list[str], list[Table]]":
    from fedclass.report.benchmark import benchmark_tables

    return protocol.title, _about(protocol), benchmark_tables(results, against=against or usual)


def _print(folders: Sequence[Path], *, against: str | None) -> None:
    from fedclass.cli.display import console, print_table

    for title, about, tables in (_block(*found, against=against) for found in _read(folders)):
        console.rule(title, align="left")
        for line in about:
            console.print(line, highlight=False, markup=False)
        for each in tables:
            print_table(each)
