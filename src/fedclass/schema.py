"""Data from outside, checked against dataclasses: users' settings, and JSON in files and messages.

An error says where, what, and what to do next.
"""

import difflib
import hashlib
import json
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from fedclass.errors import ConfigError

T = TypeVar("T")

LARGEST = 2**31 - 1  # whole number in a table; a larger one is a typing mistake, such as rounds = 1e12
_adapter: Any = cache(TypeAdapter)  # making one takes longer than using it


# Settings.


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a file. OSError if the file cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a TOML file: {error}") from error


def toml_value(text: str) -> Any:
    """A value as typed after a key: read as TOML if possible, otherwise as text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


class TableError(ConfigError):
    """An unknown key, or a value that is not allowed. told: what is wrong, without place and value."""

    where = key = told = ""


def _fault(where: str, key: str, told: str, value: str = "") -> TableError:
    error = TableError(f"{where}: {value}{told}")
    error.where, error.key, error.told = where, key, told
    return error


def read_table(kind: type[Any], table: object, where: str) -> Any:
    """Read a table as the dataclass that describes it."""
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: must be a table, got {table!r}")
    only_known(table, [f.name for f in fields(kind)], where)
    try:
        read = _adapter(kind).validate_python(table)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"][:1])
        if first["type"] == "missing":
            raise ConfigError(f"{where}: {key} is missing") from error
        raise _fault(where, key, first["msg"], f"{key} = {table.get(key)!r}: ") from error
    for key, value in table.items():
        got, shown = getattr(read, key), f"{key} = {value!r}: "
        if isinstance(value, bool) and not isinstance(got, bool):
            raise _fault(where, key, "Input should be a number", shown)
        if isinstance(got, float) and not math.isfinite(got):
            raise _fault(where, key, "Input should be a finite number", shown)
        if isinstance(got, int) and abs(got) > LARGEST:
            raise _fault(where, key, f"Input should be at most {LARGEST}", shown)
    return read


def only_known(table: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in table:
        if key not in known:
            hint = did_you_mean(key, known) or (f"known keys: {', '.join(known)}" if known else "there are no keys")
            raise _fault(where, key, f"unknown key {key!r}; {hint}")


def did_you_mean(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """cutoff: how similar two words must be, from 0 to 1."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f"did you mean {near[0]!r}?" if near else None


# Records: written by programs for programs.


def read_record(kind: type[T], content: object, *, exact: bool = False) -> T:
    """Read values from JSON as the dataclass or type that describes them. A ValueError says what is wrong.

    Unknown fields are ignored: a later version may have written them.  exact: unknown and missing fields are errors.
    """
    if exact and is_dataclass(kind):
        known = {f.name for f in fields(kind)}
        if not isinstance(content, dict) or set(content) != known:
            odd = sorted(map(str, set(content) ^ known)) if isinstance(content, dict) else [type(content).__name__]
            raise ValueError(f"has other fields than it should ({', '.join(odd)})")
    try:
        read: T = _adapter(kind).validate_python(content)
        return read
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where}: {first['msg']}" if where else first["msg"]) from error


def json_sha256(content: object, *, default: Any = None) -> str:
    """SHA-256 of values that JSON can hold, regardless of the order of keys.  default: as in `json.dumps`."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=default).encode()).hexdigest()
