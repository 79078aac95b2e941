"""What a method keeps and sends, declared before anything runs: four named places, tensors by name, nothing hidden."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Literal, get_args

import torch

from fedclass.data.memory import Select
from fedclass.errors import ConfigError
from fedclass.models.incremental import IncrementalModel
from fedclass.wire import Phase, Tensors

Teacher = Literal["previous task", "received", "own"]
Replay = Literal["mixed", "own", "none", "all"]
NamedDimension = Literal["classes", "features", "parameters", "height", "width"]
Dimension = int | NamedDimension

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
STORABLE = (*FLOATS, torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True)
class Sizes:
    """Of a model and its images. parameters: length of the flat vector of trained parameters, padding included."""

    classes: int
    features: int
    parameters: int
    height: int = 0
    width: int = 0

    @classmethod
    def of(cls, model: IncrementalModel, classes: int | None = None) -> "Sizes":
        """classes: as if the model had this many; default: those it has."""
        classes = model.classes if classes is None else classes
        return cls(classes, model.head.in_features, model.flat_length(classes), *model.image_size)


@dataclass(frozen=True)
class Spec:
    """Shape and dtype of a tensor. Dimensions that depend on the model are named, so that they can grow with it."""

    shape: tuple[Dimension, ...]
    dtype: torch.dtype = torch.float32

    def resolved(self, sizes: Sizes) -> tuple[int, ...]:
        return tuple(size if isinstance(size, int) else getattr(sizes, size) for size in self.shape)

    def nbytes(self, sizes: Sizes) -> int:
        return prod(self.resolved(sizes)) * self.dtype.itemsize


Specs = Mapping[str, Spec]


@dataclass(frozen=True, kw_only=True)
class Balance:
    """How cross-entropy is adjusted by the client's own class counts: the keywords of `losses.log_prior`."""

    strength: float = 1.0
    smoothing: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """What a method needs from the training loop, and the tensors it keeps and sends. All may depend on its parameters.

    teacher: the model whose logits are `previous` in batches; "own": the one that `Method.teacher` returns.
    select: how exemplars are chosen, if the method determines it; "own": by `Method.importance`.  replay: "mixed" puts
    exemplars among the new images; "own" leaves them to the method (`client.replay`); "none" keeps none, whatever
    [memory] says; "all" trains on all images of all tasks so far, which no site allows: for simulations only.
    fewest_exemplars: how many of each class at least one client must keep after each task.  task_data: whether
    `end_round` or `report` uses all images of the task.  head_bias: whether the head has a bias; otherwise it is zero
    and stays zero.  begins_like_fedavg: in the first task the method equals FedAvg bit for bit, so that runs can share
    that task.  assumes_sgd: the method assumes steps of learning_rate * gradient; AdamW, gradient clipping and a
    separate learning rate of the head are refused.  one_pass: a task has one round of one epoch, whatever [train]
    says.  frozen_backbone: a backbone with trained tensors is refused.  discloses: in words, what clients send that is
    computed from single images; a federation of sites then refuses the method.

    balances: whether the loss has a softmax cross-entropy over the images of `counts`, computed by
    `client.cross_entropy`, so that train.balanced can adjust it.  balance: how, if the method determines it.

    server: state at the server, part of every checkpoint.  broadcast: names of server state that clients get with each
    training job.  predicts_with: names of server state that `predict` needs; made at the end of a task and stored with
    the model.  client: state that stays at a client.  rows: tensors with one row per exemplar, kept and dropped
    together with it.  uploads: what clients send, by the phase of the job.
    """

    teacher: Teacher | None = None
    select: Select | Literal["own"] | None = None
    replay: Replay = "mixed"
    fewest_exemplars: int = 0
    task_data: bool = False
    head_bias: bool = True
    begins_like_fedavg: bool = False
    assumes_sgd: bool = False
    one_pass: bool = False
    frozen_backbone: bool = False
    discloses: str = ""
    balances: bool = False
    balance: Balance | None = None

    server: Specs = field(default_factory=dict)
    broadcast: tuple[str, ...] = ()
    predicts_with: tuple[str, ...] = ()
    client: Specs = field(default_factory=dict)
    rows: Specs = field(default_factory=dict)
    uploads: Mapping[Phase, Specs] = field(default_factory=dict)

    def kept_bytes(self, sizes: Sizes, *, exemplars: int, image: int) -> int:
        """What a client keeps from task to task, besides models: exemplars with their rows, state, broadcasts.

        exemplars: how many it keeps.  image: bytes of each.
        """
        row = sum(spec.nbytes(sizes) for spec in self.rows.values())
        whole = [*self.client.values(), *(self.server[name] for name in self.broadcast)]
        kept = 0 if self.replay in ("none", "all") else exemplars
        return kept * (image + row) + sum(spec.nbytes(sizes) for spec in whole)


def check_declared(declared: Declaration, *, where: str) -> None:
    """Refuse a declaration that makes no sense, before anything relies on it."""
    if declared.teacher is not None and declared.teacher not in get_args(Teacher):
        options = ", ".join(map(repr, get_args(Teacher)))
        raise ConfigError(f"{where}: declares teacher = {declared.teacher!r}; it must be None or one of {options}")
    if declared.replay not in get_args(Replay):
        options = ", ".join(map(repr, get_args(Replay)))
        raise ConfigError(f"{where}: declares replay = {declared.replay!r}; it must be one of {options}")
    if declared.balance is not None and not declared.balances:
        raise ConfigError(f"{where}: declares how to balance, but not balances=True; its loss would not be adjusted")
    for field_name in ("broadcast", "predicts_with"):
        if unknown := sorted(set(getattr(declared, field_name)) - set(declared.server)):
            raise ConfigError(f"{where}: declares {field_name} = {unknown[0]!r}, which is not among its server tensors")
    tables = {"server": declared.server, "client": declared.client, "rows": declared.rows}
    tables |= {f"uploads[{phase!r}]": specs for phase, specs in declared.uploads.items()}
    for place, specs in tables.items():
        for name, spec in specs.items():
            if not isinstance(spec, Spec) or "/" in name:
                raise ConfigError(
                    f"{where}: declares {place} {name!r}: {spec!r}; write a Spec, under a name without '/'"
                )
            if not isinstance(spec.shape, tuple) or not all(map(_is_dimension, spec.shape)):
                raise ConfigError(
                    f"{where}: declares {place} {name!r} of shape {spec.shape!r}; write a tuple of whole numbers and "
                    f"of {', '.join(map(repr, get_args(NamedDimension)))}"
                )
            if spec.dtype not in STORABLE:
                raise ConfigError(
                    f"{where}: declares {place} {name!r} as {spec.dtype}, which cannot be stored; store it as real or "
                    "whole numbers, such as torch.float32"
                )
    if unknown := sorted(set(declared.uploads) - {"train", "end_task"}):
        raise ConfigError(f"{where}: declares uploads for {unknown[0]!r}; the phases are 'train' and 'end_task'")


def _is_dimension(size: object) -> bool:
    return size in get_args(NamedDimension) if isinstance(size, str) else isinstance(size, int) and size >= 0


def misfit(tensors: Tensors, specs: Specs, sizes: Sizes, *, rows: int | None = None, every: bool = False) -> str | None:
    """How tensors differ from their declaration, or None. rows: size of an extra first dimension.

    every: all declared tensors must be there; otherwise some may be absent, because they do not exist yet.
    """
    if not isinstance(tensors, Mapping):
        return f"must return tensors by name; it returned {found(tensors)}"
    if unknown := sorted(map(str, set(tensors) - set(specs))):
        return f"{unknown[0]!r} is not declared (declared: {', '.join(specs) or 'nothing'})"
    if every and (absent := sorted(set(specs) - set(tensors))):
        return f"{absent[0]!r} is declared and missing"
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            return f"{name} is {found(tensor)} instead of a tensor"
        shape = specs[name].resolved(sizes)
        shape = shape if rows is None else (rows, *shape)
        if tuple(tensor.shape) != shape or tensor.dtype != specs[name].dtype:
            return f"{name} is {tuple(tensor.shape)} {tensor.dtype} instead of {shape} {specs[name].dtype}"
        if tensor.layout != torch.strided:
            return f"{name} is sparse, which cannot be stored or sent; to_dense() makes it an ordinary tensor"
    return None


def found(value: object, *, gradient: bool = False) -> str:
    """What a hook returned, in words. gradient: say so if a tensor has none."""
    if isinstance(value, torch.Tensor):
        detached = " without a gradient" if gradient and not value.requires_grad else ""
        return f"a tensor {tuple(value.shape)} {value.dtype}{detached}"
    return "None" if value is None else f"a {type(value).__name__}"


def grown(tensors: Tensors, specs: Specs, model: IncrementalModel, classes: int, *, rows: bool = False) -> Tensors:
    """State from when the model had `classes`, resized for the current model.

    Entries of new classes are zero; in rows of exemplars they are NaN, for "was not known then".
    """
    if classes == model.classes:
        return tensors
    return {name: _grown(tensor, specs[name], model, classes, rows) for name, tensor in tensors.items()}


def _grown(tensor: torch.Tensor, spec: Spec, model: IncrementalModel, classes: int, rows: bool) -> torch.Tensor:
    for axis, size in enumerate(spec.shape, start=1 if rows else 0):
        if size == "parameters":
            tensor = model.flat_from(tensor, classes)
        if size == "classes":
            shape = list(tensor.shape)
            shape[axis] = model.classes - classes
            fill = float("nan") if rows and tensor.is_floating_point() else 0
            tensor = torch.cat([tensor, tensor.new_full(shape, fill)], dim=axis)
    return tensor
