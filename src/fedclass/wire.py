"""All that may ever cross the network between the server and a client.

No image and no exemplar is among it, and no output for a single sample but the mean loss of a client that has only one.
A method that breaks this says so (`Declaration.discloses`), and no site takes part in it.
A test lists these fields. Within one machine Jobs and Updates are enough; sites with data of their own are also asked
for an Announcement, and sent a Plan with each Job.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]  # by name
Weights = Tensors  # parameters and buffers that change, by name, on the CPU

Phase = Literal["train", "count", "end_task", "evaluate"]


@dataclass(frozen=True)
class Job:
    """What the server asks of one client: to train for a round, to count what it could keep (memory.quota = "balanced"
    alone), to close a task (choose exemplars), to test a model.
    """

    client: int
    task: int
    round: int
    phase: Phase
    weights: Weights
    teacher: Weights | None  # the global model at the end of the previous task; none in the first
    broadcast: Tensors = field(default_factory=dict)  # the method's own, as it declares
    frozen: str = ""  # SHA-256 of what the model has besides weights, and a client too; empty: nothing
    quotas: tuple[int, ...] | None = None  # exemplars that the client may keep of each class, if the server says so

    @property
    def where(self) -> str:
        """For messages, which count from 1 but for clients."""
        ends = {
            "train": f"round {self.round + 1}",
            "count": "count of images",
            "end_task": "end of the task",
            "evaluate": "evaluation",
        }
        return f"client {self.client}, task {self.task + 1}, {ends[self.phase]}"


@dataclass(frozen=True)
class Update:
    """All a client ever sends; a test lists these fields."""

    client: int
    task: int
    round: int
    weights: Weights  # empty for the end of a task
    examples: int  # the weight of this update in the mean
    metrics: Mapping[str, float]
    extras: Mapping[str, Tensor] = field(default_factory=dict)  # only what the method declares


@dataclass(frozen=True)
class Plan:
    """What a site must know, besides the Job, to do what a client within the server's machine would do.

    federation: under which it keeps its state.  recipe: of the recipe, the tables seed, seeds, memory, model, train,
    optimizer, server (for how its images count in the mean) and method, and the name of data.transform.  mean, std:
    pixels in 0..1 become (x - mean) / std.  image: (H, W, C).  classes: the names of all that have arrived, in order of
    arrival.  task_sizes: how many of them came with each task.  teacher: the SHA-256 of the global model at the end of
    the previous task, for a site that has kept it; none if the method needs none.  broadcast: the same of the tensors
    that the method sends along.  awaited: names of classes that do not count as arrived yet, whether the site has
    images of them or not.  spelled: the site's own names of classes that are called otherwise here.  returns: the tasks
    to whose beginning the server has gone back, one after the other.
    """

    federation: str
    recipe: Mapping[str, Any]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    image: tuple[int, int, int]
    classes: tuple[str, ...]
    task_sizes: tuple[int, ...]
    teacher: str | None
    broadcast: str | None
    awaited: tuple[str, ...] = ()
    spelled: Mapping[str, str] = field(default_factory=dict)
    returns: tuple[int, ...] = ()


@dataclass(frozen=True)
class Announcement:
    """What a site says of itself before a task.

    classes: the names of those it holds, each with its number of training images, if the site tells it (it may be
    rounded).  fresh: the same of images that no earlier task has had.  image: (H, W, C); none if it holds none.
    held_out: the same of images to test with.
    """

    site: str
    classes: Mapping[str, int | None]
    fresh: Mapping[str, int | None]
    image: tuple[int, int, int] | None
    machine: Mapping[str, str]
    held_out: Mapping[str, int | None] = field(default_factory=dict)


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
