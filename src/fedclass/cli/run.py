"""fedclass run."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedclass.errors import ConfigError, RunError

if TYPE_CHECKING:
    from fedclass.experiment.config import Experiment

Recipe = Annotated[
    str | None,
    typer.Argument(
        help="A recipe: a TOML file, or the name of one that comes with fedclass, such as demo. Without a recipe, "
        "every key has its default: all images of the drawn digits, or of the data set in --set data.name."
    ),
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="Override a key of the recipe, such as train.rounds=2. Repeatable.")
]
Out = Annotated[Path | None, typer.Option(help="Directory to write to; new or empty. Default: below runs/.")]
Reuse = Annotated[
    bool,
    typer.Option(help="Reuse tasks that an earlier run with the same beginning learned (`fedclass cache`)."),
]
ChangedCode = Annotated[
    bool,
    typer.Option(
        "--changed-code",
        help="Use what the directory contains although code has changed since. All tables mark runs resumed this way.",
    ),
]
Nice = Annotated[
    int,
    typer.Option(min=0, max=19, help="Lower the priority of all processes, as `nice -n` does. 19: the lowest."),
]
Sinks = Annotated[
    list[str] | None,
    typer.Option("--sink", help="Also write figures for tensorboard, mlflow or wandb (offline). Repeatable."),
]


def run(
    recipe: Recipe = None,
    overrides: Overrides = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="A method from `fedclass methods`, or your own: package.module:Class; after a colon, its variant or "
            "parameters, as in fedclass:released or fedclass:beta=8. "
            "Default: the recipe's; if it names none, fedeven, which we recommend."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of everything random.")] = None,
    engine: Annotated[
        Literal["inprocess", "processes"] | None,
        typer.Option(
            help="Where clients are trained. Default: processes, if there are several cores and enough to do."
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of processes, one core each. The result does not depend on it. Default: all cores."
        ),
    ] = None,
    out: Out = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Resume a stopped run from its last checkpoint.")
    ] = None,
    changed_code: ChangedCode = False,
    reuse: Reuse = True,
    nice: Nice = 0,
    sinks: Sinks = None,
) -> None:
    """Run one experiment: learn a stream of classes over many clients.

    Writes config.toml, source.json, events.jsonl, checkpoints, summary.json, model.safetensors and classes.json to the
    run directory. A run that was stopped in any way can be resumed with --resume, and ends with the same bits.

    Examples:  fedclass run demo
               fedclass run cifar10_2task --set data.path=~/cifar-10-batches-bin --set method.beta=8
               fedclass run --set data.name=folder --set data.path=~/scans
    """
    from fedclass.cli.display import console, display, print_table
    from fedclass.engines.starting import be_nice
    from fedclass.experiment.grid import Choice, read_method
    from fedclass.experiment.launch import run_one
    from fedclass.experiment.recipe import load
    from fedclass.report.tables import results_tables
    from fedclass.runs.events import Event
    from fedclass.runs.kept import check_not_kept
    from fedclass.runs.layout import RunDirectory, fresh
    from fedclass.runs.summary import Result
    from fedclass.sinks import open_sinks
    from fedclass.studies import said_when_stopped

    if engine == "inprocess" and workers is not None:
        raise ConfigError("--workers is for --engine processes; leave out one of the two")
    if changed_code and resume is None:
        raise ConfigError("--changed-code is for --resume RUN; a new run has no earlier code")
    if resume is not None:
        if out is not None:
            raise ConfigError("--resume continues in the run's own directory; leave out --out")
        if not RunDirectory(resume).config.is_file():
            raise RunError(f"{resume}: has no config.toml; is it a run directory? `fedclass list` shows all runs")
        check_not_kept(resume)
        recipe = recipe or str(RunDirectory(resume).config)
    be_nice(nice)
    chosen = read_method(method) if method is not None else Choice("", None)
    experiment = load(recipe, [*chosen.overrides, *(overrides or [])], method=chosen.method, seed=seed)
    root = resume or out or fresh(f"{_word(experiment.data.name)}-{_word(experiment.method_name)}-s{experiment.seed}")
    say_what_is_quick(recipe, experiment)
    with (
        said_when_stopped(RunDirectory(root).config, f"type: fedclass run --resume {shlex.quote(str(root))}"),
        open_sinks(sinks or [], [root]) as record,
        display([experiment.method_name], finished=[0] if RunDirectory(root).finished else []) as shown,
    ):

        def listen(event: Event) -> None:
            shown.tell(0, event)
            record(0, event)

        run_one(
            experiment,
            root,
            listen,
            engine=engine or ("processes" if workers else None),
            workers=workers,
            go_on=resume is not None,
            reuse=reuse,
            changed_code=changed_code,
        )
    for each in results_tables([Result.read(root)]):
        print_table(each)
    console.print(f"run directory: {root}", highlight=False)


def say_what_is_quick(recipe: str | None, experiment: "Experiment") -> None:
    """Without a recipe or data, all drawn digits are used. A user may have expected a quick demonstration."""
    from fedclass.cli.display import console
    from fedclass.data.catalogue import DATASETS
    from fedclass.runs.counted import counted

    data, train = experiment.data, experiment.train
    sizes = DATASETS[data.name].sizes if data.name in DATASETS else None
    if recipe is None and data.name == "synnum" and data.fraction == 1 and sizes:
        console.print(
            f"no recipe: every key has its default, {sizes[0]:,} images and {counted(train.rounds, 'round')} per task. "
            "The time left is shown after the first round. For a demonstration within minutes: fedclass compare demo",
            highlight=False,
        )


def _word(name: str) -> str:
    return name.replace(":", ".")
