"""Table [train] of a recipe."""

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field

from fedclass.data.batches import Augment


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """Table [train]."""

    rounds: Annotated[int, Field(ge=1, description="rounds per task")] = 10
    local_epochs: Annotated[int, Field(ge=1, description="passes over a client's data in a round")] = 2
    batch_size: Annotated[int, Field(ge=1, le=2**31, description="images per step")] = 32
    augment: Annotated[Augment, Field(description="random changes to training images")] = "none"
    balanced: Annotated[
        bool, Field(description="cross-entropy of logits + log(share of the class in the client's own data)")
    ] = False
    device: Annotated[str, Field(description='"cpu", "cuda", or "auto": a GPU if there is one')] = "auto"


def chosen_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)
