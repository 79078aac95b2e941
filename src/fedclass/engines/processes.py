"""Clients' jobs on all cores: a pool of processes with one thread and one resident model each."""

import bisect
import contextlib
import ctypes
import itertools
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Protocol, Self

import torch

from fedclass.engines.shared import Shared
from fedclass.errors import ClientError, FedclassError
from fedclass.federation.client import Client
from fedclass.federation.store import ClientState, ClientStore
from fedclass.wire import Job, Update, Weights

AHEAD = 64  # jobs given out before the oldest of them is done; that many updates wait in memory at most
TRIES = 3  # for a job whose worker dies
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


class ClientBuilder(Protocol):
    """What a worker makes its client from; arrives through `Shared`."""

    def client(self, store: ClientStore) -> Client: ...


@dataclass(frozen=True)
class _Order:
    """What a worker is sent: a job without its weights, the keys of the weights, and the client's state."""

    job: Job
    weights: int
    teacher: int | None
    state: ClientState


_Answer = tuple[Update, ClientState | None] | FedclassError  # the client's state, if it changed


@dataclass
class _Worker:
    process: BaseProcess
    connection: "Connection[bytes, bytes]"
    has: set[int] = field(default_factory=set)  # keys of the weights it holds
    position: int | None = None  # of the job it is doing, among the jobs of the round


class Processes:
    """Runs jobs in `workers` processes; results do not depend on how many.

    The states of all clients stay in this process, in `store`: a worker gets a client's state with the job and sends it
    back, so that any worker can do any job, and a job whose worker died can be done again.
    """

    name = "processes"

    def __init__(self, builder: Shared[ClientBuilder], store: ClientStore, *, workers: int) -> None:
        self.builder, self.store, self.count = builder, store, workers
        self._workers: list[_Worker] = []
        self._weights: dict[int, Weights] = {}  # by key
        self._keys = itertools.count()
        self._samples: dict[int, float] = {}  # in each client's last job: how long the next one may take

    def __enter__(self) -> Self:
        self._workers = [self._start() for _ in range(self.count)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
            worker.connection.close()
        self._workers = []

    def run(self, jobs: Sequence[Job]) -> Iterator[Update]:
        for number, worker in enumerate(self._workers):
            if worker.position is not None:  # of a round whose updates nobody waited for
                self._replace(number)
        waiting = list(range(len(jobs)))
        tries = [0] * len(jobs)
        done: dict[int, Update] = {}
        following = 0  # position of the update to hand on next
        while following < len(jobs):
            for worker in self._workers:
                if worker.position is None and (chosen := self._choice(jobs, waiting, following)) is not None:
                    waiting.remove(chosen)
                    self._send(worker, jobs[chosen], chosen)
            heard = wait([worker.connection for worker in self._workers if worker.position is not None])
            for number, worker in enumerate(self._workers):
                if worker.connection not in heard or worker.position is None:
                    continue
                position, worker.position = worker.position, None
                job = jobs[position]
                answer = _received(worker)
                if answer is None:
                    self._replace(number)
                    tries[position] += 1
                    if tries[position] == TRIES:
                        raise ClientError(f"{job.where}: its worker died {TRIES} times ({_why(worker.process)})")
                    bisect.insort(waiting, position)
                elif isinstance(answer, FedclassError):
                    raise answer
                else:
                    update, state = answer
                    if state is not None:
                        self.store.save(job.client, state)
                    self._samples[job.client] = update.metrics.get("samples", 0.0)
                    done[position] = update
            while following in done:
                yield done.pop(following)
                following += 1

    def _choice(self, jobs: Sequence[Job], waiting: Sequence[int], following: int) -> int | None:
        """The longest job in reach, as far as is known from the client's last one, so that all workers end together."""
        within = itertools.takewhile(lambda position: position < following + AHEAD, waiting)
        return max(within, key=lambda p: (self._samples.get(jobs[p].client, float("inf")), -p), default=None)

    # Workers.

    def _start(self) -> _Worker:
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=_work, args=(theirs, self.builder), daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def _replace(self, number: int) -> None:
        gone = self._workers[number]
        gone.process.kill()
        gone.process.join()
        gone.connection.close()
        self._workers[number] = self._start()

    def _send(self, worker: _Worker, job: Job, position: int) -> None:
        """Weights are sent to a worker once, however many jobs share them."""
        key, teacher = self._key(job.weights), None if job.teacher is None else self._key(job.teacher)
        needed = {key} if teacher is None else {key, teacher}
        self._weights = {k: self._weights[k] for k in sorted(needed)}
        news = {k: self._weights[k] for k in needed - worker.has}
        order = _Order(replace(job, weights={}, teacher=None), key, teacher, self.store.load(job.client))
        worker.has, worker.position = needed, position
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it died: waiting for its answer will tell
            worker.connection.send_bytes(pickle.dumps((order, news), protocol=5))

    def _key(self, weights: Weights) -> int:
        for key, known in self._weights.items():
            if known is weights:
                return key
        key = next(self._keys)
        self._weights[key] = weights
        return key


def _received(worker: _Worker) -> _Answer | None:
    """None if the worker died instead."""
    try:
        answer: _Answer = pickle.loads(worker.connection.recv_bytes())
    except (EOFError, OSError):
        return None
    return answer


def _why(process: BaseProcess) -> str:
    code = process.exitcode or 0
    if code < 0:
        return f"signal {-code}; if memory is short, use fewer --workers"
    return f'exit code {code}, for what it printed; a script that starts runs needs `if __name__ == "__main__":`'


# In the worker.


@dataclass
class _OneClient:
    """The store of a worker: the state of the client whose job it does."""

    state: ClientState = field(default_factory=ClientState)

    def load(self, client: int) -> ClientState:  # noqa: ARG002
        return self.state

    def save(self, client: int, state: ClientState) -> None:  # noqa: ARG002
        self.state = state


def _work(connection: "Connection[bytes, bytes]", builder: Shared[ClientBuilder]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends its workers
    end_with_parent()
    keep_freed_memory()
    torch.set_num_threads(1)
    store = _OneClient()
    client = builder.open().client(store)
    held: dict[int, Weights] = {}
    while True:
        try:
            order, news = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        held = {key: weights for key, weights in (held | news).items() if key in (order.weights, order.teacher)}
        store.state = order.state
        teacher = None if order.teacher is None else held[order.teacher]
        answer: _Answer
        try:
            update = client.run(replace(order.job, weights=held[order.weights], teacher=teacher))
            answer = update, None if store.state is order.state else store.state
        except FedclassError as error:
            error.add_note(traceback.format_exc())
            answer = error
        connection.send_bytes(pickle.dumps(answer, protocol=5))


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
