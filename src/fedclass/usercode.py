"""User code: how to recognise it, when it was imported, and which files it opens."""

import contextlib
import importlib
import io
import operator
import os
import pickle
import site
import sys
import sysconfig
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING
from functools import cache
from pathlib import Path
from types import FrameType

import cloudpickle

from fedclass.errors import ConfigError

Noticed = tuple[Mapping[str, frozenset[str]], ...]  # files that modules opened, and what else they used

MAIN = ("__main__", "__mp_main__")  # a script, `python -c`, a notebook; the second one in processes that it starts
NOT_DATA, DATA = ("/proc/", "/sys/", "/dev/"), "/dev/shm/"  # the last one holds files in memory
CODE = (".py", ".pyc")  # found by import statements instead; also read to print a warning's line
BEYOND = {  # events after which anything may have been read
    "subprocess.Popen": "another program",
    "os.system": "another program",
    "os.posix_spawn": "another program",
    "socket.connect": "the network",
    "sqlite3.connect": "a data base",
    "ctypes.dlopen": "a library",
}


def _process_start() -> float:
    """When this process started; if the system does not tell, when this module was imported."""
    try:
        ticks = 2 + int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])  # it is rounded down
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return time.time()
    return time.time() - age


def _installed_folders() -> tuple[Path, ...]:
    """Python's own, and those added by PYTHONPATH or a .pth file, as environment modules on clusters do."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = {sysconfig.get_path(name) for name in names} | {*site.getsitepackages(), site.getusersitepackages()}
    folders |= {entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")}
    return tuple(Path(folder).resolve() for folder in folders)


PROCESS_START = _process_start()
INSTALLED = _installed_folders()  # computed now: the audit hook must not import anything

_imported: dict[str, float] = {}  # modules imported while watched, and when
_opened: dict[str, set[str]] = defaultdict(set)  # by module: files that it opened, itself or through others
_beyond: dict[str, set[str]] = defaultdict(set)  # by module: what else it used, in words
_given: dict[str, object] = {}  # by path: classes and functions that cannot be imported
_watching = 0  # how many `watching` blocks are open
_hooked = False  # an audit hook cannot be removed again


def ours_or_installed(module: str, file: str | None) -> bool:
    """The module belongs to the standard library, to an installed package, or to fedclass."""
    top = module.partition(".")[0]
    if top == "fedclass":
        return True
    return top in sys.stdlib_module_names if file is None else _is_installed(file)


@cache
def _is_installed(file: str) -> bool:
    return any(Path(file).resolve().is_relative_to(folder) for folder in INSTALLED)


def imported_at(module: str) -> float | None:
    """The time just before the module was imported; None if it was not watched."""
    return _imported.get(module)


def opened_by(module: str) -> frozenset[str]:
    """The files that the module opened for reading while it was watched."""
    return frozenset(_opened.get(module, ()))


def went_beyond(module: str) -> frozenset[str]:
    """What the module used while it was watched that may have read anything."""
    return frozenset(_beyond.get(module, ()))


def noticed() -> Noticed:
    """All findings so far, to be sent to another process."""
    return tuple({name: frozenset(found) for name, found in kind.items()} for kind in (_opened, _beyond))


def take_note(of_another: Noticed) -> None:
    """Add what another process has noticed about the same code."""
    for kind, found in zip((_opened, _beyond), of_another, strict=True):
        for name, items in found.items():
            kind[name] |= items


@contextlib.contextmanager
def watching() -> Iterator[None]:
    """A context for everything that imports or calls user code."""
    global _watching, _hooked
    if not _hooked:
        sys.addaudithook(_heard)
        _hooked = True
    known, began = set(sys.modules), time.time()
    _watching += 1
    try:
        yield
    finally:
        _watching -= 1
        _imported.update(dict.fromkeys(set(sys.modules) - known, began))


def imported(path: str, *, where: str) -> object:
    """The object behind `package.module:name`."""
    try:
        with watching():
            return _found(path)
    except Exception as error:  # a user's module may raise anything
        if path in _given:
            return _given[path]
        if not _has_a_file(path):
            raise ConfigError(
                f"{where}: {path!r} was defined in a script, a notebook or a function, and cannot be imported from "
                "here; continue there, or move it to a module and start again with package.module:name"
            ) from error
        raise ConfigError(f"{where}: cannot import {path!r} ({reason(error)}); {_how_to_name(path)}") from error


def _how_to_name(path: str) -> str:
    """What to type instead."""
    module, _, name = path.partition(":")
    file = Path(module)
    if file.suffix != ".py":
        return "write package.module:name, importable from here"
    return f"name the module, not the file: {file.stem}:{name}, in the folder of {file.name}"


def _found(path: str) -> object:
    module, _, name = path.partition(":")
    return operator.attrgetter(name)(importlib.import_module(module))


def _has_a_file(path: str) -> bool:
    """Whether another process could import it: not from a script, a notebook or a function."""
    module, _, name = path.partition(":")
    return module not in MAIN and "<" not in name


def named(thing: object, *, where: str) -> str:
    """package.module:name of a class or function. If it cannot be imported by this name, it is remembered."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        raise ConfigError(f"{where}: {thing!r} has no name; give a function or a class")
    path = f"{module}:{name}"
    if "<" in name:  # <locals>, <lambda>
        _given[path] = thing
    try:
        same = imported(path, where=where) is thing
    except ConfigError:
        same = False
    if not same:
        raise ConfigError(f"{where}: {path!r} is no longer the object that was given; define it again, or rename it")
    return path


def without_file(paths: Iterable[str | None]) -> dict[str, object]:
    """The objects, by path, that another process cannot import and must be sent."""
    return {path: imported(path, where=path) for path in paths if path and ":" in path and not _has_a_file(path)}


def remember(objects: Mapping[str, object]) -> None:
    """Objects of another process, to be found here under the same paths."""
    _given.update(objects)


class _ByValue(cloudpickle.CloudPickler):  # type: ignore[misc]
    """Pickles classes that no module has by value. MISSING of dataclasses keeps its identity."""

    dispatch_table = cloudpickle.CloudPickler.dispatch_table.new_child({type(MISSING): lambda _: "MISSING"})


def pickled(value: object, take: Callable[[pickle.PickleBuffer], object] | None = None) -> bytes:
    """Pickle for another process. It imports the script, if there is one; otherwise classes and functions go by value.

    take: gets the arrays, which are then not part of the bytes.
    """
    file = getattr(sys.modules["__main__"], "__file__", None)
    if file is not None and Path(file).exists():
        with contextlib.suppress(pickle.PicklingError, AttributeError, TypeError):  # of classes within functions
            pickle.dumps(value, protocol=5, buffer_callback=lambda _: None)
            return pickle.dumps(value, protocol=5, buffer_callback=take)
    stream = io.BytesIO()
    try:
        _ByValue(stream, protocol=5, buffer_callback=take).dump(value)
        return stream.getvalue()
    except Exception as error:  # user code may hold anything
        raise ConfigError(
            f"a method or backbone cannot be sent to other processes ({type(error).__name__}: {error}); move it to a "
            'module, or use engine="inprocess"'
        ) from error


def frames_of(error: BaseException) -> list[tuple[FrameType, int]]:
    """The frames that an error has passed through, outermost first, each with its line."""
    return list(traceback.walk_tb(error.__traceback__))


def is_own(frame: FrameType) -> bool:
    """Whether the frame belongs to user code: neither fedclass nor installed."""
    return not ours_or_installed(str(frame.f_globals.get("__name__", "")), frame.f_globals.get("__file__"))


def reason(error: BaseException) -> str:
    """What went wrong, and the last line of user code that led to it, if any."""
    own = [(frame, line) for frame, line in frames_of(error) if is_own(frame)]
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if not own:
        return what
    frame, line = own[-1]
    return f"{what} ({frame.f_code.co_filename}, line {line}, in {frame.f_code.co_name})"


def _heard(event: str, details: tuple[object, ...]) -> None:
    """The audit hook. It sees files that Python opens, but not those that libraries open in C or Rust."""
    if not _watching:
        return
    if event in BEYOND:
        for module in _callers():
            _beyond[module].add(BEYOND[event])
    elif event == "open":
        path, mode, flags = details
        if not isinstance(path, str | bytes | os.PathLike) or _writes(mode, flags):
            return
        name = os.path.abspath(os.fsdecode(path))  # noqa: PTH100, a Path would cost more than the rest
        if name.endswith(CODE) or (name.startswith(NOT_DATA) and not name.startswith(DATA)) or _is_installed(name):
            return
        for module in _callers():
            _opened[module].add(name)


def _callers() -> Iterator[str]:
    """The user's modules on the call stack."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if not ours_or_installed(module, frame.f_globals.get("__file__")):
            yield module
        elif frame.f_code.co_name == "<module>" and not module.startswith("importlib"):
            return  # an installed package that reads its settings while it is imported
        frame = frame.f_back


def _writes(mode: object, flags: object) -> bool:
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax")
    return isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR) != 0
