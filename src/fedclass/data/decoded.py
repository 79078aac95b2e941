"""Images decoded once into a file that is memory-mapped, so that they need not fit into memory."""

import hashlib
import json
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import PIL
from numpy.typing import NDArray
from tqdm import tqdm

from fedclass.data.image_files import fit, read_picture
from fedclass.data.image_set import open_mapped
from fedclass.data.source import cache_folder
from fedclass.errors import DataError

VERSION = 1  # of the decoding: to be raised whenever a pixel changes
MAPPED_FROM = 1 << 30  # bytes; smaller sets are decoded into memory, every time

Shape = tuple[int, int, int]


def decode(files: Sequence[Path], shape: Shape) -> NDArray[np.uint8]:
    """(N, *shape), in memory, or mapped from a file in the cache folder that is named by the hash of its inputs."""
    whole = (len(files), *shape)
    if math.prod(whole) < MAPPED_FROM:
        images = np.empty(whole, np.uint8)
        _fill(images, files)
        return images
    path = cache_folder() / "decoded" / f"{_key(files, shape)}.npy"
    found = _known(path, whole)
    if found is not None:
        return found
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".writing-") as draft:
            complete = Path(draft) / path.name
            written = np.lib.format.open_memmap(complete, mode="w+", dtype=np.uint8, shape=whole)
            _fill(written, files)
            written.flush()
            complete.replace(path)
    except OSError as error:
        raise DataError(
            f"{path.parent}: cannot keep {math.prod(whole) / 1e9:.1f} GB of decoded images ({error.strerror}); free "
            "some space, move the folder (FEDCLASS_DATA), or lower data.size"
        ) from error
    return open_mapped(path)


def _fill(images: NDArray[np.uint8], files: Sequence[Path]) -> None:
    height, width, channels = images.shape[1:]
    few = len(files) < 10_000
    for at, file in enumerate(tqdm(files, desc="decoding images", unit="", disable=True if few else None)):
        images[at] = fit(read_picture(file), (height, width, channels), file).pixels


def _known(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8] | None:
    if not path.is_file():
        return None
    try:
        found = open_mapped(path)
    except (ValueError, OSError, EOFError):
        return None  # damaged: it is decoded again and replaced
    return found if found.shape == shape and found.dtype == np.uint8 else None


def _key(files: Sequence[Path], shape: Shape) -> str:
    digest = hashlib.sha256(json.dumps([VERSION, PIL.__version__, shape]).encode())
    for file in files:
        try:
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        except OSError as error:
            raise DataError(f"{file}: cannot be read ({error.strerror})") from error
    return digest.hexdigest()
