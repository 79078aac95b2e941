"""Rows of tables: runs that differ only in their seed make one row."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from fedclass.errors import ConfigError, RunError
from fedclass.report.known_methods import about_method
from fedclass.runs.config_file import flat, read_config
from fedclass.runs.summary import Result

# Keys that do not separate rows. A row averages over seeds; places and titles of data, and tests within a task, change
# no result; the method and the tasks are named anyway, and tasks can be written in several ways.
APART = {"seed", "data.path", "data.title", "evaluation.every", "method.name", "stream.tasks"}
IMAGES = ("data.name", "data.fraction", "data.test_fraction", "data.orientation", "data.size", "data.args")


@dataclass(frozen=True)
class Setting:
    """The settings of a run without seed and tasks.  values: the keys of its recipe, such as train.rounds, as text."""

    method: str
    variant: str
    values: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, config: Mapping[str, Any], *, method: str, variant: str) -> Self:
        """`config`: the tables of a stored recipe."""
        values = tuple((key, text(value)) for key, value in flat(config).items() if key not in APART)
        return cls(method, variant, values)

    @classmethod
    def read(cls, result: Result) -> Self:
        about = result.summary
        return cls.of(read_config(result.path), method=about["method"], variant=about["variant"])

    @property
    def images(self) -> tuple[tuple[str, str], ...]:
        """The keys that determine which images of a data set are used, and in which form."""
        return tuple((key, value) for key, value in self.values if key.startswith(IMAGES))


@dataclass(frozen=True)
class Label:
    """The name of a setting in a table: method, variant, and the keys in which it differs from other rows."""

    method: str
    variant: str
    differing: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join([f"{self.method} ({self.variant})", *self.differing])

    @property
    def words(self) -> set[str]:
        return {*self.method.split(":"), *self.variant.split(", "), *self.differing}


@dataclass(frozen=True)
class Row:
    """The runs of one setting, in the order of their seeds."""

    label: Label
    runs: tuple[Result, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(run.summary["seed"] for run in self.runs)


def data_title(config: Mapping[str, Any], dataset: str) -> str:
    """The title of the data in the recipe (data.title), or the data set's name."""
    return str(config.get("data", {}).get("title", dataset))


def text(value: object) -> str:
    """A value as a user would type it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(text, value))}]"
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def labels(settings: Iterable[Setting]) -> dict[Setting, Label]:
    """A different label for each setting. A method's parameters are compared within the method, other keys with all
    settings."""
    known = list(dict.fromkeys(settings))

    def differing(setting: Setting) -> Iterable[str]:
        told = {"method.variant", *about_method(setting.method).told}
        same_method = [other for other in known if other.method == setting.method]
        for key, value in setting.values:
            spoken = [other for other in known if key not in about_method(other.method).told]
            others = same_method if key.startswith("method.") else spoken
            if key not in told and any((key, value) not in other.values for other in others):
                yield f"{key.removeprefix('method.')}={value}"

    return {s: Label(s.method, s.variant, tuple(differing(s))) for s in known}


def find(known: Sequence[Label], name: str) -> Label:
    """The row of this name: its label, or enough of its words, as in fedclass, fedclass:paper, fedclass:beta=8."""
    wanted = set(name.split(":"))
    found = [label for label in known if name == str(label) or wanted <= label.words]
    if len(found) > 1:
        found = [label for label in found if wanted == label.words] or found
    if len(found) == 1:
        return found[0]
    what = "names several rows" if found else "there is no such row"
    raise ConfigError(f"against {name}: {what}; name one of: {'; '.join(map(str, found or known))}")


def rows(results: Sequence[Result]) -> list[Row]:
    """The rows of runs on one stream, in the order in which settings first appear."""
    groups: dict[Setting, dict[int, Result]] = {}
    settings = [Setting.read(result) for result in results]
    check_images(
        (setting, result.path, result.summary["dataset"], result.summary.get("dataset_sha256", ""))
        for setting, result in zip(settings, results, strict=True)
    )
    for setting, result in zip(settings, results, strict=True):
        members = groups.setdefault(setting, {})
        seed = result.summary["seed"]
        if seed in members:
            raise RunError(f"{members[seed].path} and {result.path}: the same setting and seed; name one of the two")
        members[seed] = result
    named = labels(groups)
    return [Row(named[s], tuple(members[seed] for seed in sorted(members))) for s, members in groups.items()]


def check_images(runs: Iterable[tuple[Setting, Path, str, str]]) -> None:
    """Images of the same name and in the same form must be the same: two folders of a user's own share a name.

    runs: setting, directory, name and hash of the images; the hash is "" if sites have them, or an older run told none.
    """
    firsts: dict[object, tuple[Path, str]] = {}
    for setting, path, name, sha256 in runs:
        if not sha256:
            continue
        first, known = firsts.setdefault(setting.images, (path, sha256))
        if sha256 != known:
            raise RunError(
                f"{path}: learned other images of {name} (sha256 {sha256[:12]}) than {first} ({known[:12]}); "
                "show them separately"
            )


def with_seeds_of(reference: Row, found: Sequence[Row]) -> list[Row]:
    """The rows that can be compared with the reference, seed by seed, and itself; RunError if no other row can."""
    alike = [row for row in found if row.seeds == reference.seeds]
    if len(alike) < 2:
        _check_seeds(found)
    return alike


def _check_seeds(found: Sequence[Row]) -> None:
    every = sorted({seed for row in found for seed in row.seeds})
    lacking = [
        f"{row.label} lacks {', '.join(map(str, missing))}"
        for row in found
        if (missing := [seed for seed in every if seed not in row.seeds])
    ]
    if lacking:
        raise RunError(f"seeds differ: {'; '.join(lacking)}; run what is missing, or name runs with the same seeds")
