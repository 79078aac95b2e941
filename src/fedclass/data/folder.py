"""Your own images: a folder per class, in train/ and in test/."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedclass.data.images import Split
from fedclass.data.pictures import DEEP_MODES, eight_bits, read_picture
from fedclass.errors import DataError


def read_folder(root: Path) -> tuple[tuple[str, ...], Split, Split]:
    """Class names (sorted), training and test split of `train/<class>/*` and `test/<class>/*`.

    All images must have one size. If all are gray they keep one channel, otherwise all become RGB. Hidden files
    (.DS_Store and its like) are passed over; any other file must be an image.
    """
    train, test = class_files(root / "train"), class_files(root / "test")
    for name in test:
        if name not in train:
            raise DataError(
                f"{root / 'test' / name}: there is no class of this name in {root / 'train'}; "
                "add training images for it, or remove it"
            )
    classes = tuple(train)
    files = [file for split in (train, test) for paths in split.values() for file in paths]
    images = read_images(files)
    labels = np.array([classes.index(file.parent.name) for file in files], np.int64)
    border = sum(map(len, train.values()))
    return classes, Split(images[:border], labels[:border]), Split(images[border:], labels[border:])


def class_files(parent: Path, *, complete: bool = True) -> dict[str, list[Path]]:
    """Class name -> its files, both sorted.  complete: without it, there may be no classes or no images."""
    if not parent.is_dir():
        raise DataError(f"{parent}: no such folder; images belong in train/<class>/ and test/<class>/ below data.path")
    visible = sorted(entry for entry in parent.iterdir() if not entry.name.startswith("."))
    found: dict[str, list[Path]] = {}
    for entry in visible:
        if not entry.is_dir():
            raise DataError(f"{entry}: lies beside the class folders; move it into one of them, or away")
        found[entry.name] = sorted(file for file in entry.iterdir() if not file.name.startswith("."))
        if complete and not found[entry.name]:
            raise DataError(f"{entry}: this class has no images; add some, or remove the folder")
    if complete and not found:
        raise DataError(f"{parent}: holds no class folders; images belong in {parent.name}/<class>/")
    return found


def read_images(files: Sequence[Path]) -> NDArray[np.uint8]:
    """(N, H, W, C) of at least one file, C = 1 if every picture is gray, else 3."""
    return stack([read_image(file) for file in files], files)


def read_image(file: Path) -> NDArray[np.uint8]:
    """(H, W) if the file is gray, else (H, W, 3)."""
    picture = read_picture(file)
    if picture.mode.startswith(DEEP_MODES):
        raise DataError(f"{file}: has more than 8 bits per channel ({picture.mode}); save it with 8 bits")
    return np.asarray(eight_bits(picture, file))


def stack(pictures: Sequence[NDArray[np.uint8]], files: Sequence[Path]) -> NDArray[np.uint8]:
    """(N, H, W, C) of pictures of one size, as read_images does it."""
    size = pictures[0].shape[:2]
    channels = 3 if any(picture.ndim == 3 for picture in pictures) else 1
    images = np.empty((len(pictures), *size, channels), np.uint8)
    for at, picture in enumerate(pictures):
        if picture.shape[:2] != size:
            raise DataError(
                f"{files[at]}: is {picture.shape[1]}x{picture.shape[0]} pixels, but {files[0]} is "
                f"{size[1]}x{size[0]}; resize all images to one size"
            )
        images[at] = picture if picture.ndim == 3 else picture[..., None]
    return images
