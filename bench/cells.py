"""Measured cells, stored as JSON by name, and the tables of a page that are made from them."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def stored(data: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(data.read_text()) if data.exists() else {}
    return found


def chosen(text: str, known: Sequence[str], separator: str) -> list[str]:
    """The names in an argument, or all that are known."""
    names = text.split(separator) if text else list(known)
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"unknown: {unknown[0]!r}; known are {'; '.join(known)}")
    return names


def filled(text: str, tables: Mapping[str, Sequence[str]]) -> str:
    """The page with its tables, each between <!-- name --> and <!-- end -->."""
    for name, made in tables.items():
        if f"<!-- {name} -->" not in text:
            raise SystemExit(f"the page has no place for the table {name!r}: <!-- {name} -->")
        between, new = rf"(?s)(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)", "\n".join(made)
        text = re.sub(between, lambda found, new=new: f"{found[1]}{new}\n{found[2]}", text)  # type: ignore[misc]
    return text
