"""Any picture becomes what the training images were."""

import numpy as np
import pytest
from PIL import Image

from fedclass.data.image_files import as_picture, fit, read_picture
from fedclass.errors import DataError

RED = (200, 30, 10)
LUMA = 79  # of RED: (299 * 200 + 587 * 30 + 114 * 10) / 1000, rounded


def plain(mode, colour, size=(4, 5)):
    return Image.new(mode, size, colour)


def palette():
    return plain("RGB", RED).convert("P", palette=Image.Palette.ADAPTIVE)


@pytest.mark.parametrize(
    ("picture", "rgb", "gray"),
    [
        (plain("RGB", RED), RED, LUMA),
        (plain("RGBA", (*RED, 0)), RED, LUMA),  # transparency is dropped
        (palette(), RED, LUMA),
        (plain("CMYK", (55, 225, 245, 0)), RED, LUMA),
        (plain("L", 90), (90,) * 3, 90),
        (plain("LA", (90, 7)), (90,) * 3, 90),
        (plain("1", 1), (255,) * 3, 255),
        (plain("I;16", 257 * 90), (90,) * 3, 90),
    ],
    ids=lambda value: value.mode if isinstance(value, Image.Image) else "",
)
def test_every_mode_becomes_colour_or_gray(picture, rgb, gray):
    colour = fit(picture, (5, 4, 3), "it")
    assert colour.pixels.shape == (5, 4, 3)
    assert set(map(tuple, colour.pixels.reshape(-1, 3).tolist())) == {rgb}
    assert colour.converted_from == (None if picture.mode == "RGB" else picture.mode)
    one = fit(picture, (5, 4, 1), "it")
    assert one.pixels.shape == (5, 4, 1)
    assert np.unique(one.pixels).tolist() == [gray]
    assert one.converted_from == (None if picture.mode == "L" else picture.mode)
    assert colour.resized_from is one.resized_from is None


@pytest.mark.parametrize("name", ["deep.png", "deep.tif", "deep.pgm"])
def test_sixteen_bits_are_scaled_not_clipped(tmp_path, name):
    values = np.array([[0, 128, 129, 257], [32768, 65278, 65407, 65535]], np.uint16)
    Image.fromarray(values).save(tmp_path / name)
    read = fit(read_picture(tmp_path / name), (2, 4, 1), name)
    assert read.pixels[..., 0].tolist() == [[0, 0, 1, 1], [128, 254, 255, 255]]
    assert read.converted_from == "I;16"


@pytest.mark.parametrize("mode", ["I", "F"])
def test_thirty_two_bits_are_refused(tmp_path, mode):
    plain(mode, 7).save(tmp_path / "deep.tif")
    with pytest.raises(DataError, match=rf"deep\.tif: has 32 bits per pixel \({mode}\).*; save it with 8 or 16 bits"):
        fit(read_picture(tmp_path / "deep.tif"), (5, 4, 3), tmp_path / "deep.tif")


def test_a_mode_without_a_way_to_rgb_is_named():
    with pytest.raises(DataError, match=r"odd: cannot be turned into RGB \(.*\); save it as RGB"):
        fit(plain("La", 0), (5, 4, 3), "odd")


def test_another_size_is_averaged_and_noted():
    """Two by two blocks of one gray each: halving by the bilinear filter weighs 1/8 of each neighbour."""
    blocks = np.kron(np.array([[0, 240], [240, 0]], np.uint8), np.ones((2, 2), np.uint8))
    read = fit(Image.fromarray(blocks), (2, 2, 1), "it")
    near, far = 6 / 7, 1 / 7  # weights 1, 3, 3 | 1 of the filter, cut at the border
    expected = round(240 * 2 * near * far)
    assert read.pixels[0, 0, 0] == pytest.approx(expected, abs=1)
    assert read.pixels[0, 1, 0] == pytest.approx(240 * (near**2 + far**2), abs=1)
    assert read.resized_from == (4, 4)
    wide = fit(plain("RGB", RED, size=(40, 3)), (5, 4, 3), "it")  # stretched, not cropped
    assert (wide.pixels.shape, wide.resized_from) == ((5, 4, 3), (40, 3))
    assert np.unique(wide.pixels.reshape(-1, 3), axis=0).tolist() == [list(RED)]


def test_an_orientation_beside_the_pixels_is_obeyed(tmp_path):
    pixels = np.zeros((4, 5, 3), np.uint8)
    pixels[0, :, 0] = 255  # red above
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise: what is above belongs to the right
    Image.fromarray(pixels).save(tmp_path / "turned.png", exif=exif)
    read = fit(read_picture(tmp_path / "turned.png"), (5, 4, 3), "it")
    np.testing.assert_array_equal(read.pixels, np.rot90(pixels, k=-1))
    assert read.resized_from is None
    assert fit(read_picture(tmp_path / "turned.png"), (8, 8, 3), "it").resized_from == (4, 5)


def noisy(path):
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
    Image.fromarray(noise).save(path)
    return path.read_bytes()


@pytest.mark.parametrize("ending", ["png", "jpg", "gif", "bmp", "tif", "webp", "avif"])
def test_a_truncated_file_is_named(tmp_path, ending):
    path = tmp_path / f"cut.{ending}"
    whole = noisy(path)
    assert read_picture(path).size == (40, 40)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError) as caught:
        read_picture(path)
    assert str(caught.value).startswith(f"{path}: cannot be read as an image (")
    assert str(caught.value).endswith("; remove or replace it")
    assert "\n" not in str(caught.value)


def test_what_is_no_image_is_named(tmp_path):
    (tmp_path / "notes.txt").write_text("a cat")
    (tmp_path / "empty.png").touch()
    for name, reason in {"notes.txt": "cannot identify", "empty.png": "cannot identify", "gone.png": "No such"}.items():
        with pytest.raises(DataError, match=rf"{name}: cannot be read as an image \({reason}"):
            read_picture(tmp_path / name)


@pytest.mark.parametrize(
    "pixels",
    [np.zeros((5, 4, 3)), np.zeros((5, 4, 2), np.uint8), np.zeros(5, np.uint8), np.zeros((0, 4, 3), np.uint8)],
)
def test_an_array_that_is_no_picture_is_named(pixels):
    with pytest.raises(DataError, match=r"image 3: must be \(H, W, 1 or 3\) uint8, is \("):
        as_picture(pixels, "image 3")


@pytest.mark.parametrize("shape", [(5, 4), (5, 4, 1), (5, 4, 3)])
def test_an_array_becomes_the_same_picture(shape):
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    np.testing.assert_array_equal(np.asarray(as_picture(pixels, "it")), pixels.squeeze())
