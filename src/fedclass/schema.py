"""Data from outside, checked against a dataclass: an error says where, what, and what to do next."""

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fedclass.errors import ConfigError

LARGEST = 2**31 - 1  # of whole numbers in a table; any more are a slip of the pen, such as rounds = 1e12


def read_table(kind: type[Any], table: object, where: str) -> Any:
    """A table as the dataclass that describes it."""
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: must be a table, got {table!r}")
    only_known(table, [f.name for f in fields(kind)], where)
    try:
        read = TypeAdapter(kind).validate_python(table)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"][:1])
        raise ConfigError(f"{where}: {key} = {table.get(key)!r}: {first['msg']}") from error
    for key, value in table.items():
        got = getattr(read, key)
        if isinstance(value, bool) and not isinstance(got, bool):
            raise ConfigError(f"{where}: {key} = {value!r}: Input should be a number")
        if isinstance(got, float) and not math.isfinite(got):
            raise ConfigError(f"{where}: {key} = {value!r}: Input should be a finite number")
        if isinstance(got, int) and abs(got) > LARGEST:
            raise ConfigError(f"{where}: {key} = {value!r}: Input should be at most {LARGEST}")
    return read


def only_known(table: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in table:
        if key not in known:
            hint = did_you_mean(key, known) or (f"known are {', '.join(known)}" if known else "there are no keys")
            raise ConfigError(f"{where}: unknown key {key!r}; {hint}")


def did_you_mean(word: str, known: Sequence[str] | Mapping[str, Any]) -> str | None:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else None
