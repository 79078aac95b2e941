"""What passes between the parent and a worker, however large."""

import os

import numpy as np
import pytest

from fedclass.engines.channel import KEPT, Channel

LARGE = 2**20  # bytes; a pipe holds some 200 kB


def test_both_ends_may_send_all_they_can_before_either_receives() -> None:
    """Neither waits for the other: a parent that sends an order while its worker sends an answer would else hang."""
    ours, theirs = Channel.pair(2)
    arrays = [np.full(LARGE, value, np.uint8) for value in range(4)]
    for array in arrays[:2]:
        ours.send({"array": array, "bytes": b"x" * LARGE})
    for array in arrays[2:]:
        theirs.send(array)
    for array in arrays[:2]:
        got = theirs.receive()
        np.testing.assert_array_equal(got["array"], array)
        assert got["bytes"] == b"x" * LARGE
    for array in arrays[2:]:
        np.testing.assert_array_equal(ours.receive(), array)
    theirs.connection.close()
    with pytest.raises(EOFError):
        ours.receive()
    ours.close()


def test_what_was_received_can_be_changed_and_does_not_change_with_the_next_object() -> None:
    ours, theirs = Channel.pair(1)
    ours.send((np.arange(5), "longer than the next"))
    first, _ = theirs.receive()
    ours.send(np.zeros(3, np.int64))
    assert theirs.receive().tolist() == [0, 0, 0]
    assert first.tolist() == [0, 1, 2, 3, 4]
    first += 1
    theirs.connection.close()
    ours.close()


def test_memory_of_large_objects_is_given_back() -> None:
    ours, theirs = Channel.pair(1)
    for size, left in ((KEPT + 1, 0), (100, 100)):
        ours.send(np.zeros(size, np.uint8))
        theirs.receive()
        assert os.fstat(ours._sends[0]).st_size in range(left, left + 1000)
    theirs.connection.close()
    ours.close()
