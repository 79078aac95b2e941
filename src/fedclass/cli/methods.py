"""fedclass methods."""

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args, get_type_hints

import typer

from fedclass.cli.catalogue import stored
from fedclass.cli.keys import keys_of
from fedclass.cli.run import Overrides
from fedclass.errors import ConfigError

if TYPE_CHECKING:
    from fedclass.experiment.config import Experiment
    from fedclass.models.incremental import IncrementalModel

Row = tuple[str, str, str]


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
    if name is None:
        if recipe is not None or overrides:
            raise ConfigError("--recipe and --set are for one method: fedclass methods NAME --recipe RECIPE")
        _print_list()
    elif name in stored()["methods"] and recipe is None and not overrides:
        _print(name, About(**stored()["methods"][name]))
    else:
        _print(name, describe(name, recipe, overrides or []))


@dataclass(frozen=True)
class About:
    """A method in words. keys: its parameters, as in `Key`.  places: what it keeps and sends, who has it, bytes.

    title: of the places.  assumed: what was assumed to count bytes.  kept: what a client keeps in all.
    """

    text: str
    variants: Sequence[str]
    source: str
    fidelity: str
    keys: Sequence[dict[str, str | None]]
    title: str
    places: Sequence[Row]
    assumed: str
    kept: str
    discloses: str


def describe(name: str, recipe: str | None = None, overrides: Sequence[str] = ()) -> About:
    """A method, and how many bytes it keeps and sends with the model of a recipe and all of its classes."""
    from fedclass.experiment.recipe import find_method, load
    from fedclass.methods.base import own_words

    method = find_method(name)
    experiment = load(recipe, overrides, method=name)
    images = _images_of(experiment)
    height, width, channels = images.shape
    model = experiment.build((height, width), check=False)
    model.grow_to(images.classes, seed=experiment.seed_of("initialisation"))
    source, fidelity = own_words(method)
    assumed = (
        f"assumed: {images.classes} classes, {width}x{height}x{channels}; the images of {experiment.data.name} were "
        "not read. With other images, bytes differ."
    )
    return About(
        text=inspect.cleandoc(method.__doc__ or ""),
        variants=get_args(get_type_hints(method).get("variant")) or ("standard",),
        source=source,
        fidelity=fidelity,
        keys=[vars(key) for key in keys_of(method)],
        title=f"what it keeps and sends: {experiment.model.name}, {images.classes} classes",
        places=list(_places(experiment, model)),
        assumed=assumed if images.assumed else "",
        kept=_kept(experiment, model, images),
        discloses=experiment.method.declare().discloses,
    )


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


def _places(experiment: "Experiment", model: "IncrementalModel") -> Iterator[Row]:
    """What the method keeps and sends: what, who has it, how many bytes."""
    from fedclass.federation.quotas import AVAILABLE
    from fedclass.methods.declare import Sizes
    from fedclass.wire import nbytes

    sizes, declared = Sizes.of(model), experiment.method.declare()
    weights = f"{nbytes(model.weights()):,}"
    yield "weights", "server and clients, both ways in each round", weights
    if model.frozen:
        yield "frozen weights", "server and clients; never sent", f"{nbytes(model.frozen):,}"
    if declared.teacher == "previous task":
        yield "teacher", "clients, once per task", weights
    places = {
        "server": ({**declared.server, **experiment.server.declare()}, "server"),
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
            yield f"{place}: {tensor} ({shape})", who, f"{spec.nbytes(sizes):,}"


def _kept(experiment: "Experiment", model: "IncrementalModel", images: Images) -> str:
    from fedclass.methods.declare import Sizes
    from fedclass.runs.counted import counted

    height, width, channels = images.shape
    memory = experiment.memory
    budget = memory.per_class * images.classes if memory.per_class else memory.per_client or 0
    declared = experiment.method.declare()
    kept = declared.kept_bytes(Sizes.of(model), exemplars=budget, image=height * width * channels)
    return (
        f"A client keeps at most {kept:,} bytes besides models: {counted(budget, 'exemplar')} of "
        f"{width}x{height}x{channels} with their rows, state, and what was broadcast."
    )


def _print_list() -> None:
    from rich.table import Table

    from fedclass.cli.display import console

    table = Table("method", "what it is", "variants", box=None, padding=(0, 2))
    for name, about in stored()["methods"].items():
        table.add_row(name, about["text"].partition("\n")[0], ", ".join(about["variants"]))
    console.print(table)
    console.print(
        "\nWe recommend fedeven, which is ours; fedclass is the paper's. `fedclass methods NAME` shows one in detail; "
        "--method package.module:Class runs your own."
    )


def _print(name: str, about: About) -> None:
    from rich.table import Table

    from fedclass.cli.display import console

    console.print(name, style="bold")
    console.print(f"\n{about.text}\n", highlight=False)
    console.print(f"source    {about.source}\nfidelity  {about.fidelity}\n", highlight=False, markup=False)
    table = Table("key", "default", "allowed", "meaning", box=None, padding=(0, 2), title_justify="left")
    table.title = "parameters: table [method] of a recipe"
    for key in about.keys:
        table.add_row(key["name"], key["default"] or "-", key["allowed"], key["meaning"])
    console.print(table if about.keys else "This method has no parameters.")
    console.print()
    if about.assumed:
        console.print(about.assumed, style="yellow", highlight=False)
    places = Table("what", "who has it", box=None, padding=(0, 2), title=about.title, title_justify="left")
    places.add_column("bytes", justify="right")
    for row in about.places:
        places.add_row(*row)
    console.print(places)
    console.print(about.kept, highlight=False)
    if about.discloses:
        console.print(f"It sends {about.discloses}. For simulations only: sites refuse it.", style="red")
    console.print(
        "It also sends the number of images behind an update, its mean loss, and the number of exemplars.",
        highlight=False,
    )
