"""Several experiments at once, each in its own process."""

import pickle
import queue
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

from fedclass.data.memory import exemplar_counts
from fedclass.engines.starting import (
    CONTEXT,
    check_guarded,
    cores,
    end_with_parent,
    ignore_interrupts,
    keep_freed_memory,
    leave_if_unguarded,
    new_process,
    signals_later,
)
from fedclass.errors import FedclassError, RunError
from fedclass.experiment.checkpoint import Checkpoints
from fedclass.experiment.config import Experiment
from fedclass.experiment.launch import left_to_do, run_one
from fedclass.experiment.reuse import key_after, usual_store
from fedclass.experiment.setup import Setup, prepare
from fedclass.experiment.source_code import Sources, listed, of_code, sources
from fedclass.runs.events import Event, RoundFinished, RunFinished, TaskFinished, TaskStarted, read_events
from fedclass.runs.layout import RunDirectory, create
from fedclass.runs.outlook import Outlook
from fedclass.usercode import pickled, watching

Launch = tuple[Experiment, Path]  # and its run directory
Told = tuple[int, Event | FedclassError | None]  # None: finished


def run_all(
    experiments: Sequence[Launch],
    *,
    workers: int | None = None,
    listen: Callable[[int, Event], None],
    reuse: bool = False,
    changed_code: bool = False,
    until: Sequence[int] | None = None,
    prepared: Callable[[Sequence[Outlook]], None] = lambda _: None,
    failed: Callable[[int], None] = lambda _: None,
) -> dict[int, FedclassError]:
    """Carry out all experiments, or the rest of them. `listen` gets each event with the experiment's number.

    Experiments are independent, so results do not depend on how many run at a time. One that fails does not stop the
    others. Returns the errors, by the experiment's number.

    workers: cores to use, by default all.  reuse: if several experiments begin in the same way, one learns the first
    task and the others wait for it; idle cores help it.  changed_code: as in `run_one`.  until: as in `run_one`, for
    each experiment.  prepared: called with what is left to do of each, once all have been checked and before the first
    one runs.  failed: called with the number of each experiment that fails.
    """
    leave_if_unguarded()
    stages = [prospect for prospect, _ in prospects(experiments, reuse=reuse, changed_code=changed_code, until=until)]
    for _, root in experiments:
        if not RunDirectory(root).config.exists():
            create(root)
    prepared([stage.outlook for stage in stages])
    total = workers or cores()
    at_a_time = min(total, max(len({stage.first for stage in stages}), 1))
    each: dict[str, Any] = {"engine": None, "workers": total // at_a_time} if total > at_a_time else {}
    runs = _Runs(experiments, stages, {**each, "go_on": True, "reuse": reuse, "changed_code": changed_code}, failed)
    try:
        while runs.waiting or runs.running:
            if (number := runs.ready()) is not None and len(runs.running) < total:
                runs.start(number)
            else:
                runs.hear(listen)
    finally:
        runs.end()
    return runs.failures


class _Runs:
    """Experiments by number: waiting, running in a process each, or failed.

    stages: what is known of each before it runs.  how: keyword arguments of `run_one`.  failed: called with the number
    of each that fails.
    """

    def __init__(
        self,
        experiments: Sequence[Launch],
        stages: "Sequence[Prospect]",
        how: dict[str, Any],
        failed: Callable[[int], None],
    ) -> None:
        self.experiments, self.stages, self.how, self.failed = experiments, stages, how, failed
        self.told: Queue[Told] = CONTEXT.Queue()
        self.waiting = [number for number, stage in enumerate(stages) if not stage.outlook.reached]
        self.running: dict[int, BaseProcess] = {}
        self.beginning: dict[int, str] = {}  # keys of first tasks being learned, by experiment
        self.failures: dict[int, FedclassError] = {}

    def ready(self) -> int | None:
        """The next experiment whose first task is not being learned by another one."""
        begun = self.beginning.values()
        return next((number for number in self.waiting if self.stages[number].first not in begun), None)

    def start(self, number: int) -> None:
        self.waiting.remove(number)
        stage = self.stages[number]
        self.beginning[number] = stage.first
        sent, how = pickled(self.experiments[number]), {**self.how, "until": stage.outlook.until}
        with signals_later():
            self.running[number] = new_process(_work, number, sent, stage.files, how, self.told)

    def hear(self, listen: Callable[[int, Event], None]) -> None:
        """Handle the next message; if none comes for a while, handle processes that have died."""
        gone = [number for number, process in self.running.items() if process.exitcode is not None]
        told = self._told()
        if told is None:
            for number in gone:  # all its messages have been handled
                self._died(number)
            return
        number, message = told
        if message is None or isinstance(message, FedclassError):
            self.running.pop(number).join()
            self._over(number, message)
            return
        listen(number, message)
        if isinstance(message, RunFinished) or (isinstance(message, TaskStarted) and message.task > 0):
            self.beginning.pop(number, None)

    def _told(self) -> Told | None:
        try:
            return self.told.get(timeout=0.2)
        except queue.Empty:
            return None

    def _died(self, number: int) -> None:
        code = self.running.pop(number).exitcode
        check_guarded(code)
        self._over(number, RunError(f"{self.experiments[number][1]}: its process ended early, with code {code}"))

    def _over(self, number: int, failure: FedclassError | None) -> None:
        self.beginning.pop(number, None)
        if failure is not None:
            self.failures[number] = failure
            self.failed(number)

    def end(self) -> None:
        """Terminate the processes that still run."""
        with signals_later():
            for process in self.running.values():
                process.terminate()
        for process in self.running.values():
            process.join()


@dataclass(frozen=True)
class Prospect:
    """An experiment before it runs. first: the key of its first task.  files: its code."""

    first: str
    files: Mapping[str, str | None]
    outlook: Outlook


def prospects(
    experiments: Sequence[Launch], *, reuse: bool, changed_code: bool, until: Sequence[int] | None = None
) -> Iterator[tuple[Prospect, Setup | None]]:
    """What is left to do of each experiment, and its set-up, if it is not finished.

    Every mistake in an experiment is found here; nothing is written.
    """
    seen = set[str]()
    for number, (experiment, root) in enumerate(experiments):
        directory = RunDirectory(root)
        setup: Setup | None
        if directory.config.exists():
            setup, _ = left_to_do(experiment, directory, changed_code=changed_code)
        else:
            setup = prepare(experiment)
        code = of_code(experiment) if setup is None else sources(setup)
        shared = reuse and setup is not None and not code.doubts
        first = key_after(setup, 1, code) if shared and setup is not None else f"not shared {number}"
        outlook = Outlook((), 0, until=None if until is None else until[number])
        if setup is not None:
            outlook = Outlook(
                images_seen(setup),
                experiment.train.rounds,
                **_progress(directory, experiment.train.rounds),
                cached=_cached(setup, code) if shared else 0,
                shared=first in seen,
                until=None if until is None else until[number],
            )
        seen.add(first)
        yield Prospect(first, code.files, outlook), setup


def _cached(setup: Setup, code: Sources) -> int:
    """How many tasks, counted from the first, are in the cache."""
    store, tasks = usual_store(), len(setup.stream.task_sizes)
    return next((n for n in range(tasks) if not store.holds(key_after(setup, n + 1, code))), tasks)


def images_seen(setup: Setup) -> tuple[int, ...]:
    """About how many images clients train on in each task, over all rounds and epochs, exemplars included."""
    e, stream, counts = setup.experiment, setup.stream, setup.stream.counts()
    kept = exemplar_counts(e.memory, counts, stream.task_sizes, offered=stream.offered).sum(axis=0)
    replay = e.method.declare().replay
    seen = []
    for task in range(len(stream.task_sizes)):
        new = stream.new_classes(task)
        before = {"all": counts[:, : new.start].sum(), "none": 0}.get(replay, kept[task - 1] if task else 0)
        passes = e.train.rounds * e.train.local_epochs * e.server.participation
        seen.append(round(float(passes * (counts[:, new.start : new.stop].sum() + before))))
    return tuple(seen)


def _progress(directory: RunDirectory, rounds: int) -> dict[str, int]:
    """How far a run has got, according to its events."""
    if not Checkpoints(directory.checkpoints).numbers():
        return {}
    events = list(read_events(directory.events))
    done = [event.task * rounds + event.round + 1 for event in events if isinstance(event, RoundFinished)]
    return {"done": max(done, default=0), "ended": sum(isinstance(event, TaskFinished) for event in events)}


def _work(number: int, sent: bytes, files: Mapping[str, str | None], how: dict[str, Any], told: "Queue[Told]") -> None:
    """files: the code as all experiments were prepared. A process imports it again, perhaps hours later."""

    def stop(*_: object) -> None:
        told.cancel_join_thread()  # the parent no longer listens
        sys.exit(143)  # unwinds, so that its own workers are terminated in order

    signal.signal(signal.SIGTERM, stop)
    ignore_interrupts()
    end_with_parent()
    keep_freed_memory()
    try:
        with watching():
            launch: Launch = pickle.loads(sent)
        now = of_code(launch[0]).files
        if changed := sorted(name for name in {*files, *now} if files.get(name) != now.get(name)):
            if unknown := [name for name in changed if name in files and files[name] is None]:
                raise RunError(
                    f"{launch[1]}: {listed(unknown)}: edited after it was imported, or written since Python was "
                    "started: restart Python (in a notebook, its kernel), and start again"
                )
            raise RunError(f"{launch[1]}: {listed(changed)}: changed since the first runs began; start again")
        run_one(*launch, lambda event: told.put((number, event)), **how)
        told.put((number, None))
    except FedclassError as error:
        told.put((number, error))
