"""When a class reaches a client, against the words of docs/data.md taken literally."""

import numpy as np
import pytest

from fedclass.data.image_set import ImageSet, Split
from fedclass.data.partition import PartitionSettings
from fedclass.data.schedule import StreamSettings
from fedclass.data.stream import Stream, build_stream
from fedclass.errors import ConfigError

CLIENTS, SIZES, LATEST = 6, (4, 5), 7


def streamed(arrival: str = "together", delay: int = LATEST, *, seed: int = 0) -> Stream:
    """Nine classes, 30 images of each; clients lack some of them."""
    labels = np.tile(np.arange(9), 30)
    split = Split(np.zeros((len(labels), 2, 2, 1), np.uint8), labels)
    data = ImageSet("nine", tuple("abcdefghi"), split, split, official=None)
    wanted = StreamSettings(tasks=list(SIZES), arrival=arrival, arrival_delay=delay)
    return build_stream(data, wanted, PartitionSettings(clients=CLIENTS, alpha=0.3, min_size=1), seed=seed)


def late(stream: Stream, client: int, task: int) -> dict[int, int]:
    """The delay of each class of the task that the client has."""
    assert stream.delays is not None
    held = stream.counts()[client]
    return {label: int(stream.delays[client, label]) for label in stream.new_classes(task) if held[label]}


def test_together_there_are_no_delays():
    stream = streamed(delay=0)
    assert stream.delays is None
    assert stream.awaited(0, 0, 0) == []
    np.testing.assert_array_equal(stream.new_data(1, 1, 0), stream.new_data(1, 1))


def test_staggered_a_client_has_one_delay_per_task_and_the_earliest_has_none():
    stream = streamed("staggered")
    for task in range(2):
        delays = [set(late(stream, client, task).values()) for client in range(CLIENTS)]
        assert all(len(own) <= 1 for own in delays)
        found = set.union(*delays)
        assert min(found) == 0
        assert max(found) <= LATEST
        assert len(found) > 2, "clients differ"
    assert [late(stream, 0, task) for task in range(2)] == [late(streamed("staggered"), 0, task) for task in range(2)]
    assert not np.array_equal(stream.delays, streamed("staggered", seed=1).delays)


def test_in_its_own_order_a_client_meets_one_class_after_the_other():
    stream = streamed("own-order")
    orders = []
    for client in range(CLIENTS):
        for task in range(2):
            own = late(stream, client, task)
            assert sorted(own.values()) == [i * (LATEST + 1) // len(own) for i in range(len(own))]
            orders.append(sorted(own, key=lambda label: own[label]) == sorted(own))
    assert not all(orders)


@pytest.mark.parametrize("arrival", ["staggered", "own-order"])
def test_what_has_arrived_is_what_has_no_longer_to_wait(arrival: str):
    stream = streamed(arrival)
    for task in range(2):
        for round in range(LATEST + 1):
            sizes = stream.new_images(task, round)
            for client in range(CLIENTS):
                own, whole = late(stream, client, task), stream.new_data(client, task)
                wanted = [image for image in whole if own[int(stream.targets[image])] <= round]
                assert stream.new_data(client, task, round).tolist() == wanted
                assert sizes[client] == len(wanted)
            assert sizes.any(), "somebody learns in every round"
        assert [len(stream.new_data(c, task, LATEST)) for c in range(CLIENTS)] == sizes.tolist()
        assert sizes.sum() == 30 * SIZES[task], "everything arrives in the end"


def test_delays_that_make_no_sense_are_refused():
    with pytest.raises(ConfigError, match="arrival_delay = 2 has no effect if classes arrive together"):
        StreamSettings(arrival_delay=2).check(rounds=5)
    with pytest.raises(ConfigError, match=r"arrival_delay = 5: every class must arrive before .* give at most 4"):
        StreamSettings(arrival="staggered", arrival_delay=5).check(rounds=5)
    StreamSettings(arrival="staggered", arrival_delay=4).check(rounds=5)
