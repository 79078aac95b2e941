"""What a data set is once it is in memory."""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Split:
    """Images and their labels, in the order of the files.

    images: (N, H, W, C) uint8, C = 1 or 3.  labels: (N,) int64, indices into ImageSet.classes.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class ImageSet:
    """A classification data set.

    official: whether every file had its published checksum; None for a user's own data, of which nothing was published.
    available: training and test images of the whole data set, if this is a part of it.
    """

    name: str
    classes: tuple[str, ...]
    train: Split
    test: Split
    official: bool | None
    available: tuple[int, int] | None = None

    @cached_property
    def sha256(self) -> str:
        """Identity of the content, whatever files it came from."""
        digest = hashlib.sha256(repr(self.classes).encode())
        for split in (self.train, self.test):
            digest.update(repr(split.images.shape).encode())
            digest.update(np.ascontiguousarray(split.images).data)
            digest.update(np.ascontiguousarray(split.labels).data)
        return digest.hexdigest()
