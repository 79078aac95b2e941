"""fedclass predict, fedclass evaluate, fedclass export."""

import json
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedclass.cli.data import PathOption
from fedclass.errors import ConfigError, DataError

if TYPE_CHECKING:
    from fedclass.experiment.trained import Evaluation, Prediction, TrainedModel

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a finished run.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def predict(
    run: RunArgument,
    images: Annotated[
        list[Path], typer.Argument(metavar="IMAGE...", help="Image files, or folders of images at any depth.")
    ],
    top: Annotated[int, typer.Option(min=1, help="How many classes to show per image, the best first.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object per image, one per line.")] = False,
) -> None:
    """Predict the classes of images with the model of a run.

    Images of any size and mode are converted to those of the training images, and a note says so. Scores are the
    method's own: the highest wins. They are not probabilities.

    Example:  fedclass predict runs/mine photos/ --top 3
    """
    model = _loaded(run)
    files = [file for image in images for file in _files(image)]
    predictions = model.predict(files)
    shown = min(top, len(model.classes))
    if as_json:
        for file, prediction in zip(files, predictions, strict=True):
            print(json.dumps(_record(file, prediction, shown), allow_nan=False))
    else:
        _print_predictions(files, predictions, shown)


def _loaded(run: Path) -> "TrainedModel":
    """The run's model. Warnings are lines like all others."""
    from fedclass.experiment.trained import load_model

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", UserWarning)
        model = load_model(run)
    for warning in heard:
        typer.echo(f"warning: {warning.message}", err=True)
    return model


def _files(place: Path) -> list[Path]:
    """The file, or all files below the folder except those that training passes over, and those in hidden folders."""
    from fedclass.data.folder import passed_over

    if not place.exists():
        raise DataError(f"{place}: does not exist; name an image file, or a folder of images")
    if not place.is_dir():
        return [place]
    found = sorted(
        path
        for path in place.rglob("*")
        if path.is_file() and not any(passed_over(Path(part)) for part in path.relative_to(place).parts)
    )
    if not found:
        raise DataError(f"{place}: no images in this folder")
    return found


def _record(file: Path, prediction: "Prediction", shown: int) -> dict[str, object]:
    return {
        "file": str(file),
        "class": prediction.label,
        "score": prediction.score,
        "top": [{"class": name, "score": score} for name, score in list(prediction.scores.items())[:shown]],
        "resized_from": prediction.resized_from,
        "converted_from": prediction.converted_from,
    }


def _print_predictions(files: Sequence[Path], predictions: Sequence["Prediction"], shown: int) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from fedclass.cli.display import console

    table = Table(box=SIMPLE_HEAD)
    table.add_column("file", overflow="fold")
    table.add_column("class")
    table.add_column("score", justify="right")
    for place in range(2, shown + 1):
        table.add_column("runner-up" if place == 2 else f"number {place}")
    noted = any(_note(prediction.resized_from, prediction.converted_from) for prediction in predictions)
    if noted:
        table.add_column("note")
    for file, prediction in zip(files, predictions, strict=True):
        others = [f"{name} {score:.3f}" for name, score in list(prediction.scores.items())[1:shown]]
        note = _note(prediction.resized_from, prediction.converted_from)
        table.add_row(
            str(file), prediction.label, f"{prediction.score:.3f}", *others, *([note] if noted else []), style=None
        )
    console.print(table)


def _note(resized_from: tuple[int, int] | None, converted_from: str | None) -> str:
    notes = []
    if resized_from:
        notes.append(f"resized from {resized_from[0]}x{resized_from[1]}")
    if converted_from:
        notes.append(f"converted from {converted_from}")
    return ", ".join(notes)


def evaluate(
    run: RunArgument,
    dataset: Annotated[
        str,
        typer.Argument(
            metavar="DATASET",
            help="A name from `fedclass data list`, a folder with train/ and test/, an .npz file, or "
            "package.module:function.",
        ),
    ],
    path: PathOption = None,
    fraction: Annotated[float, typer.Option(help="Share of each class to test on, above 0 and up to 1.")] = 1.0,
    as_json: Json = False,
) -> None:
    """Test the model of a run on the test images of a data set.

    Classes are matched by name. Images of classes unknown to the model are left out, and the classes are named.

    Example:  fedclass evaluate runs/mine cifar10 --path ~/cifar-10-batches-bin
    """
    if not 0 < fraction <= 1:
        raise ConfigError(f"--fraction {fraction:g}: must be a number above 0 and at most 1")
    result = _loaded(run).evaluate(dataset, path=path, fraction=fraction)
    if as_json:
        print(json.dumps(asdict(result), allow_nan=False))
    else:
        _print_evaluation(result)


def _print_evaluation(result: "Evaluation") -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from fedclass.cli.display import console
    from fedclass.runs.counted import counted

    table = Table(
        box=SIMPLE_HEAD, title=f"{result.dataset}, {counted(result.images, 'test image')}", title_justify="left"
    )
    table.add_column("class")
    table.add_column("images", justify="right")
    table.add_column("accuracy", justify="right")
    for name, accuracy in result.accuracy_per_class.items():
        table.add_row(name, str(result.images_per_class[name]), f"{accuracy:.1f}")
    table.add_section()
    table.add_row("all, per image (micro)", str(result.images), f"{result.accuracy_micro:.1f}")
    table.add_row("all, per class (macro)", "", f"{result.accuracy_macro:.1f}")
    console.print(table)
    console.print("In percent; all of the model's classes compete.", style="dim", highlight=False)
    if result.unknown:
        unknown = ", ".join(f"{name} ({counted(count, 'image')})" for name, count in result.unknown.items())
        console.print(f"left out, unknown to the model: {unknown}", style="yellow", highlight=False)
    if result.missing:
        missing = ", ".join(result.missing)
        console.print(f"known to the model, but not in the data: {missing}", style="yellow", highlight=False)
    note = _note(result.resized_from, result.converted_from)
    if note:
        console.print(f"all images {note}", style="yellow", highlight=False)
    if result.official_data is False:
        console.print(
            f"UNOFFICIAL DATA: the files of {result.dataset} do not have the published checksums.", highlight=False
        )


def export(
    run: RunArgument,
    to: Annotated[Path, typer.Option(help="The ONNX file to write. An existing file is replaced.")],
    card: Annotated[
        bool,
        typer.Option("--card", help="Write a new folder for a model hub instead, with the weights and a model card."),
    ] = False,
) -> None:
    r"""Write the model of a run to an ONNX file, after comparing it with the original in onnxruntime.

    The graph takes images as uint8 (N, height, width, channels) and returns scores (N, classes). It normalises the
    images itself. Class names and the like are in its metadata. Needs the extra onnx: pip install '.\[onnx]'

    Example:  fedclass export runs/mine --to model.onnx
              fedclass export runs/mine --card --to my-model
    """
    from fedclass.cli.display import console

    if card:
        from fedclass.experiment.card import write_card

        write_card(run, to)
        console.print(f"{to}: model.safetensors, classes.json and the model card, README.md", highlight=False)
        return
    model = _loaded(run)
    difference = model.export(to)
    height, width, channels = model.description.image
    console.print(
        f"{to}: images (N, {height}, {width}, {channels}) uint8 -> scores (N, {len(model.classes)}); "
        f"onnxruntime differs from torch by {difference:.1e} at most",
        highlight=False,
    )
