"""Images in files: your own, a folder per class in train/ and in test/, and those of Tiny-ImageNet."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedclass.data.decoded import decode
from fedclass.data.image_files import shape_of
from fedclass.data.image_set import Split
from fedclass.data.readers import read_bytes
from fedclass.errors import DataError

Size = tuple[int, int]  # height and width
OF_WINDOWS = frozenset({"thumbs.db", "desktop.ini"})  # Explorer puts them beside images


def passed_over(file: Path) -> bool:
    """Hidden files, such as .DS_Store, and files that Windows adds."""
    return file.name.startswith(".") or file.name.lower() in OF_WINDOWS


def read_folder(root: Path, *, size: Size | None = None) -> tuple[tuple[str, ...], Split, Split]:
    """Class names (sorted), training and test split of `train/<class>/*` and `test/<class>/*`.

    Every file must be an image, except those that are passed over.
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
    labels = [classes.index(file.parent.name) for file in files]
    border = sum(map(len, train.values()))
    return classes, *_splits(files, labels, border, _shape(files, size=size, channels=None))


def class_files(parent: Path) -> dict[str, list[Path]]:
    """Class name -> its files, both sorted."""
    if not parent.is_dir():
        raise DataError(f"{parent}: no such folder; images belong in train/<class>/ and test/<class>/ below data.path")
    found: dict[str, list[Path]] = {}
    for entry in sorted(entry for entry in parent.iterdir() if not passed_over(entry)):
        if not entry.is_dir():
            raise DataError(f"{entry}: is beside the class folders; move it into one of them, or remove it")
        found[entry.name] = sorted(file for file in entry.iterdir() if not passed_over(file))
        if not found[entry.name]:
            raise DataError(f"{entry}: this class has no images; add some, or remove the folder")
    if not found:
        raise DataError(f"{parent}: holds no class folders; images belong in {parent.name}/<class>/")
    return found


def _shape(files: Sequence[Path], *, size: Size | None, channels: int | None) -> tuple[int, int, int]:
    """(H, W, C) of all images, at least one.

    size: to resize them to; None: the one that all have.  channels: 1 or 3; None: 1 if every picture is gray.
    """
    shapes = [shape_of(file) for file in files]
    if channels is None:
        channels = max(shape[2] for shape in shapes)
    height, width = shapes[0][:2] if size is None else size
    for file, shape in zip(files, shapes, strict=True):
        if size is None and shape[:2] != (height, width):
            raise DataError(
                f"{file}: is {shape[1]}x{shape[0]} pixels, but {files[0]} is {width}x{height}; "
                f"to bring all images to one size: --set data.size={height} (or data.size=[height,width])"
            )
    return height, width, channels


def read_tiny_imagenet(
    wnids: Path, words: Path, annotations: Path, *, size: Size | None = None
) -> tuple[tuple[str, ...], Split, Split]:
    """Class names in the order of wnids.txt, the training images and, for testing, the validation images.

    annotations: val/val_annotations.txt. Images are in train/<wnid>/images and val/images, beside these files.
    """
    order = _lines(wnids)
    label_of = {wnid: label for label, wnid in enumerate(order)}
    files, labels = [], []
    for wnid, label in label_of.items():
        folder = wnids.parent / "train" / wnid / "images"
        if not folder.is_dir():
            raise DataError(f"{folder}: no such folder, but {wnids.name} names its class")
        found = sorted(file for file in folder.iterdir() if not passed_over(file))
        files += found
        labels += [label] * len(found)
    border = len(files)
    for number, line in enumerate(_lines(annotations), start=1):
        name, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0]
        if wnid not in label_of:
            raise DataError(f"{annotations}: line {number} names class {wnid!r}, which {wnids.name} does not")
        files.append(annotations.parent / "images" / name)
        labels.append(label_of[wnid])
    return _names(order, words), *_splits(files, labels, border, _shape(files, size=size, channels=3))


def _names(wnids: Sequence[str], words: Path) -> tuple[str, ...]:
    """The first word of each class; with the WordNet number if two classes share the word, or if there is none."""
    described = dict(line.split("\t", 1) for line in _lines(words) if "\t" in line)
    first = [described.get(wnid, "").split(",")[0].strip() for wnid in wnids]
    return tuple(
        word if word and first.count(word) == 1 else f"{word} {wnid}".strip()
        for wnid, word in zip(wnids, first, strict=True)
    )


def _lines(path: Path) -> list[str]:
    lines = [line.strip() for line in read_bytes(path).decode(errors="replace").splitlines()]
    found = [line for line in lines if line]
    if not found:
        raise DataError(f"{path}: is empty")
    return found


def _splits(
    files: Sequence[Path], labels: Sequence[int], border: int, shape: tuple[int, int, int]
) -> tuple[Split, Split]:
    """border: where the test images begin."""
    numbers = np.array(labels, np.int64)
    train, test = (Split(decode(files[part], shape), numbers[part]) for part in (slice(border), slice(border, None)))
    return train, test
