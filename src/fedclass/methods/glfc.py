"""GLFC's client loss (Dong et al., 2022). Its proxy server is in `glfc_full`, its entropy in neither."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from fedclass.losses import glfc_loss
from fedclass.methods.base import Batch, ClientContext, FedAvg, Progress, Rates, ServerContext, State
from fedclass.methods.declare import Declaration
from fedclass.wire import Update, Weights

AUTHORS = Rates(learning_rate=2.0, momentum=0.0, weight_decay=1e-5)
# (share, divisor): from this share of a task's epochs to the end of that round, the authors' code divides the rate.
DIVISORS = ((0.5, 5), (0.75, 25), (0.9, 125))


@dataclass(frozen=True, kw_only=True)
class GLFC(FedAvg):
    """Gradient-compensated and relation-distilled sigmoid losses under FedAvg.

    `released` is the client loss alone, as the FedCLASS authors' release uses it, with the recipe's optimizer; at a
    learning rate of 0.01 it learns slowly. `glfc` adds its own authors' settings: a learning rate of 2.0 with their
    schedule, no momentum, weight decay 1e-5, a plain mean over clients, herding without re-normalising, and no
    compensation at a client that has had no old class. In both, the teacher is the last task's global model. Two
    more parts of their code are in neither: a proxy server that chooses the teacher by images reconstructed from
    gradients (`glfc-full`), and clients that detect by entropy that a task has begun. For their whole setting, the
    recipe also needs their rounds (10 per task), epochs (20), batch size (128) and memory.
    """

    source = "Dong et al., 2022, arXiv 2203.11473"
    fidelity = (
        "partial: loss compared with the authors' code, difference 0, gradient within 9.3e-10; no proxy "
        "server, no entropy"
    )

    variant: Annotated[
        Literal["released", "glfc"],
        Field(
            description="released: the client loss, as the FedCLASS authors' code uses it; "
            "glfc: with its own authors' optimizer, schedule, mean and exemplars"
        ),
    ] = "released"
    learning_rate: Annotated[
        float | None, Field(gt=0, description="takes the place of optimizer.learning_rate and its schedule; glfc: 2.0")
    ] = None
    momentum: Annotated[float | None, Field(ge=0, lt=1, description="of optimizer.momentum; glfc: 0")] = None
    weight_decay: Annotated[float | None, Field(ge=0, description="of optimizer.weight_decay; glfc: 1e-5")] = None

    def __post_init__(self) -> None:
        """The authors' settings become parameters, so that a stored recipe has them and a user can change them."""
        if self.variant == "glfc":
            for name, value in vars(AUTHORS).items():
                if getattr(self, name) is None:
                    object.__setattr__(self, name, value)

    def declare(self) -> Declaration:
        own = self.variant == "glfc"
        return Declaration(teacher="previous task", select="herding-pycil" if own else None, assumes_sgd=own)

    def rates(self, usual: Rates, *, progress: Progress) -> Rates:
        own = {name: value for name in vars(usual) if (value := getattr(self, name)) is not None}
        rates = replace(usual, **own)
        if self.variant != "glfc":
            return rates
        divisor = 1
        for share, later in DIVISORS:  # each begins at one epoch and ends with its round
            begins = share * progress.rounds * progress.epochs
            if progress.round * progress.epochs <= begins <= progress.round * progress.epochs + progress.epoch:
                divisor = later
        return replace(rates, learning_rate=rates.learning_rate / divisor)

    def loss(self, client: ClientContext, batch: Batch) -> Tensor:
        compensate = self.variant == "released" or bool(client.met)
        return glfc_loss(client.model(batch.images), batch.previous, batch.labels, compensate=compensate)

    def aggregate(self, server: ServerContext, updates: Iterable[Update]) -> tuple[Weights, State]:
        equal = self.variant == "glfc"
        return super().aggregate(server, (replace(update, examples=1) for update in updates) if equal else updates)
