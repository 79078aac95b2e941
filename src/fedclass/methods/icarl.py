"""FedICARL: iCaRL (Rebuffi et al., 2017) under FedAvg."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedclass.data.memory import Select
from fedclass.errors import RunError
from fedclass.losses import icarl_loss, released_icarl_loss
from fedclass.methods.base import Batch, ClientContext, FedAvg, Teacher
from fedclass.models.incremental import IncrementalModel
from fedclass.wire import Weights

FEWEST = 2  # the mean of one image would be an output for a single sample, and those never leave a client
NEVER = -3.0  # a score below any other: unit vectors are at most 2 apart

Classifier = Literal["nearest-mean", "sigmoid"]
USUAL: dict[str, Classifier] = {"icarl": "nearest-mean", "released": "sigmoid"}


@dataclass(frozen=True, kw_only=True)
class FedICARL(FedAvg):
    """A sigmoid per class, distilled from the last task's global model; herded exemplars; nearest mean of exemplars.

    Clients send the mean feature of their exemplars per class, once a task. One rule predicts in the whole run: the
    nearest mean, which needs a client with two exemplars of each class, and cannot be tested in the middle of a task;
    or the model's own scores (sigmoids or logits, whose order is the same). A class without a mean, because no site
    that answered has two exemplars of it, is never predicted.

    `released` is the arithmetic of the FedCLASS authors' code: cross-entropy, plus doubly squashed outputs summed over
    old classes, with this round's global model as the teacher. Under augmentation, that code computes its targets once
    a round, on another random augmentation than the student then sees; here, on the same.
    """

    variant: Annotated[
        Literal["icarl", "released"],
        Field(description="released: what the FedCLASS authors' code computes, which is not iCaRL"),
    ] = "icarl"
    classifier: Annotated[
        Classifier | None, Field(description="what predicts, in the whole run; icarl: nearest-mean, released: sigmoid")
    ] = None

    def __post_init__(self) -> None:
        if self.classifier is None:
            object.__setattr__(self, "classifier", USUAL[self.variant])

    @property
    def variant_name(self) -> str:
        """With the classifier where there is a choice to tell: always, but for the release's own."""
        if self.classifier == "nearest-mean":
            return f"{self.variant}, nearest mean"
        return self.variant if self.variant == "released" else f"{self.variant}, sigmoids"

    @property
    def teacher(self) -> Teacher:  # type: ignore[override]
        return "received" if self.variant == "released" else "previous task"

    @property
    def selects(self) -> Select | None:  # type: ignore[override]
        return None if self.variant == "released" else "herding"

    @property
    def needs_extras(self) -> bool:  # type: ignore[override]
        return self.classifier == "nearest-mean"

    @property
    def fewest_exemplars(self) -> int:  # type: ignore[override]
        return FEWEST if self.needs_extras else 0

    @property
    def uploads(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("class_means", "class_counts") if self.needs_extras else ()

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
        """The means over all clients' exemplars, each client counted by how many it has; zero where none has any."""
        if not extras:
            return {}
        counts = sum((e["class_counts"] for e in extras), start=torch.tensor(0))
        sums = sum((e["class_means"].double() * e["class_counts"][:, None] for e in extras), start=torch.tensor(0.0))
        return {"class_means": (sums / counts.clamp(min=1)[:, None]).float(), "class_counts": counts}

    def never_predicted(self, extras: Mapping[str, Tensor]) -> list[int]:
        return [] if not self.needs_extras else torch.nonzero(extras["class_counts"] == 0).flatten().tolist()

    def predict(self, model: IncrementalModel, images: Tensor, extras: Mapping[str, Tensor]) -> Tensor:
        """Minus the distance to each class's mean of exemplars, or the model's own scores."""
        if not self.needs_extras:
            return super().predict(model, images, extras)
        if not extras:
            raise RunError(
                "FedICARL predicts by the nearest mean of exemplars, and this model has no class means; "
                "run it again with more exemplars, or with method.classifier=sigmoid"
            )
        means = F.normalize(extras["class_means"].to(images.device))
        # torch.cdist would lose half of the digits for features close to a mean, and cannot be exported
        apart = F.normalize(model.features(images))[:, None] - means
        distances: Tensor = apart.norm(dim=2)
        return torch.where(extras["class_counts"].to(images.device) > 0, -distances, NEVER)
