"""A run: tasks x rounds. In each round: sample, dispatch, aggregate, evaluate, tell."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import torch

from fedclass.data.image_set import Split
from fedclass.data.schedule import Schedule
from fedclass.engines.base import Engine, Tests
from fedclass.errors import RoundError, RunError
from fedclass.experiment.answers import Answers, spent, timed
from fedclass.experiment.checkpoint import State, Totals
from fedclass.experiment.curriculum import Curriculum, Tested, Trial
from fedclass.experiment.record import Listener, Record
from fedclass.experiment.reuse import Reuse
from fedclass.experiment.rollback import Rollback
from fedclass.experiment.server_hooks import ServerHooks
from fedclass.federation import server_optimizer
from fedclass.federation.aggregation import Aggregation
from fedclass.federation.evaluate import Counts, Part, confusion, counted, parts
from fedclass.federation.faults import dropped_out
from fedclass.federation.hooks import failures_named
from fedclass.federation.quotas import divided
from fedclass.federation.selection import BY_MODEL
from fedclass.federation.server import Missing, sample, usable
from fedclass.federation.store import MemoryStore
from fedclass.federation.train_settings import chosen_device
from fedclass.methods.declare import Sizes, grown
from fedclass.rng import streams_restored
from fedclass.runs.events import (
    RoundFinished,
    RunFailed,
    TaskFinished,
    TaskStarted,
    UpdateMissing,
    UpdateReceived,
    UpdateRejected,
    Warned,
)
from fedclass.runs.layout import RunDirectory, Writing
from fedclass.usercode import watching
from fedclass.wire import Job, Tensors, Update, Weights, nbytes


def run(
    curriculum: Curriculum,
    engine: Engine,
    directory: RunDirectory,
    listen: Listener = lambda _: None,
    *,
    store: MemoryStore | None = None,
    done: Reuse | None = None,
    writing: Writing | None = None,
    changed_code: bool = False,
    until: int | None = None,
    note: Listener = lambda _: None,
) -> dict[str, Any]:
    """Carry out an experiment and return its summary; go on from the last checkpoint if the directory has one.

    store: where the engine keeps clients' states, if it is here; they are then part of the checkpoints.  done: tasks
    that runs with the same beginning have left, to be taken instead of being learned again.  writing: goes around
    whatever is written, if the caller holds the run.  changed_code: go on even if code has changed since; the summary
    then says so.  until: stop after so many tasks, to go on another time; there is a summary only after the last.
    note: hears what happens in this process; `listen` is also told what has led to it.
    """
    again = f"type: fedclass run --resume {directory.root}" if writing is None else "start the server's run again"
    hold = directory.locked() if writing is None else contextlib.nullcontext(writing)
    try:
        with hold as writing, one_thread(), streams_restored():
            record = Record(
                curriculum,
                directory,
                listen,
                writing=writing,
                store=store,
                done=done,
                changed_code=changed_code,
                note=note,
            )
            with record.opened(), told_if_it_fails(record.tell):
                run = Run(curriculum, engine, record.tell, record.keep)
                state = run.carry_out(record.begin(engine.name), until)
                if until is not None and state.task < len(curriculum.schedule.task_sizes):
                    return {}
                return record.finish(state, engine.name)
    except RoundError as error:
        raise RoundError(f"{directory.root}: {error}") from error
    except OSError as error:
        raise RunError(f"{directory.root}: cannot go on ({error}); once that is mended, {again}") from error


@contextlib.contextmanager
def told_if_it_fails(tell: Listener) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        with contextlib.suppress(RunError, OSError):  # a run in other hands, a full disk: the first error counts
            tell(RunFailed(reason=" ".join(f"{type(error).__name__}: {error}".split())[:500]))
        raise


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
    """One experiment being carried out. Tasks, rounds and clients count from 0.

    tell: hears what happens.  keep: is handed each state that the run could go on from.
    """

    def __init__(self, curriculum: Curriculum, engine: Engine, tell: Listener, keep: Callable[[State], None]) -> None:
        self.curriculum, self.engine, self.tell, self.keep = curriculum, engine, tell, keep
        self.experiment, self.method = curriculum.experiment, curriculum.experiment.method
        self.declared = self.method.declare()
        self.model = curriculum.build().to(chosen_device(self.experiment.train.device))
        self.totals = Totals()
        self.checkpoint_seconds = 0.0
        self.hooks = ServerHooks(curriculum, self.model)
        self.rollback = Rollback(curriculum, self.model, tell, self._tested)

    @property
    def schedule(self) -> Schedule:
        return self.curriculum.schedule

    def carry_out(self, state: State, until: int | None = None) -> State:
        """All tasks, or the rest of them, or of the first `until`; returns the state after the last."""
        self.curriculum.restore(state.registry)
        self.began = time.perf_counter() - state.totals.seconds
        self.totals = replace(state.totals)
        while (until is None or state.task < until) and self.curriculum.begin(state.task, self.tell):
            state = self._task(state)
        return state

    def _seconds(self) -> float:
        """Since the run began, without the time it was stopped."""
        return time.perf_counter() - self.began

    def _kept(self, state: State) -> State:
        """The state with the totals of now, handed out."""
        self.totals.seconds = self._seconds()
        state = replace(state, totals=replace(self.totals), registry=self.curriculum.registry)
        began = time.perf_counter()
        self.keep(state)
        self.checkpoint_seconds = time.perf_counter() - began
        return state

    # A task.

    def _task(self, state: State) -> State:
        """Learn a task, or the rest of it, and return the state in which the next one begins."""
        state = self._begun(state) if state.weights is None else state
        assert state.weights is not None
        self.model.load(state.weights)
        state = replace(state, weights=self.model.weights())  # in the model's order, which a file does not keep
        while state.round < self.experiment.train.rounds:
            with watching():
                state = self._round(state)
            state = self._kept(state)
        with watching():
            state = self._finished(state)
        return self._kept(state)

    def _begun(self, state: State) -> State:
        """The state in which a task's first round begins: the head has grown, and with it what is as large."""
        if self.curriculum.registry != state.registry:
            state = self._kept(state)  # what was found out now stays so, whatever happens in the first round
        task = state.task
        if state.last is not None:
            self.model.load(state.last)
        before = self.model.classes
        self.model.grow_to(self.schedule.classes_until(task), seed=self.experiment.seed_of("initialisation"))
        own = grown(state.method, self.declared.server, self.model, before)
        moments = grown(state.optimizer, self.experiment.server.declare(), self.model, before)
        weights = self.model.weights()
        if task == 0:
            self.hooks.seed("start", task)
            with watching():
                _, own = self.hooks.call("start", self.hooks.context(task, 0, weights, own))
        learners = self.curriculum.learners(task, self.experiment.train.rounds - 1, self.tell)
        names = self.schedule.names(self.schedule.new_classes(task))
        self.tell(TaskStarted(task=task, new_classes=names, clients=len(learners)))
        totals = replace(self.totals, seconds=self._seconds())
        return replace(state, weights=weights, method=own, optimizer=moments, before_task=totals)

    def _finished(self, state: State) -> State:
        """Close the task, test the model, tell."""
        task, phases = state.task, dict[str, float]()
        with spent(phases, "clients"):
            weights, own, exemplars = self._close(state)
        with spent(phases, "evaluate"):
            tested = self._evaluate(task, weights, own, must=True)
            validation = self._validate(task, weights, own)
        assert tested.confusion is not None  # it was waited for
        self.tell(
            TaskFinished(
                task=task,
                confusion=tested.confusion.tolist(),
                at_sites=None if tested.at_clients is None else tested.at_clients.tolist(),
                validation=None if validation is None else validation.tolist(),
                exemplars=exemplars,
                bytes_up=self.totals.bytes_up - state.before_task.bytes_up,
                bytes_down=self.totals.bytes_down - state.before_task.bytes_down,
                seconds=self._seconds() - state.before_task.seconds,
                phases=phases,
            )
        )
        return State(
            task=task + 1,
            last=weights,
            method=own,
            optimizer=state.optimizer,
            confusions=[*state.confusions, tested.confusion],
            validations=state.validations if validation is None else [*state.validations, validation],
            aside=state.aside,
        )

    # A round.

    def _round(self, state: State) -> State:
        phases = {"clients": 0.0, "checkpoint": self.checkpoint_seconds}
        began, up = time.perf_counter(), self.totals.bytes_up
        asked = self._sample(state)
        answers = self._dispatch(state, asked, phases)
        after = self._aggregate(state, answers)
        phases["aggregate"] = time.perf_counter() - began - phases["clients"]
        counts, validation = self._evaluate_round(after, phases)
        self.tell(
            RoundFinished(
                task=state.task,
                round=state.round,
                clients=[update.client for update in answers.used],
                examples=answers.examples,
                losses=answers.losses,
                loss=float(np.average(answers.losses, weights=answers.examples)),
                bytes_up=self.totals.bytes_up - up,
                bytes_down=answers.bytes_down,
                seconds=time.perf_counter() - began,
                correct=None if counts is None else counts.diagonal().tolist(),
                tested=None if counts is None else counts.sum(axis=1).tolist(),
                phases=phases,
                validation_correct=None if validation is None else validation.diagonal().tolist(),
                validation_tested=None if validation is None else validation.sum(axis=1).tolist(),
                clipped=answers.clipped,
                rolled_back=answers.undone,
                screened=answers.screened,
            )
        )
        aside = self.rollback.aside(state, answers, answers.blamed)
        return replace(after, round=state.round + 1, reached=state.reached | {*asked}, aside=aside)

    def _sample(self, state: State) -> list[int]:
        """The clients to ask."""
        clients = self.rollback.asked(self.curriculum.learners(state.task, state.round, self.tell), state)
        wanted, seed = self.experiment.server.participation, self.experiment.seed_of("training")
        return sample(clients, participation=wanted, seed=seed, task=state.task, round=state.round)

    def _dispatch(self, state: State, asked: Sequence[int], phases: dict[str, float]) -> Answers:
        """Jobs for these clients, and what will come back. phases: where the time spent waiting is counted."""
        task, round, weights = state.task, state.round, state.weights
        assert weights is not None
        teacher = state.last if self.declared.teacher == "previous task" else None
        broadcast, frozen = self.hooks.broadcast(self.declared.broadcast, state.method), self.model.frozen_sha256
        gone = self._dropped_out(state, asked)
        at_work = [client for client in asked if client not in gone]
        jobs = [Job(client, task, round, "train", weights, teacher, broadcast, frozen) for client in at_work]
        to_teach = len(set(asked) - state.reached)
        down = len(asked) * (nbytes(weights) + nbytes(broadcast)) + to_teach * nbytes(teacher or {})
        self.totals.bytes_down += down

        def before(number: int) -> None:
            self.hooks.seed("aggregate", task, round, number)  # whatever clients and listeners have drawn here

        rejected = list[int]()
        updates = timed(self._usable(jobs, rejected), phases, "clients")
        return Answers(updates, len(jobs), down, before, weights, rejected=rejected)

    def _dropped_out(self, state: State, asked: Sequence[int]) -> list[int]:
        """Clients of a simulation that get a job and never answer, as the recipe's [faults] say."""
        task, round, seed = state.task, state.round, self.experiment.seed_of("training")
        gone = dropped_out(self.experiment.faults, asked, seed=seed, task=task, round=round)
        for client in gone:
            self.tell(UpdateMissing(task=task, round=round, client=client, reason="dropped out (faults.dropout)"))
        return gone

    def _aggregate(self, state: State, answers: Answers) -> State:
        """The state with the model that the method and the server's optimizer make of the updates."""
        assert state.weights is not None
        updates, settings = iter(answers), self.experiment.server
        first = next(updates, None)  # none at all could not be averaged
        if first is not None:
            mean = Aggregation(self.experiment.aggregation, state.weights, self.curriculum)
            server = replace(self.hooks.context(state.task, state.round, state.weights, state.method), mean=mean)
            weights, own = self.hooks.call("aggregate", server, chain([first], updates))
            answers.clipped, answers.screened = mean.clipped, mean.screened
            weights, moments = server_optimizer.step(settings, self.model, state.weights, weights, state.optimizer)
            after = replace(state, weights=weights, method=own, optimizer=moments)
            state = self.rollback.judged(state, after, answers)
        if len(answers.used) < (needed := self.rollback.needed(state, answers)):
            raise RoundError(
                f"task {state.task + 1}, round {state.round + 1}: {len(answers.used)} of {answers.asked} updates were "
                f"usable, and server.min_updates = {needed} are needed; its events.jsonl says why "
                "each was rejected or missing (NaN often means that optimizer.learning_rate is too high)"
            )
        self.totals.samples += int(sum(update.metrics["samples"] for update in answers.used))
        return state

    def _evaluate_round(self, state: State, phases: dict[str, float]) -> tuple[Counts | None, Counts | None]:
        """Counts on test images or, where images are held out to choose by, on those; in most rounds neither."""
        every, last = self.experiment.evaluation.every, self.experiment.train.rounds - 1
        if not every or state.round == last or (state.round + 1) % every or self.declared.predicts_with:
            return None, None  # the end of the task tests its last round anyway
        assert state.weights is not None
        with spent(phases, "evaluate"):
            if (validation := self._validate(state.task, state.weights, state.method)) is not None:
                return None, validation  # who chooses by these sees test figures at the end of tasks only
            return self._evaluate(state.task, state.weights, state.method, must=False).confusion, None

    def _usable(self, jobs: list[Job], rejected: list[int] | None = None) -> Iterator[Update]:
        """Run the jobs; count bytes, tell what comes in, and leave out what cannot be used (rejected: by whom)."""

        task, round = jobs[0].task, jobs[0].round

        def reject(client: int, reason: str) -> None:
            if rejected is not None:
                rejected.append(client)
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
        self.hooks.seed("end_rounds", task)
        weights, own = self.hooks.call("end_rounds", self.hooks.context(task, rounds, weights, state.method))
        everyone, frozen = self.curriculum.everyone(), self.model.frozen_sha256
        quotas = self._quotas(task) if self.experiment.memory.asks_counts else {}
        jobs = [
            Job(client, task, rounds, "end_task", weights, None, frozen=frozen, quotas=quotas.get(client))
            for client in everyone
        ]
        updates = list(self._usable(jobs))
        selects = self.declared.select or self.experiment.memory.select
        if self.declared.uploads.get("end_task") or self.declared.rows or selects in BY_MODEL:
            self.totals.bytes_down += len(jobs) * nbytes(weights)
        self.hooks.seed("end_task", task)
        closing = self.hooks.context(task, rounds, weights, own)
        weights, own = self.hooks.call("end_task", closing, [u.extras for u in updates])
        if not set(self.declared.predicts_with) <= own.keys():
            raise RoundError(
                f"task {task + 1}: no client sent its {' and '.join(self.declared.predicts_with)}, without which "
                "nothing can be predicted; its events.jsonl says why each was rejected or missing"
            )
        with failures_named(self.hooks.where(task, rounds), self.method, RunError):
            never = self.method.never_predicted(own)
        if never:
            names = ", ".join(map(repr, self.schedule.names(never[:5]))) + (" ..." if len(never) > 5 else "")
            message = (
                f"task {task + 1}: no client has enough exemplars of class {names}, which is never predicted; "
                "more exemplars per class would help (memory.per_class=2)"
            )
            self.tell(Warned(message=message))
        return weights, own, sum(update.examples for update in updates)

    def _quotas(self, task: int) -> dict[int, tuple[int, ...]]:
        """How many exemplars of each class each client may keep; one that does not answer decides for itself."""
        rounds, frozen = self.experiment.train.rounds, self.model.frozen_sha256
        jobs = [Job(client, task, rounds, "count", {}, None, frozen=frozen) for client in self.curriculum.everyone()]
        quotas = divided(self._usable(jobs), self.experiment.memory.per_client or 0)
        self.totals.bytes_down += 8 * sum(map(len, quotas.values()))
        return quotas

    def _evaluate(self, task: int, weights: Weights, own: Tensors, *, must: bool) -> Tested:
        """must: wait for images without which the task could not be tested."""
        own = self.hooks.broadcast(self.declared.predicts_with, own)

        def here(test: Split) -> Counts:
            return self._counts(test, parts(task, "test", test, weights, own, self.model.frozen_sha256))

        def at_clients(clients: Sequence[int]) -> Iterator[Update]:
            rounds, frozen = self.experiment.train.rounds, self.model.frozen_sha256
            jobs = [Job(client, task, rounds, "evaluate", weights, None, own, frozen) for client in clients]
            yield from self._usable(jobs)
            self.totals.bytes_down += len(jobs) * nbytes(weights)

        return self.curriculum.test(Trial(task, here, at_clients), self.tell, must=must)

    def _validate(self, task: int, weights: Weights, own: Tensors) -> Counts | None:
        """Counts on validation images, if there are any."""
        images = self.curriculum.validation
        if images is None:
            return None
        own = self.hooks.broadcast(self.declared.predicts_with, own)
        return self._counts(images, parts(task, "validation", images, weights, own, self.model.frozen_sha256))

    def _tested(self, weights: Weights, images: Split) -> Counts:
        """On any images of the server's, which workers need not have."""
        self.model.load(weights)
        with failures_named("evaluation", self.method, RunError):
            return confusion(self.model, self.method, {}, images, self.curriculum.normalisation)

    def _counts(self, images: Split, batches: Sequence[Part]) -> Counts:
        """By whoever is there to help."""
        seed, normalisation = self.experiment.seed_of("training"), self.curriculum.normalisation

        def here(part: Part) -> Counts:
            return counted(part, self.model, self.method, images, normalisation, seed=seed)

        counts = self.engine.test(batches) if isinstance(self.engine, Tests) else map(here, batches)
        return sum(counts, np.zeros((self.model.classes, self.model.classes), np.int64))
