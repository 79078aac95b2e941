"""New processes, and what becomes of them: how they start, which signals they heed, when they end."""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from fedclass.errors import ConfigError

UNGUARDED = 78  # exit code of a process that would start runs while it imports the main script
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h

CONTEXT = multiprocessing.get_context("forkserver") if sys.platform == "linux" else multiprocessing.get_context("spawn")


def new_process(target: Callable[..., None], *args: object, daemon: bool = False) -> BaseProcess:
    """Call target(*args) in a new process; to be called within `signals_later`.

    On Linux it is a copy of a process that has imported torch and fedclass and has done nothing else: to import them
    takes seconds of processor time, once for all new processes.
    """
    process = CONTEXT.Process(target=_begin, args=(dict(os.environ), target, args), daemon=daemon)
    with _no_script_without_file():
        process.start()
    return process


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def be_nice(by: int) -> None:
    """Let other programs go first: this process, for as long as it lives, and all that it will start."""
    if not 0 <= by <= 19:
        raise ConfigError(f"nice = {by}: must be from 0 to 19")
    if by and not hasattr(os, "nice"):
        raise ConfigError("nice: this system does not have it; leave it out")
    if by:
        os.nice(by)


def leave_if_unguarded() -> None:
    """To be called before a run starts: a new process that gets here while it imports the main script ends at once.

    Python's new processes import the script that they belong to. One that starts a run in its first lines would do so
    in each of them, which would start processes of their own, and so on.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # multiprocessing's own mark of that time
        os._exit(UNGUARDED)


def check_guarded(code: int | None) -> None:
    """code: with which a new process ended."""
    if code == UNGUARDED:
        raise ConfigError(
            "a script that starts runs in several processes is imported by each of them: put its own work below "
            '`if __name__ == "__main__":` (`fedclass.run` with engine="inprocess" needs no other process)'
        )


@contextlib.contextmanager
def _no_script_without_file() -> Iterator[None]:
    """Python has new processes import the script; what comes from `python -` is said to be in a file, and is not."""
    script = sys.modules["__main__"]
    file = getattr(script, "__file__", None)
    if file is None or Path(file).exists():
        yield
        return
    del script.__file__
    try:
        yield
    finally:
        script.__file__ = file


def _begin(environment: dict[str, str], target: Callable[..., None], args: tuple[object, ...]) -> None:
    """environment: of the process that asked for this one; that of which it is a copy may be older."""
    os.environ.clear()
    os.environ.update(environment)
    target(*args)


# Signals: Ctrl-C reaches all processes at once; the first one ends the others, and says so.


@contextlib.contextmanager
def signals_later() -> Iterator[None]:
    """Ctrl-C and SIGTERM take effect at the end of the block: to start processes in, or to end them.

    A process is then never half started, and whoever has to end it knows of it. From its first moment on, Ctrl-C does
    nothing to it: it inherits a mask, and calls `ignore_interrupts` once it can.
    """
    resource_tracker.ensure_running()  # Python's own; to start it within the block would lift the mask
    came: list[int] = []
    handlers: dict[int, Any] = {}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # of this thread, and of processes it starts
    try:
        if threading.current_thread() is threading.main_thread():  # in which Python handles all threads' signals
            for number in (signal.SIGINT, signal.SIGTERM):
                handlers[number] = signal.signal(number, lambda number, _: came.append(number))
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number in reversed(handlers):
            signal.signal(number, handlers[number])
        for late in came:
            signal.raise_signal(late)


def ignore_interrupts() -> None:
    """For a process that was started in `signals_later`: Ctrl-C reaches the parent too, which ends this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def end_with_parent() -> None:
    """From now on, this process lives no longer than the one that started it, however that ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch(parent: BaseProcess) -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, args=(parent,), daemon=True).start()


def keep_freed_memory() -> None:
    """Tell glibc to keep for the next batch what one batch leaves.

    Otherwise it returns every large tensor to the system, and each new one costs a page fault for every 4 kB.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is not None and hasattr(libc, "mallopt"):  # other C libraries have no such thing
        libc.mallopt(M_MMAP_THRESHOLD, 2**30)
        libc.mallopt(M_TRIM_THRESHOLD, 2**30)
