"""Data sets by name, from files or from user code, as arrays.

    images = load("cifar10", fraction=0.1)
    images = load("my_project.data:load", args={"year": 2024})

Files are looked for in `cache_folder() / name` unless a path is given; `fedclass data fetch NAME` puts them there.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedclass.data.catalogue import DATASETS, call_user_loader
from fedclass.data.image_files import as_picture, fit
from fedclass.data.image_set import ImageSet, Split
from fedclass.data.source import (
    Orientation,
    Source,
    Wanted,
    advice,
    check_file,
    data_folder,
)
from fedclass.errors import ConfigError, DataError
from fedclass.schema import did_you_mean


def find_source(name: str) -> Source:
    """A data set by its name, or a user's data set by package.module:function."""
    if name in DATASETS:
        return DATASETS[name]
    if ":" in name:
        return Source(name=name, read=call_user_loader, description="your own code", remark="Yours.")
    hint = did_you_mean(name, DATASETS) or f"known are {', '.join(DATASETS)}, or package.module:function"
    raise ConfigError(f"data.name: unknown data set {name!r}; {hint}")


def load(
    name: str,
    *,
    path: Path | None = None,
    fraction: float = 1.0,
    test_fraction: float = 1.0,
    orientation: Orientation = "upright",
    size: tuple[int, int] | None = None,
    measure: bool = False,
    args: Mapping[str, Any] | None = None,
) -> ImageSet:
    """A data set in memory.

    path: the folder of its files (for "npz" and "medmnist": the file); default `cache_folder() / name`.
    fraction, test_fraction: keep this first part of each class, in the order of the files, but at least one image.
    orientation: "raw" leaves the images of EMNIST as its files have them, with rows and columns exchanged.
    size: height and width of all images, resized if need be.  measure: mean and std from the training images.
    args: for a function of the user's own.

    `official` is true if every file has its published checksum, and for drawn images. It is None where no checksums are
    published, as for a user's own data.
    """
    source = find_source(name)
    for key, value in (("data.fraction", fraction), ("data.test_fraction", test_fraction)):
        if not 0 < value <= 1:
            raise ConfigError(f"{key}: must be in (0, 1], got {value}")
    if orientation == "raw" and not source.transposed:
        turned = ", ".join(other.name for other in DATASETS.values() if other.transposed)
        raise ConfigError(
            f"data.orientation: only {turned} has images to turn, {name} is upright already; leave it out"
        )
    if orientation == "raw" and size is not None and size[0] != size[1]:
        raise ConfigError('data.size: with data.orientation = "raw", height and width must be equal')
    if args and source.read is not call_user_loader:
        raise ConfigError(
            f"[data.args]: {name} takes no arguments; they are for your own function, package.module:function"
        )
    wanted = Wanted(
        path=path,
        fraction=fraction,
        test_fraction=test_fraction,
        orientation=orientation,
        size=size,
        args=args or {},
    )
    try:
        data = source.read(source, wanted)
        if source.downloads:
            where = data_folder(name, path)
            data = replace(data, official=all(check_file(source, file, where) == "ok" for file in source.files))
    except DataError as error:
        raise DataError(f"{error}; {advice(source)}" if source.files else str(error)) from error
    if size is not None:
        data = replace(data, train=_resized(data.train, size), test=_resized(data.test, size))
    return replace(data, mean=None, std=None) if measure else replace(data, mean=source.mean, std=source.std)


def _resized(split: Split, size: tuple[int, int]) -> Split:
    """Resize as prediction does. Images read from files already have the right size."""
    if split.images.shape[1:3] == size:
        return split
    shape = (*size, split.images.shape[3])
    images = [fit(as_picture(image, "image"), shape, "image").pixels for image in split.images]
    return Split(np.array(images, np.uint8).reshape(-1, *shape), split.labels)
