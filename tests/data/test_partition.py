"""Partitions: nothing lost, nothing twice, equal seeds equal shares, and mistakes found before the training."""

import json
from dataclasses import replace
from itertools import pairwise

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, given, settings

from fedclass.data import partition as module
from fedclass.data.partition import PartitionSettings, partition, save_partition
from fedclass.errors import ConfigError, DataError
from fedclass.rng import array_generator
from reference import partition as oracle

checked = settings(max_examples=60, deadline=None, derandomize=True)

TASKS = (4, 3, 3)
SHA = "0123456789abcdef"

KINDS = {
    "dirichlet": PartitionSettings(clients=7, alpha=0.5, min_size=10),
    "dirichlet, very uneven": PartitionSettings(clients=7, alpha=0.01, min_size=0),
    "fedml": PartitionSettings(kind="fedml", clients=7, alpha=0.5),
    "released": PartitionSettings(kind="released", clients=7),
    "iid": PartitionSettings(kind="iid", clients=7),
    "classes": PartitionSettings(kind="classes", clients=7, classes=2),
}


def labels(per_class=60, *, classes=10, outside=25):
    """Targets in a shuffled order, some of them of classes that never arrive."""
    targets = np.concatenate([np.repeat(np.arange(classes), per_class), np.full(outside, -1)])
    return np.random.default_rng(5).permutation(targets)


def shares_of(settings, targets=None, *, seed=0, tasks=TASKS):
    return partition(labels() if targets is None else targets, tasks, settings, seed=seed, dataset=SHA)


def counts_of(shares, targets, classes=10):
    """(clients, classes)"""
    return np.stack([np.bincount(targets[share], minlength=classes) for share in shares])


def assert_held_exactly_once(shares, targets):
    held = np.concatenate(shares)
    np.testing.assert_array_equal(np.sort(held), np.flatnonzero(targets >= 0))
    for share in shares:
        assert share.dtype == np.int64
        assert (np.diff(share) > 0).all(), "not in file order"


# What holds of every kind.


@pytest.mark.parametrize("kind", KINDS)
def test_every_image_of_the_stream_is_held_exactly_once(kind):
    targets = labels()
    shares = shares_of(KINDS[kind], targets)
    assert len(shares) == 7
    assert_held_exactly_once(shares, targets)


@checked
@given(
    per_class=st.lists(st.integers(1, 12), min_size=10, max_size=10),
    clients=st.integers(1, 15),
    kind=st.sampled_from(["dirichlet", "fedml", "released", "iid", "classes"]),
    alpha=st.sampled_from([0.01, 0.5, 100.0]),
    seed=st.integers(0, 3),
)
def test_also_of_few_images_and_many_clients(per_class, clients, kind, alpha, seed):
    assume(kind != "classes" or clients >= 2)  # two clients with two classes each hold a task of four
    targets = np.random.default_rng(seed).permutation(np.repeat(np.arange(-1, 9), per_class))
    wanted = PartitionSettings(kind=kind, clients=clients, alpha=alpha, min_size=0, classes=2)
    shares = shares_of(wanted, targets, seed=seed, tasks=(4, 3, 2))
    assert len(shares) == clients
    assert_held_exactly_once(shares, targets)


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_decides_and_nothing_else(kind):
    first, again, other = (shares_of(KINDS[kind], seed=seed) for seed in (3, 3, 4))
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)
    assert sum(len(np.intersect1d(a, b)) for a, b in zip(first, other, strict=True)) < 0.6 * 600


@pytest.mark.parametrize("kind", ["dirichlet", "fedml", "iid", "classes"])
def test_images_of_a_class_are_dealt_out_in_random_order(kind):
    """Files are often sorted by something; within a class, a client's images must not be neighbours in the file."""
    targets = np.repeat(np.arange(10), 100)
    shares = shares_of(replace(KINDS[kind], clients=4, classes=4), targets, tasks=(4, 6))
    counts = counts_of(shares, targets)
    client, label = np.argwhere((counts > 15) & (counts < 60))[0]
    steps = np.diff(shares[client][targets[shares[client]] == label])
    assert len(np.unique(steps)) > 2  # one for a block, at most two for images dealt out in turn


@pytest.mark.parametrize("kind", KINDS)
def test_one_client_holds_everything(kind):
    targets = labels()
    (share,) = shares_of(replace(KINDS[kind], clients=1, classes=5), targets, tasks=(5, 5))
    np.testing.assert_array_equal(share, np.flatnonzero(targets >= 0))


# Dirichlet.


@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0])
def test_dirichlet_shares_have_the_moments_of_the_dirichlet_distribution(alpha):
    """Of K clients, each gets 1/K of a class on average, with variance (1/K)(1 - 1/K) / (K alpha + 1)."""
    clients, targets = 5, np.repeat(np.arange(10), 1000)
    wanted = PartitionSettings(clients=clients, alpha=alpha, min_size=0)
    drawn = np.stack([counts_of(shares_of(wanted, targets, seed=seed), targets) for seed in range(120)]) / 1000
    variance = (1 / clients) * (1 - 1 / clients) / (clients * alpha + 1)
    deviation_of_mean = np.sqrt(variance / (120 * 10))
    np.testing.assert_allclose(drawn.mean(axis=(0, 2)), 1 / clients, atol=4 * deviation_of_mean)
    np.testing.assert_allclose(drawn.var(), variance, rtol=0.08)


def test_dirichlet_draws_each_class_anew():
    """A client with much of one class has no more of the next: its shares of two classes are uncorrelated."""
    targets = np.repeat(np.arange(10), 1000)
    wanted = PartitionSettings(clients=5, alpha=0.5, min_size=0)
    drawn = np.stack([counts_of(shares_of(wanted, targets, seed=seed), targets) for seed in range(60)])
    first, second = drawn[:, 0, :-1].ravel(), drawn[:, 0, 1:].ravel()
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.15  # 540 pairs: deviation 0.043


def test_dirichlet_prefers_no_client_when_classes_are_small():
    """Twenty images of each of ten classes for ten clients: twenty images each, on average."""
    targets = np.repeat(np.arange(10), 20)
    wanted = PartitionSettings(clients=10, alpha=1.0, min_size=0)
    sizes = np.stack([[len(share) for share in shares_of(wanted, targets, seed=seed)] for seed in range(150)])
    deviation_of_mean = np.sqrt(10 * 20**2 * 0.1 * 0.9 / 11 / 150)  # ten draws from Dir(1, ..., 1), 150 times
    np.testing.assert_allclose(sizes.mean(axis=0), 20, atol=4 * deviation_of_mean)


def test_every_client_has_min_size_images_or_more():
    uneven = PartitionSettings(clients=10, alpha=0.2, min_size=0)
    needed = 0
    for seed in range(10):
        sizes = [len(share) for share in shares_of(replace(uneven, min_size=22), seed=seed)]
        assert min(sizes) >= 22
        needed += min(len(share) for share in shares_of(uneven, seed=seed)) < 22
    assert needed > 3  # else the first draw was good enough, and nothing was tested


def test_min_size_takes_the_first_draw_that_is_good_enough():
    """So lowering min_size, where it did not matter, changes nothing."""
    free = shares_of(PartitionSettings(clients=5, alpha=5.0, min_size=0))
    smallest = min(map(len, free))
    assert smallest > 0
    bound = shares_of(PartitionSettings(clients=5, alpha=5.0, min_size=smallest))
    for a, b in zip(free, bound, strict=True):
        np.testing.assert_array_equal(a, b)


def test_draws_are_bounded_and_end_with_advice(monkeypatch):
    drawn = []
    real = module.array_generator

    def counting(*scope):
        drawn.append(scope)
        return real(*scope)

    monkeypatch.setattr(module, "array_generator", counting)
    with pytest.raises(ConfigError) as error:
        shares_of(PartitionSettings(clients=20, alpha=0.01, min_size=25))
    assert len(drawn) == len(set(drawn)) == module.ATTEMPTS == 100
    assert "in 100 draws no Dirichlet partition with alpha = 0.01 gave each of 20 clients 25 images" in str(error.value)
    assert "(the best gave 0)" in str(error.value)
    assert "raise alpha, or lower clients or min_size" in str(error.value)


def test_the_error_tells_how_close_the_draws_came():
    """The best of all draws, which is the largest min_size that would have worked."""
    wanted = PartitionSettings(clients=6, alpha=1.0, min_size=95)
    with pytest.raises(ConfigError) as error:
        shares_of(wanted)
    best = int(str(error.value).split("(the best gave ")[1].split(")")[0])
    assert 30 < best < 95
    assert min(map(len, shares_of(replace(wanted, min_size=best)))) == best
    with pytest.raises(ConfigError):
        shares_of(replace(wanted, min_size=best + 1))


def test_more_clients_than_images_is_refused_before_any_draw(monkeypatch):
    monkeypatch.setattr(module, "array_generator", None)
    with pytest.raises(ConfigError, match=r"61 clients with 10 images or more need 610, there are 600; lower clients"):
        shares_of(PartitionSettings(clients=61, min_size=10))  # the 25 images outside the stream do not help


def test_without_a_minimum_some_clients_may_hold_nothing():
    targets = labels(per_class=6)
    shares = shares_of(PartitionSettings(clients=40, alpha=0.05, min_size=0), targets)
    empty = [share for share in shares if len(share) == 0]
    assert len(empty) > 5
    assert all(share.dtype == np.int64 and share.shape == (0,) for share in empty)
    assert_held_exactly_once(shares, targets)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_an_infinite_alpha_is_refused_or_even():
    """TOML can write inf. Its limit is the even partition."""
    try:
        shares = shares_of(PartitionSettings(clients=5, alpha=float("inf"), min_size=0))
    except ConfigError:
        return
    assert [len(share) for share in shares] == [120] * 5


# FedML's cap.


def members_of(targets):
    return [np.flatnonzero(targets == label) for label in range(targets.max() + 1)]


@checked
@given(
    per_class=st.lists(st.integers(1, 60), min_size=1, max_size=12),
    clients=st.integers(1, 9),
    alpha=st.sampled_from([0.1, 0.5, 5.0]),
    seed=st.integers(0, 50),
)
def test_the_cap_is_fedmls(per_class, clients, alpha, seed):
    """The same draws, shared out by the slow oracle, give the same images to the same clients."""
    assume(clients <= sum(per_class))
    targets = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(per_class)), per_class))
    rng = array_generator(seed, "partition", 0)
    draws, shuffled = [], []
    for images in members_of(targets):
        draws.append(rng.dirichlet(np.full(clients, alpha)).tolist())
        shuffled.append(rng.permutation(images).tolist())
    wanted = PartitionSettings(kind="fedml", clients=clients, alpha=alpha, min_size=0)
    shares = shares_of(wanted, targets, seed=seed, tasks=(len(per_class),))
    assert [share.tolist() for share in shares] == [sorted(s) for s in oracle.fedml(shuffled, draws, clients)]


def test_a_client_that_has_its_share_gets_none_of_the_next_class():
    """But for the last client, to whom the images fall that rounding leaves over: less than one per class."""
    targets = np.repeat(np.arange(10), 500)
    full_ones = 0
    for seed in range(20):
        wanted = PartitionSettings(kind="fedml", clients=10, alpha=0.5, min_size=0)
        counts = counts_of(shares_of(wanted, targets, seed=seed), targets)
        full = np.cumsum(counts, axis=1)[:, :-1] >= 500
        assert (counts[:-1, 1:][full[:-1]] == 0).all()
        assert (counts[-1, 1:][full[-1]] <= 1).all()
        full_ones += full.sum()
    assert full_ones > 200  # else nothing was tested


def test_the_cap_evens_out_sizes_and_starves_the_last_classes():
    """EMNIST's counts: without the cap few clients lack the last class, with it about half of them."""
    targets = np.repeat(np.arange(47), 240)
    lacking, spread = {}, {}
    for kind in ("dirichlet", "fedml"):
        wanted = PartitionSettings(kind=kind, clients=20, alpha=0.5)
        counts = np.stack([counts_of(shares_of(wanted, targets, seed=s), targets, 47) for s in range(10)])
        lacking[kind], spread[kind] = (counts[:, :, -1] == 0).mean(), counts.sum(axis=2).std()
    assert lacking["dirichlet"] < 0.25 < 0.4 < lacking["fedml"]
    assert spread["fedml"] < 0.7 * spread["dirichlet"]


def test_a_cap_with_a_minimum_draws_again_and_gives_up_in_the_end():
    uneven = PartitionSettings(kind="fedml", clients=8, alpha=0.1, min_size=0)
    smallest = [min(map(len, shares_of(uneven, seed=seed))) for seed in range(8)]
    assert min(smallest) < 20
    assert all(min(map(len, shares_of(replace(uneven, min_size=20), seed=seed))) >= 20 for seed in range(8))
    with pytest.raises(ConfigError, match="in 100 draws no Dirichlet partition"):
        shares_of(replace(uneven, min_size=74))


def test_shares_of_zero_that_leave_a_class_to_full_clients_are_drawn_again_or_refused():
    """A tiny alpha gives a class to one client. Here two clients have room for one of two classes each."""
    targets = np.repeat([0, 1], 50)
    wanted = PartitionSettings(kind="fedml", clients=2, alpha=1e-9, min_size=0)
    for seed in range(8):
        assert [len(share) for share in shares_of(wanted, targets, seed=seed, tasks=(2,))] == [50, 50]
    many = np.repeat(np.arange(20), 5)  # that 20 draws hit 20 clients once each: 2e-8
    with pytest.raises(ConfigError, match=r"in each of 100 draws, a whole class went to clients that already had"):
        shares_of(replace(wanted, clients=20), many, tasks=(20,))


# As the release draws it.


@checked
@given(
    per_class=st.lists(st.integers(1, 60), min_size=1, max_size=12),
    clients=st.integers(1, 9),
    seed=st.integers(0, 50),
)
def test_the_released_partition_is_that_of_the_authors_generator(per_class, clients, seed):
    assume(clients <= sum(per_class))
    targets = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(per_class)), per_class))
    np.random.seed(2023 + seed)  # noqa: NPY002 (the release does so)
    np.random.permutation(len(per_class))  # noqa: NPY002
    draws = np.random.dirichlet([0.5] * clients, len(per_class)).tolist()  # noqa: NPY002
    wanted = PartitionSettings(kind="released", clients=clients, alpha=0.5)
    shares = shares_of(wanted, targets, seed=seed, tasks=(len(per_class),))
    found = oracle.released([images.tolist() for images in members_of(targets)], draws, clients)
    assert [share.tolist() for share in shares] == [sorted(share) for share in found]


def test_released_images_of_a_class_are_neighbours_in_the_file():
    targets = labels()
    for share in shares_of(KINDS["released"], targets):
        for label in range(10):
            mine = np.flatnonzero(np.isin(np.flatnonzero(targets == label), share))
            assert len(mine) == 0 or mine.tolist() == list(range(mine[0], mine[-1] + 1))


def test_an_alpha_of_which_the_release_makes_no_numbers_is_refused():
    with pytest.raises(ConfigError, match='alpha = 1e-05 is too small for kind = "released"; raise it'):
        shares_of(PartitionSettings(kind="released", clients=7, alpha=1e-5))


# Some classes of a task only.


@pytest.mark.parametrize("kind", ["dirichlet", "fedml", "released", "iid"])
@pytest.mark.parametrize(("wanted", "offered"), [(2, [2, 2, 2]), ([3, 1, 2], [3, 1, 2])])
def test_a_client_uses_so_many_classes_of_each_task_and_all_that_it_has_of_them(kind, wanted, offered):
    targets = labels()
    whole = shares_of(replace(KINDS[kind], alpha=50.0), targets)
    part = shares_of(replace(KINDS[kind], alpha=50.0, classes_per_task=wanted), targets)
    all_counts, counts = counts_of(whole, targets), counts_of(part, targets)
    assert (all_counts > 0).all()
    for (first, end), chosen in zip(pairwise([0, 4, 7, 10]), offered, strict=True):
        assert ((counts[:, first:end] > 0).sum(axis=1) == chosen).all()
    held = counts > 0
    np.testing.assert_array_equal(counts[held], all_counts[held])
    assert len({tuple(row) for row in held.tolist()}) > 3, "all clients have the same classes"


def test_all_classes_of_each_task_is_the_same_as_no_choice():
    for wanted in ([4, 3, 3], 0):
        chosen = shares_of(replace(KINDS["fedml"], classes_per_task=wanted))
        for a, b in zip(chosen, shares_of(KINDS["fedml"]), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (4, r"classes_per_task = 4: task 2 has 3 classes, so from 1 to 3"),
        (-1, r"classes_per_task = -1: task 1 has 4 classes, so from 1 to 4"),
        ([4, 0, 3], r"task 2 has 3 classes, so from 1 to 3"),
        ([5, 5], r"\[5, 5\] is for 2 tasks, not 3"),
    ],
)
def test_choices_of_classes_that_do_not_fit_the_tasks_are_refused(wanted, message):
    with pytest.raises(ConfigError, match=message):
        shares_of(replace(KINDS["dirichlet"], classes_per_task=wanted))
    with pytest.raises(ConfigError, match="already chooses classes; leave classes_per_task out"):
        shares_of(replace(KINDS["classes"], classes_per_task=wanted))


# IID.


@checked
@given(
    per_class=st.lists(st.integers(1, 40), min_size=1, max_size=10),
    clients=st.integers(1, 12),
    seed=st.integers(0, 3),
)
def test_iid_sizes_differ_by_one_at_most_per_class_and_in_all(per_class, clients, seed):
    targets = np.repeat(np.arange(len(per_class)), per_class)
    shares = shares_of(PartitionSettings(kind="iid", clients=clients), targets, seed=seed, tasks=(len(per_class),))
    counts = counts_of(shares, targets, len(per_class))
    assert np.ptp(counts, axis=0).max() <= 1
    assert np.ptp(counts.sum(axis=1)) <= 1


# Classes per client.


@pytest.mark.parametrize(("clients", "classes"), [(7, 2), (4, 1), (20, 1), (5, 3), (2, 2), (4, 2), (3, 2)])
def test_each_client_holds_exactly_so_many_classes_of_every_task(clients, classes):
    targets = labels()
    shares = shares_of(PartitionSettings(kind="classes", clients=clients, classes=classes), targets)
    counts = counts_of(shares, targets)
    edges = [0, 4, 7, 10]
    for first, end in pairwise(edges):
        held = counts[:, first:end] > 0
        assert (held.sum(axis=1) == classes).all()
        assert np.ptp(held.sum(axis=0)) <= 1, "holders are not shared out evenly"
        assert held.any(axis=0).all()
    for label in range(10):
        parts = counts[counts[:, label] > 0, label]
        assert np.ptp(parts) <= 1, "a class is not dealt out evenly among its holders"


def test_any_two_classes_may_meet_on_a_client():
    """Not only neighbours in the order of arrival: over some seeds, all six pairs of four classes occur."""
    targets = labels(classes=4)
    wanted = PartitionSettings(kind="classes", clients=4, classes=2)
    pairs = set()
    for seed in range(20):
        held = counts_of(shares_of(wanted, targets, seed=seed, tasks=(4,)), targets, 4) > 0
        pairs |= {tuple(np.flatnonzero(row)) for row in held}
    assert len(pairs) == 6


def test_tasks_are_drawn_independently():
    """Who shares a class in one task shares none of necessity in the next."""
    targets = labels(classes=8)
    wanted = PartitionSettings(kind="classes", clients=8, classes=1)
    counts = counts_of(shares_of(wanted, targets, tasks=(4, 4)), targets, 8) > 0
    pairs = [counts[:, part] @ counts[:, part].T for part in (slice(0, 4), slice(4, 8))]
    assert (pairs[0] != pairs[1]).any()


def test_more_classes_per_client_than_a_task_has_are_refused():
    with pytest.raises(ConfigError, match=r"classes = 4, but task 2 has only 3 classes"):
        shares_of(PartitionSettings(kind="classes", clients=7, classes=4))


def test_too_few_places_for_the_classes_of_a_task_are_refused():
    with pytest.raises(
        ConfigError, match=r"3 clients with 1 classes each cannot hold the 4 classes of task 1; raise clients or"
    ):
        shares_of(PartitionSettings(kind="classes", clients=3, classes=1))


# Saved to a file.


@pytest.fixture
def file(tmp_path):
    """Loads a partition of ten images from a file with this content."""
    targets = np.array([0, 0, 1, 1, -1, 2, 2, 3, 3, 3])

    def load(content, *, clients=2):
        path = tmp_path / "saved.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        wanted = PartitionSettings(kind="file", clients=clients, path=str(path))
        return shares_of(wanted, targets, tasks=(2, 2))

    return load


def saved(*shares, dataset=SHA):
    return {"dataset_sha256": dataset, "clients": list(shares)}


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_partition_comes_back(kind, tmp_path):
    shares = shares_of(KINDS[kind], seed=9)
    save_partition(shares, tmp_path / "saved.json", dataset=SHA)
    loaded = shares_of(PartitionSettings(kind="file", clients=7, path=str(tmp_path / "saved.json")), seed=1)
    for a, b in zip(shares, loaded, strict=True):
        np.testing.assert_array_equal(a, b)
        assert b.dtype == np.int64


def test_images_of_classes_that_never_arrive_are_left_out(file):
    """A partition saved for all classes serves a stream of some of them; shares come back in file order."""
    first, second = file(saved([9, 4, 0, 2], [1, 3]))
    assert first.tolist() == [0, 2, 9]
    assert second.tolist() == [1, 3]


def test_clients_without_images_can_be_saved(file):
    first, second = file(saved([], [0]))
    assert first.tolist() == []
    assert first.dtype == np.int64
    assert second.tolist() == [0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not a partition; write one with `fedclass plan --save`"),
        ("\x00\x01", "not a partition"),
        ([[0], [1]], "not a partition"),
        ({"dataset_sha256": SHA}, "not a partition"),
        ({"clients": [[0], [1]]}, "not a partition"),
        (saved(["a"], [1]), "not a partition"),
        (saved([0], [[1], [2, 3]]), "not a partition"),
        (saved([0], [1], dataset="f" * 64), r"saved for other data \(sha256 ffffffffffff, here 0123456789ab\)"),
        (saved([0], [1], [2]), r"is for 3 clients, not 2; set partition.clients=3"),
        (saved([0], [10]), "names image 10, but the training set has 10"),
        (saved([0], [-1]), "names image"),
        (saved([0, 1], [2, 1]), "some images belong to two clients"),
        (saved([0, 0], [1]), "some images belong to two clients"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(file, content, message):
    with pytest.raises(DataError, match=rf"saved\.json: .*{message}"):
        file(content)


def test_a_missing_file_and_a_missing_path_are_named(tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.json: cannot read the partition \(No such file or directory\)"):
        shares_of(PartitionSettings(kind="file", path=str(tmp_path / "nowhere.json")))
    with pytest.raises(ConfigError, match="needs path, a file written by `fedclass plan --save`"):
        shares_of(PartitionSettings(kind="file"))


def test_the_image_that_does_not_exist_is_the_one_named(file):
    with pytest.raises(DataError, match="names image -1,"):
        file(saved([0], [-1]))


@pytest.mark.parametrize(
    "content",
    [saved([0], [1], dataset=None), saved([0], [[1]]), saved(0, 1), saved([0], [10**30])],
    ids=["no sha256", "nested", "no lists", "beyond 64 bits"],
)
def test_no_file_ends_in_a_traceback(file, content):
    with pytest.raises(DataError):
        file(content)


def test_half_an_image_is_refused(file):
    with pytest.raises(DataError):
        file(saved([0.5], [1]))
