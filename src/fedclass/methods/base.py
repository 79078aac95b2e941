"""The contract of a method, and FedAvg, from which most methods differ in a hook or two.

A method is a frozen dataclass: its fields are its parameters. All other state goes into its hooks and comes out of
them as tensors by name (`declare`), so that checkpoints, worker processes and sites need not know the method.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedclass.errors import ClientError
from fedclass.losses import balanced_cross_entropy
from fedclass.methods.declare import Declaration, Sizes
from fedclass.models.incremental import IncrementalModel
from fedclass.rng import generator
from fedclass.wire import Tensors, Update, Weights

State = Tensors  # a method's own tensors, by name
Normalisation = tuple[Sequence[float], Sequence[float]]  # mean and std: one value each, or one per channel


@dataclass(frozen=True)
class Batch:
    """images: (B, 3, H, W).  labels: (B,), numbered as classes arrived.  previous: (B, g) teacher's logits, if any.

    rows: tensors kept with exemplars, (B, ...); only in batches of `ClientContext.replay`.
    """

    images: Tensor
    labels: Tensor
    previous: Tensor | None
    rows: Tensors = field(default_factory=dict)


@dataclass(frozen=True)
class Rates:
    """The optimizer's settings that may change from epoch to epoch. momentum: of SGD; for AdamW, beta_1."""

    learning_rate: float
    momentum: float
    weight_decay: float


@dataclass(frozen=True)
class Progress:
    """Where in a task a client is. Rounds and epochs count from 0."""

    round: int
    rounds: int
    epoch: int
    epochs: int


def no_exemplars(count: int) -> Batch:  # noqa: ARG001
    return Batch(torch.empty(0, 3, 1, 1), torch.empty(0, dtype=torch.int64), None)


def no_task_data(size: int) -> Iterable[Batch]:  # noqa: ARG001
    raise ClientError("task_data is available only in `end_round` and `report`, if `declare` says task_data=True")


@dataclass(frozen=True)
class ClientContext:
    """What a client's hooks get: g = old_classes, g + h = model.classes.

    round: of the task, from 0.  task_sizes: classes that came with each task so far.  weights: the global model's, as
    this round began.  counts: (classes,) images of each class that the client holds in this job, exemplars included.
    met: the classes of earlier tasks of which it has had images.  steps: of the optimizer in this round.  state: the
    method's own, from the client's last round.  broadcast: the method's tensors from the server.  replay(count): a
    batch of that many exemplars, drawn at random; all of them, if there are fewer.  prior: (classes,) what
    `cross_entropy` adds to logits, if it is balanced.  task_data(size): in `end_round` and `report`, if `declare` asks
    for it, all images that came with the task, once, in batches of at most that size.  normalisation: pixels in
    0..1 become (x - mean) / std.
    """

    model: IncrementalModel
    old_classes: int
    weights: Weights
    counts: Tensor
    round: int = 0
    task_sizes: tuple[int, ...] = ()
    met: frozenset[int] = frozenset()
    rates: Rates = Rates(0.0, 0.0, 0.0)  # as the round began
    steps: int = 0
    state: State = field(default_factory=dict)
    broadcast: Tensors = field(default_factory=dict)
    replay: Callable[[int], Batch] = no_exemplars
    prior: Tensor | None = None
    task_data: Callable[[int], Iterable[Batch]] = no_task_data
    normalisation: Normalisation = ((0.0,), (1.0,))
    seed: int = 0
    purpose: tuple[object, ...] = ()  # of the generator

    @cached_property
    def generator(self) -> torch.Generator:
        """Seeded by this client, task and round alone; on the CPU."""
        return generator(self.seed, *self.purpose)

    @property
    def device(self) -> torch.device:
        return self.model.device

    def cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Batch mean of -log softmax(logits)[label]; if it is balanced, of logits + log of the client's class shares.

        logits: (B, classes).  labels: (B,).
        """
        if self.prior is None:
            return F.cross_entropy(logits, labels)
        return balanced_cross_entropy(logits, labels, self.prior)

    @cached_property
    def received(self) -> Sequence[Tensor]:
        """The received parameters, in the order of model.parameters() and on its device; frozen ones as they are."""
        named = self.model.named_parameters()
        return [self.weights[name].to(self.device) if name in self.weights else weight for name, weight in named]

    @cached_property
    def received_flat(self) -> Tensor:
        """The received trained parameters as one vector, in the order of `model.flat`."""
        return self.model.flattened(self.weights)


@dataclass(frozen=True)
class ServerContext:
    """What a server's hooks get. Test images are not part of it.

    weights: the global model's, before this step.  state: the method's own.  clients: how many there are in all.
    build: makes a model with all classes so far, to be loaded with weights.  mean: of updates, by the recipe's rule.
    normalisation: pixels in 0..1 become (x - mean) / std before a model sees them.
    """

    task: int
    round: int
    rounds: int
    old_classes: int
    sizes: Sizes
    clients: int
    weights: Weights
    state: State
    generator: torch.Generator
    device: torch.device
    build: Callable[[], IncrementalModel]
    mean: Callable[[Iterable[Update]], Weights]
    normalisation: Normalisation = ((0.0,), (1.0,))


@dataclass(frozen=True)
class Outcome:
    """What `end_round` returns: the method's new state at the client, and its uploads to the server."""

    state: State = field(default_factory=dict)
    uploads: Tensors = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """Every hook except `loss` has a default. Hooks may change the model they get, and nothing else.

    source: where the method comes from.  fidelity: how close it is to its authors' code, and how that is known.
    Neither is inherited: each class states its own (`own_words`).
    """

    source: ClassVar[str]
    fidelity: ClassVar[str]

    @property
    def variant_name(self) -> str:
        """Shown beside the method's name in every table."""
        return str(getattr(self, "variant", "standard"))

    def declare(self) -> Declaration:
        """What the method keeps and sends, and what it needs from the training loop, given its parameters."""
        return Declaration()

    # On the client.

    @abstractmethod
    def loss(self, client: ClientContext, batch: Batch) -> Tensor:
        """The loss of one batch, a scalar."""

    def teacher(self, client: ClientContext) -> Weights | None:  # noqa: ARG002
        """The model whose logits are `previous` in batches, if `declare` says "own". It may have fewer classes."""
        return None

    def rates(self, usual: Rates, *, progress: Progress) -> Rates:  # noqa: ARG002
        """The optimizer's settings in an epoch. usual: those of the recipe's table [optimizer], after its schedule.

        The optimizer's state is kept.
        """
        return usual

    def adjust(self, client: ClientContext, gradient: Tensor) -> None:  # noqa: B027
        """Change the gradient of a step in place: (P,), in the order of `model.flat`."""

    def after_step(self, client: ClientContext) -> None:  # noqa: B027
        """Called after every optimizer step; may change client.model's weights in place. No gradient is recorded."""

    def end_round(self, client: ClientContext) -> Outcome:
        """Called after the client's last step of a round."""
        return Outcome(client.state)

    def importance(self, client: ClientContext) -> Tensor:  # noqa: ARG002
        """(n,) scores of the images of `client.task_data`, if `declare` says select="own". The highest are kept."""
        raise ClientError('a method that declares select="own" must define `importance`')

    def annotate(self, client: ClientContext, images: Tensor, labels: Tensor) -> Tensors:  # noqa: ARG002
        """What to keep with new exemplars, one row each. images: (m, 3, H, W).  labels: (m,)."""
        return {}

    def report(self, client: ClientContext, exemplars: Batch) -> Tensors:  # noqa: ARG002
        """What goes to the server at the end of a task. exemplars: all of the client's. Gradients are enabled."""
        return {}

    # On the server.

    def start(self, server: ServerContext) -> State:
        """The method's state as the first task begins."""
        return server.state

    def aggregate(self, server: ServerContext, updates: Iterable[Update]) -> tuple[Weights, State]:
        """The next global model (Alg. 2), from this round's updates, in the order of clients."""
        return server.mean(updates), server.state

    def end_rounds(self, server: ServerContext) -> tuple[Weights, State]:
        """The global model after a task's last round, with which clients choose their exemplars."""
        return server.weights, server.state

    def end_task(self, server: ServerContext, reports: Sequence[Tensors]) -> tuple[Weights, State]:  # noqa: ARG002
        """The global model to keep, once clients have reported. reports: the results of their `report`."""
        return server.weights, server.state

    def upload_flaw(self, uploads: Tensors) -> str | None:  # noqa: ARG002
        """Why uploads cannot be used, or None. Names, shapes, dtypes and finite values have been checked."""
        return None

    def never_predicted(self, state: State) -> list[int]:  # noqa: ARG002
        """Classes that `predict` cannot return because the state lacks something. They are reported in a warning."""
        return []

    def predict(self, model: IncrementalModel, images: Tensor, state: State) -> Tensor:  # noqa: ARG002
        """(B, classes) scores, the highest wins. state: the tensors in `predicts_with`, made at the end of a task."""
        scores: Tensor = model(images)
        return scores


@dataclass(frozen=True, kw_only=True)
class FedAvg(Method):
    """Cross-entropy on new data and exemplars; the server averages weights (McMahan et al., 2017).

    It replays exemplars like every method here: without them, set memory.per_client=0.
    """

    source = "McMahan et al., 2017, arXiv 1602.05629"
    fidelity = "re-implemented from the paper"

    def declare(self) -> Declaration:
        return Declaration(begins_like_fedavg=type(self) is FedAvg, balances=True)

    def loss(self, client: ClientContext, batch: Batch) -> Tensor:
        return client.cross_entropy(client.model(batch.images), batch.labels)


def own_words(kind: type[Method]) -> tuple[str, str]:
    """The method's source and fidelity, if its own class states them."""
    silent = "its class does not say"
    return vars(kind).get("source", silent), vars(kind).get("fidelity", silent)


def can_be_balanced(method: Method) -> bool:
    """Whether train.balanced would affect its loss. A class that overrides `loss` must declare this itself."""

    def owner(hook: str) -> type:
        return next(kind for kind in type(method).__mro__ if hook in vars(kind))

    return method.declare().balances and issubclass(owner("declare"), owner("loss"))


def parameters(method: Method) -> Mapping[str, object]:
    """The method's fields: its table in a recipe."""
    return {f.name: getattr(method, f.name) for f in fields(method)}
