"""Several experiments at once, each in a process of its own."""

import os
import pickle
import queue
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any, Literal

from fedclass.engines.inprocess import InProcess
from fedclass.engines.processes import (
    CONTEXT,
    Processes,
    check_guarded,
    end_with_parent,
    ignore_interrupts,
    keep_freed_memory,
    leave_if_unguarded,
    new_process,
    signals_later,
)
from fedclass.engines.shared import Shared
from fedclass.errors import FedclassError, RunError
from fedclass.experiment.checkpoint import Checkpoints
from fedclass.experiment.config import Experiment
from fedclass.experiment.resume import check_config, check_data, check_places
from fedclass.experiment.reuse import Reuse, key_after, usual_store
from fedclass.experiment.runner import run
from fedclass.experiment.setup import Setup, prepare
from fedclass.experiment.source_code import check_code, listed, of_code, sources
from fedclass.federation.client import chosen_device
from fedclass.federation.store import MemoryStore
from fedclass.runs.events import Event, RunFinished, TaskStarted, Warned, read_events
from fedclass.runs.layout import RunDirectory, create
from fedclass.runs.summary import Result
from fedclass.usercode import watching

CONTEXT.set_forkserver_preload([__name__])  # new processes find all of this imported

Launch = tuple[Experiment, Path]  # and its run directory
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
    changed_code: bool = False,
) -> dict[str, Any]:
    """Carry out an experiment into a directory, and return its summary.

    Everything is prepared first, so that a mistake in the recipe leaves no directory behind. The engine "processes"
    uses as many processes as `workers` says, or one per core; a script that asks for it needs the usual
    `if __name__ == "__main__":`, because Python's new processes import the script. None: processes, if worth it.

    go_on: what the directory holds of this experiment is continued, or read if it is finished; otherwise it must be
    new or empty.  reuse: tasks that an earlier run with the same beginning has learned are taken over.  changed_code:
    what the directory holds is taken although code has changed since; such runs say so.
    """
    leave_if_unguarded()
    if engine != "inprocess":
        check_importable(experiment)
    directory = RunDirectory(Path(root))
    setup: Setup | None
    if go_on and directory.config.exists():
        setup, changed = left_to_do(experiment, directory, changed_code=changed_code)
        if setup is None:
            for event in read_events(directory.events):
                listen(event)
            if changed:
                listen(Warned(message=f"{directory.root}: was made by other code: {listed(changed)}"))
            return Result.read(directory.root).summary
    else:
        setup = prepare(experiment)
        create(directory.root)
    store = MemoryStore()

    def done(setup: Setup) -> Reuse | None:
        return Reuse(usual_store(), setup) if reuse else None

    how: dict[str, Any] = {"store": store, "changed_code": changed_code}
    if (engine or usual_engine(setup)) == "inprocess":
        return run(setup, InProcess(setup.client(store)), directory, listen, done=done(setup), **how)
    shared = Shared(setup)
    setup = shared.open()  # lets go of the first copy
    with Processes(shared, store, workers=min(workers or cores(), setup.stream.clients)) as pool:
        return run(setup, pool, directory, listen, done=done(setup), **how)


def check_importable(experiment: Experiment) -> None:
    """Refuse a method or backbone that other processes would look for in vain."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    modules = {type(experiment.method).__module__, experiment.model.name.partition(":")[0]}
    if "__main__" in modules and (file is None or not Path(file).exists()):
        raise RunError(
            "a method or backbone that is typed into Python cannot be imported by other processes; put it into a "
            "module of its own, or carry out its runs one by one, with the engine inprocess"
        )


def left_to_do(
    experiment: Experiment, directory: RunDirectory, *, changed_code: bool
) -> tuple[Setup | None, list[str]]:
    """The experiment that a run directory holds, prepared to go on, or None if it is finished; and which code changed.

    What does not belong together is refused: another recipe, other code, other images. Of a finished run, the images
    are looked at only if they are said to be elsewhere, and the model is built only if it is the user's own.
    """
    moved = check_config(directory, experiment.to_tables())
    if directory.finished and not moved and ":" not in experiment.model.name:
        return None, check_code(directory, of_code(experiment), changed_code=changed_code)
    check_places(directory, experiment)
    setup, changed = prepare(experiment), list[str]()
    if directory.finished or Checkpoints(directory.checkpoints).numbers():
        changed = check_code(directory, sources(setup), changed_code=changed_code)
    if not directory.finished:
        return setup, changed
    if moved:
        check_data(directory, setup)
    return None, changed


def usual_engine(setup: Setup) -> EngineName:
    """All cores, if there are several and the work is worth starting processes; not on a GPU, where they would wait."""
    train = setup.experiment.train
    share = setup.experiment.server.participation
    images = sum(map(len, setup.stream.shares)) * train.local_epochs * train.rounds * share
    on_cpu = chosen_device(train.device).type == "cpu"
    return "processes" if on_cpu and cores() > 1 and images >= WORTH_PROCESSES else "inprocess"


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
                pickled = pickle.dumps(experiments[number])
                with signals_later():
                    running[number] = new_process(_work, number, pickled, files[number], {**each, **how}, told)
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
        check_importable(experiment)
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
