"""fedclass run, fedclass compare."""

import sys
import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from fedclass.errors import ConfigError, RunError

Recipe = Annotated[
    str | None, typer.Argument(help="A recipe: a TOML file, or the name of one that comes along. Default: embedded.")
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="Override a key of the recipe, such as train.rounds=2. Repeatable.")
]
Out = Annotated[Path | None, typer.Option(help="Directory to write to; new or empty. Default: below runs/.")]
Reuse = Annotated[
    bool,
    typer.Option(help="Take over tasks that an earlier run with the same beginning learned (`fedclass cache`)."),
]


def run(
    recipe: Recipe = None,
    overrides: Overrides = None,
    method: Annotated[
        str | None, typer.Option(help="A method of `fedclass methods`, or your own: package.module:Class.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of everything random.")] = None,
    engine: Annotated[
        Literal["inprocess", "processes"] | None,
        typer.Option(help="Where clients work. Default: processes, where there are several cores."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes, one core each; the result is the same. Default: all cores.")
    ] = None,
    out: Out = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Go on with a run that was stopped, from its last checkpoint.")
    ] = None,
    reuse: Reuse = True,
) -> None:
    """Run one experiment: learn a stream of classes over many clients.

    Writes config.toml, events.jsonl, checkpoints, summary.json, model.safetensors and classes.json to the run
    directory. A run that was stopped, in whatever way, goes on with --resume and ends with the same bits.

    Example:  fedclass run cifar10_2task --set data.path=~/cifar-10-batches-bin --set method.beta=8
    """
    from fedclass.cli.display import console, display, print_table
    from fedclass.experiment.compare import run_one, usual_engine
    from fedclass.experiment.config import load
    from fedclass.report.tables import results_table
    from fedclass.runs.layout import RunDirectory
    from fedclass.runs.results import Result

    if engine == "inprocess" and workers is not None:
        raise ConfigError("--workers is for --engine processes; leave one of them out")
    if resume is not None:
        if out is not None:
            raise ConfigError("--resume goes on in the run's own directory; leave --out out")
        if not RunDirectory(resume).config.is_file():
            raise RunError(
                f"{resume}: has no config.toml; is it a run directory? `fedclass list` shows those there are"
            )
        recipe = recipe or str(RunDirectory(resume).config)
    experiment = load(recipe, overrides or [], method=method, seed=seed)
    root = resume or out or _fresh(f"{experiment.data.name}-{_word(experiment.method_name)}-s{experiment.seed}")
    with display([experiment.method_name]) as shown:
        run_one(
            experiment,
            root,
            lambda event: shown.tell(0, event),
            engine=engine or usual_engine(experiment),
            workers=workers,
            go_on=resume is not None,
            reuse=reuse,
        )
    print_table(results_table([Result.read(root)]))
    console.print(f"run directory: {root}", highlight=False)


def compare(
    recipe: Recipe = None,
    methods: Annotated[str, typer.Option(help="Methods, with commas between them.")] = "fedavg,fedclass",
    seeds: Annotated[str, typer.Option(help="Seeds, with commas between them; each method is run with each.")] = "0",
    overrides: Overrides = None,
    out: Out = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Cores to use; the results are the same. Default: all.")
    ] = None,
    reuse: Reuse = True,
) -> None:
    """Run several methods on the same data, partition and seeds, and put them into one table.

    Over several seeds, the table shows the mean and the standard deviation.

    Example:  fedclass compare --methods fedavg,fedclass,fedwa --seeds 0,1,2
    """
    from fedclass.cli.display import console, display, print_table
    from fedclass.experiment.compare import run_all
    from fedclass.experiment.config import load
    from fedclass.report.tables import results_table
    from fedclass.runs.results import Result

    try:
        numbers = [int(seed) for seed in seeds.split(",")]
    except ValueError:
        raise ConfigError(f"--seeds {seeds}: write whole numbers with commas between them, such as 0,1,2") from None
    names = [name.strip() for name in methods.split(",")]
    if len(set(names)) != len(names) or len(set(numbers)) != len(numbers):
        raise ConfigError("--methods and --seeds: each may be named once only")
    experiments = [load(recipe, overrides or [], method=name, seed=seed) for name in names for seed in numbers]
    root = out or _fresh(f"{experiments[0].data.name}-compare")
    plan = [(e, root / f"{_word(e.method_name)}-s{e.seed}") for e in experiments]
    labels = [f"{e.method_name} s{e.seed}" if len(numbers) > 1 else e.method_name for e in experiments]
    with display(labels) as shown:
        failures = run_all(plan, workers=workers, listen=shown.tell, reuse=reuse)
    finished = [Result.read(path) for number, (_, path) in enumerate(plan) if number not in failures]
    if finished:
        print_table(results_table(finished))
    console.print(f"run directories: {root}", highlight=False)
    for number, failure in failures.items():
        print(f"error: {labels[number]}: {failure}", file=sys.stderr)
    if failures:
        raise typer.Exit(next(iter(failures.values())).exit_code)


def _word(method: str) -> str:
    return method.replace(":", ".")


def _fresh(name: str) -> Path:
    milliseconds = time.time_ns() // 1_000_000 % 1000  # two runs may start within a second
    return Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}{milliseconds:03d}-{name}"
