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
    and the others wait for it; cores that are free meanwhile help it.  changed_code: as in `run_one`.  prepared: is
    called once nothing can be wrong any more with any experiment, before the first one is run.
    """
    leave_if_unguarded()
    firsts, files = _prepared(experiments, reuse=reuse, changed_code=changed_code)
    prepared()
    total = workers or cores()
    at_a_time = min(total, max(len(set(firsts)), 1))
    each: dict[str, Any] = {"engine": None, "workers": total // at_a_time} if total > at_a_time else {}
    runs = _Runs(experiments, firsts, files, {**each, "go_on": True, "reuse": reuse, "changed_code": changed_code})
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

    firsts: what the first task of each is known by.  files: its code.  how: as `run_one` takes it.
    """

    def __init__(
        self,
        experiments: Sequence[Launch],
        firsts: Sequence[str],
        files: Sequence[Mapping[str, str | None]],
        how: dict[str, Any],
    ) -> None:
        self.experiments, self.firsts, self.files, self.how = experiments, firsts, files, how
        self.told: Queue[Told] = CONTEXT.Queue()
        self.waiting = list(range(len(experiments)))
        self.running: dict[int, BaseProcess] = {}
        self.beginning: dict[int, str] = {}  # what those are learning that are in their first task
        self.failures: dict[int, FedclassError] = {}

    def ready(self) -> int | None:
        """The next one whose first task nobody is learning at the moment."""
        return next((number for number in self.waiting if self.firsts[number] not in self.beginning.values()), None)

    def start(self, number: int) -> None:
        self.waiting.remove(number)
        self.beginning[number] = self.firsts[number]
        sent = pickled(self.experiments[number])
        with signals_later():
            self.running[number] = new_process(_work, number, sent, self.files[number], self.how, self.told)

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

    def end(self) -> None:
        """Of whatever still runs."""
        with signals_later():
            for process in self.running.values():
                process.terminate()
        for process in self.running.values():
            process.join()


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
