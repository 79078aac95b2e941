"""Drawn digits: what an image depends on, what its colours promise, and the file that spares drawing them again."""

import hashlib

import numpy as np
import pytest

from fedclass.data import synnum
from fedclass.data.datasets import load
from fedclass.rng import array_generator


@pytest.fixture(scope="module")
def drawn():
    return synnum.draw(1000)


def test_image_i_has_label_i_modulo_ten(drawn):
    assert drawn.images.shape == (1000, 32, 32, 3)
    assert drawn.images.dtype == np.uint8
    np.testing.assert_array_equal(drawn.labels, np.arange(1000) % 10)


@pytest.mark.parametrize(("first", "count"), [(0, 1), (0, 300), (127, 2), (128, 128), (990, 10), (5, 0)])
def test_any_run_of_images_is_the_same_however_many_are_drawn(drawn, first, count):
    part = synnum.draw(count, first=first)
    np.testing.assert_array_equal(part.images, drawn.images[first : first + count])
    np.testing.assert_array_equal(part.labels, drawn.labels[first : first + count])


def test_seed_and_split_give_other_images(drawn):
    beginning = drawn.images[:10]
    for other in (synnum.draw(10, seed=1), synnum.draw(10, split="test")):
        assert (other.images != beginning).mean() > 0.9


def test_no_image_occurs_twice(drawn):
    assert len(np.unique(drawn.images.reshape(1000, -1), axis=0)) == 1000


def test_negative_numbers_are_refused():
    with pytest.raises(ValueError, match="got -1 and 0"):
        synnum.draw(-1)


def test_no_colour_is_preferred(drawn):
    """Channels have the mean of a uniform colour, and about its deviation, 1/sqrt(12) = 0.289."""
    pixels = drawn.images.reshape(-1, 3) / 255
    np.testing.assert_allclose(pixels.mean(0), 0.5, atol=0.02)
    np.testing.assert_allclose(pixels.std(0), 0.289, atol=0.02)


def test_colours_always_contrast():
    """0.299 R + 0.587 G + 0.114 B differs by CONTRAST at least, also from a middle gray, where few colours do."""
    for block in range(40):
        rng = array_generator(0, block)
        base = rng.random((synnum.BLOCK, 3), np.float32)
        base[::2] = 0.5
        chosen = synnum._contrasting(rng, base)
        assert (np.abs((chosen - base) @ synnum.LUMINANCE) >= synnum.CONTRAST).all()


def test_background_stays_on_its_side_of_the_digits_colour():
    rng = array_generator(3)
    digit, _, ground = synnum._colours(rng)
    margin = np.abs((digit[:, None, None] - ground) @ synnum.LUMINANCE)
    assert margin.min() >= synnum.CONTRAST - synnum.UNEVEN[1] - 1e-5


def test_masks_are_sampled_exactly_at_their_pixels_and_are_empty_outside():
    masks = synnum.glyphs().masks
    axis = np.arange(synnum.CELL, dtype=np.float32) - (synnum.CELL - 1) / 2
    x, y = np.meshgrid(axis[:-1], axis[:-1])
    which = np.full(x.shape, 13)
    got = synnum._sample(masks, which, x, y)
    np.testing.assert_allclose(got, masks.reshape(-1, synnum.CELL, synnum.CELL)[13, :-1, :-1], atol=1e-5)
    assert synnum._sample(masks, which, x + 100, y).max() == 0


def test_blur_keeps_brightness_and_its_width_is_that_of_the_gaussian():
    canvas = np.zeros((synnum.BLOCK, 32, 32, 3), np.float32)
    canvas[:, 16, 16] = 1
    out = synnum._blur(canvas, np.full(synnum.BLOCK, 2.0, np.float32))
    np.testing.assert_allclose(out.sum((1, 2)), 1, atol=1e-3)
    offsets = np.arange(32) - 16
    np.testing.assert_allclose((out[0, :, :, 0].sum(1) * offsets**2).sum(), 4.0, rtol=0.01)
    flat = synnum._blur(np.full_like(canvas, 0.7), np.full(synnum.BLOCK, 1.0, np.float32))
    np.testing.assert_allclose(flat, 0.7, rtol=1e-5)


def test_the_digit_in_the_centre_is_the_label(drawn):
    """The mean shape of each class, found on one set, names three of ten images of another; chance names one."""

    def shapes(split):
        light = split.images @ synnum.LUMINANCE
        distance = np.abs(light - np.median(light, (1, 2), keepdims=True)).reshape(len(split), -1)
        return (distance - distance.mean(1, keepdims=True)) / distance.std(1, keepdims=True)

    known = shapes(drawn)
    means = np.stack([known[drawn.labels == digit].mean(0) for digit in range(10)])
    other = synnum.draw(500, split="test")
    guess = (shapes(other) @ (means - means.mean(0)).T).argmax(1)
    assert (guess == other.labels).mean() > 0.3


def test_a_fraction_draws_the_beginning_of_each_class(tmp_path, drawn):
    images = load("synnum", path=tmp_path, fraction=0.005, test_fraction=1e-6)
    np.testing.assert_array_equal(images.train.images, drawn.images[:300])
    assert len(images.test) == 10
    assert images.classes == tuple("0123456789")
    assert images.official
    assert not list(tmp_path.iterdir())  # a few hundred images deserve no file


def test_digits_have_the_bits_of_ever(drawn):
    """Whatever else can be drawn; the hash is of this machine's FreeType, so that only glyphs like its own count."""
    if synnum.glyphs().digest != "d12920f7":
        pytest.skip("another FreeType draws other glyphs; nothing helps")
    assert hashlib.sha256(drawn.images[:300].tobytes()).hexdigest()[:16] == "e403e5c97278d105"


def test_characters_are_drawn_like_digits_and_fit_into_their_images(tmp_path):
    alphabet = synnum.CHARACTERS
    assert len(set(alphabet.characters)) == len(alphabet.characters) == 52
    atlas = synnum.glyphs(alphabet)
    assert atlas.widths.max() <= synnum.GLYPH + 1
    assert (atlas.masks.sum((2, 3)) > 20).all(), "every font has every character"
    np.testing.assert_array_equal(atlas.masks[:, :10], synnum.glyphs().masks)
    for font in range(len(synnum.FONTS)):
        assert len(np.unique(atlas.masks[font].reshape(52, -1), axis=0)) == 52
    images = load("drawn-characters", path=tmp_path, fraction=1 / 6000, test_fraction=1 / 1000)
    assert images.classes == tuple(alphabet.characters)
    np.testing.assert_array_equal(images.train.labels, np.arange(52))
    np.testing.assert_array_equal(images.train.images, synnum.draw(52, alphabet=alphabet).images)
    assert (images.train.images[:10] != synnum.draw(10).images).mean() > 0.9, "a stream of its own"


class TestCache:
    @pytest.fixture(autouse=True)
    def cache_even_few(self, monkeypatch):
        monkeypatch.setattr(synnum, "WORTH_CACHING", 1)

    def test_second_time_the_file_is_read(self, tmp_path, drawn, monkeypatch):
        synnum.cached(tmp_path / "new", 200)
        monkeypatch.setattr(synnum, "_draw_block", None)  # drawing again would fail
        again = synnum.cached(tmp_path / "new", 200)
        np.testing.assert_array_equal(again.images, drawn.images[:200])
        np.testing.assert_array_equal(again.labels, drawn.labels[:200])

    def test_name_tells_seed_split_and_count_apart(self, tmp_path):
        for options in ({}, {"seed": 1}, {"split": "test"}):
            synnum.cached(tmp_path, 20, **options)
        synnum.cached(tmp_path, 30)
        assert len(list(tmp_path.iterdir())) == 4

    @pytest.mark.parametrize("damage", ["truncated", "flipped", "other arrays", "empty"])
    def test_damaged_file_is_replaced(self, tmp_path, drawn, damage):
        synnum.cached(tmp_path, 200)
        (path,) = tmp_path.iterdir()
        content = path.read_bytes()
        if damage == "truncated":
            path.write_bytes(content[: len(content) // 2])
        elif damage == "flipped":
            middle = len(content) // 2
            path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
        elif damage == "other arrays":
            np.savez(path, images=np.zeros(3))
        else:
            path.write_bytes(b"")
        np.testing.assert_array_equal(synnum.cached(tmp_path, 200).images, drawn.images[:200])
        assert path.read_bytes() == content
        assert list(tmp_path.iterdir()) == [path]

    def test_where_nothing_can_be_written_it_is_drawn(self, tmp_path, drawn):
        (tmp_path / "file").write_text("in the way")
        split = synnum.cached(tmp_path / "file" / "folder", 20)
        np.testing.assert_array_equal(split.images, drawn.images[:20])
