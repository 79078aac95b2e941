"""Recipes: TOML files, overrides from the command line, and the experiment that they describe."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from torch import nn

from fedclass.data.paths import absolute
from fedclass.errors import ConfigError, FedclassError
from fedclass.experiment.config import SECTIONS, Experiment, check_parameters
from fedclass.methods import METHODS, Method
from fedclass.methods.base import parameters
from fedclass.runs.config_file import DEFAULT_METHOD, MOVED, flat, relocated
from fedclass.schema import TableError, did_you_mean, only_known, read_table, read_toml, toml_value
from fedclass.usercode import imported, named, reason, without_file

ARGS = [["model", "args"], ["data", "args"]]  # tables within tables
Table = dict[str, Any]
STORED = "config.toml"  # a run's own recipe: no hint asks the user to change it
METHOD = "method.name"
PROTOCOL = "protocol"  # the table that makes a recipe a benchmark protocol; runs use only its `reduced`
REDUCED = "-reduced"  # after a protocol's name: the same recipe with the protocol's `reduced` settings


def load(
    recipe: str | None = None,
    overrides: Sequence[str] | Mapping[str, object] = (),
    *,
    method: str | type[Method] | Method | None = None,
    model: str | Callable[..., nn.Module] | None = None,
    seed: int | None = None,
) -> Experiment:
    """The experiment of a recipe: a file, or the name of a bundled one. None: every key has its default.

    With -reduced after it, a protocol of the benchmark is made smaller by its own settings.

    overrides: keys of the recipe with other values: {"train.rounds": 2}, {"train": {"rounds": 2}} or
    ["train.rounds=2"].  method: its name, your
    own class, or an object of it with its parameters.  model: the name of a backbone, or your own function that builds
    one; its arguments are model.args.

    Relative paths in a recipe are relative to its file; in overrides, to the current folder.
    """
    where, table = read_recipe(recipe)
    if method is not None:
        _set_method(table, method)
    if model is not None:
        _set_model(table, model)
    if seed is not None:
        table["seed"] = seed
    given = typed_overrides(overrides)
    _only_one_place(given)
    if seed is not None and (word := seed_among(given)):
        raise ConfigError(f"{word}: the seed is also given as seed {seed}; leave out one of the two")
    _only_one_method(given, method)
    for override in sorted(given, key=lambda word: _key(word) != METHOD):  # first: another method's parameters go
        _override(table, override)
    try:
        return experiment(table, where=where)
    except TableError as fault:
        raise _in_override(fault, where, given) or fault from None


def _in_override(fault: TableError, where: str, overrides: Sequence[str]) -> ConfigError | None:
    """The same error, naming the override that caused it; None if the recipe caused it."""
    for override in reversed(overrides):
        key = _key(override)
        section, _, name = MOVED.get(key, key).rpartition(".")
        table = section.partition(".")[0]
        if (fault.where, fault.key) in ((f"{where} [{table}]", name), (where, table or name)):
            return ConfigError(f"{override}: {fault.told}")
    return None


def _set_method(table: Table, method: str | type[Method] | Method) -> None:
    given = table.get("method", {})
    if isinstance(method, str):
        if not (isinstance(given, dict) and given.get("name", DEFAULT_METHOD) == method):
            table["method"] = {"name": method}  # another method's parameters mean nothing to this one
        return
    kind = method if isinstance(method, type) else type(method)
    if not issubclass(kind, Method):
        raise ConfigError(
            f"method: {method!r} is not a method; derive its class from fedclass.FedAvg or fedclass.methods.Method"
        )
    own = {} if isinstance(method, type) else dict(parameters(method))
    for name, value in own.items():
        if value is not None and not isinstance(value, str | int | float | bool | list | tuple | dict):
            raise ConfigError(
                f"method: {kind.__name__}.{name} is a {type(value).__name__}, which a recipe cannot hold; use numbers, "
                "text, or lists of them"
            )
    ids = {known: name for name, known in METHODS.items()}
    table["method"] = {"name": ids.get(kind) or named(kind, where="method")}
    table["method"] |= {name: value for name, value in own.items() if value is not None}


def _set_model(table: Table, model: str | Callable[..., nn.Module]) -> None:
    if isinstance(model, nn.Module):
        raise ConfigError(
            "model: give a class or a function that builds the network, not the network itself: each run builds "
            "its own from the seed"
        )
    name = model if isinstance(model, str) else named(model, where="model")
    inner = table.setdefault("model", {})
    if not isinstance(inner, dict):
        raise ConfigError("model: the recipe has no table of this name")
    if inner.get("name") != name:
        inner.pop("args", None)  # another backbone's
    inner["name"] = name


def recipes() -> dict[str, Path]:
    """The bundled recipes, by name."""
    folder = Path(str(resources.files("fedclass") / "recipes"))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def read_recipe(recipe: str | None) -> tuple[str, Table]:
    """Its name and its tables, with absolute paths."""
    if recipe is None:
        return "settings", {}
    recipe = str(recipe)  # a Path is welcome
    path, table = read_file(recipe)
    protocol = table.pop(PROTOCOL, {})
    table, old = relocated(table, where=path.name)
    if old and path.name != STORED:
        _hint(f"{path.name}: {', '.join(f'{key} is now {MOVED[key]}' for key in old)}; please change the recipe")
    if is_reduced(recipe):
        for override in _reductions(protocol, recipe):
            _override(table, override)
    for section in ("data", "partition"):
        inner = table.get(section)
        if isinstance(inner, dict) and isinstance(inner.get("path"), str):
            where = f"{path.name} [{section}] path"
            inner["path"] = absolute(inner["path"], where=where, base=path.resolve().parent)
    return path.name, table


def is_reduced(recipe: str) -> bool:
    return recipe.endswith(REDUCED) and not Path(recipe).is_file()


def _reductions(protocol: object, recipe: str) -> list[str]:
    found = protocol.get("reduced") if isinstance(protocol, dict) else None
    if not found or not isinstance(found, list) or not all(isinstance(word, str) for word in found):
        raise ConfigError(f"{recipe}: {recipe.removesuffix(REDUCED)} has no reduced version; leave {REDUCED} out")
    return found


def read_file(recipe: str) -> tuple[Path, Table]:
    """The path of a recipe and its content, whole, also if its name asks for the reduced one."""
    known, name = recipes(), recipe.removesuffix(REDUCED) if is_reduced(recipe) else recipe
    path = Path(name)
    if name in known and not path.is_file():
        path = known[name]
    try:
        table = read_toml(path)
    except OSError as error:
        hint = did_you_mean(recipe, known) or f"bundled recipes: {', '.join(known)}"
        if recipe == "default":  # its former name
            hint = "the demonstration's recipe is now called demo; without a recipe, every key has its default"
        raise ConfigError(f"{recipe}: cannot read the recipe ({error.strerror}); {hint}") from error
    return path, table


@cache
def _hint(line: str) -> None:
    """Print a line to stderr, once per process."""
    print(line, file=sys.stderr)


def experiment(table: Mapping[str, Any], *, where: str = "recipe") -> Experiment:
    """Check every key and value of a recipe's tables."""
    table, _ = relocated(table, where=where)
    only_known(table, ["seed", *SECTIONS, "method"], where)
    seed = table.pop("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ConfigError(f"{where}: seed must be a whole number from 0 on, got {seed!r}")
    memory = table.get("memory", {})
    if isinstance(memory, dict) and "per_class" in memory:
        if "per_client" in memory:
            raise ConfigError(f"{where} [memory]: give per_client or per_class, not both")
        table["memory"] = {**memory, "per_client": None}  # a given budget replaces the default of the other
    sections = {name: read_table(kind, table.pop(name, {}), f"{where} [{name}]") for name, kind in SECTIONS.items()}
    method_table = table.pop("method", {})
    if not isinstance(method_table, dict):
        raise ConfigError(f"{where}: method must be a table, [method] with a name")
    name = method_table.get("name", DEFAULT_METHOD)
    parameters_given = {key: value for key, value in method_table.items() if key != "name"}
    kind = find_method(name)
    try:
        method = read_table(kind, parameters_given, f"{where} [method]")
    except FedclassError:
        raise
    except Exception as error:  # raised by its own __post_init__
        raise ConfigError(f"{where} [method]: {kind.__name__} cannot be made: {reason(error)}") from error
    data, model = sections["data"], sections["model"]
    objects = without_file([name, model.name, data.name, data.transform])
    return Experiment(seed=seed, method_name=name, method=method, objects=objects, **sections)


def find_method(name: str) -> type[Method]:
    """A method by its id, or a user's method by package.module:Class."""
    if isinstance(name, str) and ":" in name:
        found = imported(name, where="method")
        if not (isinstance(found, type) and issubclass(found, Method) and is_dataclass(found)):
            raise ConfigError(
                f"method: {name!r} must be a dataclass that derives from fedclass.FedAvg or fedclass.methods.Method"
            )
        check_parameters(found, where=f"method: {name!r}")
        return found
    if name not in METHODS:
        hint = did_you_mean(str(name), METHODS) or "your own: package.module:Class"
        raise ConfigError(f"method: unknown method {name!r}; known methods: {', '.join(METHODS)}; {hint}")
    return METHODS[name]


def typed_overrides(overrides: Sequence[str] | Mapping[str, object]) -> list[str]:
    """As on the command line, `train.rounds=2`. A mapping may be nested: {"train": {"rounds": 2}}."""
    if isinstance(overrides, str):
        raise ConfigError(f"overrides = {overrides!r}: give a dict, or a list, such as ['train.rounds=2']")
    if isinstance(overrides, Mapping):
        return [as_override(*item) for item in flat(overrides).items()]
    return list(overrides)


def as_override(key: str, value: object) -> str:
    """An override as typed. Text that could be read as something else is quoted."""
    if isinstance(value, str):
        return f"{key}={value}" if toml_value(value) == value else f"{key}={json.dumps(value)}"
    try:
        return f"{key}={json.dumps(value, allow_nan=False)}"
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{key} = {value!r}: use finite numbers, text, or lists of them ({error})") from error


def seed_among(overrides: Sequence[str]) -> str | None:
    """The override that sets the seed, if one does."""
    return next((word for word in overrides if _key(word) == "seed"), None)


def _key(override: str) -> str:
    return override.partition("=")[0].strip()


def _only_one_method(overrides: Sequence[str], method: object) -> None:
    named = next((word for word in overrides if _key(word) == METHOD), None)
    if named is not None and method is not None and toml_value(named.partition("=")[2]) != method:
        raise ConfigError(f"{named}: the method is also given as {method}; leave out one of the two")


def _only_one_place(overrides: Sequence[str]) -> None:
    given = set(map(_key, overrides))
    for old, new in MOVED.items():
        if {old, new} <= given:
            raise ConfigError(f"{old}: has moved to {new}, and both are given; leave {old} out")


def _override(table: Table, override: str) -> None:
    """`train.rounds=2` in a recipe's tables."""
    key, equals, text = override.partition("=")
    key = key.strip()
    if key in MOVED:
        _hint(f"{key}: is now {MOVED[key]}")
        key = MOVED[key]
    parts = key.split(".")
    if not equals or not all(parts) or (len(parts) > 2 and parts[:-1] not in ARGS):
        raise ConfigError(f"{override}: write it as table.key=value, such as train.rounds=2")
    value = toml_value(text)
    if len(parts) == 1:
        table[parts[0]] = value
        return
    *sections, name = parts
    section, inner = sections[0], table
    for at, part in enumerate(sections):
        inner = inner.setdefault(part, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{override}: {'.'.join(sections[: at + 1])} is not a table")
    if section == "memory" and name in ("per_client", "per_class"):
        inner.pop("per_client", None)  # mutually exclusive: the last one given counts
        inner.pop("per_class", None)
    if section == "method" and name == "name" and value != inner.get("name", DEFAULT_METHOD):
        inner.clear()
    inner[name] = value
