"""A data set in memory."""

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedclass.errors import DataError

BLOCK = 1024  # images that are looked at together


@dataclass(frozen=True, eq=False)
class Split:
    """Images and their labels, in the order of the files.

    images: (N, H, W, C) uint8, C = 1 or 3.  labels: (N,) int64, indices into ImageSet.classes.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def __reduce__(self) -> tuple[Any, ...]:
        """Memory-mapped images are mapped again in another process, not copied."""
        images: Any = self.images
        if isinstance(images, np.memmap) and images.filename is not None:
            whole = images.nbytes + images.offset == Path(images.filename).stat().st_size
            if whole:
                return _mapped_split, (str(images.filename), self.labels)
        return Split, (images, self.labels)


def open_mapped(file: Path) -> "np.memmap[Any, np.dtype[np.uint8]]":
    """A memory-mapped .npy file, copy-on-write: changes to the array stay in this process."""
    mapped: np.memmap[Any, np.dtype[np.uint8]] = np.load(file, mmap_mode="c", allow_pickle=False)
    return mapped


def _mapped_split(file: str, labels: NDArray[np.int64]) -> Split:
    return Split(open_mapped(Path(file)), labels)


MEAN, STD = (0.5,), (0.5,)  # by default, pixels in 0..1 become -1..1


@dataclass(frozen=True, eq=False)
class ImageSet:
    """A classification data set.

    official: whether every file had its published checksum; None for data without published checksums.
    available: training and test images of the whole data set, if this is a part of it.
    mean, std: pixels in 0..1 become (x - mean) / std; None: measured on the training images.
    """

    name: str
    classes: tuple[str, ...]
    train: Split
    test: Split
    official: bool | None
    available: tuple[int, int] | None = None
    mean: tuple[float, ...] | None = MEAN
    std: tuple[float, ...] | None = STD

    @cached_property
    def normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation, one value or one for each channel."""
        if self.mean is not None and self.std is not None:
            return self.mean, self.std
        mean, std = statistics(self.train.images)
        if min(std) == 0:
            raise DataError(f"{self.name}: all training images have the same brightness; give data.mean and data.std")
        return mean, std

    @cached_property
    def sha256(self) -> str:
        """Hash of the content, whatever files it came from."""
        digest = hashlib.sha256(repr(self.classes).encode())
        for split in (self.train, self.test):
            digest.update(repr(split.images.shape).encode())
            digest.update(np.ascontiguousarray(split.images).data)
            digest.update(np.ascontiguousarray(split.labels).data)
        return digest.hexdigest()


def statistics(images: NDArray[np.uint8]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of pixels in 0..1, per channel.

    Computed from counts of each grey level, which are whole numbers, so that every machine gets the same figures.
    """
    values = np.arange(256)
    mean, std = [], []
    for channel in range(images.shape[3]):
        counts = np.zeros(256, np.int64)
        for start in range(0, len(images), BLOCK):
            counts += np.bincount(images[start : start + BLOCK, ..., channel].ravel(), minlength=256)
        total, first, second = (int(counts @ values**power) for power in (0, 1, 2))
        mean.append(first / (255 * total))
        std.append(math.sqrt(total * second - first**2) / (255 * total))
    return tuple(mean), tuple(std)


def kept(count: int, fraction: float) -> int:
    """How many of `count` images a fraction keeps; 0.29 of 100 is 29, though 0.29 * 100 < 29 in binary."""
    return max(1, int(count * fraction + 1e-9))


def first_part(split: Split, fraction: float) -> Split:
    """The first part of each class; the order of the files stays."""
    if fraction == 1.0:
        return split
    keep = np.zeros(len(split), bool)
    for label in np.unique(split.labels):
        places = np.flatnonzero(split.labels == label)
        keep[places[: kept(len(places), fraction)]] = True
    return Split(split.images[keep], split.labels[keep])
