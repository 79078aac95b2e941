"""Tests of the global model: at the end of a task, after a round, or to judge a round's result."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedclass.data.image_set import Split
from fedclass.engines.base import Engine, Tests
from fedclass.errors import HookError
from fedclass.experiment.checkpoint import State
from fedclass.experiment.curriculum import Curriculum, Tell, Tested, Trial
from fedclass.experiment.dispatch import Dispatch
from fedclass.experiment.server_hooks import ServerHooks
from fedclass.federation.evaluate import Counts, Part, confusion, counted, parts
from fedclass.federation.hooks import failures_named
from fedclass.models.incremental import IncrementalModel
from fedclass.wire import Job, Tensors, Update, Weights, nbytes


@dataclass(frozen=True)
class RoundCounts:
    """Counts on test images or on validation images; None where there are none."""

    test: Counts | None = None
    validation: Counts | None = None


class Evaluator:
    """Counts predictions in this process, in the engine's processes, or at clients, as the curriculum asks."""

    def __init__(
        self,
        curriculum: Curriculum,
        engine: Engine,
        model: IncrementalModel,
        hooks: ServerHooks,
        dispatch: Dispatch,
    ) -> None:
        self.curriculum, self.engine, self.model, self.hooks, self.dispatch = curriculum, engine, model, hooks, dispatch
        self.experiment, self.method = curriculum.experiment, curriculum.experiment.method
        self.predicts_with = self.method.declare().predicts_with

    def after_round(self, state: State, tell: Tell) -> RoundCounts:
        """In the rounds that `evaluation.every` names, but not in a task's last round: the end of the task tests it."""
        every, last = self.experiment.evaluation.every, self.experiment.train.rounds - 1
        if not every or state.round == last or (state.round + 1) % every or self.predicts_with:
            return RoundCounts()
        assert state.weights is not None
        if (validation := self.validate(state.task, state.weights, state.method)) is not None:
            return RoundCounts(validation=validation)  # a choice among settings must not see test figures
        return RoundCounts(test=self.test(state.task, state.weights, state.method, tell, must=False).confusion)

    def test(self, task: int, weights: Weights, own: Tensors, tell: Tell, *, must: bool) -> Tested:
        """own: the method's state.  must: wait for the images if the task could not be tested without them."""
        own = self.hooks.broadcast(self.predicts_with, own)

        def here(test: Split) -> Counts:
            return self._counts(test, parts(task, "test", test, weights, own, self.model.frozen_sha256))

        def at_clients(clients: Sequence[int]) -> Iterator[Update]:
            rounds, frozen = self.experiment.train.rounds, self.model.frozen_sha256
            jobs = [Job(client, task, rounds, "evaluate", weights, None, own, frozen) for client in clients]
            yield from self.dispatch.run(jobs)
            self.dispatch.totals.bytes_down += len(jobs) * nbytes(weights)

        return self.curriculum.test(Trial(task, here, at_clients), tell, must=must)

    def validate(self, task: int, weights: Weights, own: Tensors) -> Counts | None:
        """Counts on validation images, if there are any."""
        images = self.curriculum.validation
        if images is None:
            return None
        own = self.hooks.broadcast(self.predicts_with, own)
        return self._counts(images, parts(task, "validation", images, weights, own, self.model.frozen_sha256))

    def on_images(self, weights: Weights, images: Split) -> Counts:
        """On any of the server's images. The engine's processes may lack them, so this process counts."""
        self.model.load(weights)
        with failures_named("evaluation", self.method, HookError):
            return confusion(self.model, self.method, {}, images, self.curriculum.normalisation)

    def _counts(self, images: Split, batches: Sequence[Part]) -> Counts:
        """In the engine's processes if they have the images, otherwise in this one."""
        seed, normalisation = self.experiment.seed_of("training"), self.curriculum.normalisation

        def here(part: Part) -> Counts:
            return counted(part, self.model, self.method, images, normalisation, seed=seed)

        counts = self.engine.test(batches) if isinstance(self.engine, Tests) else map(here, batches)
        return sum(counts, np.zeros((self.model.classes, self.model.classes), np.int64))
