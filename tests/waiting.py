"""What tests know of other processes: by their effects, however slow the machine is."""

import time
from collections.abc import Callable
from pathlib import Path

PATIENCE = 600  # seconds; reached only when something is wrong


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    """Of a process, as /proc tells; none if it is gone."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def below(pid: int) -> list[int]:
    """Its children, their children, and so on."""
    return [found for child in children(pid) for found in (child, *below(child))]


def alive(pid: int) -> bool:
    """Neither gone nor a zombie."""
    fields = stat(pid)
    return bool(fields) and fields[0] != "Z"


def session(leader: int) -> list[int]:
    """Processes that live in the session that this one has begun."""
    numbers = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [pid for pid in numbers if alive(pid) and stat(pid)[3:4] == [str(leader)]]


def stat(pid: int) -> list[str]:
    """/proc/PID/stat from the state on: state, parent, group, session, ..."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return []
