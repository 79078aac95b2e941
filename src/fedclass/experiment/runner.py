"""A run: tasks x rounds."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save

import fedclass
from fedclass import metrics
from fedclass.data.coverage import coverage
from fedclass.data.memory import HERDING, planned, remarks
from fedclass.data.validation import as_test
from fedclass.engines.base import Engine
from fedclass.errors import RoundError, RunError
from fedclass.experiment.checkpoint import Checkpoints, State, Totals
from fedclass.experiment.course import Course, StreamCourse
from fedclass.experiment.machine import fingerprint
from fedclass.experiment.resume import PLACES, changes, circumstances, differences, last_whole
from fedclass.experiment.reuse import TaskStore
from fedclass.experiment.setup import Setup
from fedclass.experiment.sources import Parts, check_code, listed, sources
from fedclass.experiment.trained import EXTRAS, describe
from fedclass.federation import server_optimizer
from fedclass.federation.client import chosen_device
from fedclass.federation.evaluate import confusion
from fedclass.federation.faults import dropped_out
from fedclass.federation.server import Missing, sample, usable
from fedclass.federation.store import MemoryStore
from fedclass.methods.base import ServerContext
from fedclass.methods.declare import Sizes, grown, misfit
from fedclass.models.incremental import IncrementalModel
from fedclass.models.weights import plain, weighted_mean
from fedclass.rng import generator, seed_streams, streams_restored
from fedclass.runs.events import (
    Event,
    EventLog,
    RoundFinished,
    RunFinished,
    RunResumed,
    RunStarted,
    TaskFinished,
    TaskReused,
    TaskStarted,
    UpdateMissing,
    UpdateReceived,
    UpdateRejected,
    Warned,
    read_events,
)
from fedclass.runs.layout import RunDirectory, Writing, write_atomically
from fedclass.wire import Job, Tensors, Update, Weights, nbytes, sha256

Listener = Callable[[Event], None]


def run(
    setup: Setup,
    engine: Engine,
    directory: RunDirectory,
    listen: Listener = lambda _: None,
    *,
    store: MemoryStore | None = None,
    done: TaskStore | None = None,
    course: Course | None = None,
    writing: Writing | None = None,
    changed_code: bool = False,
) -> dict[str, Any]:
    """Carry out an experiment and return its summary; go on from the last checkpoint if the directory has one.

    store: where the engine keeps clients' states, if it is here; they are then part of the checkpoints.  done: tasks
    that runs with the same beginning have left, to be taken instead of being learned again.  course: which classes come
    when; by default as the setup's stream says.  writing: goes around whatever is written, if the caller holds the run.
    changed_code: go on even if code has changed since; the summary then says so.
    """
    again = f"type: fedclass run --resume {directory.root}" if writing is None else "start the server's run again"
    try:
        hold = directory.locked() if writing is None else contextlib.nullcontext(writing)
        with hold as writing, one_thread(), streams_restored():
            made_with, known, code = circumstances(setup), Checkpoints(directory.checkpoints), sources(setup)
            found, damage = None, list[str]()
            if directory.config.exists():
                found, damage = last_whole(known, directory, made_with)
            parts, changed = Parts(), list[str]()
            if found is not None:
                parts, changed = Parts.read(directory), check_code(directory, code, changed_code=changed_code)
            with writing():
                if found is None or differences(found.made_with["config"], made_with["config"], PLACES):
                    write_atomically(directory.config, setup.experiment.to_toml())
                if not parts.known or changed or parts.known[-1].machine != code.machine:
                    parts = parts.went_on(code, changed)
                    parts.write(directory)
            if changed:
                damage.append(f"goes on by other code than before: {listed(changed)}")
            if done is not None and code.doubts:
                damage.append(f"no task is taken from, or kept for, other runs: {listed(code.doubts)}")
            if code.doubts or len(parts.known) > 1:  # whoever begins anew would not get the same
                done = None
            with EventLog(directory.events, length=found.events if found else 0) as log:

                def tell(event: Event) -> None:
                    with writing():
                        log.write(event)
                    listen(event)

                def keep(state: State) -> None:
                    clients, version = (store.states, store.changes) if store is not None else ({}, 0)
                    with writing():
                        known.save(state, clients, changes=version, events=log.settle(), made_with=made_with)

                for event in read_events(directory.events):
                    listen(event)
                if found is not None:
                    tell(RunResumed(task=found.state.task, round=found.state.round, machine=fingerprint()))
                    damage += changes(found.made_with, made_with)
                    if store is not None:
                        store.restore(found.clients)
                for message in damage:
                    tell(Warned(message=message))
                course = course or StreamCourse(setup)
                run = Run(setup, engine, directory, tell, keep, store, done, course, writing, parts)
                return run.carry_out(found.state if found else None)
    except OSError as error:
        raise RunError(f"{directory.root}: cannot go on ({error}); once that is mended, {again}") from error


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Sums over several threads differ in the last bits; one thread gives the same bits everywhere."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Run:
    """One experiment being carried out. Tasks, rounds and clients count from 0."""

    def __init__(
        self,
        setup: Setup,
        engine: Engine,
        directory: RunDirectory,
        tell: Listener,
        keep: Callable[[State], None],
        store: MemoryStore | None,
        done: TaskStore | None,
        course: Course,
        writing: Writing,
        parts: Parts,
    ) -> None:
        self.setup, self.engine, self.directory, self.tell, self.keep = setup, engine, directory, tell, keep
        self.store, self.done, self.course, self.writing, self.parts = store, done, course, writing, parts
        self.experiment, self.stream, self.method = setup.experiment, setup.stream, setup.experiment.method
        self.declared = self.method.declare()
        self.model = setup.build().to(chosen_device(self.experiment.train.device))
        self.totals = Totals()
        self.checkpoint_seconds = 0.0
        self._sent: tuple[str, Tensors] = "", {}  # the last broadcast

    def carry_out(self, state: State | None) -> dict[str, Any]:
        if state is None:
            self._announce()
            state = self._reused() or State()
        self.course.restore(state.registry)
        self.began = time.perf_counter() - state.totals.seconds
        self.totals = replace(state.totals)
        while (setup := self.course.begin(state.task, self.tell)) is not None:
            self.setup, self.stream = setup, setup.stream
            state = self._task(state)
        if state.last is None:
            raise RunError(f"{self.directory.root}: ended before its first task; nothing has been learned")
        summary = self._summary(state)
        with self.writing():
            self._write_model(state.last, state.method)
        self.tell(RunFinished(summary=summary))
        with self.writing():
            write_atomically(self.directory.summary, json.dumps(summary, indent=1) + "\n")
        return summary

    def _seed(self, hook: str, *where: int) -> None:
        """Before the user's code runs here."""
        seed_streams(self.experiment.seed_of("training"), "user code", "server", hook, *where)

    def _seconds(self) -> float:
        """Since the run began, without the time it was stopped."""
        return time.perf_counter() - self.began

    def _kept(self, state: State) -> State:
        """The state with the totals of now, safely on disk."""
        self.totals.seconds = self._seconds()
        state = replace(state, totals=replace(self.totals), registry=self.course.registry)
        began = time.perf_counter()
        self.keep(state)
        self.checkpoint_seconds = time.perf_counter() - began
        return state

    def _reused(self) -> State | None:
        """The longest beginning that an earlier run has left behind."""
        if self.done is None or self.store is None:
            return None
        found, problems = self.done.longest(self.setup, self.parts.known[-1])
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

    def _announce(self) -> None:
        data, e, counts = self.stream.data, self.experiment, self.stream.counts()
        exemplars = planned(e.memory, counts, self.stream.task_sizes, offered=self.stream.offered)
        self.tell(
            RunStarted(
                version=fedclass.__version__,
                method=e.method_name,
                variant=self.method.variant_name,
                dataset=data.name,
                dataset_sha256=data.sha256,
                official=data.official,
                tasks=list(self.stream.task_sizes),
                classes=list(self.stream.classes),
                counts=counts.tolist(),
                exemplars=exemplars.sum(axis=0).tolist(),
                rounds=e.train.rounds,
                seed=e.seed,
                engine=self.engine.name,
                machine=fingerprint(),
                **coverage(self.stream),
            )
        )
        if data.official is False:
            message = (
                f"{data.name}: the files do not have the published checksums; these are not results on {data.name}"
            )
            self.tell(Warned(message=message))
        for message in remarks(e.memory, counts, self.stream.task_sizes, offered=self.stream.offered):
            self.tell(Warned(message=message))

    def _task(self, state: State) -> State:
        """Learn a task, or the rest of it, and return the state in which the next one begins."""
        task = state.task
        state = self._begun(state) if state.weights is None else state
        assert state.weights is not None
        self.model.load(state.weights)
        state = replace(state, weights=self.model.weights())  # in the model's order, which a file does not keep
        while state.round < self.experiment.train.rounds:
            state = self._kept(self._round(state))
        phases: dict[str, float] = {}
        with spent(phases, "clients"):
            weights, own, exemplars = self._close(state)
        with spent(phases, "evaluate"):
            counts, at_sites = self._evaluate(task, weights, own, must=True)
            validation = self._validate(weights, own)
        assert counts is not None  # they were waited for
        self.tell(
            TaskFinished(
                task=task,
                confusion=counts.tolist(),
                at_sites=None if at_sites is None else at_sites.tolist(),
                validation=None if validation is None else validation.tolist(),
                exemplars=exemplars,
                bytes_up=self.totals.bytes_up - state.before_task.bytes_up,
                bytes_down=self.totals.bytes_down - state.before_task.bytes_down,
                seconds=self._seconds() - state.before_task.seconds,
                phases=phases,
            )
        )
        finished = State(
            task=task + 1,
            last=weights,
            method=own,
            optimizer=state.optimizer,
            confusions=[*state.confusions, counts],
            validations=state.validations if validation is None else [*state.validations, validation],
        )
        finished = self._kept(finished)
        if self.done is not None and self.store is not None:
            try:
                self.done.add(self.setup, self.parts.known[-1], finished, self.store.states, self.directory.events)
            except OSError as error:  # a full disk, or a folder that others own: this run does not need it
                message = f"task {task + 1} cannot be kept for later runs ({error}); --no-reuse does not try to"
                self.tell(Warned(message=message))
        return finished

    def _begun(self, state: State) -> State:
        """The state in which a task's first round begins: the head has grown, and with it what is as large."""
        if self.course.registry != state.registry:
            state = self._kept(state)  # what was found out now stays so, whatever happens in the first round
        task = state.task
        if state.last is not None:
            self.model.load(state.last)
        before = self.model.classes
        self.model.grow_to(self.stream.classes_until(task), seed=self.experiment.seed_of("initialisation"))
        own = grown(state.method, self.declared.server, self.model, before)
        moments = grown(state.optimizer, self.experiment.server.declare(), self.model, before)
        weights = self.model.weights()
        if task == 0:
            self._seed("start", task)
            own = self._own("start", self.method.start(self._server(task, 0, weights, own)))
        learners = self.course.learners(task, self.tell)
        self.tell(TaskStarted(task=task, new_classes=self._new_classes(task), clients=len(learners)))
        totals = replace(self.totals, seconds=self._seconds())
        return replace(state, weights=weights, method=own, optimizer=moments, before_task=totals)

    def _new_classes(self, task: int) -> list[str]:
        until = self.stream.classes_until(task)
        return list(self.stream.classes[until - self.stream.task_sizes[task] : until])

    def _round(self, state: State) -> State:
        began, train = time.perf_counter(), self.experiment.train
        task, round, weights, reached = state.task, state.round, state.weights, set(state.reached)
        assert weights is not None
        phases = {"clients": 0.0, "checkpoint": self.checkpoint_seconds}
        clients = self.course.learners(task, self.tell)
        seed = self.experiment.seed_of("training")
        asked = sample(clients, participation=train.participation, seed=seed, task=task, round=round)
        teacher = state.last if self.declared.teacher == "previous task" else None
        broadcast = self._broadcast(self.declared.broadcast, state.method)
        gone = dropped_out(self.experiment.faults, asked, seed=seed, task=task, round=round)
        for client in gone:
            self.tell(UpdateMissing(task=task, round=round, client=client, reason="dropped out (faults.dropout)"))
        jobs = [
            Job(client, task, round, "train", weights, teacher, broadcast) for client in asked if client not in gone
        ]
        down = len(asked) * (nbytes(weights) + nbytes(broadcast)) + len(set(asked) - reached) * nbytes(teacher or {})
        reached.update(asked)
        used: list[Update] = []

        def received() -> Iterator[Update]:
            """Hands on one update at a time, so that only their sum is ever in memory; keeps what the event needs."""
            for update in timed(self._usable(jobs), phases, "clients"):
                used.append(Update(update.client, task, round, {}, update.examples, update.metrics))
                self._seed("aggregate", task, round, len(used))  # whatever clients and listeners have drawn here
                yield update
            self._seed("aggregate", task, round, len(used) + 1)

        up = self.totals.bytes_up
        updates = received()
        first = next(updates, None)  # none at all could not be averaged
        new_weights, own, moments = weights, state.method, state.optimizer
        if first is not None:
            server = self._server(task, round, weights, own)
            new_weights, own = self.method.aggregate(server, chain([first], updates))
            own = self._own("aggregate", own)
            settings = self.experiment.server
            new_weights, moments = server_optimizer.step(settings, self.model, weights, new_weights, moments)
        phases["aggregate"] = time.perf_counter() - began - phases["clients"]
        if len(used) < train.min_updates:
            raise RoundError(
                f"task {task + 1}, round {round + 1}: {len(used)} of {len(jobs)} updates were usable, and "
                f"train.min_updates = {train.min_updates} are needed; {self.directory.events} says why each was "
                "rejected or missing (NaN often means that train.learning_rate is too high)"
            )
        self.totals.bytes_down += down
        examples = [update.examples for update in used]
        self.totals.samples += int(sum(update.metrics["samples"] for update in used))
        losses = [update.metrics["loss"] for update in used]
        last = round == train.rounds - 1  # the end of the task tests it anyway
        every = self.experiment.evaluation.every
        counts = validation = None
        if every and not last and (round + 1) % every == 0 and not self.declared.predicts_with:
            with spent(phases, "evaluate"):
                validation = self._validate(new_weights, own)
                if validation is None:  # who holds out images to choose by sees test figures at the end of tasks only
                    counts, _ = self._evaluate(task, new_weights, own, must=False)
        self.tell(
            RoundFinished(
                task=task,
                round=round,
                clients=[update.client for update in used],
                examples=examples,
                losses=losses,
                loss=float(np.average(losses, weights=examples)),
                bytes_up=self.totals.bytes_up - up,
                bytes_down=down,
                seconds=time.perf_counter() - began,
                correct=None if counts is None else counts.diagonal().tolist(),
                tested=None if counts is None else counts.sum(axis=1).tolist(),
                phases=phases,
                validation_correct=None if validation is None else validation.diagonal().tolist(),
                validation_tested=None if validation is None else validation.sum(axis=1).tolist(),
            )
        )
        return replace(
            state, round=round + 1, weights=new_weights, method=own, optimizer=moments, reached=frozenset(reached)
        )

    # The method's own state.

    def _server(self, task: int, round: int, weights: Weights, own: Tensors) -> ServerContext:
        """What the method's hooks at the server are given."""
        until = self.stream.classes_until(task)

        def build() -> IncrementalModel:
            model = self.setup.build().to(self.model.head.weight.device)
            model.grow_to(until, seed=self.experiment.seed_of("initialisation"))
            return model

        return ServerContext(
            task=task,
            round=round,
            rounds=self.experiment.train.rounds,
            old_classes=until - self.stream.task_sizes[task],
            sizes=Sizes.of(self.model),
            clients=len(self.course.everyone()),
            weights=weights,
            state={name: own[name] for name in self.declared.server if name in own},  # in the declared order
            generator=generator(self.experiment.seed_of("training"), "server", "task", task, "round", round),
            device=self.model.head.weight.device,
            build=build,
            mean=lambda updates: weighted_mean((update.weights, update.examples) for update in updates),
        )

    def _own(self, hook: str, own: Tensors) -> Tensors:
        """What a hook has returned as the method's state; RunError if that is not what the method declares."""
        if (fault := misfit(own, self.declared.server, Sizes.of(self.model))) is not None:
            raise RunError(f"{self.experiment.method_name}: {type(self.method).__name__}.{hook}: {fault}")
        return {name: tensor.detach().cpu() for name, tensor in own.items()}

    def _broadcast(self, names: Sequence[str], own: Tensors) -> Tensors:
        """The same object as before if it has the same content, so that it need not be sent again."""
        now = {name: own[name] for name in names if name in own}
        if sha256(now) != self._sent[0]:
            self._sent = sha256(now), now
        return self._sent[1]

    def _usable(self, jobs: list[Job]) -> Iterator[Update]:
        """Run the jobs; count bytes, tell what comes in, and leave out what cannot be used."""

        task, round = jobs[0].task, jobs[0].round

        def reject(client: int, reason: str) -> None:
            self.tell(UpdateRejected(task=task, round=round, client=client, reason=reason))

        def received() -> Iterator[Update]:
            for done, update in enumerate(self.engine.run(jobs), start=1):
                if isinstance(update, Missing):
                    self.tell(UpdateMissing(task=task, round=round, client=update.client, reason=update.reason))
                    continue
                self.totals.bytes_up += nbytes(update.weights) + nbytes(update.extras)
                self.tell(UpdateReceived(task=task, round=round, done=done, of=len(jobs)))
                yield update

        return usable(received(), jobs, self.method, Sizes.of(self.model), reject)

    def _close(self, state: State) -> tuple[Weights, Tensors, int]:
        """Let every client choose its exemplars and report to the method, which has the last word on the model."""
        task, rounds, weights = state.task, self.experiment.train.rounds, state.weights
        assert weights is not None
        self._seed("end_rounds", task)
        weights, own = self.method.end_rounds(self._server(task, rounds, weights, state.method))
        own = self._own("end_rounds", own)
        jobs = [Job(client, task, rounds, "end_task", weights, None) for client in self.course.everyone()]
        updates = list(self._usable(jobs))
        selects = self.declared.select or self.experiment.memory.select
        if self.declared.uploads.get("end_task") or self.declared.rows or selects in HERDING:
            self.totals.bytes_down += len(jobs) * nbytes(weights)
        self._seed("end_task", task)
        weights, own = self.method.end_task(self._server(task, rounds, weights, own), [u.extras for u in updates])
        own = self._own("end_task", own)
        if not set(self.declared.predicts_with) <= own.keys():
            raise RoundError(
                f"task {task + 1}: no client sent its {' and '.join(self.declared.predicts_with)}, without which "
                f"nothing can be predicted; {self.directory.events} says why each was rejected or missing"
            )
        if never := self.method.never_predicted(own):
            names = ", ".join(repr(self.stream.classes[i]) for i in never[:5]) + (" ..." if len(never) > 5 else "")
            message = (
                f"task {task + 1}: no client has enough exemplars of class {names}, which is never predicted; "
                "more exemplars per class would help (memory.per_class=2)"
            )
            self.tell(Warned(message=message))
        return weights, own, sum(update.examples for update in updates)

    def _evaluate(
        self, task: int, weights: Weights, own: Tensors, *, must: bool
    ) -> tuple[NDArray[np.int64] | None, NDArray[np.int64] | None]:
        """Counts on test images of the server, and beside them on those of the sites; or on the sites' alone.

        must: wait for sites without which a task could not be tested; otherwise there are no counts then.
        """
        at_sites = None
        own = self._broadcast(self.declared.predicts_with, own)
        if self.course.at_sites:
            at_sites = self._evaluate_at_sites(task, weights, own, must=must and not self.course.at_server)
        if not self.course.at_server:
            return at_sites, None
        self.model.load(weights)
        self._seed("evaluate", task)
        return confusion(self.model, self.method, own, self.stream, self.setup.normalisation), at_sites

    def _validate(self, weights: Weights, own: Tensors) -> NDArray[np.int64] | None:
        """Counts on validation images, if there are any."""
        if not self.stream.held_out:
            return None
        self.model.load(weights)
        return confusion(self.model, self.method, own, as_test(self.stream), self.setup.normalisation)

    def _evaluate_at_sites(self, task: int, weights: Weights, own: Tensors, *, must: bool) -> NDArray[np.int64] | None:
        classes, waiting = self.stream.classes_until(task), self.course.everyone()
        total = np.zeros((classes, classes), np.int64)
        spans = list(pairwise(accumulate(self.stream.task_sizes, initial=0)))
        until = time.monotonic() + self.course.patience
        while True:
            jobs = [Job(c, task, self.experiment.train.rounds, "evaluate", weights, None, own) for c in waiting]
            for update in self._usable(jobs):
                total += update.extras["confusion"].numpy()
                waiting.remove(update.client)
            self.totals.bytes_down += len(jobs) * nbytes(weights)
            if all(total[first:end].any() for first, end in spans):
                break
            if not must:
                return None
            if not waiting or time.monotonic() > until:
                raise RoundError(
                    f"task {task + 1}: no site that answered holds out images of the classes of one of the tasks, and "
                    "the model cannot be tested; run again once a site has such images (five of a class are enough)"
                )
            time.sleep(self.course.ask_every)
        untested = [name for name, images in zip(self.stream.classes, total.sum(axis=1), strict=True) if not images]
        if untested:
            names = ", ".join(map(repr, untested[:5])) + (" ..." if len(untested) > 5 else "")
            self.tell(Warned(message=f"task {task + 1}: no site that answered holds out an image of class {names}"))
        return total

    def _summary(self, state: State) -> dict[str, Any]:
        e = self.experiment
        assert state.last is not None
        return {
            "method": e.method_name,
            "variant": self.method.variant_name,
            "dataset": self.stream.data.name,
            "official_data": self.stream.data.official,
            "tasks": list(self.stream.task_sizes),
            "seed": e.seed,
            "engine": self.engine.name,
            **metrics.summarise(state.confusions, self.stream.task_sizes),
            **metrics.summarise_validation(state.validations, self.stream.task_sizes),
            **coverage(self.stream),
            "bytes_up": self.totals.bytes_up,
            "bytes_down": self.totals.bytes_down,
            "seconds": state.totals.seconds,
            "samples_per_second": self.totals.samples / state.totals.seconds,
            "weights_sha256": sha256(state.last),
            "code": self.parts.known[-1].digests,
            "mixed_code": self.parts.mixed_code,
        }

    def _write_model(self, last: Weights, own: Tensors) -> None:
        named = dict(last) | {f"{EXTRAS}{name}": own[name] for name in self.declared.predicts_with}
        tensors = {name: plain(tensor) for name, tensor in named.items()}
        write_atomically(self.directory.model, save(tensors, metadata=describe(self.setup, tensors)))
        write_atomically(self.directory.classes, json.dumps(list(self.stream.classes)) + "\n")


@contextlib.contextmanager
def spent(phases: dict[str, float], phase: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    phases[phase] = phases.get(phase, 0.0) + time.perf_counter() - began


def timed(updates: Iterator[Update], phases: dict[str, float], phase: str) -> Iterator[Update]:
    """Hands on updates, and counts the time spent waiting for them."""
    while True:
        with spent(phases, phase):
            update = next(updates, None)
        if update is None:
            return
        yield update
