"""File formats of the published data sets: from files to arrays, nothing is ever unpickled.

Each reader either returns what the format promises or raises a DataError that names the file and says what is wrong
with it. What to do about it depends on the data set, so `datasets.load` appends that.
"""

import gzip
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedclass.data.images import Split
from fedclass.errors import DataError

CIFAR_SIDE = 32
CIFAR_RECORD = 1 + 3 * CIFAR_SIDE * CIFAR_SIDE  # one label, then the red, green and blue planes

IDX_UINT8 = 0x08  # the only element type these data sets use


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error


def gunzip(path: Path) -> bytes:
    """The content of a .gz file."""
    try:
        return gzip.decompress(read_bytes(path))
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: truncated or not a gzip file ({error})") from error


def require_readable(path: Path) -> None:
    """Says that a file is missing or unreadable before a library says it less clearly."""
    try:
        path.open("rb").close()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error


def in_range(labels: NDArray[np.integer], path: Path, *, low: int = 0, high: int) -> NDArray[np.int64]:
    """The labels as int64, all of them in low .. high."""
    wrong = (labels < low) | (labels > high)
    if wrong.any():
        at = int(wrong.argmax())
        raise DataError(f"{path}: label {labels[at]} of image {at} is outside {low}..{high}")
    return labels.astype(np.int64)


def paired(images: NDArray[np.uint8], labels: NDArray[np.int64], where: Path) -> Split:
    if len(images) != len(labels):
        raise DataError(f"{where}: {len(images)} images but {len(labels)} labels")
    return Split(images, labels)


def read_idx(path: Path, *, dimensions: int) -> NDArray[np.uint8]:
    """An array of bytes in the IDX format of MNIST, plain or .gz.

    Header: two zero bytes, the element type, the number of dimensions, then each size as a big-endian uint32.
    """
    content = gunzip(path) if path.suffix == ".gz" else read_bytes(path)
    magic = bytes([0, 0, IDX_UINT8, dimensions])
    if content[:4] != magic:
        raise DataError(
            f"{path}: not an IDX file of {dimensions} dimension(s): "
            f"starts with {content[:4].hex(' ') or 'nothing'}, expected {magic.hex(' ')}"
        )
    header = 4 + 4 * dimensions
    if len(content) < header:
        raise DataError(f"{path}: truncated: the header needs {header} bytes, the file has {len(content)}")
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", count=dimensions, offset=4))
    expected = header + int(np.prod(shape, dtype=np.int64))
    if len(content) != expected:
        fault = "truncated" if len(content) < expected else "too long"
        raise DataError(f"{path}: {fault}: the header promises {expected} bytes, there are {len(content)}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def read_idx_split(images: Path, labels: Path, *, classes: int, transposed: bool = False) -> Split:
    """`transposed`: the file keeps each image with rows and columns exchanged, as EMNIST does, and they change back."""
    pixels = read_idx(images, dimensions=3)
    if transposed:
        pixels = pixels.transpose(0, 2, 1)
    digits = in_range(read_idx(labels, dimensions=1), labels, high=classes - 1)
    return paired(pixels[..., None].copy(), digits, images)  # a copy: bytes from a file are not writable


def read_cifar(*paths: Path, classes: int = 10) -> Split:
    """Batches of CIFAR-10's binary version, one after the other."""
    records = []
    for path in paths:
        content = read_bytes(path)
        if not content or len(content) % CIFAR_RECORD:
            raise DataError(
                f"{path}: truncated or not a CIFAR-10 binary batch: "
                f"{len(content)} bytes is no multiple of {CIFAR_RECORD}"
            )
        records.append(np.frombuffer(content, np.uint8).reshape(-1, CIFAR_RECORD))
    images = np.empty((sum(map(len, records)), CIFAR_SIDE, CIFAR_SIDE, 3), np.uint8)
    labels = np.empty(len(images), np.int64)
    start = 0
    for path, record in zip(paths, records, strict=True):
        part = slice(start, start + len(record))
        images[part] = record[:, 1:].reshape(-1, 3, CIFAR_SIDE, CIFAR_SIDE).transpose(0, 2, 3, 1)
        labels[part] = in_range(record[:, 0], path, high=classes - 1)
        start = part.stop
    return Split(images, labels)


def read_svhn(path: Path) -> Split:
    """SVHN's cropped digits: X (32, 32, 3, N) uint8 and y (N, 1) in 1..10, where 10 stands for the digit 0."""
    from scipy.io import loadmat  # slow to import, and only SVHN needs it

    require_readable(path)
    try:
        content = loadmat(path, variable_names=("X", "y"))
    except Exception as error:  # on damaged files scipy raises almost anything: ValueError, TypeError, zlib.error, ...
        raise DataError(f"{path}: truncated or not a MATLAB 5 file ({error})") from error
    if "X" not in content or "y" not in content:
        raise DataError(f"{path}: needs the arrays X and y, holds {sorted(k for k in content if k[0] != '_')}")
    pixels, digits = content["X"], content["y"].ravel()
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[:3] != (32, 32, 3):
        raise DataError(f"{path}: X must be (32, 32, 3, N) uint8, is {pixels.shape} {pixels.dtype}")
    labels = in_range(digits, path, low=1, high=10)
    return paired(np.ascontiguousarray(pixels.transpose(3, 0, 1, 2)), labels % 10, path)


def read_npz(path: Path, *, complete: bool = True) -> tuple[tuple[str, ...], Split, Split]:
    """Class names, training and test split of an .npz file.

    x_train, x_test: (N, H, W, C) or (N, H, W) uint8, C = 1 or 3.  y_train, y_test: (N,) integers in 0 .. K-1.
    classes: K names, optional.  complete: without it, the test split may be missing, and both may be empty.
    """
    arrays = npz_arrays(path)
    if not complete and "x_train" in arrays and not {"x_test", "y_test"} & arrays.keys():
        arrays |= {"x_test": arrays["x_train"][:0], "y_test": np.empty(0, np.int64)}
    missing = [name for name in ("x_train", "y_train", "x_test", "y_test") if name not in arrays]
    if missing:
        raise DataError(f"{path}: lacks {', '.join(missing)}; holds {', '.join(sorted(arrays)) or 'nothing'}")
    for name in ("y_train", "y_test"):
        labels = arrays[name]
        if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
            raise DataError(f"{path}: {name} must be (N,) integers, is {labels.shape} {labels.dtype}")
        if complete and not len(labels):
            raise DataError(f"{path}: {name} is empty")
    for name in ("x_train", "x_test"):
        images = arrays[name]
        if images.dtype != np.uint8 or images.ndim not in (3, 4):
            raise DataError(f"{path}: {name} must be (N, H, W, C) or (N, H, W) uint8, is {images.shape} {images.dtype}")
        if images.ndim == 3:
            arrays[name] = images[..., None]
        elif images.shape[3] not in (1, 3):
            raise DataError(f"{path}: {name} has {images.shape[3]} channels (last axis of {images.shape}), not 1 or 3")
    if arrays["x_train"].shape[1:] != arrays["x_test"].shape[1:]:
        raise DataError(
            f"{path}: x_train has images of {arrays['x_train'].shape[1:]}, x_test of {arrays['x_test'].shape[1:]}"
        )
    names = class_names(arrays, path)
    train, test = (
        paired(
            np.ascontiguousarray(arrays[f"x_{split}"]),
            in_range(arrays[f"y_{split}"], path, high=len(names) - 1),
            path,
        )
        for split in ("train", "test")
    )
    return names, train, test


def npz_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an .npz file, their checksums tested on the way."""
    require_readable(path)
    try:
        with zipfile.ZipFile(path):  # np.load would also take a bare .npy, and tries to unpickle the rest
            pass
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, OSError) as error:
        raise DataError(f"{path}: damaged, or not an .npz file of plain arrays ({error})") from error


def class_names(arrays: dict[str, NDArray[Any]], path: Path) -> tuple[str, ...]:
    if "classes" not in arrays:
        highest, images = int(arrays["y_train"].max(initial=-1)), len(arrays["y_train"])
        if highest >= images:  # then some class has no image, and their names could fill the memory
            raise DataError(f"{path}: y_train has label {highest}, but only {images} images; labels count from 0")
        return tuple(str(label) for label in range(highest + 1))
    names = tuple(str(name) for name in arrays["classes"].ravel())
    if len(set(names)) != len(names):
        raise DataError(f"{path}: a name occurs twice in classes")
    return names
