"""The methods at a glance, read from their source code: importing them would import torch, which takes seconds."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
STANDARD = "standard"  # the variant of a method that has no others


@dataclass(frozen=True)
class Glance:
    id: str
    summary: str
    variants: tuple[str, ...]


def glance() -> Iterator[Glance]:
    """A line for each of `fedclass.methods.METHODS`, in its order."""
    registry = ast.parse((PACKAGE / "methods" / "__init__.py").read_text(encoding="utf-8"))
    homes = {
        alias.name: PACKAGE.parent.joinpath(*str(node.module).split(".")).with_suffix(".py")
        for node in registry.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    table = _assigned(registry, "METHODS")
    assert isinstance(table, ast.Dict)
    for key, value in zip(table.keys, table.values, strict=True):
        assert isinstance(key, ast.Constant)
        assert isinstance(value, ast.Name)
        module = ast.parse(homes[value.id].read_text(encoding="utf-8"))
        (found,) = (node for node in module.body if isinstance(node, ast.ClassDef) and node.name == value.id)
        summary = (ast.get_docstring(found) or "").partition("\n")[0]
        yield Glance(str(key.value), summary, _variants(module, found))


def _variants(module: ast.Module, method: ast.ClassDef) -> tuple[str, ...]:
    """The options of the field `variant`, which is a Literal[...] or the name of one."""
    for node in method.body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "variant":
            for part in ast.walk(node.annotation):
                literal = _assigned(module, part.id) if isinstance(part, ast.Name) else part
                if isinstance(literal, ast.Subscript) and ast.unparse(literal.value) == "Literal":
                    options = ast.literal_eval(literal.slice)
                    return options if isinstance(options, tuple) else (options,)
    return (STANDARD,)


def _assigned(module: ast.Module, name: str) -> ast.expr | None:
    """The value of a name at the top level of a module."""
    for node in module.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(ast.unparse(target) == name for target in targets):
            assert isinstance(node, ast.Assign | ast.AnnAssign)
            return node.value
    return None
