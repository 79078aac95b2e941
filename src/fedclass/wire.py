"""All that may ever cross the network between the server and a client.

No image and no exemplar is among it, and no output for a single sample but the mean loss of a client that has only one.
A test lists these fields.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]  # parameters and buffers by name, on the CPU

Phase = Literal["train", "end_task"]


@dataclass(frozen=True)
class Job:
    """What the server asks of one client: to train for one round, or to close a task (choose exemplars)."""

    client: int
    task: int
    round: int
    phase: Phase
    weights: Weights
    teacher: Weights | None  # the global model at the end of the previous task; none in the first

    @property
    def where(self) -> str:
        """For messages, which count from 1 but for clients."""
        return f"client {self.client}, task {self.task + 1}, " + (
            f"round {self.round + 1}" if self.phase == "train" else "end of the task"
        )


@dataclass(frozen=True)
class Update:
    """All a client ever sends; a test lists these fields."""

    client: int
    task: int
    round: int
    weights: Weights  # empty for the end of a task
    examples: int  # the weight of this update in the mean
    metrics: Mapping[str, float]
    extras: Mapping[str, Tensor] = field(default_factory=dict)  # only what Method.uploads declares


def nbytes(weights: Weights) -> int:
    known: int | None = getattr(weights, "nbytes", None)  # weights in one piece know it without looking at each tensor
    return sum(tensor.nbytes for tensor in weights.values()) if known is None else known


def sha256(weights: Weights) -> str:
    """Identity of weights: names, shapes, dtypes and bits."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
