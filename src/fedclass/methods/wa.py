"""FedWA: maintaining discrimination and fairness (Zhao et al., 2020) under FedAvg."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedclass.losses import distillation
from fedclass.methods.base import Batch, ClientContext, FedAvg, ServerContext, State
from fedclass.methods.declare import Declaration
from fedclass.models.head import head_rows, with_head_rows
from fedclass.wire import Weights


def align(head: Tensor, old_classes: int, *, norm: int, most: float = torch.inf) -> Tensor:
    """Weight alignment: new rows scaled by gamma = mean |w_old| / mean |w_new|, at most `most`; old rows stay.

    norm: 1 or 2, of a row.  head: (g + h, D).  If all new rows are zero, there is nothing to scale, and they stay too.
    """
    lengths = head.norm(p=norm, dim=1)
    old, new = lengths[:old_classes].mean(), lengths[old_classes:].mean()
    if new == 0:
        return head
    gamma = (old / new).clamp(max=most)
    return torch.cat([head[:old_classes], gamma * head[old_classes:]])


@dataclass(frozen=True, kw_only=True)
class FedWA(FedAvg):
    """(1 - lambda) * cross-entropy + lambda * distillation, lambda = g / (g + h), and aligned heads after each task.

    The server aligns the global model once, at the end of a task; from then on it is the model, and the next teacher.
    In `wa`, as in the code of Zhao et al., the head has no bias, its weights are kept from falling below 0 after every
    step, rows are measured by their L1 norm, and gamma is at most 1. That code also re-initialises the whole head for
    every task; here learned rows stay, as in every method. In `pycil`, the head has a bias, which is not aligned,
    weights may be negative, rows are measured by their L2 norm, and gamma may exceed 1.
    """

    source = "Zhao et al., 2020, arXiv 1911.07053"
    fidelity = (
        "wa: alignment compared with the authors' code, within 3.8e-6; pycil: with PyCIL's, 0; released: "
        "with the FedCLASS authors', loss 0"
    )

    temperature: Annotated[float, Field(gt=0, description="temperature of the distillation")] = 2.0
    variant: Annotated[
        Literal["wa", "pycil", "released"],
        Field(
            description="wa: the code of Zhao et al.; pycil: PyCIL's WA; "
            "released: the FedCLASS authors' code, without the alignment, which is not WA"
        ),
    ] = "wa"

    def declare(self) -> Declaration:
        own = self.variant == "wa"
        return Declaration(
            teacher="previous task",
            head_bias=not own,
            begins_like_fedavg=type(self) is FedWA and not own,
            balances=True,
        )

    def loss(self, client: ClientContext, batch: Batch) -> Tensor:
        logits = client.model(batch.images)
        cross_entropy = client.cross_entropy(logits, batch.labels)
        if batch.previous is None:
            return cross_entropy
        share = client.old_classes / client.model.classes
        kept = distillation(logits, batch.previous, temperature=self.temperature)
        return (1 - share) * cross_entropy + share * kept

    def after_step(self, client: ClientContext) -> None:
        if self.variant == "wa":
            client.model.head.rows.clamp_(min=0)

    def end_rounds(self, server: ServerContext) -> tuple[Weights, State]:
        if self.variant == "released" or server.old_classes == 0:
            return server.weights, server.state
        norm, most = (1, 1.0) if self.variant == "wa" else (2, torch.inf)
        rows = align(head_rows(server.weights), server.old_classes, norm=norm, most=most)
        return with_head_rows(server.weights, rows), server.state
