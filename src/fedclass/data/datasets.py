"""Data sets by name: what they are, which files they need, and how they become arrays.

    images = load("cifar10", fraction=0.1)

Files are looked for in `cache_folder() / name` unless a path is given; `fedclass data fetch NAME` puts them there.
"""

import difflib
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pooch

from fedclass.data import folder, readers, synnum
from fedclass.data.images import ImageSet, Split
from fedclass.errors import ConfigError, DataError

DIGITS = tuple("0123456789")
RECORD = "fetched.json"  # what `download.fetch` took out of an archive whose checksum was right

Status = Literal["ok", "unknown", "wrong", "missing"]
Orientation = Literal["upright", "raw"]


@dataclass(frozen=True)
class File:
    """A file that a data set needs, as published; checksums are written "algorithm:hex".

    A .gz may lie there unpacked, or packed anew: then `unpacked` is what its content must have.
    """

    name: str
    checksum: str | None = None
    unpacked: str | None = None


@dataclass(frozen=True)
class Download:
    """Something to fetch: one of the files, or an archive that holds them."""

    url: str
    checksum: str

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[1]


@dataclass(frozen=True, kw_only=True)
class Source:
    """A data set that `load` knows.

    Pixels in 0..1 become (x - mean) / std, per channel or with one value for all. As in the authors' release, only
    CIFAR-10 has statistics of its own.
    """

    name: str
    description: str
    remark: str  # whom to cite, under which terms it may be used
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    classes: tuple[str, ...] = ()  # empty: known only once the files are read
    shape: tuple[int, int, int] | None = None  # (H, W, C)
    sizes: tuple[int, int] | None = None  # images for training, for testing
    files: tuple[File, ...] = ()
    downloads: tuple[Download, ...] = ()
    subfolder: str = ""  # where an unpacked archive has the files
    transposed: bool = False  # the files have rows and columns exchanged


def _idx_files(prefix: str, *checksums: tuple[str, str] | None) -> tuple[File, ...]:
    """The four files of a data set in MNIST's format; checksums: md5 of the .gz and of its content."""
    train, test = (prefix + "train", prefix + "test") if prefix else ("train", "t10k")
    names = [f"{split}-{kind}-ubyte.gz" for split in (train, test) for kind in ("images-idx3", "labels-idx1")]
    return tuple(
        File(name) if md5 is None else File(name, f"md5:{md5[0]}", f"md5:{md5[1]}")
        for name, md5 in zip(names, checksums or [None] * 4, strict=True)
    )


def _downloads(base: str, files: Sequence[File]) -> tuple[Download, ...]:
    return tuple(Download(base + file.name, file.checksum) for file in files if file.checksum is not None)


_MNIST_FILES = _idx_files(
    "",
    ("f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb"),
    ("d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624"),
    ("9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea"),
    ("ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637"),
)
_FASHION_FILES = _idx_files(
    "",
    ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
    ("25c81989df183df01b3e8a0aad5dffbe", "9018921c3c673c538a1fc5bad174d6f9"),
    ("bef4ecab320f06d8554ea6380940ec79", "8181f5470baa50b63fa0f6fddb340f0a"),
    ("bb300cfdad3c16e7a12a480ee83cd310", "15d484375f8d13e6eb1aabb0c3f46965"),
)
_CIFAR_FILES = (
    File("data_batch_1.bin", "md5:5dd7e06a14cb22eb9f671a540d1b7c25"),
    File("data_batch_2.bin", "md5:5ea93a67294ea407fff1d09f752e9692"),
    File("data_batch_3.bin", "md5:942cd6a4bcdd0dd3c604fbe906cb4421"),
    File("data_batch_4.bin", "md5:ae636b3ba5c66a11e91e8cb52e771fcb"),
    File("data_batch_5.bin", "md5:53f37980c15c3d472c316c40844f3f0d"),
    File("test_batch.bin", "md5:803d5f7f4d78ea53de84dbe85f74fb6d"),
)
_SVHN_FILES = (
    File("train_32x32.mat", "md5:e26dedcc434d2e4c54c9b2d4a06d8373"),
    File("test_32x32.mat", "md5:eb5a983be6a315427106f1b164d9cef3"),
)

_SOURCES = (
    Source(
        name="synnum",
        description="drawn digits in colour, in the manner of SYN-NUM; needs no download",
        remark="Our own drawing after Ganin and Lempitsky, 2015 (arXiv:1409.7495); not their images.",
        classes=DIGITS,
        shape=(32, 32, 3),
        sizes=(10 * synnum.TRAIN_PER_CLASS, 10 * synnum.TEST_PER_CLASS),
    ),
    Source(
        name="cifar10",
        description="photographs of ten kinds of animals and vehicles",
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        remark="Krizhevsky, Learning multiple layers of features from tiny images, 2009. No licence stated.",
        classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        shape=(32, 32, 3),
        sizes=(50_000, 10_000),
        files=_CIFAR_FILES,
        downloads=(
            Download(
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                "md5:c32a1d4ab5d03f1284b67883e8d87530",
            ),
        ),
        subfolder="cifar-10-batches-bin",
    ),
    Source(
        name="svhn",
        description="house numbers cut out of street photographs",
        remark="Netzer et al., Reading digits in natural images, 2011. For non-commercial use only.",
        classes=DIGITS,
        shape=(32, 32, 3),
        sizes=(73_257, 26_032),
        files=_SVHN_FILES,
        downloads=_downloads("http://ufldl.stanford.edu/housenumbers/", _SVHN_FILES),
    ),
    Source(
        name="emnist-balanced",
        description="handwritten digits and letters, 47 classes of equal size",
        remark="Cohen et al., EMNIST, 2017 (arXiv:1702.05373). From NIST Special Database 19.",
        classes=(*DIGITS, *"ABCDEFGHIJKLMNOPQRSTUVWXYZ", *"abdefghnqrt"),
        shape=(28, 28, 1),
        sizes=(112_800, 18_800),
        files=_idx_files("emnist-balanced-"),  # no checksums of single files are published
        downloads=(
            Download(
                "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
                "md5:58c8d27c78d21e728a6bc7b3cc06412e",
            ),
        ),
        subfolder="gzip",
        transposed=True,
    ),
    Source(
        name="mnist",
        description="handwritten digits",
        remark="LeCun, Cortes and Burges, 1998.",
        classes=DIGITS,
        shape=(28, 28, 1),
        sizes=(60_000, 10_000),
        files=_MNIST_FILES,
        downloads=_downloads("https://ossci-datasets.s3.amazonaws.com/mnist/", _MNIST_FILES),
    ),
    Source(
        name="fashion-mnist",
        description="gray pictures of ten kinds of clothes",
        remark="Xiao, Rasul and Vollgraf, 2017 (arXiv:1708.07747). MIT licence.",
        classes=(
            "T-shirt/top",
            "Trouser",
            "Pullover",
            "Dress",
            "Coat",
            "Sandal",
            "Shirt",
            "Sneaker",
            "Bag",
            "Ankle boot",
        ),
        shape=(28, 28, 1),
        sizes=(60_000, 10_000),
        files=_FASHION_FILES,
        downloads=_downloads("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", _FASHION_FILES),
    ),
    Source(
        name="folder",
        description="your own images: train/<class>/* and test/<class>/*",
        remark="Yours.",
    ),
    Source(
        name="npz",
        description="your own arrays: x_train, y_train, x_test, y_test in an .npz file",
        remark="Yours.",
    ),
)

DATASETS: dict[str, Source] = {source.name: source for source in _SOURCES}


def find_source(name: str) -> Source:
    if name in DATASETS:
        return DATASETS[name]
    near = difflib.get_close_matches(name, DATASETS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(DATASETS)}"
    raise ConfigError(f"data.name: unknown data set {name!r}; {hint}")


def cache_folder() -> Path:
    """Where data sets are kept: $FEDCLASS_DATA, else the user's cache folder."""
    configured = os.environ.get("FEDCLASS_DATA")
    return Path(configured).expanduser() if configured else Path(pooch.os_cache("fedclass"))


def data_folder(name: str, path: Path | None) -> Path:
    return cache_folder() / name if path is None else path.expanduser()


def locate(source: Source, file: File, where: Path) -> Path | None:
    """The file in `where` or in the folder its archive unpacks to; a .gz may lie there unpacked."""
    names = (file.name, file.name.removesuffix(".gz"))
    for parent in (where, where / source.subfolder):
        for name in names:
            if (parent / name).is_file():
                return parent / name
    return None


def check_file(source: Source, file: File, where: Path) -> Status:
    """Compares a file with its published checksum or, where none is published, with what `fetch` recorded."""
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


def load(
    name: str,
    *,
    path: Path | None = None,
    fraction: float = 1.0,
    test_fraction: float = 1.0,
    orientation: Orientation = "upright",
) -> ImageSet:
    """A data set in memory.

    path: the folder of its files (for "npz": the file); default `cache_folder() / name`.
    fraction, test_fraction: keep this first part of each class, in the order of the files, but at least one image.
    orientation: "raw" leaves the images of EMNIST as its files have them, with rows and columns exchanged.

    `official` is true if every file has its published checksum. synnum is drawn here, and so it always is what it is
    called. Of a folder or an npz file nobody published a checksum: None.
    """
    source = find_source(name)
    for key, value in (("data.fraction", fraction), ("data.test_fraction", test_fraction)):
        if not 0 < value <= 1:
            raise ConfigError(f"{key}: must be in (0, 1], got {value}")
    if orientation == "raw" and not source.transposed:
        turned = ", ".join(other.name for other in DATASETS.values() if other.transposed)
        raise ConfigError(f"data.orientation: only {turned} has images to turn, {name} is upright; leave it out")
    if name == "synnum":
        where = data_folder(name, path)
        train, test = (
            synnum.cached(where, 10 * kept(per_class, part), split=split)
            for split, per_class, part in (
                ("train", synnum.TRAIN_PER_CLASS, fraction),
                ("test", synnum.TEST_PER_CLASS, test_fraction),
            )
        )
        return ImageSet(name, source.classes, train, test, official=True, available=source.sizes)
    official: bool | None
    if source.files:
        turn = source.transposed and orientation == "upright"
        classes, train, test, official = _read_published(source, data_folder(name, path), turn=turn)
    else:
        classes, train, test = _read_own(name, path)
        official = None
    for kind, split in (("training", train), ("test", test)):
        counts = np.bincount(split.labels, minlength=len(classes))
        if not counts.all():
            raise DataError(f"{name}: class {classes[int(counts.argmin())]!r} has no {kind} image; {advice(source)}")
    available = len(train), len(test)
    return ImageSet(name, classes, first_part(train, fraction), first_part(test, test_fraction), official, available)


def _read_published(source: Source, where: Path, *, turn: bool) -> tuple[tuple[str, ...], Split, Split, bool]:
    paths = [locate(source, file, where) for file in source.files]
    missing = [file.name for file, found in zip(source.files, paths, strict=True) if found is None]
    if missing:
        raise DataError(f"{where}: lacks {', '.join(missing)}; {advice(source)}")
    found = [path for path in paths if path is not None]
    try:
        official = all(check_file(source, file, where) == "ok" for file in source.files)
        if source.name == "cifar10":
            train, test = readers.read_cifar(*found[:5]), readers.read_cifar(found[5])
        elif source.name == "svhn":
            train, test = readers.read_svhn(found[0]), readers.read_svhn(found[1])
        else:
            train, test = (
                readers.read_idx_split(images, labels, classes=len(source.classes), transposed=turn)
                for images, labels in (found[:2], found[2:])
            )
    except DataError as error:
        raise DataError(f"{error}; {advice(source)}") from error
    return source.classes, train, test, official


def _read_own(name: str, path: Path | None) -> tuple[tuple[str, ...], Split, Split]:
    if path is None:
        raise DataError(f"data.path: {name!r} is your own data, say where it is: --set data.path=... (or --path)")
    path = path.expanduser()
    return folder.read_folder(path) if name == "folder" else readers.read_npz(path)


def advice(source: Source) -> str:
    if source.downloads:
        return (
            f"to download it: fedclass data fetch {source.name}; "
            "if you have it elsewhere: --set data.path=FOLDER (or --path FOLDER)"
        )
    return "add one, or remove the class"


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
