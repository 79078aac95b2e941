"""fedclass run."""

import time
from pathlib import Path
from typing import Annotated

import typer

Recipe = Annotated[
    str | None, typer.Argument(help="A recipe: a TOML file, or the name of one that comes along. Default: embedded.")
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="Override a key of the recipe, such as train.rounds=2. Repeatable.")
]
Out = Annotated[Path | None, typer.Option(help="Directory to write to; new or empty. Default: below runs/.")]


def run(
    recipe: Recipe = None,
    overrides: Overrides = None,
    method: Annotated[
        str | None, typer.Option(help="A method of `fedclass methods`, or your own: package.module:Class.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of everything random.")] = None,
    out: Out = None,
) -> None:
    """Run one experiment: learn a stream of classes over many clients.

    Writes config.toml, events.jsonl, summary.json, model.safetensors and classes.json to the run directory.

    Example:  fedclass run cifar10_2task --set data.path=~/cifar-10-batches-bin --set method.beta=8
    """
    from fedclass.cli.display import console, display, print_table
    from fedclass.experiment.compare import run_one
    from fedclass.experiment.config import load
    from fedclass.report.tables import results_table
    from fedclass.runs.results import Result

    experiment = load(recipe, overrides or [], method=method, seed=seed)
    root = out or _fresh(f"{experiment.data.name}-{_word(experiment.method_name)}-s{experiment.seed}")
    with display([experiment.method_name]) as shown:
        run_one(experiment, root, lambda event: shown.tell(0, event))
    print_table(results_table([Result.read(root)]))
    console.print(f"run directory: {root}", highlight=False)


def _word(method: str) -> str:
    return method.replace(":", ".")


def _fresh(name: str) -> Path:
    milliseconds = time.time_ns() // 1_000_000 % 1000  # two runs may start within a second
    return Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}{milliseconds:03d}-{name}"
