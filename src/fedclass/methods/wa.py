"""FedWA: maintaining discrimination and fairness (Zhao et al., 2020) under FedAvg."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedclass.losses import distillation
from fedclass.methods.base import Batch, ClientContext, FedAvg, ServerContext, State
from fedclass.methods.declare import Declaration
from fedclass.wire import Weights


def align(head: Tensor, old_classes: int) -> Tensor:
    """Weight alignment: new rows scaled by gamma = mean |w_old| / mean |w_new|; old rows stay. head: (g + h, D)."""
    norms = head.norm(dim=1)
    gamma = norms[:old_classes].mean() / norms[old_classes:].mean()
    return torch.cat([head[:old_classes], gamma * head[old_classes:]])


@dataclass(frozen=True, kw_only=True)
class FedWA(FedAvg):
    """(1 - lambda) * cross-entropy + lambda * distillation, lambda = g / (g + h), and aligned heads after each task.

    The server aligns the global model once, at the end of a task; from then on it is the model, and the next teacher.
    """

    temperature: Annotated[float, Field(gt=0, description="of the distillation")] = 2.0
    variant: Annotated[
        Literal["wa", "released"],
        Field(description="released: without the alignment, as in the FedCLASS authors' code; that is not WA"),
    ] = "wa"

    def declare(self) -> Declaration:
        return Declaration(teacher="previous task", begins_like_fedavg=type(self) is FedWA)

    def loss(self, client: ClientContext, batch: Batch) -> Tensor:
        logits = client.model(batch.images)
        cross_entropy = F.cross_entropy(logits, batch.labels)
        if batch.previous is None:
            return cross_entropy
        share = client.old_classes / client.model.classes
        kept = distillation(logits, batch.previous, temperature=self.temperature)
        return (1 - share) * cross_entropy + share * kept

    def end_rounds(self, server: ServerContext) -> tuple[Weights, State]:
        if self.variant == "released" or server.old_classes == 0:
            return server.weights, server.state
        head = align(server.weights["head.weight"], server.old_classes)
        return {**server.weights, "head.weight": head}, server.state
