"""May a run go on, and from where?"""

from collections.abc import Mapping
from typing import Any

import fedclass
from fedclass.errors import ConfigError, RunError
from fedclass.experiment.checkpoint import Checkpoint, Checkpoints
from fedclass.experiment.config import load
from fedclass.experiment.machine import fingerprint
from fedclass.experiment.setup import Setup
from fedclass.runs.layout import RunDirectory, flat


def circumstances(setup: Setup) -> dict[str, Any]:
    """What every checkpoint is marked with."""
    return {
        "config": setup.experiment.to_tables(),
        "dataset_sha256": setup.stream.data.sha256,
        "version": fedclass.__version__,
        "machine": fingerprint(),
    }


def last_whole(
    known: Checkpoints, directory: RunDirectory, made_with: Mapping[str, Any]
) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that is whole, if any; and what is wrong with newer ones."""
    check_config(directory, made_with["config"])
    damage = []
    numbers = known.numbers()
    for number in reversed(numbers):
        instead = "begins anew: there is no other" if number == numbers[0] else "going back to the one before it"
        try:
            found = known.load(number)
        except RunError as error:
            known.give_up(number)
            damage.append(f"{error}; {instead}")
            continue
        if not directory.events.exists() or directory.events.stat().st_size < found.events:
            known.give_up(number)
            damage.append(f"{directory.events}: is shorter than at checkpoint {number}; {instead}")
            continue
        differing = differences(found.made_with["config"], made_with["config"])
        if differing:
            raise RunError(f"{directory.config}: was changed after the run had begun, in {differing}; change it back")
        if found.made_with["dataset_sha256"] != made_with["dataset_sha256"]:
            raise RunError(f"{directory.root}: the images of {made_with['config']['data']['name']} have changed since")
        return found, damage
    return None, damage


def check_config(directory: RunDirectory, config: Mapping[str, Any]) -> None:
    """Refuse to go on with another configuration than the run was begun with."""
    try:
        begun_with = load(str(directory.config)).to_tables()
    except ConfigError as error:
        raise RunError(f"{directory.root}: not the directory of a run that could go on: {error}") from error
    differing = differences(begun_with, config)
    if differing:
        raise RunError(
            f"{directory.root}: was begun with another configuration; it differs in {differing}. Leave these out to go "
            "on, or begin another run"
        )


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The keys in which two recipes differ, as text."""
    before, after = flat(old), flat(new)
    keys = [key for key in before | after if before.get(key) != after.get(key)]
    return ", ".join(f"{key} ({before.get(key)!r} then, {after.get(key)!r} now)" for key in keys)


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What may make the bits differ from those of an undisturbed run."""
    pairs = {"fedclass": (old["version"], new["version"])}
    pairs |= {key: (old["machine"].get(key), value) for key, value in new["machine"].items()}
    changed = [f"{key} was {before} and is {now}" for key, (before, now) in pairs.items() if before != now]
    return [f"goes on elsewhere: {'; '.join(changed)}; the last bits may differ"] if changed else []
