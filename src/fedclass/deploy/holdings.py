"""A site's own images, which come and go."""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedclass.data.folder import passed_over
from fedclass.data.image_files import as_picture, eight_bits, fit, read_picture
from fedclass.data.image_set import Split
from fedclass.data.readers import read_npz
from fedclass.errors import DataError

Size = tuple[int, int, int]  # (H, W, C)


@dataclass(frozen=True, eq=False)
class Holdings:
    """What a site holds at the moment.

    train, held_out: images to learn from, and those to test with; labels are indices into `classes`.  digests: of the
    training images, by which a site knows again those that it has had.  present: (class, digest) of all images.
    skipped: files that are no images of the others' size, and why.
    """

    classes: tuple[str, ...]
    train: Split
    held_out: Split
    digests: tuple[str, ...]
    present: frozenset[tuple[str, str]] = frozenset()
    skipped: tuple[str, ...] = ()

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

    def without(self, classes: Collection[str], images: Collection[str]) -> "Holdings":
        """classes: names.  images: digests."""
        if not classes and not images:
            return self
        kept = np.array([name not in classes for name in self.classes], bool)
        chosen = kept[self.train.labels] & np.array([name not in images for name in self.digests], bool)
        tested = kept[self.held_out.labels]
        if images:
            tested &= np.array([digest(image) not in images for image in self.held_out.images], bool)
        return replace(
            self,
            train=Split(self.train.images[chosen], self.train.labels[chosen]),
            held_out=Split(self.held_out.images[tested], self.held_out.labels[tested]),
            digests=tuple(name for name, keep in zip(self.digests, chosen, strict=True) if keep),
            present=frozenset(one for one in self.present if one[0] not in classes and one[1] not in images),
        )

    def renamed(self, spelled: Mapping[str, str]) -> "Holdings":
        """With other names of classes; two that get the same name become one class."""
        if not any(name in spelled for name in self.classes):
            return self
        names = [spelled.get(name, name) for name in self.classes]
        classes = tuple(sorted(set(names)))
        number = np.array([classes.index(name) for name in names], np.int64)
        return replace(
            self,
            classes=classes,
            train=Split(self.train.images, number[self.train.labels]),
            held_out=Split(self.held_out.images, number[self.held_out.labels]),
            present=frozenset((spelled.get(name, name), pixels) for name, pixels in self.present),
        )


def digest(pixels: NDArray[np.uint8]) -> str:
    """Identity of an image: its shape and its pixels, whatever file they came from."""
    return hashlib.sha256(repr(pixels.shape).encode() + np.ascontiguousarray(pixels).tobytes()).hexdigest()


def digests_of(file: Path, sizes: Iterable[Size] = ()) -> set[str]:
    """Of a picture in a file: as it is, as it becomes among pictures in colour, and resized."""
    picture = _read_image(file)
    shapes = [picture] if picture.ndim == 3 else [picture[..., None], np.repeat(picture[..., None], 3, axis=2)]
    return {digest(pixels) for pixels in shapes} | {digest(_resized(read_picture(file), to, file)) for to in sizes}


def _read_image(file: Path, resize: Size | None = None) -> NDArray[np.uint8]:
    """(H, W) if the file is gray, else (H, W, 3)."""
    if resize is None:
        return np.asarray(eight_bits(read_picture(file), file))
    pixels = _resized(read_picture(file), resize, file)
    return pixels[..., 0] if resize[2] == 1 else pixels


def _resized(picture: Image.Image, to: Size, where: object) -> NDArray[np.uint8]:
    return fit(picture, to, where).pixels


def _stack(pictures: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """(N, H, W, C) of pictures of one size, C = 1 if every one is gray, else 3."""
    channels = 3 if any(picture.ndim == 3 for picture in pictures) else 1
    images = np.empty((len(pictures), *pictures[0].shape[:2], channels), np.uint8)
    for at, picture in enumerate(pictures):
        images[at] = picture if picture.ndim == 3 else picture[..., None]
    return images


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


def read_holdings(path: Path, *, holdout: float, resize: Size | None = None) -> Holdings:
    """The images of `path`: CLASS/*, or train/CLASS/* and perhaps test/CLASS/*, or an .npz file.

    holdout: the share of training images to test with where there is no test split. An image is among them or not by
    its pixels, so that others may come and go.  resize: (H, W, C) that every image is brought to.
    """
    skipped: list[str] = []
    try:
        classes, train, test = _read_npz(path, resize) if path.is_file() else _read_folders(path, skipped, resize)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    digests = [digest(image) for image in train.images]
    present = {(classes[label], name) for label, name in zip(train.labels, digests, strict=True)}
    if test is None:
        held = _held_out(digests, train.labels, holdout) if holdout else np.zeros(len(digests), bool)
        test = Split(train.images[held], train.labels[held])
        train = Split(train.images[~held], train.labels[~held])
        digests = [name for name, out in zip(digests, held, strict=True) if not out]
    else:
        present |= {(classes[label], digest(image)) for label, image in zip(test.labels, test.images, strict=True)}
    return Holdings(classes, train, test, tuple(digests), frozenset(present), tuple(skipped))


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


def _read_npz(path: Path, resize: Size | None) -> tuple[tuple[str, ...], Split, Split | None]:
    classes, train, test = read_npz(path, complete=False)
    if resize is not None:
        train, test = (Split(_all_resized(split.images, resize, path), split.labels) for split in (train, test))
    return classes, train, test if len(test) else None


def _all_resized(images: NDArray[np.uint8], to: Size, where: object) -> NDArray[np.uint8]:
    found = np.empty((len(images), *to), np.uint8)
    for at, pixels in enumerate(images):
        found[at] = _resized(as_picture(pixels, where), to, where)
    return found


def _read_folders(root: Path, skipped: list[str], resize: Size | None) -> tuple[tuple[str, ...], Split, Split | None]:
    """One bad file must not keep a site out: what is no image of the size that most have is left out and named."""
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; it is the site's setting data")
    tested = (root / "test").is_dir() and (root / "train").is_dir()
    train = _class_files(root / "train" if (root / "train").is_dir() else root, skipped)
    test = _class_files(root / "test", skipped) if tested else {}
    classes = tuple(sorted({*train, *test}))
    pictures: dict[Path, NDArray[np.uint8]] = {}
    for file in (file for split in (train, test) for paths in split.values() for file in paths):
        try:
            pictures[file] = _read_image(file, resize)
        except DataError as error:
            skipped.append(str(error))
    sizes = Counter(picture.shape[:2] for picture in pictures.values())
    usual = max(sizes, key=lambda size: (sizes[size], size), default=(1, 1))
    for file, picture in pictures.items():
        if picture.shape[:2] != usual:
            height, width = picture.shape[:2]
            skipped.append(f"{file}: is {width}x{height} pixels, and most are {usual[1]}x{usual[0]}; set resize")
    of_split = [
        [file for paths in split.values() for file in paths if file in pictures and pictures[file].shape[:2] == usual]
        for split in (train, test)
    ]
    files = of_split[0] + of_split[1]
    images = _stack([pictures[file] for file in files]) if files else np.empty((0, 1, 1, 1), np.uint8)
    label_of = {name: label for label, name in enumerate(classes)}
    labels = np.array([label_of[file.parent.name] for file in files], np.int64)
    border = len(of_split[0])
    held_out = Split(images[border:], labels[border:]) if tested else None
    return classes, Split(images[:border], labels[:border]), held_out


def _class_files(parent: Path, skipped: list[str]) -> dict[str, list[Path]]:
    """Class name -> its files, both sorted."""
    found: dict[str, list[Path]] = {}
    for entry in sorted(entry for entry in parent.iterdir() if not passed_over(entry)):
        if entry.is_dir():
            found[entry.name] = sorted(file for file in entry.iterdir() if not passed_over(file))
        else:
            skipped.append(f"{entry}: lies beside the class folders; move it into one of them, or away")
    return found
