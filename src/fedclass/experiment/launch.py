"""One experiment, from its recipe to a finished run directory: started, resumed or only read, on an engine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

from fedclass.engines.inprocess import InProcess
from fedclass.engines.processes import Processes
from fedclass.engines.shared import Shared
from fedclass.engines.starting import CONTEXT, cores, leave_if_unguarded
from fedclass.errors import ConfigError
from fedclass.experiment.checkpoint import Checkpoints
from fedclass.experiment.config import Experiment
from fedclass.experiment.resume import check_config, check_data, check_places
from fedclass.experiment.reuse import Reuse, usual_store
from fedclass.experiment.runner import run
from fedclass.experiment.setup import Setup, prepare
from fedclass.experiment.source_code import check_code, listed, of_code, sources
from fedclass.federation.store import MemoryStore
from fedclass.federation.train_settings import chosen_device
from fedclass.runs.events import Event, Warned, read_events
from fedclass.runs.layout import RunDirectory, create
from fedclass.runs.summary import Result

CONTEXT.set_forkserver_preload([__name__])  # new processes find all of this imported

EngineName = Literal["inprocess", "processes"]
WORTH_PROCESSES = 10_000  # images to train on: about 20 s on one core; a process takes 3 s to start


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
    until: int | None = None,
) -> dict[str, Any]:
    """Carry out an experiment into a directory, and return its summary.

    Everything is prepared first, so that a mistake in the recipe leaves no directory behind. The engine "processes"
    uses as many processes as `workers` says, or one per core; a script that asks for it needs the usual
    `if __name__ == "__main__":`, because Python's new processes import the script. None: processes, if worth it.

    go_on: resume this experiment from the directory, or read it if it is finished; otherwise the directory must be new
    or empty.  reuse: take over tasks that an earlier run with the same beginning has learned.  changed_code: accept
    the directory even if code has changed; the results then say so.  until: stop after this many tasks, to be resumed
    later; an empty summary is returned.
    """
    _check_arguments(experiment, engine, workers)
    leave_if_unguarded()
    directory = RunDirectory(Path(root))
    setup: Setup | None
    if go_on and directory.config.exists():
        setup, changed = left_to_do(experiment, directory, changed_code=changed_code)
        if setup is None:
            for event in read_events(directory.events):
                listen(event)
            if changed:
                listen(Warned(message=f"{directory.root}: was made with other code: {listed(changed)}"))
            return Result.read(directory.root).summary
    else:
        setup = prepare(experiment)
        create(directory.root)
    store = MemoryStore()

    def done(setup: Setup) -> Reuse | None:
        return Reuse(usual_store(), setup) if reuse else None

    how: dict[str, Any] = {"store": store, "changed_code": changed_code, "until": until}
    if (engine or usual_engine(setup)) == "inprocess":
        return run(setup, InProcess(setup.client(store)), directory, listen, done=done(setup), **how)
    shared = Shared(setup)
    setup = shared.open()  # releases the first copy
    with Processes(shared, store, workers=min(workers or cores(), setup.stream.clients)) as pool:
        return run(setup, pool, directory, listen, done=done(setup), **how)


def _check_arguments(experiment: object, engine: str | None, workers: int | None) -> None:
    if not isinstance(experiment, Experiment):
        raise ConfigError(f"experiment: is a {type(experiment).__name__}; fedclass.load makes one from a recipe")
    if engine not in (None, *get_args(EngineName)):
        raise ConfigError(f"engine = {engine!r}: must be one of {', '.join(get_args(EngineName))}, or None")
    if workers is not None and workers < 1:
        raise ConfigError(f"workers = {workers!r}: must be at least 1")


def left_to_do(
    experiment: Experiment, directory: RunDirectory, *, changed_code: bool
) -> tuple[Setup | None, list[str]]:
    """The experiment of a run directory, prepared to be resumed, or None if it is finished; and which code changed.

    Another recipe, other code or other images are refused. For a finished run, images are read only if they are the
    user's own, and the model is built only if it is the user's own.
    """
    moved, data = check_config(directory, experiment.to_tables()), experiment.data
    own = moved or data.path or ":" in data.name or ":" in experiment.model.name
    if directory.finished and not own:
        return None, check_code(directory, of_code(experiment), changed_code=changed_code)
    check_places(directory, experiment)
    setup, changed = prepare(experiment), list[str]()
    if directory.finished or Checkpoints(directory.checkpoints).numbers():
        changed = check_code(directory, sources(setup), changed_code=changed_code)
    if not directory.finished:
        return setup, changed
    check_data(directory, setup)
    return None, changed


def usual_engine(setup: Setup) -> EngineName:
    """Processes, if there are several cores and enough work; not on a GPU, which they would have to share."""
    train = setup.experiment.train
    share = setup.experiment.server.participation
    images = sum(map(len, setup.stream.shares)) * train.local_epochs * train.rounds * share
    on_cpu = chosen_device(train.device).type == "cpu"
    return "processes" if on_cpu and cores() > 1 and images >= WORTH_PROCESSES else "inprocess"
