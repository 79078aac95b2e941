"""Objects from one process to another, through memory that both reach."""

import os
import pickle
from collections.abc import Callable
from multiprocessing import get_context, reduction
from multiprocessing.connection import Connection
from typing import Any

from fedclass.engines.shared import Inherited, anonymous, write_at

KEPT = 2**22  # bytes: what was longer is given back to the system, what was not is written over without page faults


class Channel:
    """One end of a channel, on which at most as many objects are under way in each direction as there are files for it.

    An object lies in a file without a name; the pipe carries only a few bytes that say so, and never fills. So no end
    waits for the other one to read, and both may send large objects at the same time. The sender must
    know that the object it sent `len(sends)` objects ago has been received.
    """

    def __init__(self, connection: "Connection[bytes, bytes]", sends: list[int], receives: list[int]) -> None:
        self.connection, self._sends, self._receives = connection, sends, receives
        self._sent = self._received = 0

    @classmethod
    def pair(cls, under_way: int) -> "tuple[Channel, Channel]":
        """Both ends, which share their files; the second one is for a process that is about to be started."""
        ours, theirs = get_context("spawn").Pipe()
        there, back = ([anonymous() for _ in range(under_way)] for _ in range(2))
        return cls(ours, there, back), cls(theirs, back, there)

    def send(self, value: object) -> None:
        buffers: list[pickle.PickleBuffer] = []
        frame = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        arrays = [buffer.raw() for buffer in buffers]
        head = pickle.dumps((frame, [array.nbytes for array in arrays]))
        file = self._sends[self._sent % len(self._sends)]
        position = 0
        for piece in (memoryview(head), *arrays):
            write_at(file, piece, position)
            position += piece.nbytes
        self._sent += 1
        self.connection.send_bytes(str(len(head)).encode())

    def receive(self) -> Any:
        """EOFError or another OSError if the other end is gone."""
        length = int(self.connection.recv_bytes())
        file = self._receives[self._received % len(self._receives)]
        frame, sizes = pickle.loads(_read_at(file, length, 0))
        arrays, position = [], length
        for size in sizes:
            arrays.append(_read_at(file, size, position))
            position += size
        if position > KEPT:
            os.truncate(file, 0)
        self._received += 1
        return pickle.loads(frame, buffers=arrays)

    def close(self) -> None:
        self.connection.close()
        for file in (*self._sends, *self._receives):
            os.close(file)

    def __reduce__(self) -> tuple[Callable[..., "Channel"], tuple[object, ...]]:
        """Only for the start of a process, which inherits the files."""
        duplicates = [[reduction.DupFd(file) for file in files] for files in (self._sends, self._receives)]
        return _arrived, (self.connection, *duplicates)


def _arrived(connection: "Connection[bytes, bytes]", sends: list[Inherited], receives: list[Inherited]) -> Channel:
    return Channel(connection, [file.detach() for file in sends], [file.detach() for file in receives])


def _read_at(file: int, size: int, position: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        read = os.preadv(file, [view], position)  # a call reads at most 2 GiB
        if not read:
            raise EOFError
        view, position = view[read:], position + read
    return data
