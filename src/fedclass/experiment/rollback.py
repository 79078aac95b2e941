"""Rounds that have broken the model: how they are detected and undone.

Most checks need a defence in [aggregation]; in other runs a round is undone only if its result is not finite.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedclass.data.image_set import Split
from fedclass.experiment.answers import Answers
from fedclass.experiment.checkpoint import Earlier, State
from fedclass.experiment.curriculum import Curriculum
from fedclass.federation.evaluate import Counts
from fedclass.federation.guards import ASIDE, at_chance, constant, lost, one_round_less
from fedclass.federation.server import breakage
from fedclass.models.incremental import IncrementalModel
from fedclass.rng import generator
from fedclass.runs.events import Event, SetAside, Warned
from fedclass.wire import Weights

MOST_IMAGES = 500  # of the server's own, to test whether a model is at chance
NOISE = 8  # images of random noise


@dataclass(frozen=True)
class Rollback:
    """Decides whether a round counts. test: tests a model on images."""

    curriculum: Curriculum
    model: IncrementalModel
    tell: Callable[[Event], None]
    test: Callable[[Weights, Split], Counts]

    @property
    def guarded(self) -> bool:
        return not self.curriculum.experiment.aggregation.plain

    def judged(self, state: State, after: State, answers: Answers) -> State:
        """The state after the round: with its result, without it, or without the previous round's result as well."""
        assert state.weights is not None
        assert after.weights is not None
        earlier = state.earlier
        classes = self.curriculum.schedule.classes_until(state.task)
        if self.guarded and earlier and lost(answers.losses, earlier.loss, classes=classes):
            rise = f"from {earlier.loss:.3g} to {float(np.median(answers.losses)):.3g}"
            fault = f"the round before has spoilt the model (clients' median loss rose {rise}), and is undone as well"
            self._undo(state, answers, fault, earlier.suspects)
            back = replace(state, weights=earlier.weights, method=earlier.method, optimizer=earlier.optimizer)
            return replace(back, earlier=None)
        if broken := self._fault(after.weights, state.weights):
            self._undo(state, answers, f"with its {len(answers.used)} updates {broken}", tuple(answers.suspects))
            return state
        if not self.guarded:
            return after
        loss, suspects = float(np.median(answers.losses)), tuple(answers.suspects)
        return replace(after, earlier=Earlier(state.weights, state.method, state.optimizer, loss, suspects))

    def asked(self, clients: list[int], state: State) -> list[int]:
        """Without clients that are set aside, unless all are."""
        return [client for client in clients if client not in state.aside] or clients

    def needed(self, state: State, answers: Answers) -> int:
        """How many usable updates a round needs: in a defended run, fewer if clients were set aside or rejected."""
        least = self.curriculum.experiment.server.min_updates
        if not self.guarded:
            return least
        return max(1, least - len(set(state.aside) | set(answers.rejected)))

    def aside(self, state: State, answers: Answers) -> dict[int, int]:
        """The clients not to ask in the next rounds, and for how many."""
        if not self.guarded:
            return {}
        reasons = dict.fromkeys(answers.blamed, "its update stood out in a round that was undone")
        reasons |= dict.fromkeys(answers.rejected, "its update was rejected")
        everyone = {update.client for update in answers.used} | {*answers.rejected}
        if everyone <= reasons.keys():
            reasons = {}  # if all are suspects, none stands out
        for client, reason in sorted(reasons.items()):
            self.tell(SetAside(task=state.task, round=state.round, client=client, rounds=ASIDE, reason=reason))
        return one_round_less(state.aside) | dict.fromkeys(reasons, ASIDE)

    def _undo(self, state: State, answers: Answers, fault: str, suspects: tuple[int, ...]) -> None:
        answers.undone, answers.blamed = True, suspects
        names = ", ".join(self.curriculum.named(client) for client in suspects)
        said = f"these stand out by size, direction or claimed examples: {names}" if names else "none stands out"
        message = (
            f"task {state.task + 1}, round {state.round + 1}: undone, because {fault}; the model stays as it was "
            f"before ({said})"
        )
        self.tell(Warned(message=message))

    def _fault(self, weights: Weights, before: Weights) -> str | None:
        noise = self._noise()
        if (fault := breakage(self.model, weights, before, noise)) is not None or not self.guarded:
            return fault
        if constant(self.model, weights, noise) and not constant(self.model, before, noise):
            return "the model's outputs would be the same for every image"
        images = self.curriculum.watched
        if images is None or self.curriculum.experiment.method.declare().predicts_with:
            return None
        some = _some(images)
        if at_chance(self.test(weights, some)) and not at_chance(self.test(before, some)):
            return "the model would be at chance on the server's own images"
        return None

    def _noise(self) -> Tensor:
        """Random noise, to test whether a model's outputs are finite at all."""
        height, width, _ = self.curriculum.image
        return torch.randn(NOISE, 3, height, width, generator=generator(0, "noise")).to(self.model.device)


def _some(images: Split) -> Split:
    """At most MOST_IMAGES of them, evenly spaced, so that all classes are included."""
    step = max(1, len(images.labels) // MOST_IMAGES)
    return Split(images.images[::step], images.labels[::step])
