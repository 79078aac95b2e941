"""One copy of the data for all processes."""

import mmap
import os
import pickle
import tempfile
from collections.abc import Callable
from multiprocessing import reduction
from typing import Generic, Protocol, TypeVar

from fedclass.errors import RunError
from fedclass.usercode import pickled

T = TypeVar("T", covariant=True)
ALIGNED = 64  # bytes


class Shared(Generic[T]):
    """An object whose arrays lie in an anonymous file, which processes started by this one map instead of copying.

    The file has no name, so that nothing is left behind, however a process ends.
    """

    def __init__(self, value: T) -> None:
        buffers: list[pickle.PickleBuffer] = []
        self._frame = pickled(value, buffers.append)
        self._places: list[tuple[int, int]] = []
        end = 0
        for buffer in buffers:
            start = -(-end // ALIGNED) * ALIGNED
            end = start + buffer.raw().nbytes
            self._places.append((start, end))
        self._size = max(end, 1)
        self._file = anonymous()
        try:
            os.truncate(self._file, self._size)
            for (start, _), buffer in zip(self._places, buffers, strict=True):
                write_at(self._file, buffer.raw(), start)
        except OSError as error:
            raise RunError(
                f"cannot put {self._size / 1e6:.0f} MB of data where all workers see them ({error.strerror}); "
                "free some memory, or use the engine inprocess"
            ) from error

    def open(self) -> T:
        """The object, its arrays mapped. Whoever changes one changes it for all."""
        memory = memoryview(mmap.mmap(self._file, self._size))
        value: T = pickle.loads(self._frame, buffers=[memory[start:end] for start, end in self._places])
        return value

    def __reduce__(self) -> tuple[Callable[..., "Shared[T]"], tuple[object, ...]]:
        """Only for the start of a process, which inherits the file."""
        return _arrived, (self._frame, self._places, self._size, reduction.DupFd(self._file))


class Inherited(Protocol):
    def detach(self) -> int: ...


def _arrived(frame: bytes, places: list[tuple[int, int]], size: int, file: Inherited) -> "Shared[T]":
    shared: Shared[T] = Shared.__new__(Shared)
    shared._frame, shared._places, shared._size, shared._file = frame, places, size, file.detach()
    return shared


def anonymous() -> int:
    if hasattr(os, "memfd_create"):  # Linux: memory, whatever the size of /dev/shm
        return os.memfd_create("fedclass")
    with tempfile.TemporaryFile() as file:  # unlinked at once
        return os.dup(file.fileno())


def write_at(file: int, data: memoryview, position: int) -> None:
    while data:
        written = os.pwrite(file, data, position)  # a call writes at most 2 GiB
        data, position = data[written:], position + written
