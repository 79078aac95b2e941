"""fedclass methods, fedclass doctor."""

import inspect
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedclass.cli.run import Overrides
from fedclass.errors import ConfigError, FedclassError

if TYPE_CHECKING:
    from fedclass.experiment.config import Experiment


def methods(
    name: Annotated[str | None, typer.Argument(help="A method to show in detail; or package.module:Class.")] = None,
    recipe: Annotated[
        str | None, typer.Option(help="The recipe for which to show how many bytes the method keeps and sends.")
    ] = None,
    overrides: Overrides = None,
) -> None:
    """List the methods, or show one: what it does, its parameters, and what it keeps and sends.

    Example:  fedclass methods scaffold --recipe cifar10_2task
    """
    from rich.table import Table

    from fedclass.cli.catalogue import glance
    from fedclass.cli.display import console

    table = Table(box=None, padding=(0, 2))
    if name is None:
        if recipe is not None or overrides:
            raise ConfigError("--recipe and --set are for one method: fedclass methods NAME --recipe RECIPE")
        for column in ("method", "what it is", "variants"):
            table.add_column(column)
        for each in glance():
            table.add_row(each.id, each.summary, ", ".join(each.variants))
        console.print(table)
        console.print("\n`fedclass methods NAME` shows one in detail; --method package.module:Class runs your own.")
        return
    from fedclass.cli.keys import keys_of
    from fedclass.experiment.recipe import find_method, load
    from fedclass.methods.base import own_words

    method = find_method(name)
    experiment = load(recipe, overrides or [], method=name)
    images = _images_of(experiment)
    console.print(name, style="bold")
    console.print(f"\n{inspect.cleandoc(method.__doc__ or '')}\n", highlight=False)
    source, fidelity = own_words(method)
    console.print(f"source    {source}\nfidelity  {fidelity}\n", highlight=False, markup=False)
    table.title, table.title_justify = "parameters: table [method] of a recipe", "left"
    for column in ("key", "default", "allowed", "meaning"):
        table.add_column(column)
    for key in keys_of(method):
        table.add_row(key.name, key.default or "-", key.allowed, key.meaning)
    console.print(table if table.row_count else "This method has no parameters.")
    _print_places(experiment, images)


@dataclass(frozen=True)
class Images:
    """How many classes, and the shape (H, W, C). assumed: nothing declares them, and the data were not read."""

    classes: int
    shape: tuple[int, int, int]
    assumed: bool = False


def _images_of(experiment: "Experiment") -> Images:
    """What the data set declares; else what its files contain, if they are where the recipe says."""
    from fedclass.data.datasets import find_source, load
    from fedclass.data.schedule import task_sizes

    data = experiment.data
    source, own_code = find_source(data.name), ":" in data.name  # own code may take long
    classes, shape = len(source.classes), source.shape
    if not (classes and shape) and not own_code and data.path and Path(data.path).exists():
        found = load(data.name, path=Path(data.path), size=data.image_size)
        height, width, channels = found.train.images.shape[1:]
        classes, shape = len(found.classes), (height, width, channels)
    assumed = not (classes and shape)
    height, width, channels = shape or (32, 32, 3)
    return Images(
        classes or sum(task_sizes(experiment.stream.tasks, 10)),
        (*(data.image_size or (height, width)), channels),
        assumed,
    )


def _print_places(experiment: "Experiment", images: Images) -> None:
    """Print what the method keeps and sends, in bytes, with the model of a recipe and all of its classes."""
    from rich.table import Table

    from fedclass.cli.display import console
    from fedclass.federation.quotas import AVAILABLE
    from fedclass.methods.declare import Sizes
    from fedclass.runs.counted import counted
    from fedclass.wire import nbytes

    classes, (height, width, channels) = images.classes, images.shape
    model = experiment.build((height, width), check=False)
    model.grow_to(classes, seed=experiment.seed_of("initialisation"))
    sizes, declared, optimizer = Sizes.of(model), experiment.method.declare(), experiment.server.declare()
    weights = nbytes(model.weights())
    table = Table(box=None, padding=(0, 2), title_justify="left")
    table.title = f"what it keeps and sends: {experiment.model.name}, {classes} classes"
    for column in ("what", "who has it", "bytes"):
        table.add_column(column, justify="right" if column == "bytes" else "left")
    table.add_row("weights", "server and clients, both ways in each round", f"{weights:,}")
    if model.frozen:
        table.add_row("frozen weights", "server and clients; never sent", f"{nbytes(model.frozen):,}")
    if declared.teacher == "previous task":
        table.add_row("teacher", "clients, once per task", f"{weights:,}")
    places = {
        "server": ({**declared.server, **optimizer}, "server"),
        "broadcast": ({n: declared.server[n] for n in declared.broadcast}, "server to clients, when changed"),
        "predicts with": ({n: declared.server[n] for n in declared.predicts_with}, "goes with the model"),
        "client": (declared.client, "each client for itself; never sent"),
        "rows": (declared.rows, "each client, with each exemplar; never sent"),
        "uploads": (declared.uploads.get("train", {}), "clients to server, in each round"),
        "uploads, end of task": (declared.uploads.get("end_task", {}), "clients to server, once per task"),
    }
    if experiment.memory.asks_counts:
        quotas = {"quotas": AVAILABLE["available"]}
        places["memory.quota"] = (AVAILABLE, "clients to server, once per task: class counts")
        places["memory.quota, back"] = (quotas, "server to clients, once per task")
    for place, (specs, who) in places.items():
        for tensor, spec in specs.items():
            shape = " x ".join(map(str, spec.shape)) or "a number"
            table.add_row(f"{place}: {tensor} ({shape})", who, f"{spec.nbytes(sizes):,}")
    console.print()
    if images.assumed:
        console.print(
            f"assumed: {classes} classes, {width}x{height}x{channels}; the images of {experiment.data.name} were not "
            "read. With other images, bytes differ.",
            style="yellow",
            highlight=False,
        )
    console.print(table)
    budget = experiment.memory.per_class * classes if experiment.memory.per_class else experiment.memory.per_client or 0
    kept = declared.kept_bytes(sizes, exemplars=budget, image=height * width * channels)
    pixels = f"{width}x{height}x{channels}"
    console.print(
        f"A client keeps at most {kept:,} bytes besides models: {counted(budget, 'exemplar')} of {pixels} with their "
        "rows, state, and what was broadcast.",
        highlight=False,
    )
    if declared.discloses:
        console.print(f"It sends {declared.discloses}. For simulations only: sites refuse it.", style="red")
    console.print(
        "It also sends the number of images behind an update, its mean loss, and the number of exemplars.",
        highlight=False,
    )


def doctor() -> None:
    """Check this machine: versions, cores, GPU, data folder, and one real training step. Exit code 0 if all is well."""
    import platform

    import torch

    import fedclass
    from fedclass.cli.display import console
    from fedclass.data.source import cache_folder
    from fedclass.experiment.launch import cores

    def line(name: str, value: str) -> None:
        console.print(f"{name:<14} {value}", highlight=False)

    line("fedclass", f"{fedclass.__version__} ({Path(fedclass.__file__).parent})")
    line("python", f"{platform.python_version()} ({sys.executable})")
    line("torch", f"{torch.__version__}, {torch.backends.cpu.get_cpu_capability()} kernels")
    line("cores", f"{cores()}; runs use all of them if that saves time, or as many as --workers says")
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none that torch can use"
    line("GPU", gpu)
    folder = cache_folder()
    line("data folder", f"{folder}" + ("" if folder.exists() else " (not there yet)") + "; FEDCLASS_DATA moves it")
    line("training step", _training_step())


def _training_step() -> str:
    """One small run in memory, with the real data, model and client."""
    import torch

    from fedclass.experiment.recipe import load
    from fedclass.experiment.setup import prepare
    from fedclass.federation.store import MemoryStore
    from fedclass.models.weights import flaw
    from fedclass.wire import Job

    small = ["data.fraction=0.01", "data.test_fraction=0.01", "partition.kind=iid", "memory.per_client=0"]
    setup = prepare(load(None, small))
    model = setup.build()
    model.grow_to(5, seed=0)
    before = model.weights()
    update = setup.client(MemoryStore()).run(Job(0, 0, 0, "train", before, None))
    problem = flaw(update.weights, before)
    if problem or all(torch.equal(update.weights[name], before[name]) for name in before):
        raise FedclassError(f"a training step on drawn digits went wrong: {problem or 'the weights did not change'}")
    return f"ok, loss {update.metrics['loss']:.2f}"
