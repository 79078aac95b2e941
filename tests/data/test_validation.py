"""Validation images: whose they are, how many, and what is left to train on."""

import numpy as np
import pytest

from fedclass.data.coverage import coverage
from fedclass.data.image_set import ImageSet, Split
from fedclass.data.partition import PartitionSettings
from fedclass.data.schedule import StreamSettings
from fedclass.data.stream import build_stream
from fedclass.data.validation import hold_out
from fedclass.errors import ConfigError

CLASSES = 6


def stream_of(per_class=40, clients=5, seed=0, order="natural"):
    """Uneven shares; image i is filled with the number i, so that it can be told wherever it turns up."""
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(CLASSES), per_class))
    images = np.repeat(np.arange(len(labels)) % 256, 4).astype(np.uint8).reshape(-1, 2, 2, 1)
    test = np.arange(2 * CLASSES) % CLASSES
    data = ImageSet(
        "six",
        tuple("abcdef"),
        Split(images, labels),
        Split(np.zeros((len(test), 2, 2, 1), np.uint8), test),
        official=True,
    )
    shares = PartitionSettings(clients=clients, min_size=0, alpha=0.5)
    return build_stream(data, StreamSettings(class_order=order), shares, seed=seed)


@pytest.mark.parametrize("part", [0.1, 0.25, 0.5, 0.9])
def test_each_image_trains_or_validates_and_stays_with_its_client(part):
    whole = stream_of()
    made = hold_out(whole, part, seed=0)
    for before, kept, held in zip(whole.shares, made.shares, made.held_out, strict=True):
        assert not set(kept) & set(held)
        np.testing.assert_array_equal(np.sort(np.concatenate([kept, held])), before)
        np.testing.assert_array_equal(kept, np.sort(kept))
    assert (whole.counts() > 0).tolist() == (made.counts() > 0).tolist(), "nobody loses a class"


def test_the_share_is_right_on_average_also_of_few_images():
    """Each client has some six of a class: rounding would hold out none of 0.05 * 6."""
    whole, part = stream_of(per_class=120, clients=20), 0.05
    drawn = [sum(map(len, hold_out(whole, part, seed=seed).held_out)) for seed in range(40)]
    expected = part * sum(map(len, whole.shares))  # 36 of 720
    assert abs(np.mean(drawn) - expected) < 3 * np.std(drawn) / np.sqrt(len(drawn)) + 1.5
    counts = whole.counts()
    for seed in range(5):
        lost = counts - hold_out(whole, part, seed=seed).counts()
        assert (lost <= np.maximum(np.ceil(part * counts), 0)).all()
        assert (lost >= np.minimum(np.floor(part * counts), np.maximum(counts - 1, 0))).all()


def test_the_draw_depends_on_seed_client_and_class_alone():
    """With more classes, or other images of another class, what is held out of a class stays."""
    whole = stream_of()
    one, again, other = (hold_out(whole, 0.3, seed=seed) for seed in (0, 0, 1))
    assert all(np.array_equal(a, b) for a, b in zip(one.held_out, again.held_out, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one.held_out, other.held_out, strict=True))
    half = stream_of(order=[0, 1, 2])
    shares = [share[whole.targets[share] < 3] for share in whole.shares]
    object.__setattr__(half, "shares", shares)
    for few, all_ in zip(hold_out(half, 0.3, seed=0).held_out, one.held_out, strict=True):
        np.testing.assert_array_equal(few, all_[whole.targets[all_] < 3])


def test_nothing_is_held_out_by_default():
    whole = stream_of()
    assert hold_out(whole, 0.0, seed=0) is whole
    assert whole.held_out == []


def test_a_class_of_which_nothing_can_be_held_out_is_named():
    """One image of each class: it has to train, whatever the share."""
    with pytest.raises(ConfigError, match=r"\[data\] validation = 0.9 holds out no image of class 'a'; raise it, or"):
        hold_out(stream_of(per_class=1, clients=1), 0.9, seed=0)


def test_the_held_out_images_validate_and_no_others():
    assert stream_of().validation is None
    made = hold_out(stream_of(order=[4, 2, 0, 1, 3, 5]), 0.25, seed=0)
    seen = made.validation
    assert seen is not None
    tested = np.flatnonzero(seen.labels >= 0)
    np.testing.assert_array_equal(tested, np.sort(np.concatenate(made.held_out)))
    np.testing.assert_array_equal(seen.images[tested], made.data.train.images[tested])
    np.testing.assert_array_equal(seen.labels[tested], made.targets[tested])
    assert made.classes[0] == "e"
    assert (made.data.train.labels[tested[seen.labels[tested] == 0]] == 4).all()


def test_coverage_counts_what_trains_validates_and_tests():
    made = hold_out(stream_of(order=[0, 1, 2, 3]), 0.25, seed=0)
    found = coverage(made)
    assert found["images_used"] == made.counts().sum()
    assert found["images_used"] + found["validation_images"] == 4 * 40
    assert (found["images_available"], found["test_images_used"], found["test_images_available"]) == (240, 8, 12)
