"""fedclass keys: every key of a recipe, from the settings' own descriptions."""

import ast
import inspect
import io
import json
import textwrap
import tokenize
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer

from fedclass.cli.catalogue import stored
from fedclass.errors import ConfigError
from fedclass.runs.config_file import DEFAULT_METHOD

SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
PLAIN = {bool: "true, false", int: "whole number", float: "number", str: "text"}


@dataclass(frozen=True)
class Key:
    """default: as TOML; None if the key is absent by default.  allowed: in words."""

    name: str
    default: str | None
    allowed: str
    meaning: str


METHOD_NAME = Key("name", f'"{DEFAULT_METHOD}"', "an id of `fedclass methods`, package.module:Class", "the method")


def keys(
    table: Annotated[
        str | None,
        typer.Argument(help="A table of a recipe, such as train, or a key, such as train.rounds. Default: all."),
    ] = None,
    method: Annotated[
        str, typer.Option(help="The method whose parameters to list; or package.module:Class.")
    ] = DEFAULT_METHOD,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """List every key of a recipe: its default, the values allowed, and its meaning.

    Keys are set in a recipe, or by --set table.key=value.

    Example:  fedclass keys train
              fedclass keys train.rounds
              fedclass keys method --method fedwa
    """
    from rich.table import Table

    from fedclass.cli.display import console

    chosen = _chosen(_stored_keys(method) or recipe_keys(method), table)
    if as_json:
        print(json.dumps({name: [asdict(key) for key in rows] for name, rows in chosen.items()}, indent=2))
        return
    for name, rows in chosen.items():
        of = f" of {method}" if name == "method" else ""
        shown = Table(box=None, padding=(0, 2), title=f"[{name}]{of}" if name else "", title_justify="left")
        for column in ("key", "default", "allowed", "meaning"):
            shown.add_column(column, no_wrap=column == "key")
        for key in rows:
            shown.add_row(key.name, key.default or "-", key.allowed, key.meaning)
        console.print(shown)
        console.print()


def _chosen(known: Mapping[str, list[Key]], asked: str | None) -> Mapping[str, list[Key]]:
    """All tables, one table, or one key of a table. The seed belongs to no table."""
    from fedclass.schema import did_you_mean

    if asked is None:
        return known
    name, dot, key = asked.partition(".") if asked != "seed" else ("", ".", asked)
    if name not in known:
        raise ConfigError(f"fedclass keys: there is no table {name!r}; there are {', '.join(filter(None, known))}")
    if not dot:
        return {name: known[name]}
    rows = [row for row in known[name] if row.name == key]
    if not rows:
        names = [row.name for row in known[name]]
        hint = did_you_mean(key, names) or f"there are {', '.join(names)}"
        raise ConfigError(f"fedclass keys: [{name}] has no key {key!r}; {hint}")
    return {name: rows}


def _stored_keys(method: str) -> dict[str, list[Key]] | None:
    """The keys by table, read without torch; None for a method that does not come with fedclass."""
    known = stored()
    if method not in known["methods"]:
        return None
    tables = {name: [Key(**key) for key in rows] for name, rows in known["keys"].items()}
    return tables | {"method": [METHOD_NAME, *(Key(**key) for key in known["methods"][method]["keys"])]}


def recipe_keys(method: str = DEFAULT_METHOD) -> dict[str, list[Key]]:
    """All keys by table, from the settings' classes; keys outside any table are under ""."""
    from fedclass.experiment.config import SECTIONS, Experiment
    from fedclass.experiment.recipe import find_method

    tables = {name: keys_of(kind) for name, kind in SECTIONS.items()}
    return {"": keys_of(Experiment, ("seed",)), **tables, "method": [METHOD_NAME, *keys_of(find_method(method))]}


def keys_of(kind: type[Any], only: tuple[str, ...] | None = None) -> list[Key]:
    """The fields of a dataclass of settings. A field without a description has the comment beside it."""
    hints, remarks = get_type_hints(kind, include_extras=True), comments(kind)
    default = kind()
    found = []
    for field in fields(kind):
        if only is not None and field.name not in only:
            continue
        hint = hints[field.name]
        hint, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        described = [note for note in notes if hasattr(note, "description")]
        meaning = next((note.description for note in described if note.description), remarks.get(field.name, ""))
        bounds = [bound for note in described for bound in note.metadata]
        found.append(Key(field.name, toml(getattr(default, field.name)), allowed(hint, bounds), meaning))
    return found


def allowed(hint: Any, bounds: list[Any]) -> str:
    """A type and its bounds, in words: "whole number ≥ 1"."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return ", ".join(str(toml(option)) for option in parts)
    if origin in (Union, UnionType):
        return ", ".join(allowed(part, bounds) for part in parts if part is not NoneType)
    if origin is dict:
        return "a table"
    if origin is list:
        return f"list of {allowed(parts[0], [])}s"
    limits = [
        f"{sign} {getattr(bound, name):.10g}"
        for bound in bounds
        for name, sign in SIGNS.items()
        if hasattr(bound, name)
    ]
    number = hint in (int, float)
    return " ".join([PLAIN.get(hint, str(hint)), " and ".join(limits) if number else ""]).strip()


def toml(value: object) -> str | None:
    """A value as written in a recipe."""
    if value is None or value is MISSING:
        return None
    return json.dumps(value, ensure_ascii=False) if isinstance(value, bool | str | list) else str(value)


def comments(kind: type[Any]) -> Mapping[str, str]:
    """The comments beside the fields of a class and of its base classes."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        try:
            source = textwrap.dedent(inspect.getsource(one))
        except (OSError, TypeError):  # built in, or typed into a console
            continue
        said = {
            token.start[0]: token.string.removeprefix("#").strip()
            for token in tokenize.generate_tokens(io.StringIO(source).readline)
            if token.type == tokenize.COMMENT
        }
        (body,) = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
        for node in body.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.end_lineno in said:
                found[node.target.id] = said[node.end_lineno]
    return found
