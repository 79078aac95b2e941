"""Several experiments at once, each in a process of its own."""

import pickle
import queue
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

from fedclass.engines.processes import (
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
from fedclass.experiment.config import Experiment
from fedclass.experiment.launch import cores, left_to_do, run_one
from fedclass.experiment.reuse import key_after
from fedclass.experiment.setup import Setup, prepare
from fedclass.experiment.source_code import listed, of_code, sources
from fedclass.runs.events import Event, RunFinished, TaskStarted
from fedclass.runs.layout import RunDirectory, create
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
    prepared: Callable[[], None] = lambda: None,
) -> dict[int, FedclassError]:
    """Carry out all experiments, or what is left to do of them. `listen` hears each event with the experiment's number.

    Experiments do not know of each other, so results do not depend on how many run at a time. One that fails does not
    stop the others. Returns what went wrong, by the experiment's number.

    workers: cores to use, all by default.  reuse: of experiments that begin in the same way, one learns the first task
    and the others wait for it; cores that are free meanwhile help it.  changed_code: as of `run_one`.  prepared: is
    called once nothing can be wrong any more with any experiment, before the first one is run.
    """
    leave_if_unguarded()
    firsts, files = _prepared(experiments, reuse=reuse, changed_code=changed_code)
    prepared()
    how = {"go_on": True, "reuse": reuse, "changed_code": changed_code}
    total = workers or cores()
    at_a_time = min(total, max(len(set(firsts)), 1))
    each: dict[str, Any] = {"engine": None, "workers": total // at_a_time} if total > at_a_time else {}
    told: Queue[Told] = CONTEXT.Queue()
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
                sent = pickled(experiments[number])
                with signals_later():
                    running[number] = new_process(_work, number, sent, files[number], {**each, **how}, told)
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


def _prepared(
    experiments: Sequence[Launch], *, reuse: bool, changed_code: bool
) -> tuple[list[str], list[Mapping[str, str | None]]]:
    """What each experiment's first task is known by, and its code. All that can be wrong with any comes out here."""
    firsts, files = [], []
    for number, (experiment, root) in enumerate(experiments):
        directory = RunDirectory(root)
        setup: Setup | None
        if directory.config.exists():
            setup, _ = left_to_do(experiment, directory, changed_code=changed_code)
        else:
            setup = prepare(experiment)
        code = of_code(experiment) if setup is None else sources(setup)
        shared = reuse and setup is not None and not code.doubts
        firsts.append(key_after(setup, 1, code) if shared and setup is not None else f"not shared {number}")
        files.append(code.files)
    for _, root in experiments:
        if not RunDirectory(root).config.exists():
            create(root)
    return firsts, files


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
