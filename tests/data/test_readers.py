"""Published formats, written here in miniature: what is read, and what is said of faulty files."""

import gzip
import hashlib
import os
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedclass.data import readers, source
from fedclass.data.catalogue import DATASETS
from fedclass.data.datasets import load
from fedclass.data.folder import read_folder
from fedclass.data.image_set import Split, first_part, kept, statistics
from fedclass.data.source import File
from fedclass.errors import ConfigError, DataError

IDX = {"mnist": ("train", "t10k"), "emnist-balanced": ("emnist-balanced-train", "emnist-balanced-test")}


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def idx(array):
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return header + array.tobytes()


def write_idx_set(folder, name="mnist", *, packed=True, per_class=2):
    """Every class `per_class` times, in each split; returns (images, labels) of each."""
    folder.mkdir(parents=True, exist_ok=True)
    classes = len(DATASETS[name].classes)
    written = []
    for seed, split in enumerate(IDX[name]):
        labels = np.tile(np.arange(classes, dtype=np.uint8), per_class)
        images = numbers(len(labels), 28, 28, seed=seed)
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            file = folder / f"{split}-{kind}-ubyte{'.gz' if packed else ''}"
            file.write_bytes(gzip.compress(idx(array)) if packed else idx(array))
        written.append((images, labels))
    return written


def write_cifar(folder, *, per_batch=10):
    """Six batches of all classes in order; returns planes (6, per_batch, 3, 32, 32)."""
    folder.mkdir(parents=True, exist_ok=True)
    planes = numbers(6, per_batch, 3, 32, 32)
    labels = np.arange(per_batch, dtype=np.uint8) % 10
    for batch, file in zip(planes, DATASETS["cifar10"].files, strict=True):
        (folder / file.name).write_bytes(np.c_[labels, batch.reshape(per_batch, -1)].tobytes())
    return planes


def savemat(path, arrays):
    from scipy.io import savemat  # slow to import, and every test worker imports every module of tests

    savemat(path, arrays)


def write_svhn(folder, digits=range(1, 11)):
    folder.mkdir(parents=True, exist_ok=True)
    y = np.array(digits, np.uint8)[:, None]
    x = numbers(32, 32, 3, len(y))
    for name in ("train_32x32.mat", "test_32x32.mat"):
        savemat(folder / name, {"X": x, "y": y})
    return x


def write_npz(path, **changed):
    arrays = {
        "x_train": numbers(6, 5, 4, 3),
        "y_train": np.array([0, 1, 2, 0, 1, 2]),
        "x_test": numbers(3, 5, 4, 3, seed=1),
        "y_test": np.array([2, 1, 0]),
    } | changed
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return arrays


def picture(path, *, mode="RGB", size=(4, 5), colour=7):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour if mode in ("L", "1", "I;16") else (colour, colour + 1, colour + 2)).save(path)


def write_folder(root):
    for split in ("train", "test"):
        for number, name in enumerate(("cat", "ape")):
            picture(root / split / name / "b.png", colour=10 * number)
            picture(root / split / name / "a.png", colour=10 * number + 5)


# --- what is read ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [True, False])
def test_mnist_is_read_packed_or_not(tmp_path, packed):
    (train, train_labels), (test, _) = write_idx_set(tmp_path, packed=packed)
    images = load("mnist", path=tmp_path)
    np.testing.assert_array_equal(images.train.images, train[..., None])
    np.testing.assert_array_equal(images.train.labels, train_labels)
    np.testing.assert_array_equal(images.test.images, test[..., None])
    assert images.train.labels.dtype == np.int64
    assert images.train.images.flags.writeable  # torch.from_numpy warns of anything else
    assert images.official is False


def test_emnist_can_be_left_as_its_files_have_it(tmp_path):
    (train, _), (test, _) = write_idx_set(tmp_path, "emnist-balanced")
    images = load("emnist-balanced", path=tmp_path, orientation="raw")
    np.testing.assert_array_equal(images.train.images[..., 0], train)
    np.testing.assert_array_equal(images.test.images[..., 0], test)
    with pytest.raises(ConfigError, match=r"orientation: only emnist-balanced has images to turn, mnist is upright"):
        load("mnist", path=tmp_path, orientation="raw")


def test_emnist_is_turned_upright(tmp_path):
    (train, _), _ = write_idx_set(tmp_path / "gzip", "emnist-balanced")
    images = load("emnist-balanced", path=tmp_path)  # found in the folder its archive unpacks to
    np.testing.assert_array_equal(images.train.images[3, :, :, 0], train[3].T)
    assert images.train.images.flags.c_contiguous
    assert "".join(images.classes) == "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt"
    assert images.official is False


@pytest.mark.parametrize("inside", ["", "cifar-10-batches-bin"])
def test_cifar_planes_become_pixels(tmp_path, inside):
    planes = write_cifar(tmp_path / inside)
    images = load("cifar10", path=tmp_path)
    assert images.train.images.shape == (50, 32, 32, 3)
    np.testing.assert_array_equal(images.train.images[23], planes[2, 3].transpose(1, 2, 0))
    np.testing.assert_array_equal(images.test.images, planes[5].transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(images.train.labels, np.tile(np.arange(10), 5))
    assert images.classes[3] == "cat"


def test_svhn_label_ten_is_the_digit_zero(tmp_path):
    x = write_svhn(tmp_path, digits=[10, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    images = load("svhn", path=tmp_path)
    np.testing.assert_array_equal(images.train.labels, np.arange(10))
    np.testing.assert_array_equal(images.train.images[4], x[..., 4])
    assert images.official is False


@pytest.mark.parametrize("gray", [False, True])
def test_npz(tmp_path, gray):
    arrays = write_npz(
        tmp_path / "my.npz",
        classes=np.array(["ape", "bee", "cat"]),
        **({"x_train": numbers(6, 5, 4), "x_test": numbers(3, 5, 4)} if gray else {}),
    )
    images = load("npz", path=tmp_path / "my.npz")
    want = arrays["x_train"][..., None] if gray else arrays["x_train"]
    np.testing.assert_array_equal(images.train.images, want)
    np.testing.assert_array_equal(images.test.labels, [2, 1, 0])
    assert images.classes == ("ape", "bee", "cat")
    assert images.official is None, "nobody has published checksums of it"


def test_npz_without_names_counts_its_classes(tmp_path):
    write_npz(tmp_path / "my.npz")
    assert load("npz", path=tmp_path / "my.npz").classes == ("0", "1", "2")


def test_folder_is_read_in_the_order_of_names(tmp_path):
    write_folder(tmp_path)
    for passed_over in (".DS_Store", "Thumbs.db", "desktop.ini"):
        (tmp_path / "train" / "cat" / passed_over).write_bytes(b"not an image")
    images = load("folder", path=tmp_path)
    assert images.classes == ("ape", "cat")
    assert images.train.images.shape == (4, 5, 4, 3)
    np.testing.assert_array_equal(images.train.images[:, 0, 0, 0], [15, 10, 5, 0])
    np.testing.assert_array_equal(images.train.labels, [0, 0, 1, 1])
    assert images.official is None


def test_folder_of_gray_images_has_one_channel_and_a_mixed_one_three(tmp_path):
    for split in ("train", "test"):
        picture(tmp_path / split / "a" / "1.png", mode="L", colour=9)
    classes, train, _ = read_folder(tmp_path)
    assert (classes, train.images.shape) == (("a",), (1, 5, 4, 1))
    picture(tmp_path / "train" / "a" / "2.bmp", colour=20)
    _, train, test = read_folder(tmp_path)
    np.testing.assert_array_equal(train.images[:, 0, 0], [[9, 9, 9], [20, 21, 22]])
    assert test.images.shape == (1, 5, 4, 3)


# --- which part of it -----------------------------------------------------------------------------------------------


def test_fraction_keeps_the_first_of_each_class_in_file_order():
    labels = np.array([1, 0, 1, 1, 0, 1, 2])
    split = Split(np.arange(7, dtype=np.uint8).reshape(7, 1, 1, 1), labels)
    part = first_part(split, 0.5)  # 2 of four, 1 of two, and at least 1 of one
    np.testing.assert_array_equal(part.images.ravel(), [0, 1, 2, 6])
    np.testing.assert_array_equal(part.labels, [1, 0, 1, 2])


@pytest.mark.parametrize(
    ("count", "fraction", "want"),
    [(100, 0.29, 29), (5000, 0.1, 500), (7, 0.5, 3), (3, 0.01, 1), (6000, 1 / 6000, 1), (10, 1.0, 10)],
)
def test_a_fraction_is_rounded_down_but_not_for_the_sake_of_binary(count, fraction, want):
    assert kept(count, fraction) == want


def test_train_and_test_have_their_own_fraction(tmp_path):
    write_idx_set(tmp_path, per_class=4)
    images = load("mnist", path=tmp_path, fraction=0.5, test_fraction=0.25)
    assert (len(images.train), len(images.test)) == (20, 10)


@pytest.mark.parametrize("value", [0, -0.1, 1.1, float("nan")])
def test_fraction_out_of_range(value):
    with pytest.raises(ConfigError, match=r"data\.fraction: must be in \(0, 1\]"):
        load("synnum", fraction=value)
    with pytest.raises(ConfigError, match=r"data\.test_fraction: must be in \(0, 1\]"):
        load("synnum", test_fraction=value)


# --- whether it is the published one --------------------------------------------------------------------------------


def md5(content):
    return f"md5:{hashlib.md5(content, usedforsecurity=False).hexdigest()}"


def publish(monkeypatch, name, folder, *, unpacked=True):
    """As if the files in `folder` were the published ones."""
    files = tuple(
        File(
            file.name,
            md5((folder / file.name).read_bytes()),
            md5(gzip.decompress((folder / file.name).read_bytes())) if unpacked else None,
        )
        for file in DATASETS[name].files
    )
    monkeypatch.setitem(DATASETS, name, replace(DATASETS[name], files=files))


def test_official_means_every_file_has_its_checksum(tmp_path, monkeypatch):
    write_idx_set(tmp_path)
    publish(monkeypatch, "mnist", tmp_path)
    assert load("mnist", path=tmp_path).official
    labels = tmp_path / "t10k-labels-idx1-ubyte.gz"
    labels.write_bytes(gzip.compress(idx(np.arange(20, dtype=np.uint8)[::-1] % 10)))
    assert not load("mnist", path=tmp_path).official


def test_packing_does_not_matter_where_the_content_has_a_published_checksum(tmp_path, monkeypatch):
    write_idx_set(tmp_path)
    publish(monkeypatch, "mnist", tmp_path)
    anew, plain = tmp_path / "train-images-idx3-ubyte.gz", tmp_path / "t10k-images-idx3-ubyte.gz"
    anew.write_bytes(gzip.compress(gzip.decompress(anew.read_bytes()), compresslevel=1))
    plain.with_suffix("").write_bytes(gzip.decompress(plain.read_bytes()))
    plain.unlink()
    assert load("mnist", path=tmp_path).official


def test_content_of_unknown_checksum_is_not_official(tmp_path, monkeypatch):
    write_idx_set(tmp_path)
    publish(monkeypatch, "mnist", tmp_path, unpacked=False)
    plain = tmp_path / "t10k-images-idx3-ubyte.gz"
    plain.with_suffix("").write_bytes(gzip.decompress(plain.read_bytes()))
    plain.unlink()
    mnist = DATASETS["mnist"]
    assert [source.check_file(mnist, file, tmp_path) for file in mnist.files] == ["ok", "ok", "unknown", "ok"]
    assert not load("mnist", path=tmp_path).official


@pytest.mark.parametrize("content", ["", "{", "[]", '{"archive": 1}'])
def test_damaged_record_of_a_download(tmp_path, content):
    write_idx_set(tmp_path, "emnist-balanced")
    (tmp_path / source.RECORD).write_text(content)
    with pytest.raises(DataError, match=r"fetched\.json: damaged .*; delete it and fetch the data again"):
        load("emnist-balanced", path=tmp_path)


def test_registry_is_consistent():
    for name, known in DATASETS.items():
        assert known.name == name
        assert (known.mean is None) == (known.std is None)
        if known.mean is not None:  # one value stands for all channels
            assert len(known.mean) == len(known.std)
            assert len(known.mean) in {1, known.shape[2] if known.shape else 1}
        assert len(set(known.classes)) == len(known.classes)
        for checksum in [file.checksum for file in known.files] + [item.checksum for item in known.downloads]:
            assert checksum is None or (checksum.startswith("md5:") and len(checksum) == 36)


# --- what is said of mistakes ---------------------------------------------------------------------------------------


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(ConfigError, match=r"unknown data set 'cifar-10'; did you mean 'cifar10'\?"):
        load("cifar-10")
    with pytest.raises(ConfigError, match="unknown data set 'xyz'; known are synnum, drawn-characters, cifar10,"):
        load("xyz")


def test_default_place_is_the_cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCLASS_DATA", str(tmp_path))
    write_idx_set(tmp_path / "mnist")
    assert len(load("mnist").train) == 20
    monkeypatch.delenv("FEDCLASS_DATA")
    assert source.cache_folder().name == "fedclass"


def test_missing_files_are_named_with_the_way_to_get_them(tmp_path):
    write_cifar(tmp_path)
    (tmp_path / "data_batch_3.bin").unlink()
    with pytest.raises(DataError) as caught:
        load("cifar10", path=tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}: lacks data_batch_3.bin; to download it: fedclass data fetch cifar10; "
        "if you have it elsewhere: --set data.path=FOLDER (or --path FOLDER)"
    )


@pytest.mark.parametrize("name", ["folder", "npz", "medmnist"])
def test_own_data_needs_a_path(name):
    with pytest.raises(DataError, match=rf"{name}' needs the place of your files: --set data\.path="):
        load(name)


IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"
GOOD_IMAGES = idx(numbers(20, 28, 28))


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        (IMAGES, b"", "truncated or not a gzip file|not an IDX file"),
        (IMAGES, b"<html>not found</html>", "truncated or not a gzip file"),
        (IMAGES, gzip.compress(GOOD_IMAGES)[:-300], "truncated or not a gzip file"),
        (IMAGES, gzip.compress(b""), "not an IDX file of 3 dimension.* starts with nothing, expected 00 00 08 03"),
        (IMAGES, gzip.compress(b"\0\0\x0d\x03" + GOOD_IMAGES[4:]), "starts with 00 00 0d 03, expected 00 00 08 03"),
        (IMAGES, gzip.compress(GOOD_IMAGES[:9]), "truncated: the header needs 16 bytes, the file has 9"),
        (IMAGES, gzip.compress(GOOD_IMAGES[:-1]), "truncated: the header promises 15696 bytes, there are 15695"),
        (IMAGES, gzip.compress(GOOD_IMAGES + b"!"), "too long: the header promises 15696 bytes, there are 15697"),
        (IMAGES, gzip.compress(idx(numbers(19, 28, 28))), "19 images but 20 labels"),
        (LABELS, gzip.compress(idx(np.full(20, 10, np.uint8))), r"label 10 of image 0 is outside 0\.\.9"),
        (LABELS, gzip.compress(idx(np.ones(20, np.uint8))), "class '0' has no training image"),
    ],
    ids=[  # the packed bytes hold the time of day
        "empty",
        "a web page",
        "cut off",
        "nothing packed",
        "wrong element type",
        "half a header",
        "a byte too few",
        "a byte too many",
        "an image too few",
        "label out of range",
        "one class only",
    ],
)
def test_faulty_idx_files(tmp_path, file, content, said):
    write_idx_set(tmp_path)
    (tmp_path / file).write_bytes(content)
    with pytest.raises(DataError, match=rf"(?s){said}.*fedclass data fetch mnist"):
        load("mnist", path=tmp_path)


def test_faulty_cifar_batches(tmp_path):
    write_cifar(tmp_path)
    batch = tmp_path / "data_batch_2.bin"
    content = batch.read_bytes()
    for wrong in (content[:-1], b""):
        batch.write_bytes(wrong)
        with pytest.raises(DataError, match=f"{len(wrong)} bytes is no multiple of 3073.*fetch cifar10"):
            load("cifar10", path=tmp_path)
    batch.write_bytes(bytes([77]) + content[1:])
    with pytest.raises(DataError, match=r"data_batch_2\.bin: label 77 of image 0 is outside 0\.\.9"):
        load("cifar10", path=tmp_path)


def test_faulty_svhn_files(tmp_path):
    write_svhn(tmp_path)
    path = tmp_path / "train_32x32.mat"
    whole = path.read_bytes()
    cases = [
        (lambda: path.write_bytes(whole[:-5000]), "truncated or not a MATLAB 5 file"),
        (lambda: path.write_bytes(b"<html>" * 100), "truncated or not a MATLAB 5 file"),
        (lambda: path.write_bytes(b""), "truncated or not a MATLAB 5 file"),
        (lambda: savemat(path, {"X": np.zeros(3)}), r"needs the arrays X and y, holds \['X'\]"),
        (lambda: savemat(path, {"X": np.zeros((32, 32, 3, 2)), "y": np.ones((2, 1))}), "uint8, is .* float64"),
        (lambda: savemat(path, {"X": numbers(32, 32, 3, 2), "y": np.ones((3, 1))}), "2 images but 3 labels"),
        (lambda: savemat(path, {"X": numbers(32, 32, 3, 1), "y": np.zeros((1, 1))}), r"label 0.* outside 1\.\.10"),
    ]
    for spoil, said in cases:
        spoil()
        with pytest.raises(DataError, match=rf"(?s)train_32x32\.mat: .*{said}.*fedclass data fetch svhn"):
            load("svhn", path=tmp_path)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"x_test": None, "y_test": None}, "lacks x_test, y_test; holds x_train, y_train"),
        ({"x_train": np.zeros((6, 5, 4, 3))}, r"x_train must be .* uint8, is \(6, 5, 4, 3\) float64"),
        ({"x_train": numbers(6, 20)}, r"x_train must be \(N, H, W, C\) or \(N, H, W\) uint8, is \(6, 20\)"),
        ({"x_train": numbers(6, 3, 5, 4)}, "x_train has 4 channels"),
        ({"x_test": numbers(3, 5, 5, 3)}, r"images of \(5, 4, 3\), x_test of \(5, 5, 3\)"),
        ({"y_train": np.array([0, 1, 2, 0, 1, -1])}, r"label -1 of image 5 is outside 0\.\.2"),
        ({"y_test": np.array([0, 1, 3])}, r"label 3 of image 2 is outside 0\.\.2"),
        ({"y_test": np.array([0.0, 1.0, 2.0])}, "y_test must be .* integers, is .* float64"),
        ({"y_test": np.array([0, 1])}, "3 images but 2 labels"),
        ({"y_train": np.array([], int)}, "y_train is empty"),
        ({"y_test": np.array([0, 0, 1])}, "class '2' has no test image"),
        ({"classes": np.array(["a", "a", "b"])}, "a name occurs twice"),
        ({"classes": np.array(["a", "b"])}, r"label 2 of image 2 is outside 0\.\.1"),
        ({"y_test": np.array([0, 1, {}], object)}, r"not an \.npz file of plain arrays"),
    ],
)
def test_faulty_npz(tmp_path, changed, said):
    write_npz(tmp_path / "my.npz", **changed)
    with pytest.raises(DataError, match=said):
        load("npz", path=tmp_path / "my.npz")


def test_what_is_not_an_npz_file(tmp_path):
    np.save(tmp_path / "one.npy", numbers(3))
    (tmp_path / "pickle.npz").write_bytes(b"\x80\x04]\x94.")
    for name in ("one.npy", "pickle.npz"):
        with pytest.raises(DataError, match=f"{name}: damaged, or not an .npz file"):
            load("npz", path=tmp_path / name)
    with pytest.raises(DataError, match=r"none\.npz: cannot be read"):
        load("npz", path=tmp_path / "none.npz")
    with pytest.raises(DataError, match=r"cannot be read \(Is a directory"):
        load("npz", path=tmp_path)


def test_folder_with_images_of_two_sizes_names_both(tmp_path):
    write_folder(tmp_path)
    picture(tmp_path / "test" / "cat" / "wide.png", size=(6, 5))
    with pytest.raises(DataError) as caught:
        load("folder", path=tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}/test/cat/wide.png: is 6x5 pixels, but {tmp_path}/train/ape/a.png is 4x5; "
        "to bring all images to one size: --set data.size=5 (or data.size=[height,width])"
    )
    assert load("folder", path=tmp_path, size=(5, 4)).test.images.shape == (5, 5, 4, 3)


def test_folder_mistakes(tmp_path):
    def expect(said):
        with pytest.raises(DataError, match=said):
            load("folder", path=tmp_path)

    expect("train: no such folder; images belong in train/<class>/ and test/<class>/")
    (tmp_path / "train").mkdir()
    expect("train: holds no class folders")
    write_folder(tmp_path)
    picture(tmp_path / "test" / "dog" / "a.png")
    expect("test/dog: there is no class of this name in .*train; add training images for it, or remove it")
    picture(tmp_path / "train" / "dog" / "a.png")
    notes = tmp_path / "train" / "dog" / "notes.txt"
    notes.write_text("good dog")
    expect(r"train/dog/notes\.txt: cannot be read as an image")
    notes.unlink()
    deep = tmp_path / "train" / "dog" / "deep.tif"
    Image.new("F", (4, 5)).save(deep)
    expect(r"deep\.tif: has 32 bits per pixel \(F\)")
    deep.unlink()
    os.mkfifo(deep)  # to read it would wait for ever
    expect(r"train/dog/deep\.tif: is not a regular file, where an image should be; remove it")
    deep.unlink()
    deep.mkdir()
    expect(r"train/dog/deep\.tif: is a folder, where an image should be; remove it")
    deep.rmdir()
    broken = tmp_path / "train" / "dog" / "broken.png"
    picture(broken, size=(400, 400))
    broken.write_bytes(broken.read_bytes()[:100])
    expect(r"broken\.png: cannot be read as an image")
    broken.unlink()
    (tmp_path / "test" / "readme.txt").write_text("")
    expect(r"test/readme\.txt: is beside the class folders")
    (tmp_path / "test" / "readme.txt").unlink()
    (tmp_path / "test" / "dog" / "a.png").unlink()
    expect("test/dog: this class has no images")
    (tmp_path / "test" / "dog").rmdir()
    expect("class 'dog' has no test image")


# --- the real files, where somebody has them ------------------------------------------------------------------------


@pytest.fixture
def real():
    """A folder with cifar-10-batches-bin/, mnist/, emnist47/ (a part of EMNIST) and svhn_sample/."""
    configured = os.environ.get("FEDCLASS_REAL_DATA")
    if not configured:
        pytest.skip(
            "needs published files; to have them: unpack CIFAR-10, MNIST, EMNIST and SVHN below one folder "
            "(cifar-10-batches-bin, mnist, emnist47, svhn_sample) and set FEDCLASS_REAL_DATA to it"
        )
    return Path(configured)


def existing(path):
    return path if path.exists() else pytest.skip(f"needs {path}, which is not there")


def test_real_cifar10(real):
    images = load("cifar10", path=existing(real / "cifar-10-batches-bin"))
    assert images.official
    np.testing.assert_array_equal(np.bincount(images.train.labels), [5000] * 10)
    np.testing.assert_array_equal(np.bincount(images.test.labels), [1000] * 10)
    for measured, published in zip(statistics(images.train.images), images.normalisation, strict=True):
        np.testing.assert_allclose(measured, published, atol=1e-4)


def test_real_mnist(real):
    images = load("mnist", path=existing(real / "mnist"))
    assert images.official
    assert (len(images.train), len(images.test)) == DATASETS["mnist"].sizes
    np.testing.assert_array_equal(images.train.labels[:5], [5, 0, 4, 1, 9])
    assert images.train.images.mean() / 255 == pytest.approx(0.1307, abs=1e-4)


def test_a_part_of_real_emnist_is_not_official(real):
    images = load("emnist-balanced", path=existing(real / "emnist47"))
    assert images.official is False
    assert images.train.images.shape[1:] == (28, 28, 1)
    assert len(np.unique(images.train.labels)) == len(images.classes) == 47


def test_real_svhn(real):
    split = readers.read_svhn(existing(real / "svhn_sample" / "train_32x32.mat"))
    assert split.images.shape[1:] == (32, 32, 3)
    np.testing.assert_array_equal(np.unique(split.labels), np.arange(10))
