"""GLFC's client loss (Dong et al., 2022); its proxy server is not part of the paper's comparison."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from fedclass.losses import glfc_loss
from fedclass.methods.base import Batch, ClientContext, FedAvg
from fedclass.methods.declare import Declaration


@dataclass(frozen=True, kw_only=True)
class GLFC(FedAvg):
    """Gradient-compensated and relation-distilled sigmoid losses under FedAvg.

    GLFC's own authors train it with a learning rate of 2.0; at the 0.01 of the FedCLASS paper it learns slowly.
    """

    variant: Annotated[
        Literal["released"], Field(description="its client loss, as the FedCLASS authors' release uses it")
    ] = "released"

    def declare(self) -> Declaration:
        return Declaration(teacher="previous task")

    def loss(self, client: ClientContext, batch: Batch) -> Tensor:
        return glfc_loss(client.model(batch.images), batch.previous, batch.labels)
