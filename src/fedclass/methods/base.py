"""FedAvg, and the hooks through which every other method differs from it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedclass.data.memory import Select
from fedclass.models.incremental import IncrementalModel
from fedclass.models.weights import weighted_mean
from fedclass.rng import generator
from fedclass.wire import Update, Weights

Teacher = Literal["previous task", "received"]


@dataclass(frozen=True)
class Batch:
    """images: (B, 3, H, W).  labels: (B,), numbered as classes arrived.  previous: (B, g) teacher's logits, if any."""

    images: Tensor
    labels: Tensor
    previous: Tensor | None


@dataclass(frozen=True)
class SGD:
    """The optimizer's settings."""

    learning_rate: float
    momentum: float
    weight_decay: float


@dataclass(frozen=True)
class Progress:
    """Where in a task a client is: in which epoch of which round, counted from 0."""

    round: int
    rounds: int
    epoch: int
    epochs: int


@dataclass(frozen=True)
class ClientContext:
    """What a client's hooks may look at: g = old_classes, g + h = model.classes."""

    model: IncrementalModel
    old_classes: int
    weights: Weights  # the global model's, as this round began
    met: frozenset[int] = frozenset()  # the classes of earlier tasks that this client has had images of
    seed: int = 0
    purpose: tuple[object, ...] = ()  # of the generator

    @cached_property
    def generator(self) -> torch.Generator:
        """Of this client, task and round alone; on the CPU."""
        return generator(self.seed, *self.purpose)

    @cached_property
    def received(self) -> Sequence[Tensor]:
        """The parameters among them, in the order of model.parameters() and on its device."""
        return [self.weights[name].to(weight.device) for name, weight in self.model.named_parameters()]


@dataclass(frozen=True, kw_only=True)
class FedAvg:
    """Cross-entropy on new data and exemplars; the server averages weights (McMahan et al., 2017).

    It replays exemplars like every method here: without them, set memory.per_client=0.
    """

    teacher: ClassVar[Teacher | None] = None  # whose outputs a batch carries as `previous`
    selects: ClassVar[Select | None] = None  # how exemplars are chosen, if the method insists
    fewest_exemplars: ClassVar[int] = 0  # of each class, that at least one client must keep after each task
    needs_extras: ClassVar[bool] = False  # predict() works only with what gather() made: not within a task
    head_bias: ClassVar[bool] = True  # whether the head has one; where it has none, it is zero and stays so
    uploads: ClassVar[tuple[str, ...]] = ()  # names of extra tensors that end_task may send
    begins_like_fedavg: ClassVar[bool] = (
        True  # in the first task, bit for bit; a method derived from this one says it anew, or it does not hold
    )

    @property
    def variant_name(self) -> str:
        """What every table says beside the method's name."""
        return str(getattr(self, "variant", "standard"))

    # On the client.

    def loss(self, client: ClientContext, batch: Batch) -> Tensor:
        """The loss of one batch, a scalar."""
        return F.cross_entropy(client.model(batch.images), batch.labels)

    def sgd(self, usual: SGD, *, progress: Progress) -> SGD:  # noqa: ARG002
        """The optimizer's settings in an epoch; `usual` is the recipe's table [train]. No state is lost on a change."""
        return usual

    def after_step(self, client: ClientContext) -> None:
        """May change client.model's weights in place, after every step of the optimizer. No gradient is recorded."""

    def end_task(self, client: ClientContext, exemplars: Tensor, labels: Tensor) -> Mapping[str, Tensor]:  # noqa: ARG002
        """Extra tensors for the server, named in `uploads`; exemplars: (m, 3, H, W), labels: (m,)."""
        return {}

    # On the server.

    def aggregate(self, updates: Iterable[Update], previous: Weights) -> Weights:  # noqa: ARG002
        """The next global model (Alg. 2), from this round's updates, which come in the order of clients."""
        return weighted_mean((update.weights, update.examples) for update in updates)

    def finish_task(self, weights: Weights, old_classes: int) -> Weights:  # noqa: ARG002
        """The global model to keep, after the last round of a task."""
        return weights

    def gather(self, extras: Sequence[Mapping[str, Tensor]]) -> Mapping[str, Tensor]:  # noqa: ARG002
        """What the clients' end_task sent, as tensors that belong to the global model."""
        return {}

    def extras_flaw(self, extras: Mapping[str, Tensor], weights: Weights) -> str | None:  # noqa: ARG002
        """Why what end_task sent cannot be gathered, or None. Names and finite values have been checked."""
        return None

    def never_predicted(self, extras: Mapping[str, Tensor]) -> list[int]:  # noqa: ARG002
        """Classes that predict() cannot give for want of something in `extras`, which is told as a warning."""
        return []

    def predict(self, model: IncrementalModel, images: Tensor, extras: Mapping[str, Tensor]) -> Tensor:  # noqa: ARG002
        """(B, classes) scores, the highest wins. `extras` is what `gather` made, empty before the end of a task."""
        scores: Tensor = model(images)
        return scores


def parameters(method: FedAvg) -> dict[str, object]:
    """The method's fields: its table in a recipe."""
    return {f.name: getattr(method, f.name) for f in fields(method)}
