"""The audit log of a federation: who contributed what, and who decided what. Append-only, a chain of hashes.

    RUN/audit.jsonl   a JSON object per line. `previous` is the `sha256` of the line before; `sha256` is the hash of the
                      line itself without this field
    RUN/audit.head    the number and hash of the last line, written after it

Going back, resuming or a crash never shortens it. A change within the chain can be proven. Of what is missing at its
end, it can be proven that it is missing, as long as the head names it, but not why. A user with write access to the
folder could write a whole new chain, or shorten chain and head; a copy of the head that is kept elsewhere shows that
(`fedclass audit verify --head`).
"""

import getpass
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock

from fedclass.errors import RunError
from fedclass.runs.layout import write_atomically

FILE, HEAD = "audit.jsonl", "audit.head"
FIRST = "0" * 64  # what the first line follows
BLOCK = 1 << 16
Entry = dict[str, Any]


def operator() -> str:
    """The user who runs the command, as known to the system."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in containers
        name = "?"
    return f"{name} (uid {os.getuid()})"


def append(root: Path, kind: str, **facts: Any) -> None:
    """Add a line. Only one process writes at a time."""
    with FileLock(root / ".audit.lock", timeout=30), (root / FILE).open("a+b") as file:
        number, previous = _mended(file)
        entry = {"number": number + 1, "time": round(time.time(), 3), "kind": kind, **facts, "previous": previous}
        entry["sha256"] = _digest(entry)
        file.write((json.dumps(entry, ensure_ascii=False) + "\n").encode())
        file.flush()
        os.fsync(file.fileno())
        write_atomically(root / HEAD, json.dumps({"number": entry["number"], "sha256": entry["sha256"]}) + "\n")


def _mended(file: BinaryIO) -> tuple[int, str]:
    """Number and hash of the last whole line. A torn line after it is replaced by an entry that says so."""
    last, torn = _tail(file)
    if last is None:
        number, previous = 0, FIRST
    else:
        try:
            entry = json.loads(last)
            number, previous = int(entry["number"]), str(entry["sha256"])
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"{file.name}: its last line is not an entry ({error}); `fedclass audit verify` says more"
            ) from error
    if torn:
        file.truncate(file.seek(0, os.SEEK_END) - len(torn))
        entry = {"number": number + 1, "time": round(time.time(), 3), "kind": "torn", "bytes": len(torn)}
        entry |= {"of": hashlib.sha256(torn).hexdigest(), "previous": previous}
        entry["sha256"] = _digest(entry)
        file.write((json.dumps(entry) + "\n").encode())
        number, previous = number + 1, entry["sha256"]
    return number, previous


def _tail(file: BinaryIO) -> tuple[bytes | None, bytes]:
    """The last whole line, if any, and what follows it."""
    end, found = file.seek(0, os.SEEK_END), b""
    while end and found.count(b"\n") < 2:
        end = max(0, end - BLOCK)
        file.seek(end)
        found = file.read()
    *lines, torn = found.split(b"\n")
    return (lines[-1] if lines else None), torn


def _digest(entry: Mapping[str, Any]) -> str:
    content = {name: value for name, value in entry.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


@dataclass(frozen=True)
class Verdict:
    """lines: how many are whole.  head: the hash of the last.  flaws: what was changed, removed or moved, in words.
    lost: what is missing at the end, in words: whether a crash or somebody took it cannot be told.  torn: bytes of a
    last line without an end that was never finished, or is being written.
    """

    lines: int
    head: str
    flaws: list[str]
    lost: list[str]
    torn: int


def verify(root: Path, head: str | None = None) -> Verdict:
    """Look at every line. head: a hash that was noted elsewhere, and must be one of the chain's."""
    noted = _noted(root)  # before the log, so that entries which are added meanwhile are later ones
    *lines, torn = _content(root).split(b"\n")
    flaws, hashes, previous, expected = list[str](), {FIRST: 0}, FIRST, 1
    for at, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            number, follows, own = int(entry["number"]), str(entry["previous"]), str(entry["sha256"])
        except (ValueError, KeyError, TypeError):
            flaws.append(f"line {at} is not an entry: it was changed")
            expected += 1
            continue
        if own != _digest(entry):
            flaws.append(f"line {at} (entry {number}) was changed: its content does not match its hash")
        elif follows != previous:
            flaws.append(_gap(at, number, expected))
        hashes[own] = number
        previous, expected = own, number + 1
    if head is not None and head not in hashes:
        flaws.append(
            f"the chain has no entry {head[:12]}..., which was noted elsewhere: it was written anew, or its end removed"
        )
    lost = _lost(noted, hashes, expected, len(torn))
    return Verdict(len(lines), previous, flaws, lost, 0 if lost else len(torn))


def _gap(at: int, number: int, expected: int) -> str:
    if number > expected:
        one = number == expected + 1
        gone = f"entry {expected} was" if one else f"entries {expected} to {number - 1} were"
        return f"line {at} (entry {number}) does not follow the line before it: {gone} removed or moved"
    if number < expected:
        return f"line {at} (entry {number}) is out of order: entry {expected} was expected"
    return f"line {at} (entry {number}) does not follow the line before it: one of them was replaced"


def _noted(root: Path) -> tuple[int, str] | str:
    """Number and hash of the last entry, as noted in the file beside the log; or why there is none."""
    try:
        table = json.loads((root / HEAD).read_bytes())
        return int(table["number"]), str(table["sha256"])
    except FileNotFoundError:
        return f"{HEAD} is missing"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{HEAD} is damaged ({error})"


def _lost(noted: tuple[int, str] | str, hashes: Mapping[str, int], expected: int, torn: int) -> list[str]:
    """expected: the number after the last one."""
    if isinstance(noted, str):
        return [f"{noted}: whether entries are missing at the end cannot be told"]
    last, digest = noted
    if hashes.get(digest) == last:
        return []
    if last < expected:
        return [f"entry {last} is not the one that {HEAD} names: the end of the log, or {HEAD}, was replaced"]
    gone = f"entry {last}" if last == expected else f"entries {expected} to {last}"
    part = f", but for {torn} bytes" if torn else ""
    return [f"{gone} had been written, and {'is' if last == expected else 'are'} missing at the end{part}"]


def entries(root: Path) -> Iterator[Entry]:
    """All readable entries. `verify` says whether they are what was written."""
    *lines, _ = _content(root).split(b"\n")
    for line in lines:
        try:
            yield json.loads(line)
        except ValueError:
            yield {"kind": "unreadable"}


def _content(root: Path) -> bytes:
    try:
        return (root / FILE).read_bytes()
    except FileNotFoundError:
        raise RunError(f"{root}: has no {FILE}; only federations write one, from version 0.2 on") from None
    except OSError as error:
        raise RunError(f"{root / FILE}: cannot be read ({error.strerror})") from error
