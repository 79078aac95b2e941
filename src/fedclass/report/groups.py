"""Runs side by side: runs that differ only in their seed form a group, and every method has its style."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedclass.errors import RunError
from fedclass.report.history import History
from fedclass.report.known_methods import about_method
from fedclass.report.rows import APART, Setting, check_images, labels
from fedclass.report.style import Style, styles
from fedclass.runs.config_file import flat
from fedclass.runs.summary import Result


@dataclass(frozen=True)
class Group:
    """Runs of one method with the same parameters. All of them are finished, or none is."""

    method: str
    label: str  # with the settings that distinguish it from other groups
    style: Style
    runs: list[History]

    @property
    def finished(self) -> bool:
        return self.runs[0].finished

    def results(self) -> list[Result]:
        """As summaries, for tables."""
        found = []
        for run in self.runs:
            start = run.started
            about: dict[str, Any] = {
                **{"method": self.method, "variant": start.variant, "dataset": start.dataset, "seed": start.seed},
                **{"official_data": start.official, "tasks": start.tasks},
            }
            found.append(Result(run.path, vars(start) | about | dict(run.metrics or {}) | run.validation_metrics))
        return found


def group(runs: Sequence[History]) -> list[Group]:
    """Groups in order of appearance. RunError if runs cannot be compared."""
    for run in runs[1:]:
        _check_comparable(runs[0], run)
    settings = [Setting.of(run.config, method=run.started.method, variant=run.started.variant) for run in runs]
    check_images(
        (s, run.path, run.started.dataset, run.started.dataset_sha256) for s, run in zip(settings, runs, strict=True)
    )
    named = labels(settings)
    members: dict[tuple[str, str], list[History]] = {}
    for run, setting in zip(runs, settings, strict=True):
        label = f"{named[setting]}{'' if run.finished else ', unfinished'}"
        members.setdefault((setting.method, label), []).append(run)
    for together in members.values():
        _check_seeds(together)
    firsts = [together[0] for together in members.values()]
    usual = [run.finished and run.started.variant == about_method(run.started.method).usual for run in firsts]
    looks = styles([method for method, _ in members], usual)
    return [
        Group(method, label, look, together)
        for ((method, label), together), look in zip(members.items(), looks, strict=True)
    ]


def differing(runs: Sequence[History]) -> list[str]:
    """The keys of the recipe that differ between runs."""
    settings = [{key: value for key, value in flat(run.config).items() if key not in APART} for run in runs]
    keys = dict.fromkeys(key for own in settings for key in own)
    return [key for key in keys if len({str(own.get(key)) for own in settings}) > 1]


def names(runs: Sequence[History]) -> dict[Path, str]:
    """A short name per run: its path below the folder that all runs share."""
    if len(runs) == 1:
        return {runs[0].path: runs[0].path.resolve().name}
    parts = [run.path.resolve().parts for run in runs]
    shared = 0
    while len({part[: shared + 1] for part in parts}) == 1:
        shared += 1
    return {run.path: "/".join(part[shared:]) or part[-1] for run, part in zip(runs, parts, strict=True)}


def _check_comparable(first: History, other: History) -> None:
    a, b = first.started, other.started
    if (a.dataset, a.tasks) != (b.dataset, b.tasks):
        raise RunError(
            f"{other.path}: learned {b.dataset} in tasks of {b.tasks}, but {first.path} learned {a.dataset} in tasks "
            f"of {a.tasks}; report them separately"
        )
    if bool(a.validation_images) != bool(b.validation_images):
        with_, without = (first, other) if a.validation_images else (other, first)
        raise RunError(
            f"{with_.path}: held out validation images (data.validation), but {without.path} did not; report them "
            "separately"
        )


def _check_seeds(runs: Sequence[History]) -> None:
    seen: dict[int, Path] = {}
    for run in runs:
        seed = run.started.seed
        if seed in seen:
            raise RunError(
                f"{run.path}: is the same experiment as {seen[seed]} (seed {seed}, same settings) and would count "
                "twice; name only one of them"
            )
        seen[seed] = run.path
