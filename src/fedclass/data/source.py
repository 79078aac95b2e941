"""A data set before it is read: its name, the files it needs, and whether they are present and as published."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from platformdirs import user_cache_dir

from fedclass.data import readers
from fedclass.data.image_set import ImageSet
from fedclass.errors import DataError

RECORD = "fetched.json"  # what `download.fetch` took out of an archive whose checksum was right

Status = Literal["ok", "unknown", "wrong", "missing"]
Orientation = Literal["upright", "raw"]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which part of a data set to load, and how; see `datasets.load`."""

    path: Path | None = None
    fraction: float = 1.0
    test_fraction: float = 1.0
    orientation: Orientation = "upright"
    size: tuple[int, int] | None = None
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class File:
    """A file that a data set needs, as published; checksums are written "algorithm:hex".

    A .gz may have been unpacked or recompressed: then its content must have the checksum `unpacked`.
    """

    name: str
    checksum: str | None = None
    unpacked: str | None = None


@dataclass(frozen=True)
class Download:
    """A download: one of the files, or an archive that holds them."""

    url: str
    checksum: str

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[1]


@dataclass(frozen=True, kw_only=True)
class Source:
    """A data set that `load` knows.

    Pixels in 0..1 become (x - mean) / std, per channel or with one value for all; None: measured on the training
    images. As in the authors' release, only CIFAR-10 of its data sets has its own statistics.
    """

    name: str
    description: str
    remark: str  # whom to cite, under which terms it may be used
    read: "Reader"
    mean: tuple[float, ...] | None = (0.5,)
    std: tuple[float, ...] | None = (0.5,)
    classes: tuple[str, ...] = ()  # empty: known only once the files are read
    shape: tuple[int, int, int] | None = None  # (H, W, C)
    sizes: tuple[int, int] | None = None  # images for training, for testing
    files: tuple[File, ...] = ()
    downloads: tuple[Download, ...] = ()
    subfolder: str = ""  # where an unpacked archive has the files
    transposed: bool = False  # the files have rows and columns exchanged
    drawn: bool = False  # no files; any part can be drawn without the rest


Reader = Callable[[Source, Wanted], ImageSet]


def cache_folder() -> Path:
    """Where data sets are kept: $FEDCLASS_DATA, else the user's cache folder."""
    configured = os.environ.get("FEDCLASS_DATA")
    return Path(configured).expanduser() if configured else Path(user_cache_dir("fedclass"))


def data_folder(name: str, path: Path | None) -> Path:
    return cache_folder() / name if path is None else path.expanduser()


def locate(source: Source, file: File, where: Path) -> Path | None:
    """The file in `where` or in the folder its archive unpacks to; a .gz may have been unpacked."""
    names = (file.name, file.name.removesuffix(".gz"))
    for parent in (where, where / source.subfolder):
        for name in names:
            if (parent / name).is_file():
                return parent / name
    return None


def located(source: Source, where: Path) -> list[Path]:
    """All files of a data set, in the order of its `files`."""
    paths = [locate(source, file, where) for file in source.files]
    missing = [file.name for file, found in zip(source.files, paths, strict=True) if found is None]
    if missing:
        raise DataError(f"{where}: lacks {', '.join(missing)}")
    return [path for path in paths if path is not None]


def advice(source: Source) -> str:
    """What to do if files are missing or damaged."""
    elsewhere = "if you have it elsewhere: --set data.path=FOLDER (or --path FOLDER)"
    if source.downloads:
        return f"to download it: fedclass data fetch {source.name}; {elsewhere}"
    return f"unpack it there; {elsewhere}" if source.files else "add one, or remove the class"


def check_file(source: Source, file: File, where: Path) -> Status:
    """Compare a file with its published checksum or, if there is none, with what `fetch` recorded."""
    path = locate(source, file, where)
    if path is None:
        return "missing"
    expected = file.checksum if path.name == file.name else file.unpacked
    if expected is None:
        expected = _recorded(source, path)
    if expected is None:
        return "unknown"
    if matches(readers.read_bytes(path), expected):
        return "ok"
    if path.suffix == ".gz" and file.unpacked is not None:
        try:
            return "ok" if matches(readers.gunzip(path), file.unpacked) else "wrong"
        except DataError:  # not even a .gz file
            return "wrong"
    return "wrong"


def matches(content: bytes, checksum: str) -> bool:
    """checksum: "algorithm:hex"."""
    algorithm, _, expected = checksum.partition(":")
    return hashlib.new(algorithm, content, usedforsecurity=False).hexdigest() == expected


def _recorded(source: Source, path: Path) -> str | None:
    record = path.parent / RECORD
    if not record.is_file():
        return None
    try:
        content = json.loads(readers.read_bytes(record))
        archive, files = content["archive"], dict(content["files"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{record}: damaged ({error!r}); delete it and fetch the data again") from error
    known = archive in {download.checksum for download in source.downloads}
    return str(files[path.name]) if known and path.name in files else None
