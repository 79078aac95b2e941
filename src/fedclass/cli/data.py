"""fedclass data: list data sets, fetch them, check them, look at them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:  # commands import what they need, so that `--help` does not wait for torch
    import numpy as np
    from numpy.typing import NDArray

    from fedclass.data.image_set import Split
    from fedclass.data.source import Source

app = typer.Typer(
    no_args_is_help=True,
    help="Data sets: list them, fetch them, verify their files, show their images.",
)

Name = Annotated[
    str,
    typer.Argument(
        help="A name from `fedclass data list`, e.g. cifar10, or package.module:function.", show_default=False
    ),
]
PathOption = Annotated[
    Path | None,
    typer.Option(
        "--path",
        help="Where the files are (for npz and medmnist: the file itself). "
        "Default: the folder NAME in $FEDCLASS_DATA, or in your cache folder if that is not set.",
        show_default=False,
    ),
]


@app.command("list")
def list_datasets() -> None:
    """List all data sets, their sizes, and whether their files are on this machine."""
    from rich.console import Console
    from rich.table import Table

    from fedclass.data.catalogue import DATASETS
    from fedclass.data.source import cache_folder

    table = Table(box=None, pad_edge=False)
    for heading in ("name", "classes", "image", "train / test", "here?"):
        table.add_column(heading, no_wrap=True)
    table.add_column("what")
    for source in DATASETS.values():
        shape = "x".join(map(str, source.shape)) if source.shape else "any"
        sizes = " / ".join(f"{size:,}" for size in source.sizes) if source.sizes else "any"
        classes = str(len(source.classes) or "any")
        table.add_row(source.name, classes, shape, sizes, _presence(source), source.description)
    console = Console()
    console.print(table)
    console.print(
        "\n`fedclass data fetch NAME` downloads one; `--set data.path=...` uses your own files; "
        "`--set data.name=package.module:function` reads them with your own code.",
        highlight=False,
    )
    console.print(f"Files are kept in {cache_folder()}; set FEDCLASS_DATA to keep them elsewhere.", highlight=False)


def _presence(source: "Source") -> str:
    from fedclass.data.source import data_folder, locate

    if source.drawn:
        return "drawn"
    if not source.files:
        return "yours"
    folder = data_folder(source.name, None)
    present = sum(locate(source, file, folder) is not None for file in source.files)
    if present == len(source.files):
        return "yes"
    return f"{present} of {len(source.files)} files" if present else "no"


@app.command()
def fetch(
    name: Name,
    path: PathOption = None,
    mirror: Annotated[
        str | None,
        typer.Option(help="Download from URL/<file name> here instead of from the official host.", show_default=False),
    ] = None,
) -> None:
    """Download a data set and compare it with the published checksums.

    To resume an interrupted download, run the same command again. Files that exist already are not downloaded again.
    """
    from fedclass.data.datasets import find_source
    from fedclass.data.download import fetch as download

    folder = download(name, path, mirror=mirror)
    typer.echo(f"{name} is in {folder}, as published.")
    typer.echo(f"Cite, and mind the licence: {find_source(name).remark}")


@app.command()
def verify(name: Name, path: PathOption = None) -> None:
    """Compare the files with their published checksums, and read all of them.

    Each file is ok, unknown (no checksum is published), wrong, or missing. Exit code 0: the data can be used and is
    what was published. Exit code 3: it cannot be used, or is not what was published.
    """
    from fedclass.data.datasets import find_source, load
    from fedclass.data.source import check_file, data_folder, locate
    from fedclass.errors import DataError
    from fedclass.runs.counted import counted

    source = find_source(name)
    if source.drawn:
        typer.echo(f"{name} is drawn on demand: there are no files to check.")
        return
    folder = data_folder(name, path)
    for file in source.files:
        found = locate(source, file, folder)
        typer.echo(f"{check_file(source, file, folder):<8} {found or folder / file.name}")
    images = load(name, path=path)
    typer.echo(
        f"readable: {counted(len(images.classes), 'class', 'classes')}, {counted(len(images.train), 'image')} for "
        f"training, {len(images.test):,} for testing"
    )
    if images.official is False:
        raise DataError(
            f"{folder}: can be used, but is not known to be the published {name}; "
            f"to get the published files: fedclass data fetch {name}"
        )


@app.command()
def show(
    name: Name,
    path: PathOption = None,
    out: Annotated[Path, typer.Option(help="The picture to write; its extension sets the format.")] = Path("sheet.png"),
    count: Annotated[int, typer.Option(min=1, max=1000, help="Images per class.")] = 10,
) -> None:
    """Write a picture with the first training images of each class, a row per class."""
    from fedclass.data import synnum
    from fedclass.data.datasets import find_source, load
    from fedclass.errors import ConfigError
    from fedclass.report.rendering import sheet_picture
    from fedclass.runs.counted import counted

    drawn = find_source(name).drawn
    part = min(1.0, count / synnum.TRAIN_PER_CLASS) if drawn else 1.0  # draw no more than is shown
    images = load(name, path=path, fraction=part, test_fraction=part)
    try:
        sheet_picture(contact_sheet(images.train, len(images.classes), count), images.classes, out)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--out {out}: cannot be written ({error}); choose another name") from error
    typer.echo(f"{out}: {counted(len(images.classes), 'class', 'classes')}, up to {counted(count, 'image')} each")


def contact_sheet(split: "Split", classes: int, count: int) -> "NDArray[np.uint8]":
    """(classes * H, count * W, C): a row per class, its first images from left to right, white where there are none."""
    import numpy as np

    _, height, width, channels = split.images.shape
    sheet = np.full((classes, height, count, width, channels), 255, np.uint8)
    for label in range(classes):
        first = split.images[np.flatnonzero(split.labels == label)[:count]]
        sheet[label, :, : len(first)] = first.transpose(1, 0, 2, 3)
    return sheet.reshape(classes * height, count * width, channels)
