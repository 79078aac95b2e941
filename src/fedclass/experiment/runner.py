"""A run: tasks x rounds. In each round: sample, dispatch, aggregate, evaluate, tell."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import torch

from fedclass.data.schedule import Schedule
from fedclass.engines.base import Engine
from fedclass.errors import HookError, RoundError, RunError
from fedclass.experiment.answers import Answers, spent, timed
from fedclass.experiment.checkpoint import State, Totals
from fedclass.experiment.curriculum import Curriculum
from fedclass.experiment.dispatch import Dispatch
from fedclass.experiment.evaluator import Evaluator, RoundCounts
from fedclass.experiment.record import Listener, Record
from fedclass.experiment.reuse import Reuse
from fedclass.experiment.rollback import Rollback
from fedclass.experiment.server_hooks import ServerHooks
from fedclass.federation import server_optimizer
from fedclass.federation.aggregation import Aggregation
from fedclass.federation.faults import dropped_out
from fedclass.federation.hooks import failures_named
from fedclass.federation.quotas import divided
from fedclass.federation.selection import BY_MODEL
from fedclass.federation.server import sample
from fedclass.federation.store import MemoryStore
from fedclass.federation.train_settings import chosen_device
from fedclass.methods.declare import grown
from fedclass.rng import streams_restored
from fedclass.runs.events import (
    RoundFinished,
    RunFailed,
    TaskFinished,
    TaskStarted,
    UpdateMissing,
    Warned,
)
from fedclass.runs.layout import RunDirectory, Writing
from fedclass.usercode import watching
from fedclass.wire import Job, Tensors, Weights, nbytes


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
    """Carry out an experiment and return its summary. A directory with checkpoints is resumed from the last one.

    store: the clients' states, if the engine keeps them in this process; checkpoints then include them.  done: cached
    tasks of runs that began in the same way; they are reused instead of being learned again.  writing: a context for
    every write, if the caller holds the lock of the run.  changed_code: resume even if code has changed; the summary
    then says so.  until: stop after this many tasks, to be resumed later; only the last task brings a summary.
    note: called with each event of this process; `listen` also gets the events of earlier ones.
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
                state = record.begin(engine.name)
                run = Run(curriculum, engine, record.tell, record.keep, replace(state.totals))
                state = run.carry_out(state, until)
                if until is not None and state.task < len(curriculum.schedule.task_sizes):
                    return {}
                return record.finish(state, engine.name)
    except RoundError as error:
        raise RoundError(f"{directory.root}: {error}") from error
    except OSError as error:
        raise RunError(f"{directory.root}: cannot continue ({error}); once that is fixed, {again}") from error


@contextlib.contextmanager
def told_if_it_fails(tell: Listener) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        with contextlib.suppress(RunError, OSError):  # lost lock, full disk: the first error is the one to report
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

    tell: called with each event.  keep: called with each state from which the run could be resumed.  totals: counted
    so far; the run counts on.
    """

    def __init__(
        self,
        curriculum: Curriculum,
        engine: Engine,
        tell: Listener,
        keep: Callable[[State], None],
        totals: Totals,
    ) -> None:
        self.curriculum, self.tell, self.keep, self.totals = curriculum, tell, keep, totals
        self.experiment, self.method = curriculum.experiment, curriculum.experiment.method
        self.declared = self.method.declare()
        self.model = curriculum.build().to(chosen_device(self.experiment.train.device))
        self.began = time.perf_counter() - totals.seconds
        self.checkpoint_seconds = 0.0
        self.hooks = ServerHooks(curriculum, self.model)
        self.dispatch = Dispatch(engine, self.method, self.model, tell, totals)
        self.evaluator = Evaluator(curriculum, engine, self.model, self.hooks, self.dispatch)
        self.rollback = Rollback(curriculum, self.model, tell, self.evaluator.on_images)

    @property
    def schedule(self) -> Schedule:
        return self.curriculum.schedule

    def carry_out(self, state: State, until: int | None = None) -> State:
        """Learn all remaining tasks, or those of the first `until`, and return the state after the last one."""
        self.curriculum.restore(state.registry)
        while (until is None or state.task < until) and self.curriculum.begin(state.task, self.tell):
            state = self._task(state)
        return state

    def _seconds(self) -> float:
        """Since the run began, without the time it was stopped."""
        return time.perf_counter() - self.began

    def _kept(self, state: State) -> State:
        """Pass the state on to `keep`, with up-to-date totals."""
        self.totals.seconds = self._seconds()
        state = replace(state, totals=replace(self.totals), registry=self.curriculum.registry)
        began = time.perf_counter()
        self.keep(state)
        self.checkpoint_seconds = time.perf_counter() - began
        return state

    # A task.

    def _task(self, state: State) -> State:
        """Learn a task, or the rest of it, and return the state in which the next task begins."""
        state = self._begun(state) if state.weights is None else state
        assert state.weights is not None
        self.model.load(state.weights)
        state = replace(state, weights=self.model.weights())  # in the model's order, which files do not preserve
        while state.round < self.experiment.train.rounds:
            with watching():
                state = self._round(state)
            state = self._kept(state)
        with watching():
            state = self._finished(state)
        return self._kept(state)

    def _begun(self, state: State) -> State:
        """The state in which a task's first round begins. The head has grown, and so has all state of its size."""
        if self.curriculum.registry != state.registry:
            state = self._kept(state)  # keep what was learned about sites, whatever happens in the first round
        task = state.task
        if state.last is not None:
            self.model.load(state.last)
        before = self.model.classes
        self.model.grow_to(self.schedule.classes_until(task), seed=self.experiment.seed_of("initialisation"))
        own = grown(state.method, self.declared.server, self.model, before)
        moments = server_optimizer.grown(self.experiment.server, state.optimizer, self.model, before)
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
        """Close the task, test the model, and report both."""
        task, phases = state.task, dict[str, float]()
        with spent(phases, "clients"):
            weights, own, exemplars = self._close(state)
        with spent(phases, "evaluate"):
            tested = self.evaluator.test(task, weights, own, self.tell, must=True)
            validation = self.evaluator.validate(task, weights, own)
        assert tested.confusion is not None  # must=True has waited for it
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
        began, bytes_up = time.perf_counter(), self.totals.bytes_up
        asked = self._sample(state)
        answers = self._dispatch(state, asked)
        after = self._aggregate(state, answers)
        with spent(answers.phases, "evaluate"):
            counts = self.evaluator.after_round(after, self.tell)
        self.tell(_round_finished(state, answers, counts, began, self.totals.bytes_up - bytes_up))
        aside = self.rollback.aside(state, answers)
        return replace(after, round=state.round + 1, reached=state.reached | {*asked}, aside=aside)

    def _sample(self, state: State) -> list[int]:
        """The clients to ask."""
        clients = self.rollback.asked(self.curriculum.learners(state.task, state.round, self.tell), state)
        wanted, seed = self.experiment.server.participation, self.experiment.seed_of("training")
        return sample(clients, participation=wanted, seed=seed, task=state.task, round=state.round)

    def _dispatch(self, state: State, asked: Sequence[int]) -> Answers:
        """Jobs for these clients, and the updates that will come back."""
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
            self.hooks.seed("aggregate", task, round, number)  # clients and listeners may have drawn numbers here

        rejected, phases = list[int](), {"clients": 0.0, "checkpoint": self.checkpoint_seconds}
        updates = timed(self.dispatch.run(jobs, rejected), phases, "clients")
        return Answers(updates, len(jobs), down, before, weights, phases, rejected=rejected)

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
        began, updates, settings = time.perf_counter(), iter(answers), self.experiment.server
        first = next(updates, None)  # no update: nothing to average
        if first is not None:
            at = (state.task, state.round)
            mean = Aggregation(self.experiment.aggregation, state.weights, self.curriculum, at=at)
            server = replace(self.hooks.context(state.task, state.round, state.weights, state.method), mean=mean)
            weights, own = self.hooks.call("aggregate", server, chain([first], updates))
            answers.clipped, answers.screened = mean.clipped, mean.screened
            weights, moments = server_optimizer.step(settings, self.model, state.weights, weights, state.optimizer)
            after = replace(state, weights=weights, method=own, optimizer=moments)
            state = self.rollback.judged(state, after, answers)
        if len(answers.used) < (needed := self.rollback.needed(state, answers)):
            raise RoundError(
                f"task {state.task + 1}, round {state.round + 1}: {len(answers.used)} of {answers.asked} updates were "
                f"usable, but server.min_updates requires {needed}; events.jsonl says why each of the others was "
                "rejected or missing (NaN often means that optimizer.learning_rate is too high)"
            )
        self.totals.samples += int(sum(update.metrics["samples"] for update in answers.used))
        answers.phases["aggregate"] = time.perf_counter() - began - answers.phases["clients"]
        return state

    def _close(self, state: State) -> tuple[Weights, Tensors, int]:
        """Let every client choose its exemplars and report; the method then decides on the task's final model."""
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
        updates = list(self.dispatch.run(jobs))
        selects = self.declared.select or self.experiment.memory.select
        if self.declared.uploads.get("end_task") or self.declared.rows or selects in BY_MODEL:
            self.totals.bytes_down += len(jobs) * nbytes(weights)
        self.hooks.seed("end_task", task)
        closing = self.hooks.context(task, rounds, weights, own)
        weights, own = self.hooks.call("end_task", closing, [u.extras for u in updates])
        if not set(self.declared.predicts_with) <= own.keys():
            raise RoundError(
                f"task {task + 1}: no client sent its {' and '.join(self.declared.predicts_with)}, without which "
                "nothing can be predicted; events.jsonl says why each was rejected or missing"
            )
        with failures_named(self.hooks.where(task, rounds), self.method, HookError):
            never = self.method.never_predicted(own)
        if never:
            names = ", ".join(map(repr, self.schedule.names(never[:5]))) + (" ..." if len(never) > 5 else "")
            message = (
                f"task {task + 1}: no client has enough exemplars of class {names}, so it is never predicted; "
                "keep more exemplars per class (memory.per_class=2)"
            )
            self.tell(Warned(message=message))
        return weights, own, sum(update.examples for update in updates)

    def _quotas(self, task: int) -> dict[int, tuple[int, ...]]:
        """How many exemplars of each class each client may keep. One that does not answer divides its own budget."""
        rounds, frozen = self.experiment.train.rounds, self.model.frozen_sha256
        jobs = [Job(client, task, rounds, "count", {}, None, frozen=frozen) for client in self.curriculum.everyone()]
        quotas = divided(self.dispatch.run(jobs), self.experiment.memory.per_client or 0)
        self.totals.bytes_down += 8 * sum(map(len, quotas.values()))
        return quotas


def _round_finished(state: State, answers: Answers, counts: RoundCounts, began: float, bytes_up: int) -> RoundFinished:
    """The event of a round. began: by the clock.  bytes_up: what clients have sent in it."""
    test, validation = counts.test, counts.validation
    return RoundFinished(
        task=state.task,
        round=state.round,
        clients=[update.client for update in answers.used],
        examples=answers.examples,
        losses=answers.losses,
        loss=float(np.average(answers.losses, weights=answers.examples)),
        bytes_up=bytes_up,
        bytes_down=answers.bytes_down,
        seconds=time.perf_counter() - began,
        correct=None if test is None else test.diagonal().tolist(),
        tested=None if test is None else test.sum(axis=1).tolist(),
        phases=answers.phases,
        validation_correct=None if validation is None else validation.diagonal().tolist(),
        validation_tested=None if validation is None else validation.sum(axis=1).tolist(),
        clipped=answers.clipped,
        rolled_back=answers.undone,
        screened=answers.screened,
    )
