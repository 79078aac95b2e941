"""The bundled data sets: what they are, which files they need, and how these become arrays."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedclass.data import folder, readers, synnum
from fedclass.data.image_set import ImageSet, Split, first_part, kept
from fedclass.data.source import (
    Download,
    File,
    Source,
    Wanted,
    advice,
    data_folder,
    located,
)
from fedclass.errors import ConfigError, DataError, FedclassError
from fedclass.rng import seed_streams, streams_restored
from fedclass.usercode import imported, reason

DIGITS = tuple("0123456789")

CIFAR100 = tuple(
    """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
    castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
    elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster
    man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck
    pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
    skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger
    tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
    """.split()  # noqa: SIM905
)


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


_DRAWN = {alphabet.name: alphabet for alphabet in (synnum.DIGITS, synnum.CHARACTERS)}


def _draw(source: Source, wanted: Wanted) -> ImageSet:
    """Draw only as many images as asked for."""
    where = data_folder(source.name, wanted.path)
    train, test = (
        synnum.cached(where, len(source.classes) * kept(per_class, part), split=split, alphabet=_DRAWN[source.name])
        for split, per_class, part in (
            ("train", synnum.TRAIN_PER_CLASS, wanted.fraction),
            ("test", synnum.TEST_PER_CLASS, wanted.test_fraction),
        )
    )
    return ImageSet(source.name, source.classes, train, test, official=True, available=source.sizes)


def _read_cifar10(source: Source, wanted: Wanted) -> ImageSet:
    *batches, test = located(source, data_folder(source.name, wanted.path))
    return _part(source, wanted, source.classes, readers.read_cifar(*batches), readers.read_cifar(test))


def _read_cifar100(source: Source, wanted: Wanted) -> ImageSet:
    train, test = (
        readers.read_cifar(path, classes=100, labels=2)
        for path in located(source, data_folder(source.name, wanted.path))
    )
    return _part(source, wanted, source.classes, train, test)


def _read_svhn(source: Source, wanted: Wanted) -> ImageSet:
    train, test = map(readers.read_svhn, located(source, data_folder(source.name, wanted.path)))
    return _part(source, wanted, source.classes, train, test)


def _read_idx(source: Source, wanted: Wanted) -> ImageSet:
    files = located(source, data_folder(source.name, wanted.path))
    turn = source.transposed and wanted.orientation == "upright"
    train, test = (
        readers.read_idx_split(images, labels, classes=len(source.classes), transposed=turn)
        for images, labels in (files[:2], files[2:])
    )
    return _part(source, wanted, source.classes, train, test)


def _read_tiny_imagenet(source: Source, wanted: Wanted) -> ImageSet:
    files = located(source, data_folder(source.name, wanted.path))
    return _part(source, wanted, *folder.read_tiny_imagenet(*files, size=wanted.size))


def _read_medmnist(source: Source, wanted: Wanted) -> ImageSet:
    return _part(source, wanted, *readers.read_medmnist(_own_path(source, wanted)))


def _read_folder(source: Source, wanted: Wanted) -> ImageSet:
    return _part(source, wanted, *folder.read_folder(_own_path(source, wanted), size=wanted.size))


def _read_npz(source: Source, wanted: Wanted) -> ImageSet:
    return _part(source, wanted, *readers.read_npz(_own_path(source, wanted)))


def call_user_loader(source: Source, wanted: Wanted) -> ImageSet:
    """The arrays that a user's function returns, named as in an .npz file.

    Global random streams are seeded for the call, always in the same way.
    """
    load_own = imported(source.name, where="data.name")
    if not callable(load_own):
        raise ConfigError(f"data.name: {source.name!r} is not callable; it must return arrays by name")
    given = dict(wanted.args) | ({} if wanted.path is None else {"path": wanted.path.expanduser()})
    try:
        with streams_restored():
            seed_streams(0, "user code", "data")
            found = load_own(**given)
    except FedclassError:  # of a loader of ours: it says where and what
        raise
    except Exception as error:
        raise DataError(f"data.name: {source.name!r} failed: {reason(error)}") from error
    if not isinstance(found, Mapping):
        raise DataError(
            f"data.name: {source.name!r} returned a {type(found).__name__}; it must return a dict with x_train, "
            "y_train, x_test, y_test and, if you like, classes"
        )
    arrays = {str(name): np.asarray(array) for name, array in found.items()}
    return _part(source, wanted, *readers.from_arrays(arrays, source.name))


def _own_path(source: Source, wanted: Wanted) -> Path:
    if wanted.path is None:
        raise DataError(f"data.path: {source.name!r} needs the place of your files: --set data.path=... (or --path)")
    return wanted.path.expanduser()


def _part(source: Source, wanted: Wanted, classes: tuple[str, ...], train: Split, test: Split) -> ImageSet:
    """The part asked for; each class must have an image in both splits."""
    for kind, split in (("training", train), ("test", test)):
        counts = np.bincount(split.labels, minlength=len(classes))
        if not counts.all():
            helps = "" if source.files else f"; {advice(source)}"
            raise DataError(f"{source.name}: class {classes[int(counts.argmin())]!r} has no {kind} image{helps}")
    parts = first_part(train, wanted.fraction), first_part(test, wanted.test_fraction)
    return ImageSet(source.name, classes, *parts, official=None, available=(len(train), len(test)))


_SOURCES = (
    Source(
        name="synnum",
        read=_draw,
        drawn=True,
        description="drawn digits in colour, in the manner of SYN-NUM; needs no download",
        remark="Our own drawing after Ganin and Lempitsky, 2015 (arXiv:1409.7495); not their images.",
        classes=DIGITS,
        shape=(32, 32, 3),
        sizes=(10 * synnum.TRAIN_PER_CLASS, 10 * synnum.TEST_PER_CLASS),
    ),
    Source(
        name="drawn-characters",
        read=_draw,
        drawn=True,
        description="52 digits, letters and signs, drawn in the same way, for many tasks; needs no download",
        remark="Our own drawing.",
        classes=tuple(synnum.CHARACTERS.characters),
        shape=(32, 32, 3),
        sizes=(52 * synnum.TRAIN_PER_CLASS, 52 * synnum.TEST_PER_CLASS),
    ),
    Source(
        name="cifar10",
        read=_read_cifar10,
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
        name="cifar100",
        read=_read_cifar100,
        description="photographs of a hundred kinds of things, by their fine classes",
        mean=None,
        std=None,
        remark="Krizhevsky, Learning multiple layers of features from tiny images, 2009. No licence stated.",
        classes=CIFAR100,
        shape=(32, 32, 3),
        sizes=(50_000, 10_000),
        files=(File("train.bin"), File("test.bin")),  # no checksums of single files are published
        downloads=(
            Download(
                "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
                "md5:03b5dce01913d631647c71ecec9e9cb8",
            ),
        ),
        subfolder="cifar-100-binary",
    ),
    Source(
        name="svhn",
        read=_read_svhn,
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
        read=_read_idx,
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
        read=_read_idx,
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
        read=_read_idx,
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
        name="tiny-imagenet",
        read=_read_tiny_imagenet,
        description="photographs, 200 classes of ImageNet; tested on its validation images",
        mean=None,
        std=None,
        remark="Le and Yang, Tiny ImageNet visual recognition challenge, 2015. For non-commercial research only.",
        shape=(64, 64, 3),
        sizes=(100_000, 10_000),
        files=(File("wnids.txt"), File("words.txt"), File("val/val_annotations.txt")),
        subfolder="tiny-imagenet-200",
    ),
    Source(
        name="medmnist",
        read=_read_medmnist,
        description="an .npz file of MedMNIST: 2D, one class per image",
        mean=None,
        std=None,
        remark="Yang et al., MedMNIST v2, 2023 (arXiv:2110.14795). Licences differ from set to set.",
    ),
    Source(
        name="folder",
        read=_read_folder,
        description="your own images: train/<class>/* and test/<class>/*",
        remark="Yours.",
    ),
    Source(
        name="npz",
        read=_read_npz,
        description="your own arrays: x_train, y_train, x_test, y_test in an .npz file",
        remark="Yours.",
    ),
)

DATASETS: dict[str, Source] = {source.name: source for source in _SOURCES}
