"""FedICARL: iCaRL (Rebuffi et al., 2017) under FedAvg."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedclass.losses import icarl_loss, released_icarl_loss
from fedclass.methods.base import Batch, ClientContext, FedAvg, ServerContext, State
from fedclass.methods.declare import Declaration, Spec
from fedclass.models.incremental import IncrementalModel
from fedclass.wire import Tensors, Weights

FEWEST = 2  # the mean of one image would be an output for a single sample, and those never leave a client


@dataclass(frozen=True, kw_only=True)
class FedICARL(FedAvg):
    """A sigmoid per class, distilled from the last task's global model; herded exemplars; nearest mean of exemplars.

    Clients send the mean feature of their exemplars per class, once a task. In the middle of a task, and where no
    client has two exemplars of some class, the sigmoids themselves predict; the latter is told as a warning.
    """

    variant: Annotated[
        Literal["icarl", "released"],
        Field(description="released: what the FedCLASS authors' code computes, which is not iCaRL"),
    ] = "icarl"

    def declare(self) -> Declaration:
        if self.variant == "released":
            return Declaration(teacher="received")
        means = {"class_means": Spec(("classes", "features")), "class_counts": Spec(("classes",), torch.int64)}
        return Declaration(
            teacher="previous task",
            select="herding",
            server=means,
            predicts_with=("class_means",),
            uploads={"end_task": means},
        )

    def loss(self, client: ClientContext, batch: Batch) -> Tensor:
        loss = released_icarl_loss if self.variant == "released" else icarl_loss
        return loss(client.model(batch.images), batch.previous, batch.labels)

    def report(self, client: ClientContext, exemplars: Batch) -> Tensors:
        """class_means: mean of unit-length features, zero where unknown.  class_counts: of exemplars."""
        labels = exemplars.labels
        counts = torch.bincount(labels, minlength=client.model.classes)
        sums = torch.zeros(client.model.classes, client.model.head.in_features, device=client.device)
        if len(labels):
            sums.index_add_(0, labels, F.normalize(client.model.features(exemplars.images)))
        known = counts >= FEWEST
        return {
            "class_means": torch.where(known[:, None], sums / counts.clamp(min=1)[:, None], 0.0),
            "class_counts": torch.where(known, counts, 0),
        }

    def upload_flaw(self, uploads: Tensors) -> str | None:
        return "class counts that are not counts" if bool((uploads["class_counts"] < 0).any()) else None

    def end_task(self, server: ServerContext, reports: Sequence[Tensors]) -> tuple[Weights, State]:
        """The means over all clients' exemplars, each client counted by how many it has."""
        counts = sum((report["class_counts"] for report in reports), start=torch.tensor(0))
        if not self.declare().server or not reports or not bool(counts.all()):
            return server.weights, {}  # a class without a mean could never be predicted
        parts = (report["class_means"].double() * report["class_counts"][:, None] for report in reports)
        means = (sum(parts, start=torch.tensor(0.0)) / counts.clamp(min=1)[:, None]).float()
        return server.weights, {"class_means": means, "class_counts": counts}

    def predict(self, model: IncrementalModel, images: Tensor, state: State) -> Tensor:
        """Minus the distance to each class's mean of exemplars; without a mean of every class, the sigmoids' logits."""
        if "class_means" not in state or len(state["class_means"]) < model.classes:
            return super().predict(model, images, state)
        means = F.normalize(state["class_means"].to(images.device))
        # torch.cdist would lose half of the digits for features close to a mean, and cannot be exported
        apart = F.normalize(model.features(images))[:, None] - means
        distances: Tensor = apart.norm(dim=2)
        return -distances
