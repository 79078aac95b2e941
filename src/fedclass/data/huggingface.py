"""Data sets of Hugging Face, read by the library `datasets`: data.name = "hf:NAME", or "hf:" with a data.path.

`hf:NAME` stands for the function `load` here, called with the name; its other arguments are data.args.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedclass.errors import EXTRA, ConfigError, DataError

PREFIX = "hf:"
LOADER = f"{__name__}:load"


def load(
    name: str = "",
    *,
    path: Path | None = None,
    config: str | None = None,
    revision: str | None = None,
    image: str | None = None,
    label: str | None = None,
    size: int | None = None,
    train: str = "train",
    test: str = "test",
) -> dict[str, NDArray[Any]]:
    """Arrays, named as in an .npz file.

    path: a folder written by `save_to_disk`, instead of a name on the hub.  image, label: columns; by default the only
    column of images and the only column of class labels.  size: side of all images.  train, test: names of the splits.
    """
    try:
        import datasets
    except ImportError as error:
        raise ConfigError(f"hf: needs `datasets`, which is not installed; {EXTRA.format('huggingface')}") from error
    if bool(name) == (path is not None):
        raise ConfigError("hf: give a name, hf:NAME, or data.path, a folder that save_to_disk has written")
    where = name or path
    try:
        found = datasets.load_from_disk(str(path)) if path else datasets.load_dataset(name, config, revision=revision)
    except Exception as error:  # network, format or file errors of any kind
        raise DataError(f"hf:{where}: cannot be read ({str(error).splitlines()[0]})") from error
    missing = [split for split in (train, test) if not isinstance(found, dict) or split not in found]
    if missing:
        there = ", ".join(found) if isinstance(found, dict) else "one without a name"
        raise DataError(f"hf:{where}: no split {missing[0]!r}; there is {there}; data.args.train and .test name them")
    columns = found[train].features
    images = image or _only(columns, datasets.Image, "image", where)
    labels = label or _only(columns, datasets.ClassLabel, "label", where)
    for column in (images, labels):
        if column not in columns:
            raise DataError(f"hf:{where}: no column {column!r}; there are {', '.join(columns)}")
    arrays: dict[str, NDArray[Any]] = {}
    for kind, split in (("train", found[train]), ("test", found[test])):
        arrays[f"x_{kind}"] = _stacked(split[images], size, where)
        arrays[f"y_{kind}"] = np.asarray(split[labels])
    if isinstance(columns[labels], datasets.ClassLabel):
        arrays["classes"] = np.asarray(columns[labels].names)
    return arrays


def _only(columns: Any, kind: type[Any], word: str, where: object) -> str:
    found = [name for name, feature in columns.items() if isinstance(feature, kind)]
    if len(found) != 1:
        raise DataError(
            f"hf:{where}: {len(found)} columns of kind {kind.__name__} among {', '.join(columns)}; name one: "
            f"data.args.{word}"
        )
    return str(found[0])


def _stacked(pictures: Sequence[Image.Image], size: int | None, where: object) -> NDArray[np.uint8]:
    """(N, H, W, C): gray if all are."""
    several = list(pictures)
    mode = "L" if all(picture.mode in ("L", "1") for picture in several) else "RGB"
    fitted = [picture.convert(mode) for picture in several]
    if size is not None:
        fitted = [picture.resize((size, size), Image.Resampling.BILINEAR) for picture in fitted]
    sizes = {picture.size for picture in fitted}
    if len(sizes) != 1:
        raise DataError(f"hf:{where}: images of {len(sizes)} sizes; give them one, data.args.size=64")
    stacked = np.stack([np.asarray(picture) for picture in fitted])
    return stacked[..., None] if mode == "L" else stacked
