"""Back to the beginning of a task: the server's checkpoint and its model, and a note for sites, which follow."""

import json
import shutil
import uuid
from pathlib import Path

from fedclass.errors import ConfigError, RunError
from fedclass.experiment.checkpoint import Checkpoint, Checkpoints
from fedclass.runs import audit
from fedclass.runs.layout import RunDirectory, write_atomically

FEDERATION = "federation.json"


def go_back(root: Path, task: int | None, *, by: str | None = None) -> int:
    """To before a task, counted from 0; none: the one that was begun last. Returns which.

    A server that still carries out the run ends with its next write, because the run is now in other hands.
    """
    directory = RunDirectory(root)
    if not (root / FEDERATION).is_file() or not directory.lease.is_file():
        raise RunError(f"{root}: is not the run directory of a federation; it is the app's `out`")
    with directory.leased(f"operator-{uuid.uuid4().hex}") as writing, writing():
        known = Checkpoints(directory.checkpoints)
        begun = _tasks_begun(known)
        task = begun - 1 if task is None else task
        if not 0 <= task < begun:
            raise ConfigError(f"{root}: there is no task {task + 1} to go back from; {begun} have begun")
        found = _ended(directory, task) if task else None
        table = json.loads((root / FEDERATION).read_bytes())
        table["returns"] = [*table.get("returns", []), task]
        write_atomically(root / FEDERATION, json.dumps(table) + "\n")
        _put_back(directory, known, found, task)
        audit.append(root, "operator", said="back", before_task=task + 1, by=by or audit.operator())
        return task


def _tasks_begun(known: Checkpoints) -> int:
    for number in reversed(known.numbers()):
        try:
            state = known.load(number).state
        except RunError:
            continue  # of a damaged one the run itself will tell
        return max(len(state.registry.get("sizes", [])), state.task + (state.weights is not None))
    return 0


def _ended(directory: RunDirectory, tasks: int) -> Checkpoint:
    """The state after so many tasks."""
    kept = Checkpoints(directory.ended(tasks))
    if not kept.numbers():
        raise ConfigError(f"{directory.root}: the end of task {tasks} was not kept; it was learned by an older version")
    return kept.load(kept.numbers()[-1])


def _put_back(directory: RunDirectory, known: Checkpoints, found: Checkpoint | None, task: int) -> None:
    later = known.numbers()
    if found is not None:
        known.save(found.state, found.clients, changes=0, events=found.events, made_with=found.made_with)
    for number in later:
        known.remove(number)
    for path in sorted(directory.checkpoints.glob("ended-*")):
        if int(path.name.removeprefix("ended-")) > task:
            shutil.rmtree(path)
    for path in (directory.summary, directory.root / "announced.json", directory.root / "finish"):
        path.unlink(missing_ok=True)
    for path in (directory.model, directory.classes):
        path.unlink(missing_ok=True)
        if found is not None:
            shutil.copyfile(directory.ended(task) / "model" / path.name, path)
