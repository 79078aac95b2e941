"""CIFAR-100, Tiny-ImageNet and MedMNIST in miniature; data by a user's own function; sizes and statistics."""

import numpy as np
import pytest
from PIL import Image

from fedclass.data.datasets import load
from fedclass.data.image_files import as_picture, fit, read_picture, shape_of
from fedclass.errors import ConfigError, DataError


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def saved(path, pixels, **how):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **how)


def write_npz(path, x_train, x_test):
    np.savez(path, x_train=x_train, y_train=np.arange(len(x_train)) % 2, x_test=x_test, y_test=np.array([0, 1]))


# --- published ones -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inside", ["", "cifar-100-binary"])
def test_cifar100_has_its_fine_classes(tmp_path, inside):
    (tmp_path / inside).mkdir(exist_ok=True)
    planes, coarse, fine = numbers(200, 3, 32, 32), numbers(200) % 20, np.arange(200, dtype=np.uint8) % 100
    for name in ("train.bin", "test.bin"):
        (tmp_path / inside / name).write_bytes(np.c_[coarse, fine, planes.reshape(200, -1)].tobytes())
    images = load("cifar100", path=tmp_path)
    np.testing.assert_array_equal(images.train.labels, fine)
    np.testing.assert_array_equal(images.test.images[17], planes[17].transpose(1, 2, 0))
    assert (images.classes[0], images.classes[66], images.classes[99]) == ("apple", "raccoon", "worm")
    assert images.official is False
    (tmp_path / inside / "test.bin").write_bytes(b"\0" * 3073)
    with pytest.raises(DataError, match=r"CIFAR-100 .* 3073 bytes is no multiple of 3074; .* data fetch cifar100"):
        load("cifar100", path=tmp_path)


def write_tiny_imagenet(root):
    """Three classes, two of which have one name; returns the pixels of val_1.JPEG."""
    wnids = ["n03", "n01", "n02"]
    lines = []
    for at, wnid in enumerate(wnids):
        for number in range(2):
            pixels = numbers(64, 64) if wnid == "n01" else numbers(64, 64, 3)
            saved(root / "train" / wnid / "images" / f"{wnid}_{number}.JPEG", pixels)
        (root / "train" / wnid / f"{wnid}_boxes.txt").write_text("")
        saved(root / "val" / "images" / f"val_{at}.JPEG", numbers(64, 64, 3, seed=at))
        lines.append(f"val_{at}.JPEG\t{wnids[2 - at]}\t0\t32\t44\t62\n")
    (root / "wnids.txt").write_text("\n".join(wnids) + "\n")
    (root / "words.txt").write_text("n01\tcrane\nn02\tcrane\nn03\tgoldfish, Carassius auratus\nn04\tnot there\n")
    (root / "val" / "val_annotations.txt").write_text("".join(lines))
    return np.asarray(Image.open(root / "val" / "images" / "val_1.JPEG"))


@pytest.mark.parametrize("inside", ["", "tiny-imagenet-200"])
def test_tiny_imagenet(tmp_path, inside):
    pixels = write_tiny_imagenet(tmp_path / inside)
    images = load("tiny-imagenet", path=tmp_path)
    assert images.classes == ("goldfish", "crane n01", "crane n02")
    assert images.train.images.shape == (6, 64, 64, 3)
    assert (images.train.labels.tolist(), images.test.labels.tolist()) == ([0, 0, 1, 1, 2, 2], [2, 1, 0])
    np.testing.assert_array_equal(images.test.images[1], pixels)
    assert images.official is None
    assert load("tiny-imagenet", path=tmp_path, size=(32, 32)).train.images.shape == (6, 32, 32, 3)


def test_faulty_tiny_imagenet(tmp_path):
    with pytest.raises(DataError, match=r"lacks wnids\.txt, words\.txt, val/val_annotations\.txt; unpack it there; if"):
        load("tiny-imagenet", path=tmp_path)
    write_tiny_imagenet(tmp_path)
    annotations = tmp_path / "val" / "val_annotations.txt"
    good = annotations.read_text()
    for text, said in {
        good + "val_9.JPEG\tn99\t0\t0\t0\t0": "line 4 names class 'n99', which wnids.txt does not",
        good + "val_9.JPEG\tn01\t0\t0\t0\t0": r"val_9\.JPEG: cannot be read as an image \(No such file",
        good.replace("n02", "n01"): "class 'crane n02' has no test image",
        "": r"val_annotations\.txt: is empty",
    }.items():
        annotations.write_text(text)
        with pytest.raises(DataError, match=said):
            load("tiny-imagenet", path=tmp_path)
    annotations.write_text(good)
    (tmp_path / "wnids.txt").write_text("n03\nn01\nn02\nn04\n")
    with pytest.raises(DataError, match=r"train/n04/images: no such folder, but wnids\.txt names its class"):
        load("tiny-imagenet", path=tmp_path)


def write_medmnist(path, **changed):
    labels = np.array([[0], [1], [2], [0], [1], [2]], np.uint8)
    arrays = {
        **{f"{split}_images": numbers(6, 28, 28, seed=seed) for seed, split in enumerate(("train", "val", "test"))},
        **{f"{split}_labels": labels for split in ("train", "val", "test")},
        **changed,
    }
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return arrays


@pytest.mark.parametrize("shape", [(28, 28), (28, 28, 3), (64, 64, 3)])
def test_medmnist(tmp_path, shape):
    both = {"train_images": numbers(6, *shape), "test_images": numbers(6, *shape, seed=2)}
    arrays = write_medmnist(tmp_path / "my.npz", **both)
    images = load("medmnist", path=tmp_path / "my.npz")
    np.testing.assert_array_equal(images.test.images.squeeze(), arrays["test_images"])
    assert images.train.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert (images.classes, images.official, images.available) == (("0", "1", "2"), None, (6, 6))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"train_labels": np.zeros((6, 14), np.uint8)}, "has 14 labels for each image.* not multi-label"),
        ({"test_images": numbers(6, 28, 28, 28)}, r"test_images is \(6, 28, 28, 28\); sets in three dimensions"),
        ({"test_labels": None}, "not a file of MedMNIST, which has test_images and test_labels; holds test_images, tr"),
        ({"train_labels": np.zeros((5, 1), np.uint8)}, "6 images but 5 labels"),
    ],
)
def test_faulty_medmnist(tmp_path, changed, said):
    write_medmnist(tmp_path / "my.npz", **changed)
    with pytest.raises(DataError, match=said):
        load("medmnist", path=tmp_path / "my.npz")


# --- your own -------------------------------------------------------------------------------------------------------

OWN = """
import random

import numpy as np


def load(path=None, *, count=2, spoil=None):
    labels = np.tile([0, 1], count)
    images = np.full((len(labels), 4, 4, 3), random.randrange(200), np.uint8)
    images.flags.writeable = False
    found = {"x_train": images, "y_train": labels, "x_test": images[:2], "y_test": labels[:2], "classes": ["a", "b"]}
    if spoil == "raise":
        return found["no such array"]
    return {**found, "y_test": labels} if spoil == "labels" else None if spoil else found


NUMBER = 7
"""


def test_a_function_of_the_users_own(user_module):
    user_module("own_data", OWN)
    images = load("own_data:load", args={"count": 3}, fraction=0.5)
    assert (images.name, images.classes, images.official) == ("own_data:load", ("a", "b"), None)
    assert (len(images.train), images.available) == (2, (6, 2))
    assert images.train.images.flags.writeable  # torch.from_numpy warns of anything else
    assert load("own_data:load").sha256 == load("own_data:load").sha256, "what it draws is seeded"
    for spoil, said in {
        "raise": r"data\.name: 'own_data:load' failed: KeyError: 'no such array' \(.*own_data\.py, line 13, in load\)",
        "labels": "own_data:load: 2 images but 4 labels",
        "nothing": "'own_data:load' returned a NoneType; it must return a dict with x_train",
    }.items():
        with pytest.raises(DataError, match=said):
            load("own_data:load", args={"spoil": spoil})
    with pytest.raises(ConfigError, match=r"data\.name: cannot import 'own_data:other'"):
        load("own_data:other")
    with pytest.raises(ConfigError, match="'own_data:NUMBER' is not callable"):
        load("own_data:NUMBER")
    with pytest.raises(ConfigError, match=r"\[data\.args\]: mnist takes no arguments"):
        load("mnist", args={"count": 3})


def test_a_folder_is_read_as_prediction_reads_pictures(tmp_path):
    """Mixed sizes, 16 bits, palettes, turned photographs: the same pixels as `fit` makes of each."""
    turned = Image.Exif()
    turned[0x0112] = 6
    train = tmp_path / "train" / "a"
    saved(train / "0.png", numbers(9, 7, 3))
    saved(train / "1.tif", numbers(6, 8).astype(np.uint16) * 257)
    saved(train / "2.pgm", numbers(6, 8).astype(np.uint16) * 200)
    Image.fromarray(numbers(5, 5, 3)).convert("P").save(train / "3.gif")
    saved(train / "4.jpg", numbers(4, 12, 3), exif=turned)
    saved(train / "5.png", numbers(4, 12, 4), exif=turned)
    saved(tmp_path / "test" / "a" / "0.png", numbers(5, 4))
    images = load("folder", path=tmp_path, size=(6, 8))
    for at, file in enumerate(sorted(train.iterdir())):
        np.testing.assert_array_equal(images.train.images[at], fit(read_picture(file), (6, 8, 3), file).pixels)
        assert shape_of(file)[:2] == read_picture(file).size[::-1]
    for file in [*train.iterdir()]:
        if file.suffix not in (".tif", ".pgm"):
            file.unlink()
    gray = load("folder", path=tmp_path, size=(6, 8)).train.images
    assert gray.shape == (2, 6, 8, 1)
    np.testing.assert_array_equal(gray[0, ..., 0], numbers(6, 8), "16 bits are scaled to 8, and the size stays")


def test_arrays_are_resized_as_prediction_does_it(tmp_path):
    write_npz(tmp_path / "my.npz", numbers(6, 5, 4, 3), numbers(2, 5, 4, 3, seed=1))
    images = load("npz", path=tmp_path / "my.npz", size=(8, 6))
    assert (images.train.images.shape, images.test.images.shape) == ((6, 8, 6, 3), (2, 8, 6, 3))
    wanted = fit(as_picture(numbers(2, 5, 4, 3, seed=1)[1], "it"), (8, 6, 3), "it").pixels
    np.testing.assert_array_equal(images.test.images[1], wanted)


def test_mean_and_deviation_are_measured_on_the_training_images(tmp_path):
    x_train = numbers(1500, 5, 4, 3)  # more than one block
    write_npz(tmp_path / "my.npz", x_train, numbers(2, 5, 4, 3))
    assert load("npz", path=tmp_path / "my.npz").normalisation == ((0.5,), (0.5,))
    mean, std = load("npz", path=tmp_path / "my.npz", measure=True).normalisation
    np.testing.assert_allclose(mean, (x_train / 255).mean((0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(std, (x_train / 255).std((0, 1, 2)), rtol=1e-12)
    write_npz(tmp_path / "my.npz", np.full((6, 5, 4), 7, np.uint8), numbers(2, 5, 4))
    with pytest.raises(DataError, match=r"all training images have the same brightness; give data\.mean and data\.std"):
        _ = load("npz", path=tmp_path / "my.npz", measure=True).normalisation
