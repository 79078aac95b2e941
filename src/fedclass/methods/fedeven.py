"""FedEven: every client learns the classifier of evenly many images of each class, whatever it holds itself. Ours."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from torch import Tensor

from fedclass.losses import balanced_cross_entropy, distillation, log_prior
from fedclass.methods.base import Batch, ClientContext, FedAvg
from fedclass.methods.declare import Declaration


@dataclass(frozen=True, kw_only=True)
class FedEven(FedAvg):
    """Cross-entropy of logits + strength * log(share of each class in the client's own data), plus distillation.

    Clients that hold different classes, and exemplars that are few, are one shift of labels: if clients share
    p(x | y), all of them have the same minimiser, so that their mean does not pull apart what agrees. A class that a
    client lacks gets no gradient from its cross-entropy. From the second task on, `distillation` weighs LwF's loss
    against the global model of the last task. strength = distillation = 0 is FedAvg.

    Counts of classes stay at the client.
    """

    strength: Annotated[float, Field(ge=0, description="of the adjustment; 1 in the theorem, 0 is none")] = 1.0
    smoothing: Annotated[
        float, Field(ge=0, description="images added to each class's count; above 0, classes that a client lacks count")
    ] = 0.0
    distillation: Annotated[float, Field(ge=0, description="weight of the old classes' distillation")] = 1.0
    temperature: Annotated[float, Field(gt=0, description="of the distillation")] = 2.0

    def declare(self) -> Declaration:
        return Declaration(
            teacher="previous task" if self.distillation > 0 else None,
            begins_like_fedavg=type(self) is FedEven and self.strength == 0,
        )

    def loss(self, client: ClientContext, batch: Batch) -> Tensor:
        logits = client.model(batch.images)
        prior = log_prior(client.counts, strength=self.strength, smoothing=self.smoothing)
        loss = balanced_cross_entropy(logits, batch.labels, prior)
        if batch.previous is None or self.distillation == 0:
            return loss
        return loss + self.distillation * distillation(logits, batch.previous, temperature=self.temperature)
