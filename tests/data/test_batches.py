"""Batches: normalisation against NumPy, augmentation against an oracle that moves one pixel at a time."""

import numpy as np
import pytest
import torch

from fedclass.data.batches import as_input, crop_and_flip, cut_out, normalise, transformed, varied
from fedclass.errors import ConfigError
from reference import images as oracle


def stored(count=12, height=9, width=7, channels=3, seed=0):
    shape = (count, height, width, channels)
    return torch.from_numpy(np.random.default_rng(seed).integers(1, 256, shape, dtype=np.uint8))  # no black pixel


def seeded(seed=1):
    return torch.Generator().manual_seed(seed)


# From bytes to numbers.


@pytest.mark.parametrize(
    ("mean", "std"),
    [((0.49, 0.48, 0.45), (0.25, 0.24, 0.26)), ((0.5,), (0.5,)), ((0.0,), (1.0,)), ((0,), (1,))],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_normalise_is_x_over_255_minus_mean_over_std(mean, std, channels):
    images = stored(channels=channels)
    result = normalise(images, mean, std)
    want = (images.numpy().astype(np.float64) / 255 - np.array(mean)) / np.array(std)
    assert result.dtype == torch.float32
    assert result.shape == (12, 9, 7, 3)
    np.testing.assert_allclose(result.numpy(), np.broadcast_to(want, result.shape), atol=2e-6)


def test_black_and_white_become_minus_one_and_one():
    extremes = torch.tensor([0, 255], dtype=torch.uint8).reshape(1, 1, 2, 1)
    torch.testing.assert_close(normalise(extremes, (0.5,), (0.5,)).flatten(), torch.tensor([-1.0] * 3 + [1.0] * 3))


def test_grey_is_repeated():
    result = normalise(stored(channels=1), (0.5,), (0.5,))
    assert torch.equal(result[..., 0], result[..., 1])
    assert torch.equal(result[..., 0], result[..., 2])


def test_stored_bytes_stay_as_they_are():
    images = stored()
    before = images.clone()
    normalise(images, (0.5,), (0.5,))
    crop_and_flip(images, seeded())
    assert torch.equal(images, before)
    prepared = normalise(images, (0.5,), (0.5,))
    kept = prepared.clone()
    cut_out(prepared, seeded(), size=4)
    assert torch.equal(prepared, kept)


def test_the_model_s_input_is_a_channels_last_view():
    """No copy: the same memory, and the layout that convolutions want."""
    images = normalise(stored(), (0.5,), (0.5,))
    inputs = as_input(images)
    assert inputs.shape == (12, 3, 9, 7)
    assert inputs.data_ptr() == images.data_ptr()
    assert inputs.is_contiguous(memory_format=torch.channels_last)
    assert inputs[3, 2, 5, 1] == images[3, 5, 1, 2]


# Crop and flip.


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("pad", [0, 1, 4])
def test_crop_and_flip_pads_crops_and_mirrors(pad, channels):
    """Recomputed from the same draws: offsets of all rows, then of all columns, then who is mirrored."""
    images = stored(count=30, channels=channels)
    draws = seeded()
    top, left = (torch.randint(2 * pad + 1, (30, 1), generator=draws).flatten().tolist() for _ in range(2))
    mirrored = torch.randint(2, (30, 1), generator=draws).flatten().tolist()
    result = crop_and_flip(images, seeded(), pad=pad)
    assert result.dtype == torch.uint8
    for i in range(30):
        want = oracle.crop_and_flip(images[i].numpy(), top[i], left[i], bool(mirrored[i]), pad)
        np.testing.assert_array_equal(result[i].numpy(), want)


def test_the_default_pad_is_four():
    images = stored()
    assert torch.equal(crop_and_flip(images, seeded()), crop_and_flip(images, seeded(), pad=4))


def test_shifts_stay_within_the_pad_and_all_are_equally_likely():
    """A white row and a white column in the middle of 4500 images: where they end up tells the shift."""
    middle, pad, count = 6, 4, 4500
    images = torch.zeros(count, 13, 13, 1, dtype=torch.uint8)
    images[:, middle] = 1
    images[:, :, middle] += 1
    moved = crop_and_flip(images, seeded(), pad=pad)[..., 0].long()
    for lengthwise in (moved.sum(dim=2), moved.sum(dim=1)):  # 13 along the line, 1 elsewhere
        shift = lengthwise.argmax(dim=1) - middle
        found = torch.bincount(shift + pad, minlength=2 * pad + 1)
        assert len(found) == 2 * pad + 1
        deviation = (count * (1 / 9) * (8 / 9)) ** 0.5
        np.testing.assert_allclose(found.numpy(), count / 9, atol=4 * deviation)


def test_half_of_the_images_are_mirrored():
    """Without padding nothing moves, so an image is itself or its mirror."""
    images = torch.arange(6, dtype=torch.uint8).reshape(1, 1, 6, 1).repeat(2000, 2, 1, 1)
    result = crop_and_flip(images, seeded(), pad=0)
    mirrored = (result == images.flip(2)).all(dim=(1, 2, 3))
    assert ((result == images).all(dim=(1, 2, 3)) ^ mirrored).all()
    assert abs(int(mirrored.sum()) - 1000) < 4 * 500**0.5


# Cutout.


def largest_cut(height, size):
    """In pixels; of 400 squares, some do not touch the border."""
    cut = cut_out(torch.ones(400, height, height, 3), seeded(), size=size) == 0
    return int(cut.all(dim=3).sum(dim=(1, 2)).max())


@pytest.mark.parametrize("size", [2, 6, 16, 40])
def test_cut_out_zeroes_a_square_clipped_at_the_border(size):
    """Recomputed from the same draws: the rows of all centres, then their columns."""
    images = normalise(stored(count=40, height=20, width=14), (0.5,), (0.5,)) + 5  # nothing is zero yet
    draws = seeded()
    y = torch.randint(20, (40, 1), generator=draws).flatten().tolist()
    x = torch.randint(14, (40, 1), generator=draws).flatten().tolist()
    result = cut_out(images, seeded(), size=size)
    for i in range(40):
        np.testing.assert_array_equal(result[i].numpy(), oracle.cut_out(images[i].numpy(), y[i], x[i], size))


@pytest.mark.parametrize("size", [1, 5, None])
def test_squares_may_have_an_odd_size(size):
    """As by default they have if the height is not a multiple of four."""
    assert largest_cut(height=30, size=size) == (size or 15) ** 2


def test_cut_out_takes_the_expected_part_of_an_image():
    """With a uniform centre, row r of n is cut with probability (min(n, r + s/2 + 1) - max(0, r - s/2 + 1)) / n."""
    height, width, size, count = 20, 14, 8, 4000
    cut = (cut_out(torch.ones(count, height, width, 3), seeded(), size=size) == 0).all(dim=3)

    def odds(n):
        reach = np.arange(n)
        return (np.minimum(n, reach + size // 2 + 1) - np.maximum(0, reach - size // 2 + 1)) / n

    want = np.outer(odds(height), odds(width))
    deviation = np.sqrt(want * (1 - want) / count)
    assert (np.abs(cut.float().mean(dim=0).numpy() - want) <= 4.5 * deviation).all()
    assert int(cut.sum(dim=(1, 2)).max()) == size**2


@pytest.mark.parametrize("height", [32, 28, 64])
def test_the_default_size_is_half_the_height(height):
    assert largest_cut(height, None) == (height // 2) ** 2


# Randomness.


@pytest.mark.parametrize("change", [crop_and_flip, lambda images, rng: cut_out(images.float(), rng, size=4)])
def test_the_generator_decides_and_nothing_else(change):
    images = stored()
    state = torch.random.get_rng_state()
    first, again, other = (change(images, seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("change", [crop_and_flip, lambda images, rng: cut_out(images.float(), rng, size=4)])
def test_a_batch_may_be_empty_or_one_image(change):
    for count in (0, 1):
        assert change(stored(count=count), seeded()).shape == (count, 9, 7, 3)


@pytest.mark.parametrize("augment", ["none", "crop-flip", "crop-flip-cutout"])
@pytest.mark.parametrize("transform", [None, lambda images, rng: images.float() + torch.rand((), generator=rng)])
def test_a_batch_goes_through_transform_crop_flip_normalisation_and_cutout_in_this_order(augment, transform):
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), np.uint8))
    normalisation = ([0.4, 0.5, 0.6], [0.2, 0.3, 0.4])
    made = varied(images, seeded(), augment=augment, transform=transform, normalisation=normalisation)
    rng, expected = seeded(), images
    if transform is not None:
        expected = images.float() + torch.rand((), generator=rng)
    if augment != "none":
        expected = crop_and_flip(expected, rng)
    expected = normalise(expected, *normalisation)
    if augment == "crop-flip-cutout":
        expected = cut_out(expected, rng)
    assert torch.equal(made, expected)
    assert made.dtype == torch.float32


@pytest.mark.parametrize(
    ("transform", "got"),
    [
        (lambda images, _: images[:1], r"\(1, 4, 4, 1\) torch.uint8"),
        (lambda images, _: images.permute(0, 3, 1, 2), r"\(2, 1, 4, 4\) torch.uint8"),
        (lambda images, _: images.double(), r"\(2, 4, 4, 1\) torch.float64"),
        (lambda images, _: images.numpy(), "a ndarray"),
    ],
)
def test_a_transform_that_returns_something_else_is_refused(transform, got):
    with pytest.raises(
        ConfigError,
        match=rf"transform: must return the shape it was given, \(2, 4, 4, 1\), as uint8 or float32 .*; got {got}",
    ):
        transformed(torch.zeros(2, 4, 4, 1, dtype=torch.uint8), seeded(), transform)
