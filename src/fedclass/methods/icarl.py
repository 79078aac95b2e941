"""FedICARL: iCaRL (Rebuffi et al., 2017) under FedAvg."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedclass.data.memory import Select
from fedclass.losses import icarl_loss, released_icarl_loss
from fedclass.methods.base import Batch, ClientContext, FedAvg, Teacher
from fedclass.models.incremental import IncrementalModel
from fedclass.wire import Weights

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

    @property
    def teacher(self) -> Teacher:  # type: ignore[override]
        return "received" if self.variant == "released" else "previous task"

    @property
    def selects(self) -> Select | None:  # type: ignore[override]
        return None if self.variant == "released" else "herding"

    @property
    def uploads(self) -> tuple[str, ...]:  # type: ignore[override]
        return () if self.variant == "released" else ("class_means", "class_counts")

    def loss(self, client: ClientContext, batch: Batch) -> Tensor:
        loss = released_icarl_loss if self.variant == "released" else icarl_loss
        return loss(client.model(batch.images), batch.previous, batch.labels)

    def end_task(self, client: ClientContext, exemplars: Tensor, labels: Tensor) -> Mapping[str, Tensor]:
        """class_means: (classes, D), mean of unit-length features, zero where unknown.  class_counts: (classes,)."""
        if not self.uploads:
            return {}
        counts = torch.bincount(labels, minlength=client.model.classes)
        features = F.normalize(client.model.features(exemplars)) if len(labels) else exemplars.new_zeros(0, 1)
        width = client.model.head.in_features
        sums = features.new_zeros(client.model.classes, width)
        if len(labels):
            sums.index_add_(0, labels, features)
        known = counts >= FEWEST
        return {
            "class_means": torch.where(known[:, None], sums / counts.clamp(min=1)[:, None], 0.0),
            "class_counts": torch.where(known, counts, 0),
        }

    def extras_flaw(self, extras: Mapping[str, Tensor], weights: Weights) -> str | None:
        head = weights["head.weight"]
        if extras["class_means"].shape != head.shape or extras["class_counts"].shape != head.shape[:1]:
            return f"class means for other shapes than the head's {tuple(head.shape)}"
        if extras["class_counts"].is_floating_point() or bool((extras["class_counts"] < 0).any()):
            return "class counts that are not counts"
        return None

    def gather(self, extras: Sequence[Mapping[str, Tensor]]) -> Mapping[str, Tensor]:
        """The means over all clients' exemplars, each client counted by how many it has."""
        counts = sum((e["class_counts"] for e in extras), start=torch.tensor(0))
        if not extras or not bool(counts.all()):
            return {}  # a class without a mean could never be predicted
        sums = sum((e["class_means"].double() * e["class_counts"][:, None] for e in extras), start=torch.tensor(0.0))
        return {"class_means": (sums / counts.clamp(min=1)[:, None]).float(), "class_counts": counts}

    def predict(self, model: IncrementalModel, images: Tensor, extras: Mapping[str, Tensor]) -> Tensor:
        """Minus the distance to each class's mean of exemplars; without a mean of every class, the sigmoids' logits."""
        if not extras:
            return super().predict(model, images, extras)
        means = F.normalize(extras["class_means"].to(images.device))
        # torch.cdist would lose half of the digits for features close to a mean, and cannot be exported
        apart = F.normalize(model.features(images))[:, None] - means
        distances: Tensor = apart.norm(dim=2)
        return -distances
