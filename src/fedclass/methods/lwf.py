"""LwF: learning without forgetting (Li and Hoiem, 2016) under FedAvg, with exemplars."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from torch import Tensor

from fedclass.losses import distillation
from fedclass.methods.base import Batch, ClientContext, FedAvg
from fedclass.methods.declare import Declaration


@dataclass(frozen=True, kw_only=True)
class LwF(FedAvg):
    """Cross-entropy, plus distillation of old classes from the global model of the last task; weight 0 is FedAvg.

    The cross-entropy is over all classes, on new images and exemplars. The paper has no exemplars: set
    memory.per_client=0. Its warm-up of new classes with everything else frozen is not implemented.
    """

    source = "Li and Hoiem, 2016, arXiv 1606.09282"
    fidelity = "loss compared with mammoth's and PyCIL's code, within 2.4e-7; partial: no warm-up of new classes"

    distillation: Annotated[float, Field(ge=0, description="weight of the old classes' distillation")] = 1.0
    temperature: Annotated[float, Field(gt=0, description="temperature of the distillation")] = 2.0

    def declare(self) -> Declaration:
        return Declaration(
            teacher="previous task" if self.distillation > 0 else None,
            begins_like_fedavg=type(self) is LwF,
            balances=True,
        )

    def loss(self, client: ClientContext, batch: Batch) -> Tensor:
        logits = client.model(batch.images)
        loss = client.cross_entropy(logits, batch.labels)
        if batch.previous is None or self.distillation == 0:
            return loss
        return loss + self.distillation * distillation(logits, batch.previous, temperature=self.temperature)
