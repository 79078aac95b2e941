"""LGA's client loss (Dong et al., 2023). Its proxy server and its detection of new tasks by entropy are not here."""

from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated

from pydantic import Field
from torch import Tensor

from fedclass.losses import lga_loss
from fedclass.methods.base import Batch, ClientContext, FedAvg
from fedclass.methods.declare import Declaration


@dataclass(frozen=True, kw_only=True)
class LGA(FedAvg):
    """GLFC's successor: sigmoid losses, distilled and weighted by how hard samples are within their task, under FedAvg.

    The loss is that of its authors' code; the teacher is the last task's global model. The recipe's optimizer is used:
    theirs has a learning rate of 2.0, no momentum, and lowers the rate within a task. At 0.01 it learns slowly, as GLFC
    does. Their code also has a proxy server that chooses the teacher by images reconstructed from perturbed
    gradients, and clients that detect by entropy that a task has begun.
    """

    source = "Dong et al., 2023, arXiv 2302.00903"
    fidelity = "partial: loss compared with the authors' code, within 9.5e-7; no proxy server, no entropy"

    scale: Annotated[float, Field(gt=0, description="of the loss from the second task on: lam in its code")] = 1.0

    def declare(self) -> Declaration:
        return Declaration(teacher="previous task")

    def loss(self, client: ClientContext, batch: Batch) -> Tensor:
        ends = list(accumulate(client.task_sizes[:-1])) if client.met else []
        return lga_loss(client.model(batch.images), batch.previous, batch.labels, ends=ends, scale=self.scale)
