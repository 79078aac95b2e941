"""Whether a run can be resumed, and from which checkpoint."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import fedclass
from fedclass.errors import ConfigError, DataError, RunError
from fedclass.experiment.checkpoint import Checkpoint, Checkpoints, OtherVersion
from fedclass.experiment.config import Experiment
from fedclass.experiment.curriculum import Curriculum
from fedclass.experiment.machine import fingerprint
from fedclass.experiment.recipe import experiment, load
from fedclass.experiment.setup import Setup
from fedclass.runs.config_file import flat
from fedclass.runs.events import RunStarted, read_events
from fedclass.runs.layout import RunDirectory

PLACES = {"data.path", "partition.path"}  # files may have moved, so their content is compared instead


def circumstances(curriculum: Curriculum) -> dict[str, Any]:
    """What each checkpoint records about how it was made."""
    facts = curriculum.facts()
    return {
        "config": curriculum.experiment.to_tables(),
        "dataset_sha256": facts.sha256 if facts.fixed else "",
        "partition_sha256": facts.partition_sha256,
        "frozen_sha256": curriculum.initial.frozen_sha256,
        "version": fedclass.__version__,
        "machine": fingerprint(),
    }


def last_whole(
    known: Checkpoints, directory: RunDirectory, made_with: Mapping[str, Any]
) -> tuple[Checkpoint | None, list[str]]:
    """The newest intact checkpoint, if any, and what is wrong with newer ones."""
    check_config(directory, made_with["config"])
    damage = []
    numbers = known.numbers()
    for number in reversed(numbers):
        instead = "starting over: there is no other" if number == numbers[0] else "going back to the one before it"
        try:
            found = known.load(number)
        except OtherVersion:
            raise
        except RunError as error:
            known.give_up(number)
            damage.append(f"{error}; {instead}")
            continue
        if not directory.events.exists() or directory.events.stat().st_size < found.events:
            known.give_up(number)
            damage.append(f"{directory.events}: is shorter than at checkpoint {number}; {instead}")
            continue
        differing = differences(_of_today(found.made_with["config"], number), made_with["config"])
        if differing:
            raise RunError(f"{directory.config}: was changed after the run began, in {differing}; change it back")
        if made_with["dataset_sha256"] not in ("", found.made_with["dataset_sha256"]):  # "": only sites have images
            raise RunError(f"{directory.root}: the images of {made_with['config']['data']['name']} have changed since")
        if found.made_with.get("partition_sha256", made_with["partition_sha256"]) != made_with["partition_sha256"]:
            raise RunError(f"{directory.root}: the partition that partition.path names has changed since")
        if found.made_with.get("frozen_sha256", "") != made_with["frozen_sha256"]:
            raise RunError(
                f"{directory.root}: the frozen weights of {made_with['config']['model']['name']} are not those with "
                f"which the run began, under fedclass {found.made_with['version']}; checkpoints hold trained weights "
                "only: restore the frozen ones, or start a new run"
            )
        return found, damage
    return None, damage


def _of_today(config: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    """A recipe as this version would store it: moved keys in their new places, new keys with their defaults."""
    try:
        return experiment(config, where=f"checkpoint {number}").to_tables()
    except ConfigError as error:
        raise RunError(f"{error}; this version cannot resume it") from error


def check_config(directory: RunDirectory, config: Mapping[str, Any]) -> str:
    """Refuse to resume with another configuration than the run began with. Returns which files have moved."""
    other = _other_version(directory)
    try:
        begun_with = load(str(directory.config)).to_tables()
    except ConfigError as error:
        began = f" with fedclass {fedclass.__version__}, because fedclass {other} began it" if other else ""
        raise RunError(f"{directory.root}: not the directory of a run that can be resumed{began}: {error}") from error
    differing = differences(begun_with, config)
    if differing:
        raise RunError(
            f"{directory.root}: began with another configuration{f' and fedclass {other}' if other else ''}; it "
            f"differs in {differing}. Leave these out to resume it, or start a new run"
        )
    return differences(begun_with, config, PLACES)


def _other_version(directory: RunDirectory) -> str | None:
    """Which version began the run, if it was another one."""
    try:
        first = json.loads(directory.events.read_text(encoding="utf-8").partition("\n")[0])
        version = str(first["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None if version == fedclass.__version__ else version


def check_places(directory: RunDirectory, experiment: Experiment) -> None:
    """If the files of a run are not where they were, say what to type."""
    for key, path in (("data.path", experiment.data.path), ("partition.path", experiment.partition.path)):
        if path and not Path(path).exists():
            raise DataError(
                f"{directory.root}: {key} = {path}: no longer exists; if it has moved, give {key}=PLACE, and "
                "its content is compared"
            )


def check_data(directory: RunDirectory, setup: Setup) -> None:
    """Refuse images other than those with which a run began."""
    started = next((event for event in read_events(directory.events) if isinstance(event, RunStarted)), None)
    if started is None or started.dataset_sha256 != setup.stream.data.sha256:
        raise RunError(
            f"{directory.root}: the images of {setup.experiment.data.name} are not those it was made with; "
            "put them back, or write to another directory"
        )


def differences(old: Mapping[str, Any], new: Mapping[str, Any], among: Collection[str] | None = None) -> str:
    """The keys in which two recipes differ, as text: those that matter, or those among the given ones."""
    before, after = flat(old), flat(new)
    asked = [key for key in before | after if (key not in PLACES if among is None else key in among)]
    keys = [key for key in asked if before.get(key) != after.get(key)]
    return ", ".join(f"{key} ({before.get(key)!r} then, {after.get(key)!r} now)" for key in keys)


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What may make the last bits differ from those of an uninterrupted run."""
    pairs = {"fedclass": (old["version"], new["version"])}
    pairs |= {key: (old["machine"].get(key), value) for key, value in new["machine"].items()}
    changed = [f"{key} was {before} and is {now}" for key, (before, now) in pairs.items() if before != now]
    return [f"resumed elsewhere: {'; '.join(changed)}; the last bits may differ"] if changed else []
