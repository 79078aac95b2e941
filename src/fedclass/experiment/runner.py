"""A run: tasks x rounds."""

import contextlib
import json
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save
from torch import Tensor

import fedclass
from fedclass import metrics
from fedclass.data.memory import planned
from fedclass.engines.base import Engine
from fedclass.errors import RoundError
from fedclass.experiment.setup import Setup
from fedclass.experiment.trained import EXTRAS, describe
from fedclass.federation.client import chosen_device
from fedclass.federation.evaluate import confusion
from fedclass.federation.server import sample, usable
from fedclass.models.weights import copy_of
from fedclass.runs.events import (
    Event,
    EventLog,
    RoundFinished,
    RunFinished,
    RunStarted,
    TaskFinished,
    TaskStarted,
    UpdateReceived,
    UpdateRejected,
    Warned,
)
from fedclass.runs.layout import RunDirectory, write_atomically
from fedclass.wire import Job, Update, Weights, nbytes, sha256

Listener = Callable[[Event], None]


def run(setup: Setup, engine: Engine, directory: RunDirectory, listen: Listener = lambda _: None) -> dict[str, Any]:
    """Carry out an experiment into a fresh run directory and return its summary."""
    write_atomically(directory.config, setup.experiment.to_toml())
    with EventLog(directory.events) as log, one_thread():

        def tell(event: Event) -> None:
            log.write(event)
            listen(event)

        return Run(setup, engine, directory, tell).carry_out()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Sums over several threads differ in the last bits; one thread gives the same bits everywhere."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class GlobalModel:
    """What a task leaves behind: the weights, and what the method needs besides them to predict."""

    weights: Weights
    extras: Mapping[str, Tensor]


class Run:
    """One experiment being carried out. Tasks, rounds and clients count from 0."""

    def __init__(self, setup: Setup, engine: Engine, directory: RunDirectory, tell: Listener) -> None:
        self.setup, self.engine, self.directory, self.tell = setup, engine, directory, tell
        self.experiment, self.stream, self.method = setup.experiment, setup.stream, setup.experiment.method
        self.model = setup.build().to(chosen_device(self.experiment.train.device))
        self.bytes_up = self.bytes_down = self.samples = 0

    def carry_out(self) -> dict[str, Any]:
        began = time.perf_counter()
        self._announce()
        last: GlobalModel | None = None
        confusions = []
        for task in range(len(self.stream.task_sizes)):
            last, counts = self._task(task, last.weights if last else None)
            confusions.append(counts)
        assert last is not None  # a stream has at least one task
        summary = self._summary(last, confusions, seconds=time.perf_counter() - began)
        self._write_model(last)
        write_atomically(self.directory.summary, json.dumps(summary, indent=1) + "\n")
        self.tell(RunFinished(summary=summary))
        return summary

    def _announce(self) -> None:
        data, e, counts = self.stream.data, self.experiment, self.stream.counts()
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
                exemplars=planned(e.memory, counts, self.stream.task_sizes).sum(axis=0).tolist(),
                rounds=e.train.rounds,
                seed=e.seed,
                engine=self.engine.name,
                machine=fingerprint(),
            )
        )
        if not data.official:
            message = (
                f"{data.name}: the files do not have the published checksums; these are not results on {data.name}"
            )
            self.tell(Warned(message=message))

    def _task(self, task: int, teacher: Weights | None) -> tuple[GlobalModel, NDArray[np.int64]]:
        began, up, down = time.perf_counter(), self.bytes_up, self.bytes_down
        if teacher is not None:
            self.model.load(teacher)
        old_classes = self.model.classes
        self.model.grow_to(self.stream.classes_until(task), seed=self.experiment.seed)
        clients = self._clients_with_work(task)
        self.tell(
            TaskStarted(
                task=task,
                new_classes=list(self.stream.classes[old_classes : self.model.classes]),
                clients=len(clients),
            )
        )
        weights: Weights = {name: tensor.cpu() for name, tensor in copy_of(self.model).items()}
        reached: set[int] = set()  # clients that have the teacher
        for round in range(self.experiment.train.rounds):
            weights = self._round(task, round, clients, weights, teacher, reached)
        weights = self.method.finish_task(weights, old_classes)
        extras, exemplars = self._close(task, weights)
        counts = self._evaluate(weights, extras)
        self.tell(
            TaskFinished(
                task=task,
                confusion=counts.tolist(),
                exemplars=exemplars,
                bytes_up=self.bytes_up - up,
                bytes_down=self.bytes_down - down,
                seconds=time.perf_counter() - began,
            )
        )
        return GlobalModel(weights, extras), counts

    def _clients_with_work(self, task: int) -> list[int]:
        """Clients whose update would count: those with new data, or, if exemplars count, with anything."""
        exemplars_count = self.experiment.train.weighting == "with-exemplars" and self.experiment.memory.keeps
        first = 0 if exemplars_count else task
        return [
            client
            for client in range(self.stream.clients)
            if any(len(self.stream.new_data(client, t)) for t in range(first, task + 1))
        ]

    def _round(
        self,
        task: int,
        round: int,
        clients: list[int],
        weights: Weights,
        teacher: Weights | None,
        reached: set[int],
    ) -> Weights:
        began, train = time.perf_counter(), self.experiment.train
        asked = sample(clients, participation=train.participation, seed=self.experiment.seed, task=task, round=round)
        sent = teacher if self.method.teacher == "previous task" else None
        jobs = [Job(client, task, round, "train", weights, sent) for client in asked]
        down = len(jobs) * nbytes(weights) + len(set(asked) - reached) * nbytes(sent or {})
        reached.update(asked)
        used: list[Update] = []

        def received() -> Iterator[Update]:
            """Hands on one update at a time, so that only their sum is ever in memory; keeps what the event needs."""
            for update in self._usable(jobs):
                used.append(Update(update.client, task, round, {}, update.examples, update.metrics))
                yield update

        up = self.bytes_up
        updates = received()
        first = next(updates, None)  # none at all could not be averaged
        new_weights = weights if first is None else self.method.aggregate(chain([first], updates), weights)
        if len(used) < train.min_updates:
            raise RoundError(
                f"task {task + 1}, round {round + 1}: {len(used)} of {len(jobs)} updates were usable, and "
                f"train.min_updates = {train.min_updates} are needed; {self.directory.events} says why each was "
                "rejected (NaN often means that train.learning_rate is too high)"
            )
        self.bytes_down += down
        examples = [update.examples for update in used]
        self.samples += int(sum(update.metrics["samples"] for update in used))
        losses = [update.metrics["loss"] for update in used]
        last = round == train.rounds - 1  # the end of the task tests it anyway
        every = self.experiment.evaluation.every
        counts = None if last or not every or (round + 1) % every else self._evaluate(new_weights, {})
        self.tell(
            RoundFinished(
                task=task,
                round=round,
                clients=[update.client for update in used],
                examples=examples,
                losses=losses,
                loss=float(np.average(losses, weights=examples)),
                bytes_up=self.bytes_up - up,
                bytes_down=down,
                seconds=time.perf_counter() - began,
                correct=None if counts is None else counts.diagonal().tolist(),
                tested=None if counts is None else counts.sum(axis=1).tolist(),
            )
        )
        return new_weights

    def _usable(self, jobs: list[Job]) -> Iterator[Update]:
        """Run the jobs; count bytes, tell what comes in, and leave out what cannot be used."""

        task, round = jobs[0].task, jobs[0].round

        def reject(client: int, reason: str) -> None:
            self.tell(UpdateRejected(task=task, round=round, client=client, reason=reason))

        def received() -> Iterator[Update]:
            for done, update in enumerate(self.engine.run(jobs), start=1):
                self.bytes_up += nbytes(update.weights) + nbytes(update.extras)
                self.tell(UpdateReceived(task=task, round=round, done=done, of=len(jobs)))
                yield update

        return usable(received(), jobs, self.method, reject)

    def _close(self, task: int, weights: Weights) -> tuple[Mapping[str, Tensor], int]:
        """Let every client choose its exemplars, and gather what the method declares as uploads."""
        rounds = self.experiment.train.rounds
        jobs = [Job(client, task, rounds, "end_task", weights, None) for client in range(self.stream.clients)]
        updates = list(self._usable(jobs))
        if self.method.uploads or (self.method.selects or self.experiment.memory.select) == "herding":
            self.bytes_down += len(jobs) * nbytes(weights)
        extras = self.method.gather([u.extras for u in updates if u.extras]) if self.method.uploads else {}
        if self.method.uploads and not extras:
            message = (
                f"task {task + 1}: clients' {' and '.join(self.method.uploads)} do not cover every class, so that the "
                "model's own scores predict; more exemplars per class would help (memory.per_class=2)"
            )
            self.tell(Warned(message=message))
        return extras, sum(update.examples for update in updates)

    def _evaluate(self, weights: Weights, extras: Mapping[str, Tensor]) -> NDArray[np.int64]:
        self.model.load(weights)
        return confusion(self.model, self.method, extras, self.stream, self.setup.normalisation)

    def _summary(self, last: GlobalModel, confusions: list[NDArray[np.int64]], *, seconds: float) -> dict[str, Any]:
        e = self.experiment
        return {
            "method": e.method_name,
            "variant": self.method.variant_name,
            "dataset": self.stream.data.name,
            "official_data": self.stream.data.official,
            "tasks": list(self.stream.task_sizes),
            "seed": e.seed,
            "engine": self.engine.name,
            **metrics.summarise(confusions, self.stream.task_sizes),
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "seconds": seconds,
            "samples_per_second": self.samples / seconds,
            "weights_sha256": sha256(last.weights),
        }

    def _write_model(self, last: GlobalModel) -> None:
        tensors = dict(last.weights) | {f"{EXTRAS}{name}": tensor for name, tensor in last.extras.items()}
        contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
        write_atomically(self.directory.model, save(contiguous, metadata=describe(self.setup, tensors)))
        write_atomically(self.directory.classes, json.dumps(list(self.stream.classes)) + "\n")


def fingerprint() -> dict[str, str]:
    """What the exact bits of a result depend on besides the recipe."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
    }
