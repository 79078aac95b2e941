"""Protocols of the benchmark: recipes with a table [protocol], which have a version and must not be changed.

A protocol fixes data, stream, partition, memory, model and the length of training; methods bring their own parameters.
Every protocol has a reduced version, NAME-reduced, which takes minutes on two cores.
"""

import hashlib
import json
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Self

import tomli_w
from pydantic import Field

from fedclass.errors import ConfigError, RunError
from fedclass.experiment.config import Experiment
from fedclass.experiment.grid import Choice, read_methods, read_seeds
from fedclass.experiment.recipe import PROTOCOL, REDUCED, is_reduced, load, read_file, recipes
from fedclass.experiment.resume import PLACES
from fedclass.runs.config_file import flat
from fedclass.runs.layout import write_atomically
from fedclass.schema import did_you_mean, read_table

BEST = "method.variant=best"  # how `--methods fedclass:best` is read
STORED = "protocol.toml"  # beside its results
# What a protocol fixes. All else (the method, its optimiser, which images become exemplars) is the method's own choice.
FIXED = ("data.", "stream.", "partition.", "model.", "faults.", "memory.per_", "server.participation")
FIXED_IN_TRAINING = ("train.rounds", "train.local_epochs", "train.batch_size", "train.augment")


@dataclass(frozen=True, kw_only=True)
class ProtocolSettings:
    """Table [protocol] of a recipe."""

    version: Annotated[int, Field(ge=1, description="rises with every change of what is fixed")]
    about: Annotated[str, Field(description="in a line")]
    origin: Annotated[str, Field(description="what is published, and by whom; what is ours")]
    seeds: Annotated[str, Field(description="such as 0-2")] = "0-2"
    methods: Annotated[str, Field(description="rows by default, the first is the reference")] = (
        "fedavg,fedclass,fedeven"
    )
    validation: Annotated[
        float, Field(gt=0, lt=1, description="share of training images to tune on; results train on all of them")
    ] = 0.1
    reduced: Annotated[list[str], Field(description="keys of the reduced protocol, as --set writes them")] = field(
        default_factory=list
    )
    best: Annotated[
        dict[str, list[str]], Field(description="settings found by tuning, by method, as --set writes them")
    ] = field(default_factory=dict)
    reduced_best: Annotated[dict[str, list[str]], Field(description="the same, of the reduced protocol")] = field(
        default_factory=dict
    )
    name: Annotated[str, Field(description="default: the file's")] = ""
    reduced_by: Annotated[list[str], Field(description="what a reduced protocol has changed")] = field(
        default_factory=list
    )


@dataclass(frozen=True)
class Protocol:
    """recipe: a name or a file."""

    name: str
    recipe: str
    settings: ProtocolSettings

    @property
    def title(self) -> str:
        return f"{self.name}, version {self.settings.version}"

    @property
    def folder(self) -> str:
        return f"{self.name}-v{self.settings.version}"

    def experiment(self, choice: Choice | None = None, *, seed: int | None = None) -> Experiment:
        own, method = ((), None) if choice is None else (choice.overrides, choice.method)
        return load(self.recipe, own, method=method, seed=seed)

    def fixed(self, method: str | None = None) -> dict[str, Any]:
        """The fixed keys with their values. Bounds have no memory, whatever the protocol says."""
        return _fixed(load(self.recipe, method=method))

    @property
    def sha256(self) -> str:
        """Of all fixed keys: another hash needs another version."""
        return hashlib.sha256(json.dumps(self.fixed("fedavg"), sort_keys=True).encode()).hexdigest()

    def choices(self, methods: str | None) -> list[Choice]:
        """Methods as typed. NAME:best stands for the settings that were tuned on this protocol."""
        return [self._best(choice) if BEST in choice.overrides else choice for choice in self._read(methods)]

    def _read(self, methods: str | None) -> list[Choice]:
        return read_methods(methods or self.settings.methods)

    def _best(self, choice: Choice) -> Choice:
        found = self.settings.best.get(str(choice.method))
        if found is None:
            known = ", ".join(f"{name}:best" for name in self.settings.best) or "none yet"
            raise ConfigError(
                f"--methods {choice.name}: {self.name} has no best settings for {choice.method} (available: {known}); "
                "leave :best out, or find some with `fedclass sweep` and data.validation"
            )
        return replace(choice, overrides=(*found, *(word for word in choice.overrides if word != BEST)))

    def seeds(self, text: str | None) -> list[int]:
        return read_seeds(text or self.settings.seeds)

    def check(self, experiment: Experiment, *, where: str) -> None:
        """Refuse an experiment that differs from this protocol."""
        wanted, got = self.fixed(experiment.method_name), _fixed(experiment)
        wrong = [key for key in wanted | got if wanted.get(key) != got.get(key)]
        if wrong:
            told = ", ".join(f"{key}={got.get(key)} ({self.name}: {wanted.get(key)})" for key in wrong)
            raise ConfigError(f"{where}: differs from the protocol {self.title}: {told}; a protocol is fixed")

    # Beside results.

    def check_folder(self, folder: Path) -> None:
        """Refuse a folder that holds results of another protocol."""
        if (folder / STORED).exists() and Protocol.stored(folder).sha256 != self.sha256:
            raise RunError(f"{folder / STORED}: is not the protocol {self.title}; choose another --out")

    def write(self, folder: Path) -> None:
        """Store the whole protocol, so that results can be reproduced when the bundled version has changed."""
        self.check_folder(folder)
        if (folder / STORED).exists():
            return
        folder.mkdir(parents=True, exist_ok=True)
        about = replace(self.settings, name=self.name, reduced=[], reduced_best={})
        tables = load(self.recipe).to_tables()
        for key in PLACES:
            section, _, name = key.partition(".")
            tables[section].pop(name, None)
        write_atomically(folder / STORED, tomli_w.dumps({PROTOCOL: asdict(about), **tables}))

    @classmethod
    def stored(cls, folder: Path) -> Self:
        path = folder / STORED
        if not path.exists():
            raise RunError(f"{folder}: has no {STORED}; `fedclass benchmark run` makes such folders")
        return cls._of(str(path))

    @classmethod
    def _of(cls, recipe: str) -> Self:
        path, table = read_file(recipe)
        if PROTOCOL not in table:
            raise ConfigError(f"{recipe}: has no table [protocol], so it is an ordinary recipe; {known_protocols()}")
        settings = read_table(ProtocolSettings, table[PROTOCOL], f"{path.name} [{PROTOCOL}]")
        return cls(settings.name or path.stem, recipe, settings)

    def reduced(self) -> Self:
        if not self.settings.reduced:
            raise ConfigError(f"{self.name}{REDUCED}: this protocol has no reduced version")
        settings = replace(self.settings, reduced_by=self.settings.reduced, best=self.settings.reduced_best)
        return replace(self, name=self.name + REDUCED, recipe=self.recipe + REDUCED, settings=settings)


def _fixed(experiment: Experiment) -> dict[str, Any]:
    keys = flat(experiment.to_tables())
    return {
        key: value for key, value in keys.items() if key.startswith(FIXED + FIXED_IN_TRAINING) and key not in PLACES
    }


def protocols() -> list[Protocol]:
    """The bundled protocols, each followed by its reduced version."""
    found = []
    for name, path in recipes().items():
        if PROTOCOL in tomllib.loads(path.read_text(encoding="utf-8")):
            whole = find_protocol(name)
            found += [whole, *([whole.reduced()] if whole.settings.reduced else [])]
    return found


def find_protocol(name: str) -> Protocol:
    """A protocol by its name or the path of its file, each also with -reduced after it."""
    whole = name.removesuffix(REDUCED) if is_reduced(name) else name
    if whole not in recipes() and not Path(whole).is_file():
        names = [each.name for each in protocols()]
        raise ConfigError(f"{name}: no such protocol; {did_you_mean(name, names) or known_protocols()}")
    found = Protocol._of(whole)
    return found if whole == name else found.reduced()


def known_protocols() -> str:
    named: Sequence[str] = [
        name for name, path in recipes().items() if PROTOCOL in tomllib.loads(path.read_text(encoding="utf-8"))
    ]
    return f"protocols are {', '.join(named)}, each also with {REDUCED} after it"
