"""The operator's commands to a federation, from the command line or the page; each is logged with who gave it."""

from pathlib import Path

from fedclass.errors import RunError
from fedclass.runs import audit
from fedclass.runs.layout import RunDirectory, write_atomically

NEXT, FINISH = "next-task", "finish"  # files in the run directory


def federation(root: Path) -> RunDirectory:
    directory = RunDirectory(root)
    if not directory.lease.is_file():
        raise RunError(f"{root}: is not the run directory of a federation; it is the app's `out`")
    return directory


def say_next(root: Path, *, by: str) -> bool:
    """Let the next task begin. Returns whether the run was finished, and has to be started again."""
    directory = federation(root)
    if finished := directory.finished:
        directory.summary.unlink()
        (root / FINISH).unlink(missing_ok=True)
    write_atomically(root / NEXT, "")
    audit.append(root, "operator", said="next", by=by)
    return finished


def say_finish(root: Path, *, by: str) -> None:
    """Let the run end after the task that is under way."""
    if federation(root).finished:
        raise RunError(f"{root}: this run is finished")
    write_atomically(root / FINISH, "")
    audit.append(root, "operator", said="finish", by=by)
