"""A cache of learned tasks. Everything is seeded, so runs that begin in the same way have the same bits."""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedclass.errors import RunError
from fedclass.experiment.checkpoint import Checkpoints, State
from fedclass.experiment.machine import fingerprint
from fedclass.experiment.setup import Setup, shares_sha256
from fedclass.experiment.source_code import Sources
from fedclass.experiment.task_cache import TaskCache, usual_folder
from fedclass.federation.store import ClientState
from fedclass.federation.train_settings import chosen_device
from fedclass.methods.base import Method
from fedclass.runs.config_file import flat
from fedclass.runs.events import (
    Event,
    EventLog,
    RoundFinished,
    TaskFinished,
    TaskStarted,
    UpdateMissing,
    UpdateRejected,
    Warned,
    read_events,
)
from fedclass.schema import json_sha256

# A key covers the whole recipe except these, which other parts of the key stand for.
APART = {
    "data.title": "a name for tables; it does not affect training",
    "data.path": "the images themselves are hashed",
    "partition.path": "who holds which images is hashed",
    "stream.tasks": "the key has the sizes of the tasks so far; later ones do not matter yet",
    "stream.class_order": "the key has the classes that have arrived, in order",
    "train.device": "the key has its type",
    "memory.select": "the key has the selection that the method uses",
}


@dataclass(frozen=True)
class Reusable:
    """A state with the events that led to it. keys: of the state after each task."""

    state: State
    clients: Mapping[int, ClientState]
    events: Sequence[Event]
    keys: Sequence[str]


class TaskStore(TaskCache):
    """A folder with the states of runs after each of their tasks, by the hash of all that determines them."""

    def longest(self, setup: Setup, code: Sources) -> tuple[Reusable | None, list[str]]:
        """The state after as many tasks as possible, and what is wrong with entries that cannot be used."""
        keys = [key_after(setup, tasks + 1, code) for tasks in range(len(setup.stream.task_sizes))]
        problems: list[str] = []
        for tasks in range(len(keys), 0, -1):
            folder = self.folder / keys[tasks - 1]
            if not folder.exists():
                continue
            log = folder / "events.jsonl"
            try:
                found, events = Checkpoints(folder).load(1), list(read_events(log))
                if log.stat().st_size != found.events:
                    raise RunError(f"{log}: is damaged (its length has changed)")
                return Reusable(found.state, found.clients, events, keys), problems
            except (RunError, OSError) as error:  # OSError: it was removed meanwhile
                problems.append(f"{error}; it is not used (`fedclass cache clear` removes it)")
        return None, problems

    def add(self, setup: Setup, code: Sources, state: State, clients: Mapping[int, ClientState], events: Path) -> None:
        """Keep the state in which the next task would begin, with the events so far."""
        key = key_after(setup, state.task, code)
        if (self.folder / key).exists():
            return
        part = self.folder / f"{key}.{os.getpid()}.part"
        try:
            part.mkdir(parents=True, exist_ok=True)
            with EventLog(part / "events.jsonl") as log:
                for event in _of_the_tasks(read_events(events)):
                    log.write(event)
                length = log.settle()
            e = setup.experiment
            made_with = {
                "method": e.method_name,
                "variant": e.method.variant_name,
                "dataset": setup.stream.data.name,
                "tasks": list(setup.stream.task_sizes[: state.task]),
                "seed": e.seed,
            }
            Checkpoints(part).save(state, clients, changes=0, events=length, made_with=made_with)
            part.rename(self.folder / key)
        except OSError:
            shutil.rmtree(part, ignore_errors=True)
            if not (self.folder / key).exists():  # another run may have been quicker
                raise


def usual_store() -> TaskStore:
    return TaskStore(usual_folder())


OF_TASKS = TaskStarted | RoundFinished | UpdateMissing | UpdateRejected | TaskFinished | Warned


def _of_the_tasks(events: Iterator[Event]) -> Iterator[Event]:
    """Without events about the run as a whole."""
    begun = False
    for event in events:
        begun = begun or isinstance(event, TaskStarted)
        if begun and isinstance(event, OF_TASKS):
            yield event


@dataclass(frozen=True)
class Reuse:
    """The cache as one experiment uses it."""

    tasks: TaskStore
    setup: Setup

    def longest(self, code: Sources) -> tuple[Reusable | None, list[str]]:
        return self.tasks.longest(self.setup, code)

    def add(self, code: Sources, state: State, clients: Mapping[int, ClientState], events: Path) -> None:
        self.tasks.add(self.setup, code, state, clients, events)


# Keys.


def key_after(setup: Setup, tasks: int, code: Sources) -> str:
    """The hash of everything that determines a run's state after its first `tasks` tasks."""
    e, stream = setup.experiment, setup.stream
    until = stream.classes_until(tasks - 1)
    recipe = {key: value for key, value in flat(e.to_tables()).items() if key not in APART}
    if tasks == 1 and _begins_like_fedavg(e.method):
        recipe = {key: value for key, value in recipe.items() if not key.startswith("method.")}
    else:
        recipe["method"] = f"{type(e.method).__module__}.{type(e.method).__qualname__}"
    facts = {
        "recipe": recipe,
        "code": code.digests,
        "initial weights": code.model,
        "machine": fingerprint(),
        "device": chosen_device(e.train.device).type,
        "dataset": stream.data.sha256,
        "normalisation": setup.normalisation,
        "select": e.method.declare().select or e.memory.select,
        "classes": stream.classes[:until],
        "tasks": stream.task_sizes[:tasks],
        "shares": shares_sha256(setup, until),
    }
    return json_sha256(facts, default=str)


def _begins_like_fedavg(method: Method) -> bool:
    """Whether a bundled method declares so. What a user's class declares is not relied on."""
    ours = type(method).__module__.partition(".")[0] == "fedclass"
    return ours and method.declare().begins_like_fedavg
