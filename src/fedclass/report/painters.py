"""Many figures are drawn by several processes, one per core: the same bytes, sooner."""

import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from queue import SimpleQueue

from fedclass.engines.starting import cores
from fedclass.report.rendering import Drawn, Wanted, draw

WORTH = 15  # figures in all their formats, for each further process: importing matplotlib takes as long as two or three


def draw_all(figures: Sequence[Wanted]) -> list[Drawn]:
    """Draw each figure, in this process or another."""
    further = min(cores() - 1, sum(bool(wanted.formats) for wanted in figures) // WORTH)
    sent = [pickle.dumps(wanted) if further else b"" for wanted in figures]  # as long as nothing else is drawing
    free = SimpleQueue[Callable[[int], Drawn | None]]()
    free.put(lambda number: draw(figures[number]))

    def take(number: int) -> Drawn | None:
        painter = free.get()
        try:
            return painter(number)
        finally:
            free.put(painter)

    with ExitStack() as stack:
        for _ in range(further):
            with suppress(OSError):  # no further process can be started
                process = _start()
                stack.callback(process.communicate)  # ends it: no more input
                free.put(partial(_ask, process, sent))
        with ThreadPoolExecutor(1 + further) as threads:
            drawn = list(threads.map(take, range(len(figures))))
    return [draw(wanted) if done is None else done for wanted, done in zip(figures, drawn, strict=True)]


def serve() -> None:
    """Draw what comes from the standard input until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the process that asks, too, which then ends this one
    with suppress(EOFError):
        while True:
            pickle.dump(draw(pickle.load(sys.stdin.buffer)), sys.stdout.buffer)
            sys.stdout.flush()


def _start() -> subprocess.Popen[bytes]:
    """A process of `serve`. Unlike those of multiprocessing, it does not import the script that this one runs."""
    code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve()"
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _ask(process: subprocess.Popen[bytes], sent: Sequence[bytes], number: int) -> Drawn | None:
    """None: the process has ended, for whatever reason."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(sent[number])
        process.stdin.flush()
        drawn: Drawn = pickle.load(process.stdout)
    except (OSError, EOFError, pickle.UnpicklingError):
        return None
    return drawn
