"""The recipe that a run keeps, config.toml. Recipes of older versions are translated as they are read."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedclass.errors import ConfigError, RunError
from fedclass.runs.layout import RunDirectory
from fedclass.schema import read_toml

DEFAULT_METHOD = "fedeven"  # of a recipe that names none: the one we recommend
MOVED = {
    "train.learning_rate": "optimizer.learning_rate",
    "train.momentum": "optimizer.momentum",
    "train.weight_decay": "optimizer.weight_decay",
    "train.participation": "server.participation",
    "train.weighting": "server.weighting",
    "train.min_updates": "server.min_updates",
}


def relocated(tables: Mapping[str, Any], *, where: str) -> tuple[dict[str, Any], list[str]]:
    """The tables with every key in its current place, and the keys that moved. A key in both places is an error."""
    placed = {name: dict(table) if isinstance(table, Mapping) else table for name, table in tables.items()}
    found = []
    for old, new in MOVED.items():
        (source, key), (target, _) = old.split("."), new.split(".")
        if not isinstance(placed.get(source), dict) or key not in placed[source]:
            continue
        into = placed.setdefault(target, {})
        if not isinstance(into, dict):
            raise ConfigError(f"{where} [{target}]: must be a table, got {into!r}")
        if key in into:
            raise ConfigError(f"{where}: {old} has moved to {new}, and both are given; leave out {old}")
        into[key] = placed[source].pop(key)
        found.append(old)
    return placed, found


def read_config(root: Path) -> dict[str, Any]:
    """The tables of a run's config.toml."""
    path = RunDirectory(root).config
    try:
        config, _ = relocated(read_toml(path), where=str(path))
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror}); is {root} a run directory?") from error
    except ConfigError as error:
        raise RunError(f"{path}: is damaged ({error})") from error
    return config


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys as --set writes them: {"train": {"rounds": 2}} becomes {"train.rounds": 2}."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{key}": entry for key, entry in flat(value).items()}
        else:
            found[name] = value
    return found
