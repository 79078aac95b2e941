"""fedclass list."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedclass.errors import ConfigError, RunError

if TYPE_CHECKING:
    from fedclass.runs.find import Listed

AGES = (("s", 60), ("min", 60), ("h", 24), ("d", sys.maxsize))  # a unit, and how many make the next


def list_(
    folder: Annotated[Path, typer.Argument(help="Where to look for runs.")] = Path("runs"),
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Only runs with this value. KEY: status (finished, unfinished, failed), method, variant, dataset, "
            "tasks, seed, or a key of the recipe, such as train.rounds. Repeatable.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object per run, one per line.")] = False,
) -> None:
    """List runs: their settings, how far they got, and their results.

    A run without a summary has failed or is unfinished: still under way, or stopped. Its status says how long ago its
    last event was. --json gives the reason of a failure.

    Example:  fedclass list --where status=finished --where method=fedclass --where seed=0
    """
    from fedclass.cli.display import console
    from fedclass.runs.counted import counted
    from fedclass.runs.find import list_runs

    wanted = dict(_condition(text) for text in where or [])
    runs, damaged = list_runs(folder)
    records = []
    for run in runs:
        try:
            records.append(_record(run, folder))
        except RunError as unreadable:
            damaged.append(unreadable)
    for error in damaged:
        print(f"warning: {error}", file=sys.stderr)
    _check_keys(wanted, records)
    found = [record for record in records if all(_text(record.get(key)) == value for key, value in wanted.items())]
    if as_json:
        for record in found:
            print(json.dumps(record))
    elif found:
        _print(found)
    else:
        console.print(
            f"none of the {counted(len(records), 'run')} in {folder} has these values"
            if records
            else f"no runs in {folder}; `fedclass run` makes the first",
            highlight=False,
        )


def _condition(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ConfigError(f"--where {text}: write it as KEY=VALUE, such as method=fedclass or train.rounds=2")
    return key.strip(), value.strip()


def _check_keys(wanted: Mapping[str, str], records: Sequence[Mapping[str, Any]]) -> None:
    """A key that no run has is a typing mistake, which an empty list would hide."""
    known = {key for record in records for key in record}
    for key in wanted:
        if records and key not in known:
            raise ConfigError(
                f"--where {key}={wanted[key]}: no run has a key {key!r}; `fedclass list --json` shows them"
            )


def _record(run: "Listed", folder: Path) -> dict[str, Any]:
    """A run as plain values. Keys of its recipe are written as in --set."""
    from fedclass.runs.config_file import flat, read_config
    from fedclass.runs.layout import RunDirectory

    start, summary = run.started, run.summary
    images = "validation_" if start.validation_images else ""
    last = RunDirectory(run.path).events.stat().st_mtime
    return {
        "run": str(run.path.relative_to(folder)),
        "status": run.status,
        "failure": run.failure,
        "last_event": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(last)),
        "method": start.method,
        "variant": start.variant,
        "dataset": start.dataset,
        "official_data": start.official,
        "tasks": ",".join(map(str, start.tasks)),
        "rounds_done": run.rounds_done,
        "rounds": run.rounds,
        "images": "validation" if images else "test",
        "accuracy_last": summary[f"{images}accuracy_last"] if summary else None,
        "forgetting_fedclass": summary[f"{images}forgetting_fedclass"] if summary else None,
        **flat(read_config(run.path)),
    }


def _text(value: object) -> str:
    from fedclass.report.rows import text

    return text(value)


def _print(records: Sequence[Mapping[str, Any]]) -> None:
    from rich.table import Table

    from fedclass.cli.display import console

    table = Table(box=None, padding=(0, 2))
    for column in ("run", "status", "method (variant)", "differs in", "data", "tasks"):
        table.add_column(column)
    for column in ("seed", "rounds", "global", "forgetting"):
        table.add_column(column, justify="right")
    for record, differing in zip(records, _differing(records), strict=True):
        word = " (validation)" if record["images"] == "validation" else ""
        figures = (record["accuracy_last"], record["forgetting_fedclass"])
        table.add_row(
            record["run"],
            record["status"] + ("" if record["status"] == "finished" else f", {_age(record['last_event'])} ago"),
            f"{record['method']} ({record['variant']})",
            differing,
            record["dataset"] + (" (unofficial)" if record["official_data"] is False else ""),
            record["tasks"],
            str(record["seed"]),
            f"{record['rounds_done']}/{record['rounds']}",
            *("-" if figure is None else f"{figure:.1f}{word}" for figure in figures),
        )
    console.print(table)


def _differing(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """For each run, the keys that distinguish it from other runs on the same data and tasks."""
    from fedclass.report.rows import Setting, labels

    settings = [
        Setting.of(
            {key: value for key, value in record.items() if key == "seed" or "." in key},
            method=record["method"],
            variant=record["variant"],
        )
        for record in records
    ]
    streams = [(record["dataset"], record["tasks"]) for record in records]
    named = {
        stream: labels(setting for setting, other in zip(settings, streams, strict=True) if other == stream)
        for stream in dict.fromkeys(streams)
    }
    return [" ".join(named[stream][setting].differing) for stream, setting in zip(streams, settings, strict=True)]


def _age(when: str) -> str:
    """How long ago, in the largest unit that fits."""
    number = max(0.0, time.time() - time.mktime(time.strptime(when[:19], "%Y-%m-%dT%H:%M:%S")))
    for unit, enough in AGES:
        if number < enough:
            return f"{number:.0f} {unit}"
        number /= enough
    raise AssertionError("the last unit is without end")
