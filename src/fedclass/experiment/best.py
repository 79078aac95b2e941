"""The best settings of a sweep, by method, in a small TOML file, so that later commands can use them by name."""

import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import TypeAdapter, ValidationError

from fedclass.errors import ConfigError
from fedclass.runs.layout import write_atomically
from fedclass.schema import in_words


@dataclass(frozen=True, kw_only=True)
class Best:
    """settings: as given to --set.  beside: what all candidates shared.  budget: in full runs; 0: no limit."""

    settings: Sequence[str]
    validation_accuracy: float
    candidates: int
    seeds: Sequence[int]
    budget: float
    recipe: str
    beside: Sequence[str]


def read_best(path: Path) -> dict[str, Best]:
    """By the method's name."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); `fedclass sweep --save` writes such files") from error
    try:
        return TypeAdapter(dict[str, Best]).validate_python(tables)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{path}: {where}: {in_words(first)}; `fedclass sweep --save` writes such files") from error


def save_best(path: Path, method: str, best: Best) -> None:
    """Replace the file's entry for this method; entries of other methods stay."""
    tables: dict[str, Any] = {name: asdict(other) for name, other in (read_best(path) if path.exists() else {}).items()}
    tables[method] = asdict(best)
    try:
        write_atomically(path, tomli_w.dumps(dict(sorted(tables.items()))))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror}); choose another name") from error
