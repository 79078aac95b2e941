"""FedEven: every client learns the classifier for balanced classes, whatever classes it holds. Ours."""

from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from fedclass.methods.declare import Balance, Declaration
from fedclass.methods.lwf import LwF


@dataclass(frozen=True, kw_only=True)
class FedEven(LwF):
    """Cross-entropy of logits + strength * log(share of each class in the client's own data), plus distillation.

    Clients that hold different classes, and exemplars that are few, are both a label shift: if clients share
    p(x | y), all of them have the same minimiser, so that their mean does not pull apart what agrees. A class that a
    client lacks gets no gradient from its cross-entropy. From the second task on, `distillation` weighs LwF's loss
    against the global model of the last task. strength = 0 is LwF; strength = distillation = 0 is FedAvg.

    Counts of classes stay at the client. At strength 1 it is LwF with train.balanced, under its own name.
    """

    source = "ours; balanced softmax: Ren et al., 2020, arXiv 2007.10740, Menon et al., 2021, arXiv 2007.07314"
    fidelity = "ours; its balanced softmax compared with Ren et al.'s code, loss 0, gradient within 1.5e-8"

    strength: Annotated[float, Field(ge=0, description="of the adjustment; 1 in the theorem, 0 is none")] = 1.0
    smoothing: Annotated[
        float, Field(ge=0, description="images added to each class's count; above 0, classes that a client lacks count")
    ] = 0.0

    def declare(self) -> Declaration:
        adjusts = self.strength > 0
        return replace(
            super().declare(),
            begins_like_fedavg=type(self) is FedEven and not adjusts,
            balance=Balance(strength=self.strength, smoothing=self.smoothing) if adjusts else None,
        )
