"""Re-Fed: exemplars chosen by how much they move a personalised model (Li et al., 2024), under FedAvg."""

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedclass.methods.base import ClientContext, FedAvg
from fedclass.methods.declare import Declaration
from fedclass.methods.gradients import sample_gradients, trained

AT_ONCE = 32  # images whose gradients are in memory together


@dataclass(frozen=True, kw_only=True)
class ReFed(FedAvg):
    """FedAvg whose exemplars are those with the largest gradients while a personalised model learns the task.

    At the end of a task a client begins with the global model w and does some steps over its images of the task:

        v_p = v_(p-1) - rate * (gradient of the mean loss at v_(p-1) + q * (v_(p-1) - w)),  q = (1 - share) / (2 share)

    The importance of an image is sum over p of 1/p * |gradient of its loss at v_(p-1)|; of each class, the most
    important ones are kept. share near 1: v learns as the client alone would; near 0: v stays at w. Only weights are
    sent, and v is dropped. Exemplars of earlier tasks keep the order in which they were chosen; the paper ranks all
    exemplars again in each task, whatever their class.
    """

    source = "Li et al., 2024, arXiv 2403.05890"
    fidelity = "re-implemented from the paper (Eq. 3 to 5); partial: earlier exemplars are not ranked anew"

    share: Annotated[float, Field(gt=0, lt=1, description="of the client's own in v: lambda in the paper")] = 0.5
    steps: Annotated[int, Field(ge=1, description="of v, each over all images of the task")] = 3
    rate: Annotated[float, Field(gt=0, description="learning rate of v")] = 0.01

    def declare(self) -> Declaration:
        return Declaration(select="own", balances=True)

    def importance(self, client: ClientContext) -> Tensor:
        own = received = trained(client.model)
        pull = (1 - self.share) / (2 * self.share)
        scores = torch.zeros(0, device=client.device)
        for step in range(1, self.steps + 1):
            uphill = {name: torch.zeros_like(weight) for name, weight in own.items()}  # of the likelihood
            lengths = [torch.zeros(0, device=client.device)]
            for batch in client.task_data(AT_ONCE):
                each = sample_gradients(client.model, own, batch)
                lengths.append(torch.stack([g.flatten(1).square().sum(dim=1) for g in each.values()]).sum(dim=0).sqrt())
                for name, gradients in each.items():
                    uphill[name] += gradients.sum(dim=0)
            now = torch.cat(lengths)
            scores = now / step if step == 1 else scores + now / step
            own = {
                name: weight + self.rate * (uphill[name] / max(len(now), 1) - pull * (weight - received[name]))
                for name, weight in own.items()
            }
        return scores
