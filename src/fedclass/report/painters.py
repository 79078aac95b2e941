"""Many figures are drawn by several processes, one per core: the same bytes, sooner."""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import BinaryIO

import matplotlib

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
                painter = Painter.start()
                stack.callback(painter.end)
                free.put(partial(painter.ask, sent))
        with ThreadPoolExecutor(1 + further) as threads:
            drawn = list(threads.map(take, range(len(figures))))
    return [draw(wanted) if done is None else done for wanted, done in zip(figures, drawn, strict=True)]


def serve(answers: int) -> None:
    """Draw what comes from the standard input until it ends.  answers: the descriptor that takes what is drawn."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the process that asks, too, which then ends this one
    with os.fdopen(answers, "wb") as out, suppress(EOFError):
        matplotlib.rcParams.update(pickle.load(sys.stdin.buffer))
        while True:
            pickle.dump(draw(pickle.load(sys.stdin.buffer)), out)
            out.flush()


@dataclass
class Painter:
    """A process of `serve`. Answers have a pipe of their own: what an environment prints at start is not one of them.

    Unlike those of multiprocessing, it does not import the script that this one runs. It gets the user's settings of
    matplotlib but for the backend: to look at that would choose one, and import pyplot.
    """

    process: subprocess.Popen[bytes]
    answers: BinaryIO

    @classmethod
    def start(cls) -> "Painter":
        ours, theirs = os.pipe()
        code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve({theirs})"
        command = [sys.executable, "-c", code]
        try:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=[theirs])
        except OSError:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        painter = cls(process, os.fdopen(ours, "rb"))
        painter._send(pickle.dumps({key: matplotlib.rcParams[key] for key in matplotlib.rcParams if key != "backend"}))
        return painter

    def ask(self, sent: Sequence[bytes], number: int) -> Drawn | None:
        """None: the process has ended, for whatever reason."""
        if not self._send(sent[number]):
            return None
        try:
            drawn: Drawn = pickle.load(self.answers)
        except (EOFError, pickle.UnpicklingError):  # it was ended before, or while it answered
            return None
        return drawn

    def end(self) -> None:
        self.process.communicate()  # no more input
        self.answers.close()

    def _send(self, what: bytes) -> bool:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(what)
            self.process.stdin.flush()
        except OSError:
            return False
        return True
