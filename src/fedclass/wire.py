"""Everything that may cross the network between the server and a client.

It includes no image, no exemplar, and no output for a single sample, except the mean loss of a client with one image.
A method that breaks this declares so (`Declaration.discloses`), and no site takes part in it. A test lists all fields.
A simulation needs only Jobs and Updates; sites with their own data are also asked for an Announcement, and get a Plan
with each Job.
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
    """What the server asks of one client: to train for a round, to count its images (only for memory.quota =
    "balanced"), to close a task (choose exemplars), or to test a model.
    """

    client: int
    task: int
    round: int
    phase: Phase
    weights: Weights
    teacher: Weights | None  # the global model at the end of the previous task; none in the first
    broadcast: Tensors = field(default_factory=dict)  # the method's own, as it declares
    frozen: str = ""  # SHA-256 of the frozen part of the model, which the client has too; empty: none
    quotas: tuple[int, ...] | None = None  # exemplars that the client may keep of each class, if the server sets them

    @property
    def where(self) -> str:
        """For messages, which count tasks and rounds from 1."""
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
    """What a site must know, besides the Job, to do what a simulated client would do.

    federation: the name under which the site keeps its state.  recipe: the recipe's seed, its tables seeds, memory,
    model, train, optimizer, server (how the site's images count in the mean) and method, and the name of
    data.transform.  mean, std: pixels in 0..1 become (x - mean) / std.  image: (H, W, C).  classes: the names of all
    classes so far, in order of arrival.  task_sizes: how many of them came with each task.  teacher: the SHA-256 of the
    global model at the end of the previous task, for a site that has kept it; None if the method needs none.
    broadcast: the SHA-256 of the method's broadcast tensors.  awaited: names of classes that do not count as arrived
    yet, whether the site has images of them or not.  spelled: the site's own names of classes that are called otherwise
    here.  returns: the tasks to whose beginning the server has gone back, in order.
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
    known: int | None = getattr(weights, "nbytes", None)  # packed weights know it without looking at each tensor
    return sum(tensor.nbytes for tensor in weights.values()) if known is None else known


def sha256(weights: Weights) -> str:
    """Identity of weights: names, shapes, dtypes and bits."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
