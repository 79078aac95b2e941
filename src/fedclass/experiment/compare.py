"""Several experiments at once, each in a process of its own."""

import multiprocessing
import os
import queue
import signal
import sys
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any, Literal

from fedclass.engines.inprocess import InProcess
from fedclass.engines.processes import (
    Processes,
    end_with_parent,
    ignore_interrupts,
    keep_freed_memory,
    signals_later,
)
from fedclass.engines.shared import Shared
from fedclass.errors import FedclassError, RunError
from fedclass.experiment.config import Experiment
from fedclass.experiment.resume import check_config
from fedclass.experiment.reuse import key_after, usual_store
from fedclass.experiment.runner import run
from fedclass.experiment.setup import Setup, prepare
from fedclass.federation.client import chosen_device
from fedclass.federation.store import MemoryStore
from fedclass.runs.events import Event, RunFinished, TaskStarted, read_events
from fedclass.runs.layout import RunDirectory, create
from fedclass.runs.results import Result

Planned = tuple[Experiment, Path]  # and its run directory
Told = tuple[int, Event | FedclassError | None]  # None: all is written


EngineName = Literal["inprocess", "processes"]
WORTH_PROCESSES = 10_000  # images to train on: some 20 s of one core, when to start a process takes 3 s


def run_one(
    experiment: Experiment,
    root: Path | str,
    listen: Callable[[Event], None] = lambda _: None,
    *,
    engine: EngineName | None = "inprocess",
    workers: int | None = None,
    go_on: bool = False,
    reuse: bool = False,
) -> dict[str, Any]:
    """Carry out an experiment into a directory, and return its summary.

    Everything is prepared first, so that a mistake in the recipe leaves no directory behind. The engine "processes"
    uses as many processes as `workers` says, or one per core; a script that asks for it needs the usual
    `if __name__ == "__main__":`, because Python's new processes import the script. None: processes, if worth it.

    go_on: what the directory holds of this experiment is continued, or read if it is finished; otherwise it must be
    new or empty.  reuse: tasks that an earlier run with the same beginning has learned are taken over.
    """
    directory = RunDirectory(Path(root))
    if go_on and directory.config.exists():
        check_config(directory, experiment.to_tables())
        if directory.finished:
            for event in read_events(directory.events):
                listen(event)
            return Result.read(directory.root).summary
        setup = prepare(experiment)
    else:
        setup = prepare(experiment)
        create(directory.root)
    store, done = MemoryStore(), usual_store() if reuse else None
    if (engine or usual_engine(setup)) == "inprocess":
        return run(setup, InProcess(setup.client(store)), directory, listen, store=store, done=done)
    shared = Shared(setup)
    setup = shared.open()  # lets go of the first copy
    with Processes(shared, store, workers=min(workers or cores(), setup.stream.clients)) as pool:
        return run(setup, pool, directory, listen, store=store, done=done)


def usual_engine(setup: Setup) -> EngineName:
    """All cores, if there are several and the work is worth starting processes; not on a GPU, where they would wait."""
    train = setup.experiment.train
    images = sum(map(len, setup.stream.shares)) * train.local_epochs * train.rounds * train.participation
    on_cpu = chosen_device(train.device).type == "cpu"
    return "processes" if on_cpu and cores() > 1 and images >= WORTH_PROCESSES else "inprocess"


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_all(
    experiments: Sequence[Planned],
    *,
    workers: int | None = None,
    listen: Callable[[int, Event], None],
    reuse: bool = False,
) -> dict[int, FedclassError]:
    """Carry out all experiments, or what is left to do of them. `listen` hears each event with the experiment's number.

    Experiments do not know of each other, so results do not depend on how many run at a time. One that fails does not
    stop the others. Returns what went wrong, by the experiment's number.

    workers: cores to use, all by default.  reuse: of experiments that begin in the same way, one learns the first task
    and the others wait for it; cores that are free meanwhile help it.
    """
    firsts = _prepared(experiments, reuse)
    total = workers or cores()
    at_a_time = min(total, max(len(set(firsts)), 1))
    each: dict[str, Any] = {"engine": None, "workers": total // at_a_time} if total > at_a_time else {}
    spawn = multiprocessing.get_context("spawn")
    told: Queue[Told] = spawn.Queue()
    waiting = list(range(len(experiments)))
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
                arguments = (number, experiments[number], {**each, "go_on": True, "reuse": reuse}, told)
                process: BaseProcess = spawn.Process(target=_work, args=arguments)
                with signals_later():
                    process.start()
                    running[number] = process
                continue
            gone = [number for number, process in running.items() if process.exitcode is not None]
            try:
                number, message = told.get(timeout=0.2)
            except queue.Empty:
                for number in gone:  # whatever it had to say has been heard by now
                    code = running.pop(number).exitcode
                    beginning.pop(number, None)
                    failures[number] = RunError(f"{experiments[number][1]}: its process ended early, with code {code}")
                continue
            if message is None or isinstance(message, FedclassError):
                running.pop(number).join()
                beginning.pop(number, None)
                if message is not None:
                    failures[number] = message
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


def _prepared(experiments: Sequence[Planned], reuse: bool) -> list[str]:
    """What each experiment's first task is known by. All that can be wrong with any experiment comes out here."""
    firsts = []
    for number, (experiment, root) in enumerate(experiments):
        directory = RunDirectory(root)
        if directory.config.exists():
            check_config(directory, experiment.to_tables())
        if directory.finished:
            firsts.append(f"finished {number}")
        else:
            setup = prepare(experiment)
            firsts.append(key_after(setup, 1) if reuse else f"not shared {number}")
    for _, root in experiments:
        if not RunDirectory(root).config.exists():
            create(root)
    return firsts


def _work(number: int, planned: Planned, how: dict[str, Any], told: "Queue[Told]") -> None:
    def stop(*_: object) -> None:
        told.cancel_join_thread()  # nobody listens any more
        sys.exit(143)  # unwinds, so that its own workers are ended in order

    signal.signal(signal.SIGTERM, stop)
    ignore_interrupts()
    end_with_parent()
    keep_freed_memory()
    try:
        run_one(*planned, lambda event: told.put((number, event)), **how)
        told.put((number, None))
    except FedclassError as error:
        told.put((number, error))
