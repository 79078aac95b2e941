"""The folder of cached tasks as people manage it: what it holds, and what can be deleted. Needs no torch."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedclass.data.source import cache_folder


@dataclass(frozen=True)
class Entry:
    """For people to read: what is stored under a key.  time: when it was learned, in seconds since 1970."""

    key: str
    made_with: Mapping[str, Any]
    bytes: int
    time: float


class TaskCache:
    """Folders with the states of runs after their tasks, named by their keys."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def entries(self) -> Iterator[Entry]:
        """All entries, oldest first. For damaged ones, `made_with` is empty."""
        folders = [path for path in self.folder.glob("*") if path.is_dir() and path.suffix != ".part"]
        found = []
        for folder in folders:
            with contextlib.suppress(FileNotFoundError):  # another process has removed it meanwhile
                size = sum(path.stat().st_size for path in folder.iterdir())
                found.append(Entry(folder.name, self._made_with(folder), size, folder.stat().st_mtime))
        yield from sorted(found, key=lambda entry: entry.time)

    @staticmethod
    def _made_with(folder: Path) -> Mapping[str, Any]:
        try:
            found: Mapping[str, Any] = json.loads((folder / "00000001.json").read_bytes())["made_with"]
        except (OSError, ValueError, KeyError, TypeError):
            return {}
        return found

    def holds(self, key: str) -> bool:
        return (self.folder / key).is_dir()

    def remove(self, entries: Iterable[Entry]) -> None:
        """Remove entries atomically: other processes see an entry whole, or not at all."""
        for entry in entries:
            going = self.folder / f"{entry.key}.{os.getpid()}.part"
            with contextlib.suppress(FileNotFoundError):  # another process has removed it meanwhile
                (self.folder / entry.key).rename(going)
                shutil.rmtree(going)

    def clear(self) -> None:
        if self.folder.exists():
            shutil.rmtree(self.folder)


def superfluous(
    entries: Iterable[Entry], *, learned_before: float | None = None, keep_bytes: float | None = None
) -> list[Entry]:
    """Entries older than a time, and then the oldest ones, until the rest fits into `keep_bytes`."""
    going, staying = list[Entry](), list[Entry]()
    for entry in sorted(entries, key=lambda entry: entry.time):
        old = learned_before is not None and entry.time < learned_before
        (going if old else staying).append(entry)
    total = sum(entry.bytes for entry in staying)
    for entry in staying:
        if keep_bytes is None or total <= keep_bytes:
            break
        going.append(entry)
        total -= entry.bytes
    return going


def usual_folder() -> Path:
    return cache_folder() / "learned-tasks"
