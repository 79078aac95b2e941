"""FedICARL: iCaRL (Rebuffi et al., 2017) under FedAvg."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedclass.errors import RunError
from fedclass.losses import icarl_loss, released_icarl_loss
from fedclass.methods.base import Batch, ClientContext, FedAvg, ServerContext, State
from fedclass.methods.declare import Declaration, Spec
from fedclass.models.incremental import IncrementalModel
from fedclass.wire import Tensors, Weights

FEWEST = 2  # the mean of one image is a per-sample output, which never leaves a client
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

    source = "Rebuffi et al., 2017, arXiv 1611.07725"
    fidelity = (
        "icarl: re-implemented from the paper; released: compared with the FedCLASS authors' code, loss within 1.9e-6"
    )

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
        """Names the classifier too, except for the release's own."""
        if self.classifier == "nearest-mean":
            return f"{self.variant}, nearest mean"
        return self.variant if self.variant == "released" else f"{self.variant}, sigmoids"

    def declare(self) -> Declaration:
        means = {"class_means": Spec(("classes", "features")), "class_counts": Spec(("classes",), torch.int64)}
        nearest = self.classifier == "nearest-mean"
        return Declaration(
            teacher="received" if self.variant == "released" else "previous task",
            select=None if self.variant == "released" else "herding",
            fewest_exemplars=FEWEST if nearest else 0,
            server=means if nearest else {},
            predicts_with=tuple(means) if nearest else (),
            uploads={"end_task": means} if nearest else {},
        )

    def loss(self, client: ClientContext, batch: Batch) -> Tensor:
        loss = released_icarl_loss if self.variant == "released" else icarl_loss
        return loss(client.model(batch.images), batch.previous, batch.labels)

    @torch.no_grad()
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
        return "class counts below 0" if bool((uploads["class_counts"] < 0).any()) else None

    def end_task(self, server: ServerContext, reports: Sequence[Tensors]) -> tuple[Weights, State]:
        """Means over all clients' exemplars, weighted by their numbers; zero where no client has any."""
        if self.classifier != "nearest-mean" or not reports:
            return server.weights, {}
        counts = sum((report["class_counts"] for report in reports), start=torch.tensor(0))
        parts = (report["class_means"].double() * report["class_counts"][:, None] for report in reports)
        means = (sum(parts, start=torch.tensor(0.0)) / counts.clamp(min=1)[:, None]).float()
        return server.weights, {"class_means": means, "class_counts": counts}

    def never_predicted(self, state: State) -> list[int]:
        counts = state.get("class_counts")
        return [] if counts is None else torch.nonzero(counts == 0).flatten().tolist()

    def predict(self, model: IncrementalModel, images: Tensor, state: State) -> Tensor:
        """Minus the distance to each class's mean of exemplars, or the model's own scores."""
        if self.classifier != "nearest-mean":
            return super().predict(model, images, state)
        if not state:
            raise RunError(
                "FedICARL predicts by the nearest mean of exemplars, and this model has no class means; "
                "run it again with more exemplars, or with method.classifier=sigmoid"
            )
        means = F.normalize(state["class_means"].to(images.device))
        # torch.cdist would lose half of the digits for features close to a mean, and cannot be exported
        apart = F.normalize(model.features(images))[:, None] - means
        distances: Tensor = apart.norm(dim=2)
        return torch.where(state["class_counts"].to(images.device) > 0, -distances, NEVER)
