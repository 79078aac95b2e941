"""A site's own images, which come and go."""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedclass.data.folder import class_files, read_images
from fedclass.data.images import Split
from fedclass.data.readers import read_npz
from fedclass.errors import DataError


@dataclass(frozen=True, eq=False)
class Holdings:
    """What a site holds at the moment.

    train, held_out: images to learn from, and those to test with; labels are indices into `classes`.  digests: of the
    training images, by which a site knows again those that it has had.
    """

    classes: tuple[str, ...]
    train: Split
    held_out: Split
    digests: tuple[str, ...]

    @property
    def image(self) -> tuple[int, int, int] | None:
        """(H, W, C), if there is any image."""
        if not len(self.train) and not len(self.held_out):
            return None
        height, width, channels = self.train.images.shape[1:]
        return height, width, channels

    def names(self) -> list[tuple[str, str]]:
        """(class, digest) of each training image, in order."""
        return [(self.classes[label], digest) for label, digest in zip(self.train.labels, self.digests, strict=True)]

    def without(self, classes: Collection[str]) -> "Holdings":
        if not classes:
            return self
        kept = np.array([name not in classes for name in self.classes], bool)
        train, held_out = (split.labels[kept[split.labels]] for split in (self.train, self.held_out))
        chosen = kept[self.train.labels]
        return Holdings(
            self.classes,
            Split(self.train.images[chosen], train),
            Split(self.held_out.images[kept[self.held_out.labels]], held_out),
            tuple(digest for digest, keep in zip(self.digests, chosen, strict=True) if keep),
        )


def digest(pixels: NDArray[np.uint8]) -> str:
    """Identity of an image: its shape and its pixels, whatever file they came from."""
    return hashlib.sha256(repr(pixels.shape).encode() + np.ascontiguousarray(pixels).tobytes()).hexdigest()


FEW, LEAST = 5, 2  # images of a class that are held out at least, if there are as many
Signature = tuple[tuple[str, int, int], ...]


def signature(path: Path) -> Signature:
    """Names, sizes and times of all files of a site's images: as long as it stays, so do they."""
    try:
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        stats = [(str(file), file.stat()) for file in files]
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)


def read_holdings(path: Path, *, holdout: float) -> Holdings:
    """The images of `path`: CLASS/*, or train/CLASS/* and perhaps test/CLASS/*, or an .npz file.

    holdout: the share of training images to test with where there is no test split. An image is among them or not by
    its pixels, so that others may come and go.
    """
    try:
        classes, train, test = _read_npz(path) if path.is_file() else _read_folders(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    digests = [digest(image) for image in train.images]
    if test is None:
        held = _held_out(digests, train.labels, holdout) if holdout else np.zeros(len(digests), bool)
        test = Split(train.images[held], train.labels[held])
        train = Split(train.images[~held], train.labels[~held])
        digests = [name for name, out in zip(digests, held, strict=True) if not out]
    return Holdings(classes, train, test, tuple(digests))


def _held_out(digests: Sequence[str], labels: NDArray[np.int64], share: float) -> NDArray[np.bool_]:
    """Those with a small digest. Of a class with at least FEW images, the two smallest in any case: a class that nobody
    can test with would leave a model without a figure. Images that come later displace none that was learned from.
    """
    held = np.array([int(name[:8], 16) < share * 2**32 for name in digests], bool)
    for label in np.unique(labels):
        of_class = np.flatnonzero(labels == label)
        if len(of_class) >= FEW and held[of_class].sum() < LEAST:
            held[sorted(of_class.tolist(), key=lambda at: digests[at])[:LEAST]] = True
    return held


def _read_npz(path: Path) -> tuple[tuple[str, ...], Split, Split | None]:
    classes, train, test = read_npz(path, complete=False)
    return classes, train, test if len(test) else None


def _read_folders(root: Path) -> tuple[tuple[str, ...], Split, Split | None]:
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; it is the site's setting data")
    tested = (root / "test").is_dir() and (root / "train").is_dir()
    train = class_files(root / "train" if (root / "train").is_dir() else root, complete=False)
    test = class_files(root / "test", complete=False) if tested else {}
    classes = tuple(sorted({*train, *test}))
    files = [file for split in (train, test) for paths in split.values() for file in paths]
    images = read_images(files) if files else np.empty((0, 1, 1, 1), np.uint8)
    label_of = {name: label for label, name in enumerate(classes)}
    labels = np.array([label_of[file.parent.name] for file in files], np.int64)
    border = sum(map(len, train.values()))
    held_out = Split(images[border:], labels[border:]) if tested else None
    return classes, Split(images[:border], labels[:border]), held_out
