"""Other programs' processes and ports."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1  # of linux/prctl.h


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """The process, and whatever it has started (Flower's processes start others, some in groups of their own)."""
    for group in {process.pid, *_groups_below(process.pid)}:
        try:
            os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
    process.wait()


def _groups_below(root: int) -> set[int]:
    """Process groups of all descendants, as far as /proc tells."""
    parents: dict[int, tuple[int, int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        parents[int(entry.parent.name)] = int(fields[1]), int(fields[2])
    groups, below = set[int](), {root}
    while True:
        found = {pid for pid, (parent, _) in parents.items() if parent in below} - below
        if not found:
            return groups
        groups |= {parents[pid][1] for pid in found}
        below |= found


def end_with_parent() -> None:
    """In a child: also if the parent is killed, where the system can do that (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
