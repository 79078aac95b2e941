"""Streams: from a class order to tasks to clients."""

import numpy as np
import pytest

from fedclass.data.image_set import ImageSet, Split
from fedclass.data.partition import PartitionSettings, save_partition
from fedclass.data.schedule import StreamSettings, task_sizes
from fedclass.data.stream import build_stream
from fedclass.errors import ConfigError, DataError

RELEASED = [8, 2, 5, 0, 3, 4, 1, 9, 6, 7]


def split(labels):
    labels = np.asarray(labels, np.int64)
    return Split(np.zeros((len(labels), 2, 2, 1), np.uint8), labels)


def ten_classes(train=None, test=None):
    """Class k has 6 + k training images, in a shuffled order, and two test images."""
    shuffled = np.random.default_rng(2).permutation(np.repeat(np.arange(10), np.arange(6, 16)))
    return ImageSet(
        name="ten",
        classes=tuple("abcdefghij"),
        train=split(shuffled if train is None else train),
        test=split(np.arange(20) % 10 if test is None else test),
        official=True,
    )


def streamed(tasks="{5,5}", order="natural", *, data=None, seed=0, **partition):
    shares = PartitionSettings(**{"clients": 4, "min_size": 0, **partition})
    wanted = StreamSettings(tasks=tasks, class_order=order)
    return build_stream(ten_classes() if data is None else data, wanted, shares, seed=seed)


# Sizes of tasks.


@pytest.mark.parametrize(
    ("tasks", "classes", "sizes"),
    [
        ([5, 5], 10, (5, 5)),
        ([10], 10, (10,)),
        (10, 10, (10,)),
        ("5,5", 10, (5, 5)),
        (" 4, 3, 3 ", 10, (4, 3, 3)),
        ("{17,15,15}", 47, (17, 15, 15)),
        ("{10}", 10, (10,)),
        ("halves", 10, (5, 5)),
        ("halves", 3, (2, 1)),
        ("halves", 2, (1, 1)),
        ("halves", 1, (1,)),
        ("B0-Inc10", 100, (10,) * 10),
        ("B0-Inc10", 47, (10, 10, 10, 10, 7)),
        ("B0-Inc5", 10, (5, 5)),
        ("B0-Inc10", 10, (10,)),
        ("B50-Inc10", 100, (50, 10, 10, 10, 10, 10)),
        ("B50-Inc20", 100, (50, 20, 20, 10)),
        ("B5Inc5", 10, (5, 5)),
        ("b5-inc1", 7, (5, 1, 1)),
    ],
)
def test_task_sizes(tasks, classes, sizes):
    assert task_sizes(tasks, classes) == sizes
    assert sum(sizes) == classes


@pytest.mark.parametrize("tasks", ["", "{}", "five", "5;5", "5,,5", "5.0,5", "B-Inc5", "B5-Inc", "Inc5", "B5-Inc5-"])
def test_text_that_is_no_list_of_tasks_is_refused_with_examples(tasks):
    with pytest.raises(ConfigError) as error:
        task_sizes(tasks, 10)
    assert f'cannot read {tasks!r}; write [5, 5], "5,5", "{{17,15,15}}" or "B0-Inc10"' in str(error.value)


@pytest.mark.parametrize("tasks", ["B10-Inc1", "B0-Inc11", "B6-Inc5", "B5-Inc0"])
def test_steps_that_do_not_fit_are_refused(tasks):
    with pytest.raises(ConfigError, match=f"{tasks!r} does not fit 10 classes"):
        task_sizes(tasks, 10)


@pytest.mark.parametrize("tasks", [[], [5, 0, 5], [11, -1], "10,0", 0])
def test_a_task_without_classes_is_refused(tasks):
    with pytest.raises(ConfigError, match="every task needs at least one class"):
        task_sizes(tasks, 10)


@pytest.mark.parametrize(("tasks", "made"), [([5, 4], 9), ("{5,5,1}", 11)])
def test_tasks_must_make_all_classes(tasks, made):
    with pytest.raises(ConfigError, match=rf"make {made} classes, but there are 10; change tasks, or give class_order"):
        streamed(tasks)


# Order of classes.


def test_the_natural_order_is_that_of_the_labels():
    data = ten_classes()
    stream = streamed(data=data)
    assert stream.classes == tuple("abcdefghij")
    np.testing.assert_array_equal(stream.targets, data.train.labels)
    np.testing.assert_array_equal(stream.test_targets, data.test.labels)


def test_the_released_order_is_that_of_the_authors():
    """Class RELEASED[i] of the data set is class i of the stream, whatever the seed of the run."""
    data = ten_classes()
    for seed in (0, 1):
        stream = streamed(order="released", data=data, seed=seed)
        assert stream.classes == tuple("abcdefghij"[label] for label in RELEASED)
        np.testing.assert_array_equal(np.asarray(RELEASED)[stream.targets], data.train.labels)
        np.testing.assert_array_equal(np.asarray(RELEASED)[stream.test_targets], data.test.labels)


def test_the_release_orders_classes_by_its_seed_and_ours_count_from_its_2023():
    orders = [streamed(order="released-by-seed", seed=seed).classes for seed in (0, 1, 2)]
    assert orders[0] == tuple("abcdefghij"[label] for label in RELEASED)
    for seed, order in enumerate(orders):
        np.random.seed(2023 + seed)  # noqa: NPY002 (the release does so)
        assert order == tuple("abcdefghij"[label] for label in np.random.permutation(10))  # noqa: NPY002
    assert len(set(orders)) == 3


def test_classes_that_no_client_was_given_are_named():
    with pytest.raises(DataError, match=r"no client holds an image of class '.'; raise partition.classes_per_task or"):
        streamed(clients=1, classes_per_task=2)


def test_a_stream_says_how_many_classes_of_each_task_a_client_may_have():
    assert streamed().offered == (5, 5)
    assert streamed("4,3,3", clients=9, classes_per_task=[4, 3, 2], kind="iid").offered == (4, 3, 2)


def test_a_seeded_order_is_a_permutation_that_depends_on_the_seed():
    orders = [streamed(order="seeded", seed=seed).classes for seed in (0, 0, 1, 2)]
    assert orders[0] == orders[1]
    assert len(set(orders)) == 3
    assert all(sorted(order) == list("abcdefghij") for order in orders)


def test_a_listed_order_may_leave_classes_out():
    data = ten_classes()
    stream = streamed("2,1", [7, 3, 9], data=data)
    assert stream.classes == ("h", "d", "j")
    assert stream.task_sizes == (2, 1)
    number = {7: 0, 3: 1, 9: 2}
    assert stream.targets.tolist() == [number.get(label, -1) for label in data.train.labels.tolist()]
    assert stream.test_targets.tolist() == [number.get(label, -1) for label in data.test.labels.tolist()]
    held = np.concatenate(stream.shares)
    assert sorted(held) == np.flatnonzero(np.isin(data.train.labels, [7, 3, 9])).tolist()


@pytest.mark.parametrize("order", [[0, 0], [0, 10], [-1, 0]])
def test_labels_that_do_not_exist_or_repeat_are_refused(order):
    with pytest.raises(ConfigError, match="must list different labels from 0 to 9"):
        streamed("1,1", order)


def test_an_empty_order_is_refused():
    with pytest.raises(ConfigError, match="but there are 0"):
        streamed("1,1", [])


# Classes without images.


def test_a_class_without_training_images_is_named():
    with pytest.raises(DataError, match="ten: no training image of class 'd', which is in the stream"):
        streamed(data=ten_classes(train=[0, 1, 2, 4, 5, 6, 7, 8, 9]))


def test_a_class_without_test_images_is_named():
    with pytest.raises(DataError, match="ten: no test image of class 'j', which is in the stream"):
        streamed(data=ten_classes(test=np.arange(9)), order="released")


def test_a_class_that_never_arrives_needs_no_images():
    data = ten_classes(train=np.arange(30) % 9, test=np.arange(9))
    assert streamed("4,5", list(range(9)), data=data).classes == tuple("abcdefghi")


def test_a_class_that_no_client_holds_is_named(tmp_path):
    """A partition saved for classes 0 to 4 does not serve a stream of all ten: five would never be trained."""
    data = ten_classes()
    save_partition(streamed("5", [0, 1, 2, 3, 4], data=data).shares, tmp_path / "p.json", dataset=data.sha256)
    with pytest.raises(DataError, match="no client holds an image of class 'f'"):
        streamed(data=data, kind="file", path=str(tmp_path / "p.json"))


# Tasks and clients.


def test_classes_until_counts_the_classes_of_earlier_tasks_too():
    assert [streamed("4,3,2,1").classes_until(task) for task in range(4)] == [4, 7, 9, 10]


@pytest.mark.parametrize("order", ["natural", "released", [9, 0, 4, 2, 5, 1]])
@pytest.mark.parametrize("kind", ["dirichlet", "iid"])
def test_new_data_cuts_each_share_into_disjoint_pieces(order, kind):
    tasks = (3, 2, 1) if isinstance(order, list) else (4, 3, 3)
    stream = streamed(list(tasks), order, kind=kind, alpha=0.3)
    assert stream.clients == 4
    for client, share in enumerate(stream.shares):
        pieces = [stream.new_data(client, task) for task in range(3)]
        assert sorted(np.concatenate(pieces)) == share.tolist()
        for task, piece in enumerate(pieces):
            first = sum(tasks[:task])
            assert set(stream.targets[piece].tolist()) <= set(range(first, first + tasks[task]))
            assert (np.diff(piece) > 0).all()


def test_counts_are_images_per_client_and_class():
    stream = streamed("4,3,3", "released", alpha=0.3, clients=6)
    counts = stream.counts()
    assert counts.shape == (6, 10)
    for client in range(6):
        for label in range(10):
            assert counts[client, label] == sum(stream.targets[image] == label for image in stream.shares[client])
    assert counts.sum(axis=0).tolist() == [6 + label for label in RELEASED]


def test_clients_without_images_have_a_row_of_zeros():
    stream = streamed(clients=60, alpha=0.05)
    counts = stream.counts()
    empty = [client for client in range(60) if len(stream.shares[client]) == 0]
    assert len(empty) > 5
    assert (counts[empty] == 0).all()
    assert counts.sum() == len(stream.targets)
    assert [len(stream.new_data(client, 1)) for client in empty] == [0] * len(empty)
