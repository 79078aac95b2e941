"""What is stored of a run: events, checkpoints, the code it ran with, tasks for later runs, the model, the summary.

A run knows nothing about storage. It reports events, and passes on each state from which it could be resumed.
"""

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from typing import Any

from safetensors.torch import save

import fedclass
from fedclass import metrics
from fedclass.errors import RunError
from fedclass.experiment.checkpoint import Checkpoint, Checkpoints, State
from fedclass.experiment.curriculum import Curriculum
from fedclass.experiment.machine import fingerprint
from fedclass.experiment.memory_use import memory_bytes
from fedclass.experiment.resume import PLACES, changes, circumstances, differences, last_whole
from fedclass.experiment.reuse import Reuse
from fedclass.experiment.source_code import Parts, Sources, check_code, listed, seen_in_training, sources
from fedclass.experiment.trained import EXTRAS, describe
from fedclass.federation.store import MemoryStore
from fedclass.models.weights import plain
from fedclass.runs.events import (
    Event,
    EventLog,
    RunFinished,
    RunResumed,
    RunStarted,
    TaskReused,
    TaskStarted,
    Warned,
    read_events,
)
from fedclass.runs.layout import RunDirectory, Writing, write_atomically
from fedclass.wire import Tensors, sha256

Listener = Callable[[Event], None]


class Record:
    """The directory of one run while this process carries the run out.

    writing: a context for every write.  store: the clients' states, if they are in this process; checkpoints then
    include them.  done: cached tasks of runs that began in the same way.  note: called with new events only, not with
    those that are repeated when a run is resumed.
    """

    def __init__(
        self,
        curriculum: Curriculum,
        directory: RunDirectory,
        listen: Listener,
        *,
        writing: Writing,
        store: MemoryStore | None,
        done: Reuse | None,
        changed_code: bool,
        note: Listener = lambda _: None,
    ) -> None:
        """Find where to resume the run. Another recipe, other code and other images are refused."""
        self.curriculum, self.directory, self.listen = curriculum, directory, listen
        self.writing, self.store, self.note = writing, store, note
        self.checkpoints = Checkpoints(directory.checkpoints)
        self.made_with = circumstances(curriculum)
        code = sources(curriculum)
        self.found: Checkpoint | None = None
        self.warnings: list[str] = []
        if directory.config.exists():
            self.found, self.warnings = last_whole(self.checkpoints, directory, self.made_with)
        self.parts = self._written_down(code, changed_code=changed_code)
        if done is not None and code.doubts:
            self.warnings.append(f"no task is taken from the cache or added to it: {listed(code.doubts)}")
        exact = not code.doubts and len(self.parts.known) == 1  # a new run would get the same result
        self.done = done if exact and store is not None else None

    def _written_down(self, code: Sources, *, changed_code: bool) -> Parts:
        """Write the recipe, and the code of each part of the run; return the latter."""
        parts, changed = Parts(), list[str]()
        if self.found is not None:
            parts, changed = Parts.read(self.directory), check_code(self.directory, code, changed_code=changed_code)
        if changed:
            self.warnings.append(f"resumes with other code than before: {listed(changed)}")
        with self.writing():
            if self.found is None or differences(self.found.made_with["config"], self.made_with["config"], PLACES):
                write_atomically(self.directory.config, self.curriculum.experiment.to_toml())
            if not parts.known or changed or parts.known[-1].machine != code.machine:
                parts = parts.went_on(code, changed)
                parts.write(self.directory)
        return parts

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Open the event log. Events after the last checkpoint are dropped: they will happen again."""
        with EventLog(self.directory.events, length=self.found.events if self.found else 0) as self.log:
            yield

    def tell(self, event: Event) -> None:
        with self.writing():
            self.log.write(event)
            self.note(event)
        self.listen(event)

    def begin(self, engine: str) -> State:
        """Repeat earlier events to the listener, and return the state to start from."""
        for event in read_events(self.directory.events):
            self.listen(event)
        if self.found is not None:
            self._resume(self.found)
        for message in self.warnings:
            self.tell(Warned(message=message))
        if self.found is not None:
            return self.found.state
        for event in introduction(self.curriculum, engine):
            self.tell(event)
        return self._reused() or State()

    def _resume(self, found: Checkpoint) -> None:
        self.tell(RunResumed(task=found.state.task, round=found.state.round, machine=fingerprint()))
        self.warnings += changes(found.made_with, self.made_with)
        if self.store is not None:
            self.store.restore(found.clients)

    def keep(self, state: State) -> None:
        """Write a checkpoint. If a task has just ended, also add it to the cache for other runs."""
        self._note_code()
        if self.store is None and state.task and state.weights is None:
            self._keep_end(state)
        clients, version = (self.store.states, self.store.changes) if self.store is not None else ({}, 0)
        with self.writing():
            self.checkpoints.save(state, clients, changes=version, events=self.log.settle(), made_with=self.made_with)
        if state.task and state.weights is None:
            self._share(state)

    def _keep_end(self, state: State) -> None:
        """Sites may learn for years: keep each task's model for use, and its state for the operator to return to."""
        if len(state.registry.get("sizes", ())) > state.task:
            return  # the next task's classes are known already
        assert state.last is not None
        folder = self.directory.ended(state.task)
        with self.writing():
            self._write_model(self.curriculum.initial.complete(state.last), state.method, tasks=state.task)
            self.directory.checkpoints.mkdir(exist_ok=True)
            events = self.log.settle()
            Checkpoints(folder).save(state, {}, changes=0, events=events, made_with=self.made_with)
            (folder / "model").mkdir(exist_ok=True)
            for path in (self.directory.model, self.directory.classes):
                shutil.copyfile(path, folder / "model" / path.name)

    def _note_code(self) -> None:
        """Files that user code read in training belong to the run; its tasks then no longer go to the cache."""
        seen, news = seen_in_training(self.curriculum.experiment, self.parts.known[-1])
        if not news:
            return
        self.parts = self.parts.with_last(seen)
        with self.writing():
            self.parts.write(self.directory)
        if self.done is not None:
            self.tell(Warned(message=f"no further task is added to the cache: {listed(news)}"))
        self.done = None

    def finish(self, state: State, engine: str) -> dict[str, Any]:
        """Write the model and, last of all, the summary."""
        if state.last is None:
            raise RunError(f"{self.directory.root}: ended before its first task; nothing was learned")
        model = self.curriculum.initial.complete(state.last)
        summary = summarised(self.curriculum, state, model, engine)
        summary |= {"code": self.parts.known[-1].digests, "mixed_code": self.parts.mixed_code}
        with self.writing():
            self._write_model(model, state.method, tasks=state.task)
        self.tell(RunFinished(summary=summary))
        with self.writing():
            write_atomically(self.directory.summary, json.dumps(summary, indent=1) + "\n")
        return summary

    def _write_model(self, model: Tensors, own: Tensors, *, tasks: int) -> None:
        predicts_with = self.curriculum.experiment.method.declare().predicts_with
        named = dict(model) | {f"{EXTRAS}{name}": own[name] for name in predicts_with}
        tensors = {name: plain(tensor) for name, tensor in named.items()}
        write_atomically(self.directory.model, save(tensors, metadata=describe(self.curriculum, tensors)))
        schedule = self.curriculum.schedule
        names = schedule.classes[: schedule.classes_until(tasks - 1)]
        write_atomically(self.directory.classes, json.dumps(list(names)) + "\n")

    # Tasks that runs with the same beginning share.

    def _reused(self) -> State | None:
        """The state after as many cached tasks as possible."""
        if self.done is None or self.store is None:
            return None
        found, problems = self.done.longest(self.parts.known[-1])
        for message in problems:
            self.tell(Warned(message=message))
        if found is None:
            return None
        for event in found.events:
            if isinstance(event, TaskStarted):
                self.tell(TaskReused(task=event.task, key=found.keys[event.task]))
            self.tell(event)
        self.store.restore(found.clients)
        self.keep(found.state)
        return found.state

    def _share(self, state: State) -> None:
        if self.done is None or self.store is None:
            return
        try:
            self.done.add(self.parts.known[-1], state, self.store.states, self.directory.events)
        except OSError as error:  # a full disk, or a folder of another user: this run does not need the cache
            message = f"task {state.task} cannot be added to the cache ({error}); a run without reuse does not try"
            self.tell(Warned(message=message))


def introduction(curriculum: Curriculum, engine: str) -> Iterator[Event]:
    """What is known before the first task."""
    e, facts, schedule = curriculum.experiment, curriculum.facts(), curriculum.schedule
    yield RunStarted(
        version=fedclass.__version__,
        method=e.method_name,
        variant=e.method.variant_name,
        dataset=facts.name,
        dataset_sha256=facts.sha256,
        official=facts.official,
        tasks=list(schedule.task_sizes),
        classes=list(schedule.classes),
        counts=[list(row) for row in facts.counts],
        exemplars=list(facts.exemplars),
        rounds=e.train.rounds,
        seed=e.seed,
        engine=engine,
        machine=fingerprint(),
        **facts.coverage,
    )
    if facts.official is False:
        message = f"{facts.name}: the files do not have the published checksums; these are not results on {facts.name}"
        yield Warned(message=message)
    for remark in facts.remarks:
        yield Warned(message=remark)


def summarised(curriculum: Curriculum, state: State, model: Tensors, engine: str) -> dict[str, Any]:
    """model: the final model, including frozen tensors."""
    e, facts, sizes = curriculum.experiment, curriculum.facts(), curriculum.schedule.task_sizes
    return {
        "method": e.method_name,
        "variant": e.method.variant_name,
        "dataset": facts.name,
        "dataset_sha256": facts.sha256,
        "official_data": facts.official,
        "tasks": list(sizes),
        "seed": e.seed,
        "engine": engine,
        **metrics.summarise(state.confusions, sizes),
        **metrics.summarise_clients(state.confusions[-1], facts.counts),
        **metrics.summarise_validation(state.validations, sizes),
        **facts.coverage,
        "bytes_up": state.totals.bytes_up,
        "bytes_down": state.totals.bytes_down,
        "seconds": state.totals.seconds,
        "samples_per_second": state.totals.samples / state.totals.seconds,
        "memory_bytes": memory_bytes(curriculum),
        "weights_sha256": sha256(model),
    }
