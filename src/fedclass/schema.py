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


def read_table(kind: type[Any], table: object, where: str, *, hyphens: bool = False) -> Any:
    """A table as the dataclass that describes it.  hyphens: how its keys are spelled in errors."""
    read, faults = _checked(kind, table, where, hyphens=hyphens)
    if faults:
        raise faults[0]
    return read


def table_faults(kind: type[Any], table: object, where: str) -> list[ConfigError]:
    """Everything that `read_table` would refuse."""
    return _checked(kind, table, where)[1]


def _checked(kind: type[Any], table: object, where: str, *, hyphens: bool = False) -> tuple[Any, list[ConfigError]]:
    def spelled(key: str) -> str:
        return key.replace("_", "-") if hyphens else key

    if not isinstance(table, dict):
        return None, [ConfigError(f"{where}: must be a table, got {table!r}")]
    known = [spelled(f.name) for f in fields(kind)]
    faults: list[ConfigError] = [*_unknown([spelled(key) for key in table], known, where)]
    try:
        read = _adapter(kind).validate_python(table)
    except ValidationError as error:
        for fault in error.errors():
            key = str(fault["loc"][0]) if fault["loc"] else ""
            missing = fault["type"] == "missing"
            shown = "" if missing else f"{spelled(key)} = {table.get(key)!r}: "
            told = f"{spelled(key)} is missing" if missing else _not_finite(fault["input"]) or in_words(fault)
            faults.append(_fault(where, key, told, shown))
        return None, faults
    except ConfigError as error:  # from the dataclass itself
        return None, [*faults, error]
    for key in (key for key in table if hasattr(read, key)):
        if (flaw := _number_flaw(table[key], getattr(read, key))) is not None:
            faults.append(_fault(where, key, flaw, f"{spelled(key)} = {table[key]!r}: "))
    return read, faults


def _number_flaw(given: object, read: object) -> str | None:
    if isinstance(given, bool) and not isinstance(read, bool):
        return "must be a number"
    if told := _not_finite(read):
        return told
    if isinstance(read, int) and abs(read) > LARGEST:
        return f"must be at most {LARGEST}"
    return None


def _not_finite(value: object) -> str | None:
    return "must be a finite number" if isinstance(value, float) and not math.isfinite(value) else None


WORDS = {  # for pydantic's kinds of errors
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
    "int": "must be a whole number",
    "float": "must be a number",
    "finite_number": "must be a finite number",
    "string": "must be text",
    "bool": "must be true or false",
    "dict": "must be a table",
    "tuple": "must be a list",
    "list": "must be a list",
    "path": "must be a path, as text",
}


def in_words(fault: Mapping[str, Any]) -> str:
    """What a value must be.  fault: one of pydantic's, whose own words are used only where we have none."""
    kind = str(fault["type"])
    words = WORDS.get(kind) or WORDS.get(kind.partition("_")[0])
    limits = {name: f"{n:g}" if isinstance(n, float) else n for name, n in fault.get("ctx", {}).items()}
    return words.format(**limits) if words else str(fault["msg"])


def only_known(table: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for fault in _unknown(list(table), known, where):
        raise fault


def _unknown(keys: Sequence[str], known: Sequence[str], where: str) -> list[TableError]:
    none = f"known keys: {', '.join(known)}" if known else "there are no keys"
    odd = [key for key in keys if key not in known]
    return [_fault(where, key, f"unknown key {key!r}; {did_you_mean(key, known) or none}") for key in odd]


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
        raise ValueError(f"{where}: {in_words(first)}" if where else in_words(first)) from error


def json_sha256(content: object, *, default: Any = None) -> str:
    """SHA-256 of values that JSON can hold, regardless of the order of keys.  default: as in `json.dumps`."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=default).encode()).hexdigest()
