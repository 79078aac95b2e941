"""Several experiments at once, each in a process of its own."""

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
from fedclass.experiment.launch import cores, left_to_do, run_one
from fedclass.experiment.reuse import key_after, usual_store
from fedclass.experiment.setup import Setup, prepare
from fedclass.experiment.source_code import Sources, listed, of_code, sources
from fedclass.runs.events import Event, RoundFinished, RunFinished, TaskFinished, TaskStarted, read_events
from fedclass.runs.layout import RunDirectory, create
from fedclass.runs.outlook import Outlook
from fedclass.usercode import pickled, watching

Launch = tuple[Experiment, Path]  # and its run directory
Told = tuple[int, Event | FedclassError | None]  # None: all is written


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
    """Carry out all experiments, or what is left to do of them. `listen` hears each event with the experiment's number.

    Experiments do not know of each other, so results do not depend on how many run at a time. One that fails does not
    stop the others. Returns what went wrong, by the experiment's number.

    workers: cores to use, all by default.  reuse: of experiments that begin in the same way, one learns the first task
    and the others wait for it; cores that are free meanwhile help it.  changed_code: as in `run_one`.  until: so
    too, for each of them.  prepared: is called once nothing can be wrong any more with any experiment, before the first
    one is run, with what is left to do of each.  failed: is called with the number of one that fails.
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
    """Experiments that wait, run in a process each, or have failed, by number.

    stages: how each stands before it is run.  how: as `run_one` takes it.  failed: hears the number of one that fails.
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
        self.beginning: dict[int, str] = {}  # what those are learning that are in their first task
        self.failures: dict[int, FedclassError] = {}

    def ready(self) -> int | None:
        """The next one whose first task nobody is learning at the moment."""
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
        """The next message; if there is none for a while, the end of processes that will send none any more."""
        gone = [number for number, process in self.running.items() if process.exitcode is not None]
        try:
            number, message = self.told.get(timeout=0.2)
        except queue.Empty:
            for number in gone:  # whatever it had to say has been heard by now
                self._died(number)
            return
        if message is None or isinstance(message, FedclassError):
            self.running.pop(number).join()
            self._over(number, message)
            return
        listen(number, message)
        if isinstance(message, RunFinished) or (isinstance(message, TaskStarted) and message.task > 0):
            self.beginning.pop(number, None)

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
        """Of whatever still runs."""
        with signals_later():
            for process in self.running.values():
                process.terminate()
        for process in self.running.values():
            process.join()


@dataclass(frozen=True)
class Prospect:
    """An experiment before it is run. first: what its first task is known by.  files: its code."""

    first: str
    files: Mapping[str, str | None]
    outlook: Outlook


def prospects(
    experiments: Sequence[Launch], *, reuse: bool, changed_code: bool, until: Sequence[int] | None = None
) -> Iterator[tuple[Prospect, Setup | None]]:
    """What there is to do for each experiment, and its set-up, if it is not finished.

    All that can be wrong with any comes out here; nothing is written.
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
    """How many tasks, from the first on, earlier runs have left."""
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
    """How far a run is by its own events."""
    if not Checkpoints(directory.checkpoints).numbers():
        return {}
    events = list(read_events(directory.events))
    done = [event.task * rounds + event.round + 1 for event in events if isinstance(event, RoundFinished)]
    return {"done": max(done, default=0), "ended": sum(isinstance(event, TaskFinished) for event in events)}


def _work(number: int, sent: bytes, files: Mapping[str, str | None], how: dict[str, Any], told: "Queue[Told]") -> None:
    """files: the code when all experiments were prepared. A process imports it anew, perhaps hours later."""

    def stop(*_: object) -> None:
        told.cancel_join_thread()  # nobody listens any more
        sys.exit(143)  # unwinds, so that its own workers are ended in order

    signal.signal(signal.SIGTERM, stop)
    ignore_interrupts()
    end_with_parent()
    keep_freed_memory()
    try:
        with watching():
            launch: Launch = pickle.loads(sent)
        now = of_code(launch[0]).files
        if changed := sorted(name for name in {*files, *now} if files.get(name) != now.get(name)):
            raise RunError(f"{launch[1]}: {listed(changed)}: changed since the first runs began; start all of it again")
        run_one(*launch, lambda event: told.put((number, event)), **how)
        told.put((number, None))
    except FedclassError as error:
        told.put((number, error))
