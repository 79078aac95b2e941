"""FedGKD: distillation from an average of past global models (Yao et al., 2021), with exemplars."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedclass.losses import teacher_divergence
from fedclass.methods.base import Batch, ClientContext, FedAvg, ServerContext, State
from fedclass.methods.declare import Declaration, Spec
from fedclass.models.head import with_first_classes
from fedclass.wire import Tensors, Update, Weights


@dataclass(frozen=True, kw_only=True)
class FedGKD(FedAvg):
    """Cross-entropy + gamma * T^2 * KL(teacher || student); the teacher is the mean of the last global models.

    In a task, it is the mean of those that the last rounds have made, `models` of them at most, the received one
    included. In the first round there is none. The paper has no tasks: here the mean starts over with
    each task, because older models do not know the new classes; in the first round of a later task, the received model
    teaches the old classes. gamma = 0 is FedAvg; models = 1 sends no more than FedAvg does.

    gamma and T are those of its authors' code. Their mean covers the statistics of batch normalisation too; here these
    are the received model's. Neither their variant with several teachers (FedGKD-VOTE) nor their squared error is here.
    """

    source = "Yao et al., 2021, arXiv 2107.00051"
    fidelity = (
        "compared with the authors' code: loss and mean of models within 2.4e-7; its beginning anew with "
        "each task is ours"
    )

    gamma: Annotated[float, Field(ge=0, description="weight of the distillation")] = 0.1
    temperature: Annotated[float, Field(gt=0, description="temperature of the distillation")] = 1.0
    models: Annotated[int, Field(ge=1, le=100, description="global models in the mean, the received one included")] = 5

    @property
    def _names(self) -> list[str]:
        """Of the models that the server keeps, newest first."""
        return [f"model_{age}" for age in range(1, self.models)]

    def declare(self) -> Declaration:
        vector = Spec(("parameters",))
        kept = dict.fromkeys((*self._names, "earlier"), vector) | {"count": Spec((), torch.int64)}
        server, broadcast = (kept, ("earlier", "count")) if self.models > 1 else ({}, ())
        return Declaration(teacher="own", balances=True, server=server, broadcast=broadcast)

    def teacher(self, client: ClientContext) -> Weights | None:
        if client.round > 0:
            if "earlier" not in client.broadcast:
                return client.weights
            count = int(client.broadcast["count"])  # fewer than the round says, if rounds were undone
            mean = (client.received_flat + count * client.broadcast["earlier"]) / (count + 1)
            return client.model.with_flat(client.weights, mean)
        if client.old_classes == 0:
            return None
        return with_first_classes(client.weights, client.old_classes)

    def loss(self, client: ClientContext, batch: Batch) -> Tensor:
        logits = client.model(batch.images)
        loss = client.cross_entropy(logits, batch.labels)
        if batch.previous is None or self.gamma == 0:
            return loss
        return loss + self.gamma * teacher_divergence(logits, batch.previous, temperature=self.temperature)

    def aggregate(self, server: ServerContext, updates: Iterable[Update]) -> tuple[Weights, State]:
        """Also keep the model that this round began with: from the next round on, it is one of the earlier models."""
        weights = server.mean(updates)
        if self.models == 1 or server.round == 0:  # that model has not met the new classes
            return weights, {}
        known = [server.state[name] for name in self._names if name in server.state]
        kept = [server.build().flattened(server.weights).cpu().clone(), *known][: self.models - 1]
        named = dict(zip(self._names, kept, strict=False))
        return weights, {**named, "earlier": torch.stack(kept).mean(dim=0), "count": torch.tensor(len(kept))}

    def end_task(self, server: ServerContext, reports: Sequence[Tensors]) -> tuple[Weights, State]:  # noqa: ARG002
        """The mean starts over, even if the next task's first round is undone."""
        return server.weights, {}
