"""Runs as rows of a table, for pandas or anything else that reads a list of dicts."""

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from fedclass import metrics
from fedclass.errors import ConfigError, RunError
from fedclass.runs.config_file import flat, read_config
from fedclass.runs.events import RoundFinished, TaskFinished, read_events
from fedclass.runs.find import Listed, list_runs
from fedclass.runs.layout import RunDirectory

Record = dict[str, str | int | float | bool | None]
Place = str | os.PathLike[str]
Per = Literal["run", "round", "client"]

LISTS = ("accuracy_matrix", "forgetting_per_task", "accuracy_per_client")  # of the summary, which make no column
VALIDATION = "validation_"


def results(places: Place | Iterable[Place] = "runs", *, per: Per = "run") -> list[Record]:
    """Flat records with plain values: `pandas.DataFrame(fedclass.results("runs"))`.

    places: a run directory, a folder with runs below it, or several of these.

    per="run": a record for each finished run, oldest first. It has the figures of summary.json (`accuracy_last`, ...),
    the accuracy on each task after the last one (`accuracy_task_1`, ...), the forgetting after each further task
    (`forgetting_after_task_2`, ...), and every key of the recipe (`method.beta`, `train.rounds`, ...).

    per="round": a record for each round after which the global model was tested, also of unfinished runs. Tasks and
    rounds count from 1; accuracies are in percent, over all classes met so far.

    per="client": a record for each client after each finished task: the global model's accuracy on test images,
    weighted by the client's own class shares (`metrics.accuracy_per_client`), and how many images and classes the
    client has of those met so far. The accuracy is None if the shares are unknown, as for a site
    that withholds its counts.

    A run that holds out validation images has the same figures on them, with the prefix validation_; within tasks it
    has only these.

    A run that cannot be read is left out, with a warning.
    """
    if per not in get_args(Per):
        raise ConfigError(f"results: per = {per!r}: must be one of {', '.join(map(repr, get_args(Per)))}")
    runs = [run for place in ([places] if isinstance(places, str | os.PathLike) else places) for run in _runs(place)]
    if per != "run":
        return [record for run in runs for record in (_rounds(run) if per == "round" else _clients(run))]
    return [_run(run.path, run.summary) for run in runs if run.summary is not None]


def _runs(place: Place) -> list[Listed]:
    folder = Path(place).expanduser()
    found, damaged = list_runs(folder)
    for error in damaged:
        warnings.warn(str(error), stacklevel=3)
    if not found:
        raise RunError(f"{folder}: contains no runs")
    return found


def _run(path: Path, summary: Mapping[str, Any]) -> Record:
    record: Record = {"run": str(path)}
    record |= _plain({key: value for key, value in summary.items() if key.removeprefix(VALIDATION) not in LISTS})
    for images in ("", VALIDATION):
        for task, accuracy in enumerate(summary.get(f"{images}accuracy_matrix", [[]])[-1], start=1):
            record[f"{images}accuracy_task_{task}"] = accuracy
        for task, forgotten in enumerate(summary.get(f"{images}forgetting_per_task", []), start=2):
            record[f"{images}forgetting_after_task_{task}"] = forgotten
    return record | _plain(read_config(path))


def _plain(table: Mapping[str, Any]) -> Record:
    """Nested tables become dotted keys, lists become text: "5,5"."""
    return {key: ",".join(map(str, value)) if isinstance(value, list) else value for key, value in flat(table).items()}


def _clients(run: Listed) -> Iterator[Record]:
    start = run.started
    ends = {
        event.task: event for event in read_events(RunDirectory(run.path).events) if isinstance(event, TaskFinished)
    }
    for task, end in sorted(ends.items()):
        accuracies = metrics.accuracy_per_client(end.confusion, start.counts)
        for client, (held, accuracy) in enumerate(zip(start.counts, accuracies, strict=True)):
            met = held[: len(end.confusion)]
            yield {
                **_identity(run),
                "task": task + 1,
                "client": client,
                "name": start.name_of(client),
                "images": sum(met),
                "classes": sum(count > 0 for count in met),
                "accuracy": accuracy,
            }


def _identity(run: Listed) -> Record:
    start = run.started
    return {
        "run": str(run.path),
        "method": start.method,
        "variant": start.variant,
        "dataset": start.dataset,
        "seed": start.seed,
    }


def _rounds(run: Listed) -> Iterator[Record]:
    start = run.started
    finished: dict[tuple[int, int], RoundFinished] = {}  # by task and round: a resumed run may report one twice
    tested: dict[int, TaskFinished] = {}
    for event in read_events(RunDirectory(run.path).events):
        if isinstance(event, RoundFinished):
            finished[event.task, event.round] = event
        elif isinstance(event, TaskFinished):
            tested[event.task] = event
    for (task, round), event in sorted(finished.items()):
        if round == start.rounds - 1 and task in tested:
            end = tested[task]  # the last round of a task is tested at the task's end
            accuracy: float | None = end.accuracy
            validation, classes = end.validation_accuracy, len(end.confusion)
        elif counts := event.tested or event.validation_tested:
            accuracy, validation, classes = event.accuracy, event.validation_accuracy, len(counts)
        else:
            continue
        yield {
            **_identity(run),
            "task": task + 1,
            "round": round + 1,
            "round_in_run": task * start.rounds + round + 1,
            "classes": classes,
            "accuracy": accuracy,
            **({} if validation is None else {"validation_accuracy": validation}),
            "loss": event.loss,
            "clients": len(event.clients),
            "bytes_up": event.bytes_up,
            "bytes_down": event.bytes_down,
            "seconds": event.seconds,
        }
