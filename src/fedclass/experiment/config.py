"""A recipe: TOML in, a frozen Experiment out, every mistake found before anything starts."""

import inspect
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import Field, JsonValue

from fedclass.data.huggingface import LOADER, PREFIX
from fedclass.data.memory import MemorySettings
from fedclass.data.partition import PartitionSettings
from fedclass.data.paths import absolute
from fedclass.data.schedule import StreamSettings
from fedclass.data.source import Orientation
from fedclass.errors import ConfigError
from fedclass.federation.aggregation import AggregationSettings
from fedclass.federation.faults import FaultSettings
from fedclass.federation.optimizer import OptimizerSettings
from fedclass.federation.server_optimizer import ServerSettings
from fedclass.federation.train_settings import TrainSettings
from fedclass.methods import METHODS, Method
from fedclass.methods.base import can_be_balanced, parameters
from fedclass.methods.declare import Declaration, check_declared, found
from fedclass.models.build import build_model
from fedclass.models.head import HeadInit
from fedclass.models.incremental import IncrementalModel
from fedclass.runs.config_file import DEFAULT_METHOD
from fedclass.usercode import reason, remember

MEASURED = "measured"
LARGEST_SIDE = 4096  # pixels


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Table [data]."""

    name: Annotated[
        str, Field(description="a data set of `fedclass data list`, hf:NAME, or package.module:function")
    ] = "synnum"
    title: Annotated[
        str | None,
        Field(min_length=1, max_length=80, pattern=r"^[^\n]*$", description="its name in tables and reports"),
    ] = None
    path: Annotated[str, Field(description="where its files are; empty: the cache folder")] = ""
    fraction: Annotated[float, Field(gt=0, le=1, description="first part of each class to train on")] = 1.0
    test_fraction: Annotated[float, Field(gt=0, le=1, description="first part of each class to test on")] = 1.0
    orientation: Annotated[
        Orientation, Field(description='EMNIST: "upright", or "raw" as in its files, rows and columns exchanged')
    ] = "upright"
    validation: Annotated[
        float, Field(ge=0, lt=1, description="share of each client's training images to choose by, not to train on")
    ] = 0.0
    size: Annotated[
        int | list[int] | None, Field(description="side of all images, or [height, width]; default: the size they have")
    ] = None
    mean: Annotated[
        Literal["measured"] | list[float] | None,
        Field(description='of pixels in 0..1, one value or three; or "measured" on the training images'),
    ] = None
    std: Annotated[Literal["measured"] | list[float] | None, Field(description="their standard deviation, as mean")] = (
        None
    )
    args: Annotated[dict[str, Any] | None, Field(description="what a function of your own is called with")] = None
    transform: Annotated[
        str | None, Field(description="package.module:function that changes batches of training images at random")
    ] = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", absolute(self.path, where="[data] path"))
        if self.name.startswith(PREFIX):
            self._name_hugging_face(self.name.removeprefix(PREFIX))
        self._check_size()
        self._check_normalisation()

    def _name_hugging_face(self, name: str) -> None:
        """Turn hf:NAME into the loader's import path, with NAME as its argument."""
        given = {"name": name} if name else {}
        object.__setattr__(self, "name", LOADER)
        object.__setattr__(self, "args", given | (self.args or {}))
        object.__setattr__(self, "title", self.title or name or Path(self.path).name or None)

    def _check_size(self) -> None:
        sides = [self.size] if isinstance(self.size, int) else self.size
        if sides is not None and (len(sides) not in (1, 2) or not 0 < min(sides) <= max(sides) <= LARGEST_SIDE):
            raise ConfigError(f"[data] size = {self.size}: write a number up to {LARGEST_SIDE}, or [height, width]")

    def _check_normalisation(self) -> None:
        if (self.mean is None) != (self.std is None) or (self.mean == MEASURED) != (self.std == MEASURED):
            raise ConfigError('[data] mean and std belong together: give numbers for both, or "measured" for both')
        if self.normalisation is None:
            return
        mean, std = self.normalisation
        if len(mean) != len(std) or len(mean) not in (1, 3):
            raise ConfigError("[data] mean and std: give each one value, or each three, for red, green and blue")
        if not all(0 <= value <= 1 for value in mean) or not all(0 < value <= 1 for value in std):
            raise ConfigError("[data] mean must be in [0, 1] and std in (0, 1]: pixels count from 0 to 1 here")

    @property
    def image_size(self) -> tuple[int, int] | None:
        """Height and width, if given."""
        if self.size is None:
            return None
        return (self.size, self.size) if isinstance(self.size, int) else (self.size[0], self.size[-1])

    @property
    def normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Mean and standard deviation, if given."""
        if not isinstance(self.mean, list) or not isinstance(self.std, list):
            return None
        return tuple(self.mean), tuple(self.std)


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """Table [model]."""

    name: Annotated[str, Field(description="resnet8, resnet18, resnet20, resnet32, or package.module:build")] = (
        "resnet8"
    )
    norm: Annotated[Literal["batch", "group"], Field(description="normalisation of the ResNets")] = "batch"
    head_init: Annotated[
        HeadInit, Field(description="how new classes begin; kaiming: as in the FedCLASS authors' code")
    ] = "linear"
    args: Annotated[dict[str, JsonValue], Field(description="arguments of package.module:build, by name")] = field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        try:
            json.dumps(self.args, allow_nan=False)  # sites receive them as JSON
        except ValueError as error:
            raise ConfigError("[model.args]: numbers must be finite") from error


Purpose = Literal["initialisation", "partition", "class_order", "training"]


@dataclass(frozen=True, kw_only=True)
class SeedSettings:
    """Table [seeds]: seeds for parts of an experiment. Each defaults to the recipe's seed."""

    initialisation: Annotated[int | None, Field(ge=0, description="of the model and of new classes")] = None
    partition: Annotated[int | None, Field(ge=0, description="who holds, and holds out, which images")] = None
    class_order: Annotated[int | None, Field(ge=0, description="which classes come first")] = None
    training: Annotated[
        int | None, Field(ge=0, description="batches, random changes, clients asked, exemplars, the method's own")
    ] = None


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """Table [evaluation]. The global model is always tested at the end of a task."""

    every: Annotated[int, Field(ge=0, description="test after every so many rounds; 0: at the end of tasks only")] = 1


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything that determines a run."""

    seed: Annotated[int, Field(ge=0, description="the number from which all randomness derives")] = 0
    seeds: SeedSettings = field(default_factory=SeedSettings)
    data: DataSettings = field(default_factory=DataSettings)
    stream: StreamSettings = field(default_factory=StreamSettings)
    partition: PartitionSettings = field(default_factory=PartitionSettings)
    memory: MemorySettings = field(default_factory=MemorySettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    aggregation: AggregationSettings = field(default_factory=AggregationSettings)
    faults: FaultSettings = field(default_factory=FaultSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    method_name: str = DEFAULT_METHOD
    method: Method = field(default_factory=METHODS[DEFAULT_METHOD])
    objects: Mapping[str, object] = field(default_factory=dict, compare=False, repr=False)  # that no module has

    def __post_init__(self) -> None:
        check_parameters(type(self.method), where=f"method: {self.method_name!r}")
        declared = _declared(self.method, where=f"method: {self.method_name!r}")
        if declared.assumes_sgd and not self.optimizer.plain:
            raise ConfigError(
                f"[optimizer]: {self.method_name} ({self.method.variant_name}) computes with steps of SGD; set "
                "optimizer.name=sgd, optimizer.clip=0 and optimizer.head_rate=1, or choose another method"
            )
        if self.train.balanced and not can_be_balanced(self.method):
            raise ConfigError(
                f"[train] balanced: the loss of {self.method_name!r} has no softmax cross-entropy that class counts "
                "can adjust; set train.balanced=false (a method of your own: client.cross_entropy, balances=True)"
            )
        if self.memory.quota == "balanced" and self.memory.per_class is not None:
            raise ConfigError(
                '[memory] quota = "balanced" divides per_client among classes; give it instead of per_class'
            )
        if self.faults.stragglers and self.train.local_epochs < 2:
            raise ConfigError("[faults] stragglers: with train.local_epochs = 1 no client can do fewer; raise it")
        if declared.replay in ("none", "all") and self.memory.keeps:  # so that a stored recipe says what was kept
            object.__setattr__(self, "memory", replace(self.memory, per_client=0, per_class=None))
        if declared.one_pass:
            object.__setattr__(self, "train", replace(self.train, rounds=1, local_epochs=1))

    def __setstate__(self, state: dict[str, object]) -> None:
        """Unpickled in another process, register the objects that cannot be imported there."""
        self.__dict__.update(state)
        remember(self.objects)

    def seed_of(self, purpose: Purpose) -> int:
        own: int | None = getattr(self.seeds, purpose)
        return self.seed if own is None else own

    def build(self, image_size: tuple[int, int], *, check: bool = True) -> IncrementalModel:
        """The model, with no classes yet. image_size: height and width.  check: that the method can use it."""
        declared = self.method.declare()
        model = build_model(
            self.model.name,
            norm=self.model.norm,
            image_size=image_size,
            seed=self.seed_of("initialisation"),
            head_init=self.model.head_init,
            head_bias=declared.head_bias,
            args=self.model.args,
        )
        if check and declared.frozen_backbone and (trained := model.trained_in_backbone):
            raise ConfigError(
                f"[model] name: {self.method_name} needs a frozen backbone, but {trained[0]} of {self.model.name!r} is "
                "trained; name one of your own (package.module:function) that returns "
                "fedclass.models.frozen.freeze(backbone)"
            )
        return model

    def to_tables(self) -> dict[str, Any]:
        """The whole recipe, defaults included; reading it back gives an equal experiment."""
        tables = {section: asdict(getattr(self, section)) for section in SECTIONS}
        tables["method"] = {"name": self.method_name, **parameters(self.method)}
        present = {name: {k: v for k, v in table.items() if v not in (None, {})} for name, table in tables.items()}
        return {"seed": self.seed, **{name: table for name, table in present.items() if table}}

    def to_toml(self) -> str:
        return tomli_w.dumps(self.to_tables())


SECTIONS: dict[str, type[Any]] = {
    "seeds": SeedSettings,
    "data": DataSettings,
    "stream": StreamSettings,
    "partition": PartitionSettings,
    "memory": MemorySettings,
    "model": ModelSettings,
    "train": TrainSettings,
    "optimizer": OptimizerSettings,
    "server": ServerSettings,
    "aggregation": AggregationSettings,
    "faults": FaultSettings,
    "evaluation": EvaluationSettings,
}


def _declared(method: Method, *, where: str) -> Declaration:
    try:
        declared = method.declare()
    except Exception as error:  # user code may raise anything
        raise ConfigError(f"{where}: {type(method).__name__}.declare: {reason(error)}") from error
    if not isinstance(declared, Declaration):
        raise ConfigError(
            f"{where}: {type(method).__name__}.declare: must return a Declaration; it returned {found(declared)}"
        )
    check_declared(declared, where=where)
    return declared


def check_parameters(kind: type[Method], *, where: str) -> None:
    """Refuse parameters that would be lost: in a class without @dataclass, without annotation, or called `name`."""
    if any(f.name == "name" for f in fields(kind)):
        raise ConfigError(f"{where}: a parameter must not be called 'name', which is the method's name; rename it")
    if callable(getattr(kind, "sgd", None)):
        raise ConfigError(f"{where}: {kind.__name__}.sgd: this hook is now called `rates` and gets Rates; rename it")
    for one in kind.__mro__:
        if not issubclass(one, Method) or one is Method:
            continue
        annotated = {name: hint for name, hint in inspect.get_annotations(one).items() if "ClassVar" not in str(hint)}
        decorated = "__dataclass_fields__" in vars(one)
        lost = list(annotated) if not decorated else []
        if not decorated and "__init__" in vars(one):
            lost += list(inspect.signature(one.__init__).parameters)[1:]
        if lost:
            raise ConfigError(
                f"{where}: {one.__name__} has parameters ({', '.join(dict.fromkeys(lost))}) that would be lost; write "
                "@dataclass(frozen=True, kw_only=True) above the class, and each as `name: type = default` in it"
            )
        inherited = {f.name for parent in one.__mro__[1:] if is_dataclass(parent) for f in fields(parent)}
        bare = [name for name in vars(one) if name in inherited and name not in annotated]
        if bare:
            raise ConfigError(
                f"{where}: {one.__name__}.{bare[0]} has no type, so the inherited default would be used; write "
                f"`{bare[0]}: type = default`"
            )
