"""Exemplars: budgets, what a client keeps from task to task, and herding."""

from itertools import accumulate, pairwise

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from fedclass.data.memory import Exemplars, MemorySettings, check_fewest, exemplar_counts, herd, remarks, remember
from fedclass.errors import ConfigError
from reference import herding

checked = settings(max_examples=60, deadline=None, derandomize=True)

NONE = np.empty(0, np.int64)


def first(_label, images, count):
    return images[:count]


def last(_label, images, count):
    """A ranking that is not the order of the files."""
    return images[::-1][:count]


def per_client(budget):
    return MemorySettings(per_client=budget)


def per_class(budget):
    return MemorySettings(per_client=None, per_class=budget)


def floored(budget):
    return MemorySettings(per_client=budget, quota="floor")


def kept(exemplars):
    return {label: images.tolist() for label, images in exemplars.of_class.items()}


# Quotas.


def test_a_budget_in_total_is_divided_evenly_and_the_first_classes_get_the_rest():
    assert per_client(50).quotas([0, 1, 2, 3, 4], 99) == dict.fromkeys(range(5), 10)
    assert per_client(11).quotas([2, 5, 7, 9], 99) == {2: 3, 5: 3, 7: 3, 9: 2}
    assert per_client(3).quotas([4, 6, 8, 9], 99) == {4: 1, 6: 1, 8: 1, 9: 0}
    assert per_client(0).quotas([1, 2], 99) == {1: 0, 2: 0}
    assert per_client(50).quotas([], 99) == {}


@checked
@given(budget=st.integers(0, 200), classes=st.integers(1, 60))
def test_quotas_use_up_the_budget_and_differ_by_one_at_most(budget, classes):
    quotas = list(per_client(budget).quotas(list(range(classes)), classes).values())
    assert sum(quotas) == budget
    assert quotas == sorted(quotas, reverse=True)
    assert max(quotas) - min(quotas) <= 1


@checked
@given(budget=st.integers(0, 200), classes=st.lists(st.integers(0, 99), min_size=2, unique=True))
def test_a_class_that_arrives_never_raises_the_quota_of_another(budget, classes):
    """So what was dropped is never missed."""
    *before, new = classes
    old, now = (per_client(budget).quotas(sorted(met), 99) for met in (before, classes))
    assert all(now[label] <= old[label] for label in old)
    assert new in now


def test_a_floored_budget_is_divided_by_all_classes_that_arrived_and_the_rest_is_unused():
    """As in the authors' release: 20 // 5 = 4 and 20 // 10 = 2, also for a client that lacks some of the classes."""
    assert floored(20).quotas([0, 1, 2, 3, 4], 5) == dict.fromkeys(range(5), 4)
    assert floored(20).quotas([0, 3], 5) == {0: 4, 3: 4}
    assert floored(50).quotas([1, 2, 6], 7) == {1: 7, 2: 7, 6: 7}
    assert floored(3).quotas([0, 1], 4) == {0: 0, 1: 0}
    assert MemorySettings(per_client=None, per_class=2, quota="floor").quotas([3], 7) == {3: 2}


def test_a_budget_per_class_does_not_depend_on_how_many_there_are():
    assert per_class(2).quotas([3, 8], 99) == {3: 2, 8: 2}
    assert per_class(0).quotas([3, 8], 99) == {3: 0, 8: 0}


def test_whether_anything_is_kept():
    assert per_client(1).keeps
    assert per_class(1).keeps
    assert not per_client(0).keeps
    assert not per_class(0).keeps
    assert not MemorySettings(per_client=50, per_class=0).keeps  # as quotas() has it: per_class goes first
    assert MemorySettings(per_client=0, per_class=1).keeps


# From task to task.


def test_two_tasks_by_hand():
    """Seven exemplars: 4 + 3 of two classes, then 3 + 2 + 2 of three. Images are listed in order of importance."""
    targets = np.array([0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 2, 2, 2])
    after_first = remember(Exemplars(), np.arange(10), targets, per_client(7), last, classes=99)
    assert kept(after_first) == {0: [8, 6, 4, 2], 1: [9, 7, 5]}
    after_second = remember(after_first, np.array([10, 11, 12]), targets, per_client(7), last, classes=99)
    assert kept(after_second) == {0: [8, 6, 4], 1: [9, 7], 2: [12, 11]}
    assert len(after_second) == 7
    assert after_second.index.tolist() == [8, 6, 4, 9, 7, 12, 11]
    assert after_second.index.dtype == np.int64


def test_ranking_is_asked_once_per_new_class_for_no_more_than_there_is():
    asked = []

    def rank(label, images, count):
        asked.append((label, images.tolist(), count))
        return images[:count]

    targets = np.array([0, 0, 0, 0, 1, 2, 2])
    before = remember(Exemplars(), np.arange(5), targets, per_client(6), rank, classes=99)
    remember(before, np.array([5, 6]), targets, per_client(6), rank, classes=99)
    assert asked == [(0, [0, 1, 2, 3], 3), (1, [4], 1), (2, [5, 6], 2)]


def test_a_budget_of_zero_keeps_nothing_but_knows_what_it_met():
    targets = np.array([0, 0, 1])
    for none in (per_client(0), per_class(0)):
        exemplars = remember(Exemplars(), np.arange(3), targets, none, first, classes=99)
        assert len(exemplars) == 0
        assert exemplars.index.tolist() == []
        assert exemplars.index.dtype == np.int64
        assert set(exemplars.of_class) == {0, 1}


def test_a_client_that_meets_nothing_keeps_what_it_has():
    assert len(remember(Exemplars(), NONE, np.array([0]), per_client(5), first, classes=99)) == 0
    before = Exemplars({0: np.array([3, 1]), 2: np.array([4])})
    assert kept(remember(before, NONE, np.array([0, 0, 0, 0, 2]), per_client(5), first, classes=99)) == kept(before)


def test_a_class_that_comes_back_keeps_its_first_exemplars_and_fills_up():
    targets = np.zeros(8, np.int64)
    before = remember(Exemplars(), np.array([0, 1, 2]), targets, per_class(5), last, classes=99)
    assert kept(before) == {0: [2, 1, 0]}
    after = remember(before, np.array([1, 4, 5, 6]), targets, per_class(5), last, classes=99)
    assert kept(after)[0][:3] == [2, 1, 0]
    assert len(set(kept(after)[0])) == 5  # image 1 came back and is not held twice
    assert set(kept(after)[0][3:]) < {4, 5, 6}


def test_a_class_that_comes_back_to_a_smaller_quota_gains_nothing():
    targets = np.array([0, 0, 0, 0, 1, 1])
    before = remember(Exemplars(), np.array([0, 1, 2]), targets, per_client(3), last, classes=99)
    after = remember(before, np.array([3, 4, 5]), targets, per_client(3), last, classes=99)
    assert kept(after) == {0: [2, 1], 1: [5]}


@st.composite
def histories(draw):
    """What clients hold of each class, and tasks that classes arrive in."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    clients = draw(st.integers(1, 3))
    images = st.one_of(st.just(0), st.integers(0, 12))
    row = st.lists(images, min_size=sum(sizes), max_size=sum(sizes))
    counts = draw(st.lists(row, min_size=clients, max_size=clients))
    budget = draw(
        st.one_of(st.integers(0, 30).map(per_client), st.integers(0, 30).map(floored), st.integers(0, 8).map(per_class))
    )
    return np.array(counts), tuple(sizes), budget


def lived_through(row, sizes, budget):
    """The exemplars of one client after each task, from what `remember` really does."""
    targets = np.repeat(np.arange(len(row)), row)
    exemplars = Exemplars()
    for begin, end in pairwise(accumulate(sizes, initial=0)):
        arrived = np.flatnonzero((targets >= begin) & (targets < end))
        exemplars = remember(exemplars, arrived, targets, budget, last, classes=end)
        yield exemplars, targets, end


@checked
@given(history=histories())
def test_the_plan_is_what_happens(history):
    counts, sizes, budget = history
    plan = exemplar_counts(budget, counts, sizes)
    assert plan.shape == (len(counts), len(sizes))
    for client, row in enumerate(counts):
        assert plan[client].tolist() == [len(after) for after, _, _ in lived_through(row, sizes, budget)]


@checked
@given(history=histories())
def test_exemplars_are_prefixes_within_their_quotas(history):
    """Of its own class, in the order of first choice, as many as the quota and the client's images allow."""
    counts, sizes, budget = history
    for row in counts:
        for after, targets, arrived in lived_through(row, sizes, budget):
            quotas = budget.quotas(sorted(after.of_class), arrived)
            for label, images in after.of_class.items():
                ranked = np.flatnonzero(targets == label)[::-1]
                assert images.tolist() == ranked[: min(quotas[label], row[label])].tolist()
            assert len(after) == sum(map(len, after.of_class.values())) == len(np.unique(after.index))
            if budget.per_class is None:
                assert len(after) <= budget.per_client


def test_a_plan_by_hand():
    """Client 0 has plenty; client 1 has one image of class 0, none of class 1; client 2 meets class 2 only."""
    counts = np.array([[20, 20, 20], [1, 0, 20], [0, 0, 3]])
    assert exemplar_counts(per_client(10), counts, (2, 1)).tolist() == [[10, 10], [1, 6], [0, 3]]
    assert exemplar_counts(per_class(2), counts, (2, 1)).tolist() == [[4, 6], [1, 3], [0, 2]]
    assert exemplar_counts(floored(10), counts, (2, 1)).tolist() == [[10, 9], [1, 4], [0, 3]]
    assert exemplar_counts(floored(10), counts[1:], (2, 1), offered=(1, 1)).tolist() == [[1, 6], [0, 3]]


# Herding.


def unit_rows(count, width, seed):
    rows = np.random.default_rng(seed).normal(size=(count, width)) + 0.5
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@checked
@given(count=st.integers(1, 14), width=st.integers(1, 6), seed=st.integers(0, 10_000), data=st.data())
def test_herding_without_unit_means_is_algorithm_4_as_printed(count, width, seed, data):
    features = unit_rows(count, width, seed) if width > 1 else np.arange(1, count + 1, dtype=np.float32)[:, None] ** 2
    wanted = data.draw(st.integers(0, count))
    picked = herd(features, wanted, unit_means=False)
    assert picked.dtype == np.int64
    assert picked.tolist() == herding.herd(features.astype(float).tolist(), wanted, herding.as_it_is)


@checked
@given(count=st.integers(1, 14), width=st.integers(3, 8), seed=st.integers(0, 10_000), data=st.data())
def test_herding_is_algorithm_4_of_icarl_with_every_mean_of_unit_length(count, width, seed, data):
    features = unit_rows(count, width, seed)
    wanted = data.draw(st.integers(0, count))
    assert herd(features, wanted).tolist() == herding.herd(features.astype(float).tolist(), wanted, herding.unit)


def test_the_two_ways_of_herding_choose_differently():
    features = unit_rows(100, 16, seed=4)
    paper, pycil = (set(herd(features, 20, unit_means=unit).tolist()) for unit in (True, False))
    assert 0 < len(paper & pycil) < 20


def test_herding_by_hand():
    """Mean 3; 3 itself is nearest, then 2 (mean 2.5) ties with 4 and comes first, then 4 restores the mean."""
    assert herd(np.array([[1], [2], [3], [4], [5]], np.float32), 3, unit_means=False).tolist() == [2, 1, 3]


def test_opposite_features_whose_mean_has_no_direction_are_herded_all_the_same():
    assert sorted(herd(np.array([[1, 0], [-1, 0]], np.float32), 2).tolist()) == [0, 1]


def test_equal_images_are_picked_once_each_in_file_order():
    assert herd(np.ones((4, 2), np.float32), 4).tolist() == [0, 1, 2, 3]


def test_a_longer_choice_begins_with_the_shorter_one():
    """Which is why a smaller quota may keep a prefix."""
    features = unit_rows(30, 8, seed=1)
    everything = herd(features, 30).tolist()
    assert sorted(everything) == list(range(30))
    for count in (0, 1, 7, 29):
        assert herd(features, count).tolist() == everything[:count]


def test_the_mean_of_the_picked_approaches_the_mean_of_the_class():
    """Like 1/k (Welling 2009), where a random choice approaches like 1/sqrt(k)."""
    features = unit_rows(300, 16, seed=2).astype(np.float64)
    mean = features.mean(axis=0)

    def errors(order):
        k = np.arange(1, len(order) + 1)
        return np.linalg.norm(mean - features[order].cumsum(axis=0) / k[:, None], axis=1)

    herded = errors(herd(features.astype(np.float32), 100, unit_means=False))
    rng = np.random.default_rng(3)
    drawn = np.mean([errors(rng.permutation(300)[:100]) for _ in range(50)], axis=0)
    assert (herded * np.arange(1, 101)).max() < 2.0
    assert herded[9] < drawn[9] / 2
    assert herded[99] < drawn[99] / 4


# Budgets too small for a method that needs means.

SHARES = np.array([[6, 1, 5, 9], [1, 4, 0, 9]])


def test_the_smallest_memory_that_works_is_named_and_works():
    names, sizes = ("a", "b", "c", "d"), (2, 2)
    with pytest.raises(ConfigError) as error:
        check_fewest(per_client(3), SHARES, sizes, names, 2, "use another")
    # client 1 needs two of class b among its three classes, client 0 two of class a and of class c among four
    assert str(error.value) == (
        "[memory] per_client = 3 leaves no client with 2 exemplars of class 'b' after task 1, and this method needs "
        "them; the smallest memory that works is per_client = 7 or per_class = 2; or use another"
    )
    with pytest.raises(ConfigError, match="per_client = 6 leaves no client with 2 exemplars of class 'c'"):
        check_fewest(per_client(6), SHARES, sizes, names, 2, "")
    with pytest.raises(ConfigError, match="per_class = 1 leaves no client"):
        check_fewest(per_class(1), SHARES, sizes, names, 2, "")
    for enough in (per_client(7), per_class(2)):
        check_fewest(enough, SHARES, sizes, names, 2, "")
    check_fewest(per_client(0), SHARES, sizes, names, 0, "")


def test_images_that_no_client_has_two_of_are_no_matter_of_memory():
    with pytest.raises(ConfigError, match=r"\[partition\] no client has 2 images of class 'b'.*or use another"):
        check_fewest(per_class(9), np.array([[5, 1], [5, 1]]), (1, 1), ("a", "b"), 2, "use another")


# Budgets are caps: what may surprise about them is said.

COUNTS = np.array([[8, 0, 5, 100], [4, 7, 0, 100]])  # before the last task: at most 13 in all, 8 of one class


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        (per_client(14), []),  # seven of eight images of class 0
        (per_client(15), ["per_client = 15 is never reached: every client keeps all its images of earlier tasks"]),
        (per_class(8), ["per_class = 8 is never reached: every client keeps all its images of earlier tasks"]),
        (per_client(2), []),
        (per_client(1), ["per_client = 1 is less than one exemplar for each class: 2 of 2 clients keep none of a"]),
        (floored(3), []),  # one of each of three classes that have arrived
        (floored(2), ["per_client = 2 is less than one exemplar for each class: 2 of 2 clients keep none of a"]),
        (per_client(0), []),  # nothing is kept, as was asked for
        (per_class(0), []),
    ],
)
def test_what_is_said_of_a_budget(budget, said):
    found = remarks(budget, COUNTS, (2, 1, 1))
    assert len(found) == len(said)
    for message, part in zip(found, said, strict=True):
        assert message.startswith(f"memory.{part}")
    assert remarks(budget, COUNTS, (4,)) == [], "with one task nothing is replayed"
