"""DER++: replay with the logits that were stored with exemplars (Buzzega et al., 2020), under FedAvg."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedclass.losses import stored_logits_error
from fedclass.methods.base import Batch, ClientContext, FedAvg
from fedclass.methods.declare import Declaration, Spec
from fedclass.wire import Tensors


@dataclass(frozen=True, kw_only=True)
class DERpp(FedAvg):
    """Cross-entropy on new data, plus two terms on exemplars that are drawn for every step.

        alpha * mean squared error between current logits and those stored with the exemplar (one draw)
        beta * cross-entropy on the exemplars' labels (another draw)

    alpha = beta = 0 trains on new data alone. The logits are those of the global model at the end of the task in which
    an exemplar was chosen; classes that came later have none and take no part. The paper stores them during training,
    by reservoir sampling over one stream; here exemplars are chosen at the end of a task, as for every method.
    """

    source = "Buzzega et al., 2020, arXiv 2004.07211"
    fidelity = (
        "loss compared with the authors' code, difference 0, gradient within 1.5e-8; partial: no reservoir of exemplars"
    )

    alpha: Annotated[float, Field(ge=0, description="weight of the stored logits")] = 0.1
    beta: Annotated[float, Field(ge=0, description="weight of the exemplars' labels")] = 0.5
    replay_size: Annotated[int, Field(ge=1, description="exemplars in each of the two draws")] = 32

    def declare(self) -> Declaration:
        return Declaration(replay="own", rows={"logits": Spec(("classes",))})

    def loss(self, client: ClientContext, batch: Batch) -> Tensor:
        loss = F.cross_entropy(client.model(batch.images), batch.labels)
        if self.alpha > 0 and len((drawn := client.replay(self.replay_size)).labels):
            loss = loss + self.alpha * stored_logits_error(client.model(drawn.images), drawn.rows["logits"])
        if self.beta > 0 and len((drawn := client.replay(self.replay_size)).labels):
            loss = loss + self.beta * F.cross_entropy(client.model(drawn.images), drawn.labels)
        return loss

    def annotate(self, client: ClientContext, images: Tensor, labels: Tensor) -> Tensors:  # noqa: ARG002
        return {"logits": client.model(images)}
