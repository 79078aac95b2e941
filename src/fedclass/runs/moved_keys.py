"""Keys of recipes that were in another table once: old recipes and stored ones are read as if written today."""

from collections.abc import Mapping
from typing import Any

from fedclass.errors import ConfigError

MOVED = {
    "train.learning_rate": "optimizer.learning_rate",
    "train.momentum": "optimizer.momentum",
    "train.weight_decay": "optimizer.weight_decay",
    "train.participation": "server.participation",
    "train.weighting": "server.weighting",
    "train.min_updates": "server.min_updates",
}


def relocated(tables: Mapping[str, Any], *, where: str) -> tuple[dict[str, Any], list[str]]:
    """The tables with every key in its place of today, and which keys had moved. A key in both places is an error."""
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
            raise ConfigError(f"{where}: {old} has moved to {new}, and both are given; leave {old} out")
        into[key] = placed[source].pop(key)
        found.append(old)
    return placed, found
