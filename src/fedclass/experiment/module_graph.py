"""The modules that user code imports, found without running them, and what in them cannot be traced."""

import ast
import hashlib
import importlib.machinery
import importlib.metadata
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedclass import usercode

# Names of functions and attributes in user code, whatever object they belong to.
IMPORTS_BY_NAME = {"__import__", "exec", "eval", "import_module", "spec_from_file_location", "run_path"}
BARE = {"__import__", "exec", "eval"}  # as plain names only: model.eval() is something else
READS = {
    "open",
    "load",
    "fromfile",
    "memmap",
    "imread",
    "load_file",
    "safe_open",
    "File",
    "from_file",
}
COMPILED = {"load_file", "safe_open", "from_file", "File"}  # they open files where Python does not see it
VARIABLES = {"environ", "getenv"}
Place = tuple[int, int | None]  # line, and the column where it ends


@dataclass(frozen=True)
class Module:
    """A module of the user's own. file: None if there is none, as in a notebook.

    installed: a whole package, and the file is the record of what was installed.
    """

    name: str
    file: Path | None
    installed: bool = False

    @property
    def label(self) -> str:
        """A name that does not depend on where the module's folder is."""
        if self.installed:
            return f"{self.name} (installed)"
        if self.file is None or self.name in usercode.MAIN:
            return f"__main__ ({self.file.name})" if self.file else self.name.replace("__mp_main__", "__main__")
        tail = "/__init__" if self.is_package else ""
        return f"{self.name.replace('.', '/')}{tail}{self.file.suffix}"

    @property
    def is_others(self) -> bool:
        return usercode.ours_or_installed(self.name, None if self.file is None else str(self.file))

    @property
    def is_package(self) -> bool:
        return self.file is not None and self.file.stem == "__init__"

    @cached_property
    def digest(self) -> str | None:
        if self.file is None or self.edited:
            return None
        return file_digest(self.file)

    @cached_property
    def edited(self) -> bool:
        """Whether the file has changed since the module was imported."""
        loaded = usercode.imported_at(self.name) or usercode.PROCESS_START
        return self.name in sys.modules and self.file is not None and time_changed(self.file) > loaded

    @cached_property
    def tree(self) -> ast.Module | None:
        if self.file is None or self.file.suffix != ".py":
            return None
        try:
            return ast.parse(self.file.read_bytes(), str(self.file))
        except (SyntaxError, ValueError):  # reached only by an import statement that is never executed
            return None

    def imports(self) -> Iterator[str]:
        """Names of the modules it may import, at top level or within functions, and of names imported from them."""
        package = self.name if self.is_package else self.name.rpartition(".")[0]
        for node in ast.walk(self.tree or ast.Module([], [])):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield alias.name
            elif isinstance(node, ast.ImportFrom):
                parts = package.split(".")
                above = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
                base = ".".join(part for part in (above, node.module) if part)
                yield base
                for alias in node.names:
                    yield f"{base}.{alias.name}"  # a module, or a name in one, which is then not found as a module

    def doubts(self, *, in_functions: bool) -> Iterator[str]:
        """in_functions: whether functions count too. They run in training, when the files they open are not watched."""
        if self.name in usercode.MAIN:
            yield f"{self.label} is a script or notebook; put the class into a module of its own"
        elif self.file is None or (self.tree is None and not self.installed):
            yield f"{self.label} has no source that can be read"
        elif self.edited:
            yield f"{self.label} was edited after it was imported; restart Python"
        if self.tree is None:
            return
        unwatched = usercode.imported_at(self.name) is None
        for name, at, inside in _names(self.tree, inside=False):
            line, _ = at
            if name in IMPORTS_BY_NAME:
                yield f"{self.label}, line {line}: {name} may run code that cannot be traced"
            elif name in VARIABLES:
                if at not in self.variables:
                    yield f"{self.label}, line {line}: {name} may read any environment variable"
            elif (name in READS or name.startswith("read_")) and (
                in_functions if inside else unwatched or name in COMPILED
            ):
                yield f"{self.label}, line {line}: {name} may read files that cannot be traced"

    @cached_property
    def variables(self) -> dict[Place, str]:
        """The environment variables that it reads by name, and where."""
        found = {}
        for node in ast.walk(self.tree or ast.Module([], [])):
            match node:
                case ast.Subscript(value=place, slice=ast.Constant(value=str(name))) if _called(place) == "environ":
                    found[_place(place)] = name
                case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]) if _called(function) == "getenv":
                    found[_place(function)] = name
                case ast.Call(
                    func=ast.Attribute(value=place, attr="get"), args=[ast.Constant(value=str(name)), *_]
                ) if _called(place) == "environ":
                    found[_place(place)] = name
        return found


def _called(node: ast.expr) -> str:
    """The name of a variable, or of an attribute."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _place(node: ast.expr | ast.alias) -> Place:
    return node.lineno, node.end_col_offset


def _names(node: ast.AST, *, inside: bool) -> Iterator[tuple[str, Place, bool]]:
    """Every name and attribute that is used, where, and whether within a function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Name):
            yield child.id, _place(child), inside
        elif isinstance(child, ast.Attribute) and child.attr not in BARE:
            yield child.attr, _place(child), inside
        elif isinstance(child, ast.alias) and child.asname:
            yield child.name.rpartition(".")[2], _place(child), True  # used under another name, anywhere
        within = inside or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from _names(child, inside=within)


def is_ours_or_python(module: str) -> bool:
    """The standard library counts too: Python's version identifies it."""
    return is_ours(module) or module.partition(".")[0] in sys.stdlib_module_names


def is_ours(module: str) -> bool:
    return module.partition(".")[0] == "fedclass"


def is_stray(kind: type) -> bool:
    """Whether the class was made by a function or replaced later, so that its module's source does not define it."""
    found: object = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is not kind


def reached(roots: Iterable[str]) -> list[Module]:
    """The roots and everything they import, directly or not, except fedclass, installed packages and the standard
    library. An installed root is identified by the record of its package.
    """
    names = [part for root in roots for part in _and_packages(root)]
    found: dict[str, Module] = {}
    for root in names:
        module = find_module(root)
        if module is not None and module.is_others:
            top = root.partition(".")[0]
            found[top] = Module(top, _record(top), installed=True)
        elif module is None and root not in sys.modules:
            found[root] = Module(root, None)
    seen: set[str] = set()
    while names:
        name = names.pop(0)
        module = None if name in seen else find_module(name)
        seen.add(name)
        if module is not None and not module.is_others:
            found[name] = module
            names += [part for imported in module.imports() for part in _and_packages(imported)]
    return list(found.values())


def _record(package: str) -> Path | None:
    """The file that lists what was installed, with the hash of each file."""
    for name in importlib.metadata.packages_distributions().get(package, []):
        for file in importlib.metadata.files(name) or []:
            if file.name == "RECORD":
                return Path(str(file.locate()))
    return None


def _and_packages(name: str) -> list[str]:
    """a.b.c as a, a.b, a.b.c."""
    parts = name.split(".")
    return [".".join(parts[: end + 1]) for end in range(len(parts))]


def find_module(name: str) -> Module | None:
    """Find a module without importing it. None: there is no such module, or it has no code."""
    loaded = sys.modules.get(name)
    if loaded is not None:
        file = getattr(loaded, "__file__", None)
        if file is None and hasattr(loaded, "__path__"):
            return None  # a folder without __init__.py
        return Module(name, Path(file) if file is not None and Path(file).is_file() else None)
    parent, _, _ = name.rpartition(".")
    places: Any = None
    if parent:
        places = getattr(sys.modules.get(parent), "__path__", None) or _search(parent)
        if not places:
            return None
    spec = importlib.machinery.PathFinder.find_spec(name, places)
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return None
    return Module(name, Path(spec.origin))


def _search(package: str) -> list[str] | None:
    parent, _, _ = package.rpartition(".")
    places: Any = (getattr(sys.modules.get(parent), "__path__", None) or _search(parent)) if parent else None
    if parent and not places:
        return None
    spec = importlib.machinery.PathFinder.find_spec(package, places)
    return list(spec.submodule_search_locations or []) if spec is not None else None


def time_changed(path: Path) -> float:
    """When the file was last written or put in place. Copying may preserve an older modification time."""
    status = path.stat()
    return status.st_ctime if os.name == "posix" else status.st_mtime


def file_digest(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
