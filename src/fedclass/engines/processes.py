"""Clients' jobs on all cores: a pool of processes with one thread and one resident model each."""

import bisect
import contextlib
import itertools
import time
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Protocol, Self

import torch

from fedclass.engines.channel import Channel
from fedclass.engines.shared import Shared
from fedclass.engines.starting import (
    CONTEXT,
    check_guarded,
    end_with_parent,
    ignore_interrupts,
    keep_freed_memory,
    new_process,
    signals_later,
)
from fedclass.errors import ClientError, FedclassError
from fedclass.federation.client import Client
from fedclass.federation.evaluate import Counts, Part
from fedclass.federation.store import ClientState, ClientStore
from fedclass.models.incremental import IncrementalModel
from fedclass.usercode import Noticed, noticed, take_note, watching
from fedclass.wire import Job, Update, Weights

AHEAD = 64  # jobs given out before the oldest of them is done; that many updates wait in memory at most
TRIES = 3  # for a job whose worker dies
QUEUE = 2  # jobs a worker may have: the one it does, and one to go on with until this process has received the first
SHORT = 0.5  # seconds; a worker with longer jobs gets one at a time, so that all end together
SHARED = ("weights", "teacher", "broadcast")  # fields of jobs that hold tensors which many of them share


CONTEXT.set_forkserver_preload([__name__])  # new processes find torch imported


class ClientBuilder(Protocol):
    """What a worker makes its client from; arrives through `Shared`."""

    def client(self, store: ClientStore) -> Client: ...
    def counted(self, part: Part, model: IncrementalModel) -> Counts: ...


@dataclass(frozen=True)
class _Order:
    """What a worker is sent: a job without its tensors, their keys by the job's fields, and the client's state."""

    job: Job | Part
    keys: dict[str, int]
    state: ClientState


# The client's state, if it changed, and what was noticed of the user's code.
_Answer = tuple[Update | Counts, ClientState | None, Noticed] | FedclassError


@dataclass
class _Worker:
    process: BaseProcess
    channel: Channel
    has: set[int] = field(default_factory=set)  # keys of the weights it will hold after its last job
    positions: deque[int] = field(default_factory=deque)  # of its jobs among those of the round; it does the first
    began: float = 0.0  # when it began that one
    took: float = float("inf")  # seconds, the one before


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
        try:
            for _ in range(self.count):
                with signals_later():
                    self._workers.append(self._start())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def run(self, jobs: Sequence[Job]) -> Iterator[Update]:
        for update in self._done(jobs):
            assert isinstance(update, Update)
            yield update

    def test(self, parts: Sequence[Part]) -> Iterator[Counts]:
        for counts in self._done(parts):
            assert not isinstance(counts, Update)
            yield counts

    def _done(self, jobs: Sequence[Job | Part]) -> Iterator[Update | Counts]:
        """What comes of each, in their order."""
        for number, worker in enumerate(self._workers):
            if worker.positions:  # of a round whose updates nobody waited for
                self._replace(number)
        waiting = list(range(len(jobs)))
        tries = [0] * len(jobs)
        done: dict[int, Update | Counts] = {}
        following = 0  # position of what is to be handed on next
        while following < len(jobs):
            self._give_out(jobs, waiting, following)
            heard = wait([worker.channel.connection for worker in self._workers if worker.positions])
            for number, worker in enumerate(self._workers):
                if worker.channel.connection not in heard:
                    continue
                position = worker.positions[0]
                job = jobs[position]
                answer = _received(worker)
                if answer is None:
                    self._replace(number)
                    check_guarded(worker.process.exitcode)
                    tries[position] += 1
                    if tries[position] == TRIES:
                        raise ClientError(f"{job.where}: its worker died {TRIES} times ({_why(worker.process)})")
                    for lost in worker.positions:
                        bisect.insort(waiting, lost)
                elif isinstance(answer, FedclassError):
                    raise answer
                else:
                    worker.positions.popleft()
                    worker.took = time.perf_counter() - worker.began
                    worker.began += worker.took
                    done[position], state, seen = answer
                    take_note(seen)
                    self._remember(job, done[position], state)
            while following in done:
                yield done.pop(following)
                following += 1

    def _remember(self, job: Job | Part, outcome: Update | Counts, state: ClientState | None) -> None:
        if isinstance(job, Job) and isinstance(outcome, Update):
            if state is not None:
                self.store.save(job.client, state)
            self._samples[job.client] = outcome.metrics.get("samples", 0.0)

    def _give_out(self, jobs: Sequence[Job | Part], waiting: list[int], following: int) -> None:
        """A job to every worker without one, then a second one to those with short jobs, but not the last ones."""
        for length in range(QUEUE):
            for worker in self._workers:
                ready = length == 0 or (worker.took < SHORT and len(waiting) > len(self._workers))
                if len(worker.positions) > length or not ready:
                    continue
                chosen = self._choice(jobs, waiting, following)
                if chosen is None:
                    return
                waiting.remove(chosen)
                self._send(worker, jobs[chosen], chosen)

    def _choice(self, jobs: Sequence[Job | Part], waiting: Sequence[int], following: int) -> int | None:
        """The longest job in reach, as far as is known from the client's last one, so that all workers end together."""

        def length(position: int) -> float:
            job = jobs[position]
            return self._samples.get(job.client, float("inf")) if isinstance(job, Job) else 0.0  # parts are all alike

        within = itertools.takewhile(lambda position: position < following + AHEAD, waiting)
        return max(within, key=lambda position: (length(position), -position), default=None)

    # Workers.

    def _start(self) -> _Worker:
        ours, theirs = Channel.pair(QUEUE)
        process = new_process(_work, theirs, self.builder, daemon=True)
        theirs.connection.close()  # its files are ours too
        return _Worker(process, ours)

    def _replace(self, number: int) -> None:
        with signals_later():
            gone, self._workers[number] = self._workers[number], self._start()
            gone.process.kill()
            gone.process.join()
            gone.channel.close()

    def _end(self) -> None:
        with signals_later():
            for worker in self._workers:
                worker.process.kill()
            for worker in self._workers:
                worker.process.join()
                worker.channel.close()
            self._workers = []

    def _send(self, worker: _Worker, job: Job | Part, position: int) -> None:
        """Weights, teacher and broadcast are sent to a worker once, however many jobs share them.

        An evaluation comes between two rounds: what they share, such as the teacher, stays where it is.
        """
        shared = {name: tensors for name in SHARED if (tensors := getattr(job, name, None))}
        keys = {name: self._key(tensors) for name, tensors in shared.items()}
        needed = set(keys.values())
        news = {k: self._weights[k] for k in needed - worker.has}
        if isinstance(job, Job):
            self._weights = {k: self._weights[k] for k in sorted(needed)}
            worker.has = needed
        else:
            worker.has = needed | worker.has
        state = self.store.load(job.client) if isinstance(job, Job) else ClientState()
        bare: Any = {name: {} for name in shared}
        order = _Order(replace(job, **bare), keys, state)
        if not worker.positions:
            worker.began = time.perf_counter()
        worker.positions.append(position)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it died: waiting for its answer will tell
            worker.channel.send((order, news))

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
        answer: _Answer = worker.channel.receive()
    except (EOFError, OSError):
        return None
    return answer


def _why(process: BaseProcess) -> str:
    code = process.exitcode or 0
    if code < 0:
        return f"signal {-code}; if memory is short, use fewer workers"
    return f"exit code {code}; its output says why"


# In the worker.


@dataclass
class _OneClient:
    """The store of a worker: the state of the client whose job it does."""

    state: ClientState = field(default_factory=ClientState)

    def load(self, client: int) -> ClientState:  # noqa: ARG002
        return self.state

    def save(self, client: int, state: ClientState) -> None:  # noqa: ARG002
        self.state = state


def _work(channel: Channel, builder: Shared[ClientBuilder]) -> None:
    ignore_interrupts()
    end_with_parent()
    keep_freed_memory()
    torch.set_num_threads(1)
    store = _OneClient()
    built = builder.open()
    client = built.client(store)
    held: dict[int, Weights] = {}
    while True:
        try:
            order, news = channel.receive()
        except (EOFError, ConnectionResetError):  # whoever gives out jobs is gone
            return
        held |= news
        if isinstance(order.job, Job):
            held = {key: tensors for key, tensors in held.items() if key in order.keys.values()}
        store.state = order.state
        job = replace(order.job, **{field: held[key] for field, key in order.keys.items()})
        answer: _Answer
        try:
            with watching():
                done = client.run(job) if isinstance(job, Job) else built.counted(job, client.model)
            answer = done, None if store.state is order.state else store.state, noticed()
        except FedclassError as error:
            error.add_note(traceback.format_exc())
            answer = error
        try:
            channel.send(answer)
        except (BrokenPipeError, ConnectionResetError):
            return
