"""Several experiments at once, each in a process of its own."""

import multiprocessing
import os
import queue
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any, Literal

from fedclass.engines.inprocess import InProcess
from fedclass.engines.processes import Processes
from fedclass.engines.shared import Shared
from fedclass.errors import FedclassError, RunError
from fedclass.experiment.config import Experiment
from fedclass.experiment.runner import run
from fedclass.experiment.setup import prepare
from fedclass.federation.client import chosen_device
from fedclass.federation.store import MemoryStore
from fedclass.runs.events import Event, RunFinished
from fedclass.runs.layout import create

Planned = tuple[Experiment, Path]  # and its run directory
Told = tuple[int, Event | FedclassError]


EngineName = Literal["inprocess", "processes"]


def run_one(
    experiment: Experiment,
    root: Path | str,
    listen: Callable[[Event], None] = lambda _: None,
    *,
    engine: EngineName = "inprocess",
    workers: int | None = None,
) -> dict[str, Any]:
    """Carry out an experiment into a new directory, and return its summary.

    Everything is prepared first, so that a mistake in the recipe leaves no directory behind. The engine "processes"
    uses as many processes as `workers` says, or one per core; a script that asks for it needs the usual
    `if __name__ == "__main__":`, because Python's new processes import the script.
    """
    setup, store = prepare(experiment), MemoryStore()
    if engine == "inprocess":
        return run(setup, InProcess(setup.client(store)), create(Path(root)), listen)
    shared = Shared(setup)
    setup = shared.open()  # lets go of the first copy
    with Processes(shared, store, workers=min(workers or cores(), setup.stream.clients)) as pool:
        return run(setup, pool, create(Path(root)), listen)


def usual_engine(experiment: Experiment) -> EngineName:
    """All cores, if there are several; several processes on one GPU would only be in each other's way."""
    on_cpu = chosen_device(experiment.train.device).type == "cpu"
    return "processes" if on_cpu and cores() > 1 else "inprocess"


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_all(
    experiments: Sequence[Planned], *, workers: int, listen: Callable[[int, Event], None]
) -> dict[int, FedclassError]:
    """Carry out all experiments. `listen` hears of each event, with the experiment's number.

    Experiments do not know of each other, so results do not depend on how many run at a time. One that fails does not
    stop the others. Returns what went wrong, by the experiment's number.
    """
    for experiment, _ in experiments:
        prepare(experiment)
    for folder in dict.fromkeys(root.parent for _, root in experiments):
        create(folder)
    for _, root in experiments:
        create(root)
    spawn = multiprocessing.get_context("spawn")
    told: Queue[Told] = spawn.Queue()
    waiting = deque(enumerate(experiments))
    running: dict[int, BaseProcess] = {}
    failures: dict[int, FedclassError] = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                number, planned = waiting.popleft()
                running[number] = spawn.Process(target=_work, args=(number, planned, told), daemon=True)
                running[number].start()
            gone = [number for number, process in running.items() if process.exitcode is not None]
            try:
                number, message = told.get(timeout=0.2)
            except queue.Empty:
                for number in gone:  # whatever it had to say has been heard by now
                    code = running.pop(number).exitcode
                    failures[number] = RunError(f"{experiments[number][1]}: its process ended early, with code {code}")
                continue
            if isinstance(message, FedclassError):
                failures[number] = message
            else:
                listen(number, message)
            if isinstance(message, FedclassError | RunFinished):
                running.pop(number).join()
    finally:
        for process in running.values():
            process.terminate()
            process.join()
    return failures


def _work(number: int, planned: Planned, told: "Queue[Told]") -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends its children
    parent = multiprocessing.parent_process()

    def tell(event: Event) -> None:
        if parent is None or not parent.is_alive():
            sys.exit("fedclass: the process that started this run is gone; the run stops here")
        told.put((number, event))

    try:
        run_one(*planned, tell)
    except FedclassError as error:
        told.put((number, error))
