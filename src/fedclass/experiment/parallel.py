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
from fedclass.experiment.launch import check_importable, cores, left_to_do, run_one
from fedclass.experiment.reuse import key_after, usual_store
from fedclass.experiment.setup import Setup, prepare
from fedclass.experiment.source_code import Sources, listed, of_code, sources
from fedclass.runs.events import Event, RoundFinished, RunFinished, TaskFinished, TaskStarted, read_events
from fedclass.runs.layout import RunDirectory, create
from fedclass.runs.outlook import Outlook
from fedclass.usercode import watching

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
    and the others wait for it; cores that are free meanwhile help it.  changed_code: as of `run_one`.  until: so
    too, for each of them.  prepared: is called once nothing can be wrong any more with any experiment, before the first
    one is run, with what is left to do of each.  failed: is called with the number of one that fails.
    """
    leave_if_unguarded()
    found = prospects(experiments, reuse=reuse, changed_code=changed_code, until=until)
    stages = [prospect for prospect, _ in found]
    firsts = [stage.first for stage in stages]
    for _, root in experiments:
        if not RunDirectory(root).config.exists():
            create(root)
    prepared([stage.outlook for stage in stages])
    how = {"go_on": True, "reuse": reuse, "changed_code": changed_code}
    total = workers or cores()
    at_a_time = min(total, max(len(set(firsts)), 1))
    each: dict[str, Any] = {"engine": None, "workers": total // at_a_time} if total > at_a_time else {}
    told: Queue[Told] = CONTEXT.Queue()
    waiting = [number for number, stage in enumerate(stages) if not stage.outlook.reached]
    running: dict[int, BaseProcess] = {}
    beginning: dict[int, str] = {}  # what those are learning that are in their first task
    failures: dict[int, FedclassError] = {}
    try:
        while waiting or running:
            ready = [number for number in waiting if firsts[number] not in beginning.values()]
            if ready and len(running) < total:
                number = ready[0]
                waiting.remove(number)
                beginning[number] = firsts[number]
                pickled = pickle.dumps(experiments[number])
                own = {**each, **how, "until": None if until is None else until[number]}
                with signals_later():
                    running[number] = new_process(_work, number, pickled, stages[number].files, own, told)
                continue
            gone = [number for number, process in running.items() if process.exitcode is not None]
            try:
                number, message = told.get(timeout=0.2)
            except queue.Empty:
                for number in gone:  # whatever it had to say has been heard by now
                    code = running.pop(number).exitcode
                    check_guarded(code)
                    beginning.pop(number, None)
                    failures[number] = RunError(f"{experiments[number][1]}: its process ended early, with code {code}")
                    failed(number)
                continue
            if message is None or isinstance(message, FedclassError):
                running.pop(number).join()
                beginning.pop(number, None)
                if message is not None:
                    failures[number] = message
                    failed(number)
                continue
            listen(number, message)
            if isinstance(message, RunFinished) or (isinstance(message, TaskStarted) and message.task > 0):
                beginning.pop(number, None)
    finally:
        with signals_later():
            for process in running.values():
                process.terminate()
        for process in running.values():
            process.join()
    return failures


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
        check_importable(experiment)
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


def _work(
    number: int, pickled: bytes, files: Mapping[str, str | None], how: dict[str, Any], told: "Queue[Told]"
) -> None:
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
            launch: Launch = pickle.loads(pickled)
        now = of_code(launch[0]).files
        if changed := sorted(name for name in {*files, *now} if files.get(name) != now.get(name)):
            raise RunError(f"{launch[1]}: {listed(changed)}: changed since the first runs began; start all of it again")
        run_one(*launch, lambda event: told.put((number, event)), **how)
        told.put((number, None))
    except FedclassError as error:
        told.put((number, error))
