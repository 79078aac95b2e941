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

from fedclass.data.image_set import Split
from fedclass.errors import DataError

CIFAR_SIDE = 32
CIFAR_PIXELS = 3 * CIFAR_SIDE * CIFAR_SIDE  # the red, green and blue planes

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
    """Raise a clear error if a file is missing or unreadable, before a library raises a less clear one."""
    try:
        path.open("rb").close()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error


def in_range(labels: NDArray[np.integer], path: object, *, low: int = 0, high: int) -> NDArray[np.int64]:
    """The labels as int64, all of them in low .. high."""
    wrong = (labels < low) | (labels > high)
    if wrong.any():
        at = int(wrong.argmax())
        raise DataError(f"{path}: label {labels[at]} of image {at} is outside {low}..{high}")
    return labels.astype(np.int64)


def paired(images: NDArray[np.uint8], labels: NDArray[np.int64], where: object) -> Split:
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
    """transposed: undo an exchange of rows and columns in the file, as in EMNIST."""
    pixels = read_idx(images, dimensions=3)
    if transposed:
        pixels = pixels.transpose(0, 2, 1)
    digits = in_range(read_idx(labels, dimensions=1), labels, high=classes - 1)
    return paired(pixels[..., None].copy(), digits, images)  # a copy: bytes from a file are not writable


def read_cifar(*paths: Path, classes: int = 10, labels: int = 1) -> Split:
    """Batches of CIFAR's binary version, one after the other.

    labels: bytes before the pixels of an image, the last of which is its class; CIFAR-100 has its coarse class first.
    """
    size = labels + CIFAR_PIXELS
    records = []
    for path in paths:
        content = read_bytes(path)
        if not content or len(content) % size:
            raise DataError(
                f"{path}: truncated or not a CIFAR-{classes} binary batch: "
                f"{len(content)} bytes is no multiple of {size}"
            )
        records.append(np.frombuffer(content, np.uint8).reshape(-1, size))
    images = np.empty((sum(map(len, records)), CIFAR_SIDE, CIFAR_SIDE, 3), np.uint8)
    found = np.empty(len(images), np.int64)
    start = 0
    for path, record in zip(paths, records, strict=True):
        part = slice(start, start + len(record))
        images[part] = record[:, labels:].reshape(-1, 3, CIFAR_SIDE, CIFAR_SIDE).transpose(0, 2, 3, 1)
        found[part] = in_range(record[:, labels - 1], path, high=classes - 1)
        start = part.stop
    return Split(images, found)


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
    """Class names, training and test split of an .npz file with the arrays of `from_arrays`.

    complete: without it, the test split may be missing, and both may be empty.
    """
    arrays = npz_arrays(path)
    if not complete and "x_train" in arrays and not {"x_test", "y_test"} & arrays.keys():
        arrays |= {"x_test": arrays["x_train"][:0], "y_test": np.empty(0, np.int64)}
    return from_arrays(arrays, path, complete=complete)


def from_arrays(
    arrays: dict[str, NDArray[Any]], where: object, *, complete: bool = True
) -> tuple[tuple[str, ...], Split, Split]:
    """Class names, training and test split.

    x_train, x_test: (N, H, W, C) or (N, H, W) uint8, C = 1 or 3.  y_train, y_test: (N,) integers in 0 .. K-1.
    classes: K names, optional.  complete: without it, both splits may be empty.
    """
    missing = [name for name in ("x_train", "y_train", "x_test", "y_test") if name not in arrays]
    if missing:
        raise DataError(f"{where}: lacks {', '.join(missing)}; holds {', '.join(sorted(arrays)) or 'nothing'}")
    for name in ("y_train", "y_test"):
        labels = arrays[name]
        if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
            raise DataError(f"{where}: {name} must be (N,) integers, is {labels.shape} {labels.dtype}")
        if complete and not len(labels):
            raise DataError(f"{where}: {name} is empty")
    images = {name: _images(arrays[name], name, where) for name in ("x_train", "x_test")}
    if images["x_train"].shape[1:] != images["x_test"].shape[1:]:
        raise DataError(
            f"{where}: x_train has images of {images['x_train'].shape[1:]}, x_test of {images['x_test'].shape[1:]}"
        )
    names = class_names(arrays, where)
    train, test = (
        paired(images[f"x_{split}"], in_range(arrays[f"y_{split}"], where, high=len(names) - 1), where)
        for split in ("train", "test")
    )
    return names, train, test


def _images(images: NDArray[Any], name: str, where: object) -> NDArray[np.uint8]:
    """(N, H, W, C), in one piece that may be written to: torch.from_numpy warns of anything else."""
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise DataError(f"{where}: {name} must be (N, H, W, C) or (N, H, W) uint8, is {images.shape} {images.dtype}")
    if images.ndim == 3:
        images = images[..., None]
    elif images.shape[3] not in (1, 3):
        raise DataError(f"{where}: {name} has {images.shape[3]} channels (last axis of {images.shape}), not 1 or 3")
    return np.require(images, requirements=["C", "W"])


def read_medmnist(path: Path) -> tuple[tuple[str, ...], Split, Split]:
    """A 2D set of MedMNIST: train_images (N, H, W) or (N, H, W, 3) uint8, train_labels (N, 1), and so for test.

    Its files do not name their classes. Its validation images are not used: `data.validation` holds out others.
    """
    arrays = npz_arrays(path)
    renamed: dict[str, NDArray[Any]] = {}
    for split in ("train", "test"):
        images, labels = (arrays.get(f"{split}_{kind}") for kind in ("images", "labels"))
        if images is None or labels is None:
            raise DataError(
                f"{path}: not a file of MedMNIST, which has {split}_images and {split}_labels; "
                f"holds {', '.join(sorted(arrays)) or 'nothing'}"
            )
        if images.ndim > 4 or (images.ndim == 4 and images.shape[3] != 3):
            raise DataError(f"{path}: {split}_images is {images.shape}; sets in three dimensions cannot be used")
        if labels.ndim > 1 and labels.shape[1] > 1:
            raise DataError(
                f"{path}: has {labels.shape[1]} labels for each image, and one class per image is needed; "
                "choose a set that is not multi-label"
            )
        renamed |= {f"x_{split}": images, f"y_{split}": labels.reshape(len(labels))}
    return from_arrays(renamed, path)


def npz_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an .npz file; their checksums are verified."""
    require_readable(path)
    try:
        with zipfile.ZipFile(path):  # np.load would also take a bare .npy, and tries to unpickle the rest
            pass
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, OSError) as error:
        raise DataError(f"{path}: damaged, or not an .npz file of plain arrays ({error})") from error


def class_names(arrays: dict[str, NDArray[Any]], path: object) -> tuple[str, ...]:
    if "classes" not in arrays:
        highest, images = max(arrays["y_train"].tolist(), default=-1), len(arrays["y_train"])
        if highest >= images:  # a class has no image, and so many names could fill the memory
            raise DataError(f"{path}: y_train has label {highest}, but only {images} images; labels count from 0")
        return tuple(str(label) for label in range(highest + 1))
    names = tuple(str(name) for name in arrays["classes"].ravel())
    if len(set(names)) != len(names):
        raise DataError(f"{path}: a name occurs twice in classes")
    return names
