"""An analytic head on a frozen backbone: ridge regression from sums over clients and tasks (ACIL, AFL)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedclass.methods.base import Batch, ClientContext, FedAvg, Progress, Rates, ServerContext, State
from fedclass.methods.declare import Declaration, Spec
from fedclass.models.head import with_head_rows
from fedclass.wire import Tensors, Weights

FEWEST = 2  # of a class: what one image adds to its sum would be an output for a single sample
AT_ONCE = 256  # images in memory together


def ridge(gram: Tensor, cross: Tensor, *, strength: float) -> Tensor:
    """W = (X^T X + strength * I)^-1 X^T Y, which minimises ||X W - Y||^2 + strength * ||W||^2.

    gram: X^T X, (D, D).  cross: X^T Y, (D, classes).  Returns (D, classes).
    """
    head: Tensor = torch.linalg.solve(gram + strength * torch.eye(len(gram), dtype=gram.dtype), cross)
    return head


@dataclass(frozen=True, kw_only=True)
class Analytic(FedAvg):
    """The head in closed form, on a frozen backbone: what ridge regression on all images of all clients would give.

    With X the features of all images and Y their one-hot labels, head = (X^T X + strength * I)^-1 X^T Y. Both products
    are sums over images, so clients send their parts once per task, and neither the order of tasks nor the partition
    matters: nothing is forgotten, and nothing is replayed. No exemplars are kept, whatever [memory] says.

    There are no training steps. A task has one round of one epoch, whatever [train] says, at a learning rate of 0; the
    reported loss is the squared error of the head before the task's images count. The whole backbone must be frozen
    (`fedclass.models.frozen.freeze`); any other backbone is refused.

    The sums reveal as much about images as a mean of features does, and more if there are few images: with fewer
    images than features, X^T X spans their features. If a client has only one image of a class, it leaves it out.
    """

    source = "ACIL: Zhuang et al., 2022, arXiv 2205.14922; AFL: He et al., 2025, arXiv 2405.16240"
    fidelity = (
        "ridge compared with ACIL's code, two tasks in batches, within 5.1e-13; with AFL's, five clients, within "
        "7.6e-9; partial: no random expansion of features"
    )

    strength: Annotated[float, Field(gt=0, description="of the penalty on the head: gamma in ACIL")] = 0.1

    def declare(self) -> Declaration:
        sums = {
            "gram": Spec(("features", "features"), torch.float64),
            "cross": Spec(("features", "classes"), torch.float64),
        }
        return Declaration(
            replay="none",
            task_data=True,
            head_bias=False,
            one_pass=True,
            frozen_backbone=True,
            server=sums,
            uploads={"end_task": sums},
        )

    def loss(self, client: ClientContext, batch: Batch) -> Tensor:
        logits: Tensor = client.model(batch.images)
        return (logits - F.one_hot(batch.labels, client.model.classes)).square().sum(dim=1).mean()

    def rates(self, usual: Rates, *, progress: Progress) -> Rates:  # noqa: ARG002
        return replace(usual, learning_rate=0.0)

    @torch.no_grad()
    def report(self, client: ClientContext, exemplars: Batch) -> Tensors:  # noqa: ARG002
        features, classes = client.model.head.in_features, client.model.classes
        gram = torch.zeros(features, features, dtype=torch.float64, device=client.device)
        cross = torch.zeros(features, classes, dtype=torch.float64, device=client.device)
        enough = (client.counts >= FEWEST).to(client.device)
        for batch in client.task_data(AT_ONCE):
            told = enough[batch.labels]
            x = client.model.features(batch.images[told]).double()
            gram += x.T @ x
            cross += x.T @ F.one_hot(batch.labels[told], classes).double()
        return {"gram": gram, "cross": cross}

    def upload_flaw(self, uploads: Tensors) -> str | None:
        return "a square of features below 0" if bool((uploads["gram"].diagonal() < 0).any()) else None

    def end_task(self, server: ServerContext, reports: Sequence[Tensors]) -> tuple[Weights, State]:
        sums = dict(server.state)
        for report in reports:
            sums = {name: sums[name] + part if name in sums else part for name, part in report.items()}
        if not sums:
            return server.weights, server.state
        rows = ridge(sums["gram"], sums["cross"], strength=self.strength).T
        return with_head_rows(server.weights, rows.float().contiguous()), sums
