"""Grids of experiments: methods or settings as they are typed, times seeds."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from itertools import product
from pathlib import Path

from fedclass.errors import ConfigError
from fedclass.experiment.config import SECTIONS, Experiment
from fedclass.experiment.recipe import as_override, find_method, load, seed_among, typed_overrides
from fedclass.methods import METHODS, Method
from fedclass.methods.base import parameters
from fedclass.runs.config_file import flat

OPENING = '[{"'  # what begins a value that may contain commas
MOST_SEEDS = 1000  # in a range; more is probably a typing error
PART = re.compile(r'(?:\[[^]]*\]|\{[^}]*\}|"[^"]*"|[^,])+')  # text between commas; brackets and quotes protect it


@dataclass(frozen=True)
class Choice:
    """One setting of a grid: its name as typed, and what it changes in the recipe."""

    name: str
    method: str | type[Method] | Method | None
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class Member:
    """One run of a grid."""

    choice: Choice
    experiment: Experiment
    path: Path

    @property
    def name(self) -> str:
        return f"{self.choice.name} s{self.experiment.seed}"


def read_methods(text: str) -> list[Choice]:
    """`fedavg,fedclass:paper:beta=8,my.module:Mine:mu=0.1`: after a name come its variant and its parameters."""
    return [_read_method(entry) for entry in _parts(text, f"methods {text}")]


def read_method(text: str) -> Choice:
    """The same, of one method."""
    choices = read_methods(text)
    if len(choices) > 1:
        raise ConfigError(f"method {text}: one run has one method; fedclass compare takes several")
    return choices[0]


def methods_given(methods: str | Sequence[str | type[Method] | Method]) -> list[Choice]:
    """As typed, or one by one: names, classes, and objects with their parameters."""
    if isinstance(methods, str):
        return read_methods(methods)
    if not isinstance(methods, Sequence) or not methods:
        raise ConfigError(f"methods = {methods!r}: give a list, such as ['fedavg', 'fedclass:beta=8']")
    return [_read_method(one) if isinstance(one, str) else _own_method(one) for one in methods]


def _own_method(method: type[Method] | Method) -> Choice:
    """Named after its class and the parameters that differ from their defaults."""
    e = load(None, method=method)
    needs_some = any(f.default is MISSING and f.default_factory is MISSING for f in fields(e.method))
    usual = {} if needs_some else parameters(type(e.method)())
    changed = {name: value for name, value in parameters(e.method).items() if name not in usual or value != usual[name]}
    return Choice(":".join([e.method_name, *(as_override(*item) for item in changed.items())]), method)


def _read_method(entry: str) -> Choice:
    words = entry.split(":")
    named = 1 if words[0] in METHODS else 2  # a user's own is package.module:Class
    details = words[named:]
    if not all(details):
        raise ConfigError(f"methods {entry}: write a variant or key=value after each colon, as in fedclass:beta=8")
    overrides = tuple(f"method.{word}" if "=" in word else f"method.variant={word}" for word in details)
    return Choice(entry, ":".join(words[:named]), overrides)


def read_sweep(
    settings: Sequence[str] | Mapping[str, object], *, method: str | type[Method] | Method | None = None
) -> list[Choice]:
    """Every combination of `method.beta=1,3`, `train.rounds=2`, ...: commas between values, a list in brackets.

    As a mapping: {"method.beta": [1, 3], "train.rounds": 2}.
    """
    if isinstance(settings, Mapping):
        settings = [_typed(key, value) for key, value in flat(settings).items()]
    keys: dict[str, list[str]] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        key = key.strip()
        if not equals or not key:
            raise ConfigError(f"{setting}: write it as table.key=value,value, such as method.beta=1,3")
        if seed_among([setting]):
            raise _seed_as_setting(setting)
        if key in keys:
            raise ConfigError(f"{setting}: {key} is given twice; give all its values at once, {key}=1,3")
        keys[key] = _parts(text, f"{setting}")
        if len(set(keys[key])) < len(keys[key]):
            hint = f"; write a list in brackets, {key}=[{text}]" if _takes_a_list(key) else ""
            raise ConfigError(f"{setting}: a value is given twice{hint or '; give each value once'}")
    if not any(len(values) > 1 for values in keys.values()):
        raise ConfigError("nothing to sweep: give a key several values, such as method.beta=0,1,3")
    choices = []
    for combination in product(*keys.values()):
        overrides = [f"{key}={value}" for key, value in zip(keys, combination, strict=True)]
        varied = [o for o, values in zip(overrides, keys.values(), strict=True) if len(values) > 1]
        choices.append(Choice(" ".join(varied), method, tuple(overrides)))
    return choices


def _seed_as_setting(word: str) -> ConfigError:
    seeds = word.partition("=")[2].strip()
    return ConfigError(f"{word}: the seed is not a setting here; give --seeds {seeds}, or in Python seeds={seeds!r}")


def _takes_a_list(key: str) -> bool:
    section, _, name = key.partition(".")
    kind = SECTIONS.get(section)
    return kind is not None and any(f.name == name and "list[" in str(f.type) for f in fields(kind))


def _typed(key: str, values: object) -> str:
    several = list(values) if isinstance(values, list | tuple | range) else [values]
    texts = [as_override(key, value).partition("=")[2] for value in several]
    return f"{key}={','.join(json.dumps(text) if ',' in text and text[0] not in OPENING else text for text in texts)}"


def read_seeds(given: str | int | Iterable[int]) -> list[int]:
    """0,1,2 or 0-2 or 0-2,7; or numbers."""
    text = str(given) if isinstance(given, str | int) else ",".join(map(str, given))
    if not text.strip():
        raise ConfigError("seeds: none are given; give at least one, such as 0, or several, such as 0-4")
    seeds: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", part)
        if found is None:
            raise ConfigError(f"seeds {text}: write whole numbers from 0 on, such as 0,1,2 or 0-4")
        first = int(found[1])
        last = first if found[2] is None else int(found[2])
        if not first <= last < first + MOST_SEEDS:
            raise ConfigError(f"seeds {text}: {part.strip()} must rise, and hold at most {MOST_SEEDS} seeds")
        seeds += range(first, last + 1)
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds {text}: name each seed only once")
    return seeds


def expand(
    recipe: str | None,
    choices: Sequence[Choice],
    *,
    overrides: Sequence[str] | Mapping[str, object] = (),
    seeds: Sequence[int],
    root: Path,
) -> list[Member]:
    """All runs, choice by choice. The directory of a run depends on its choice's name and its seed alone.

    The same command, typed again, therefore finds the same directories and resumes them.
    """
    shared = typed_overrides(overrides)
    if word := seed_among(shared):
        raise _seed_as_setting(word)
    _check_parameters(choices, shared)
    members = []
    for choice in choices:
        for seed in seeds:
            experiment = load(recipe, [*shared, *choice.overrides], method=choice.method, seed=seed)
            members.append(Member(choice, experiment, root / f"{folder_name(choice.name)}-s{seed}"))
    seen: dict[str, Choice] = {}
    for member in members:
        other = seen.setdefault(member.experiment.to_toml(), member.choice)
        if other is not member.choice:
            raise ConfigError(f"{other.name} and {member.choice.name} are the same setting; name it once")
    return members


def _check_parameters(choices: Sequence[Choice], shared: Sequence[str]) -> None:
    """A parameter that only some of the methods have must be given to these."""
    for word in shared:
        table, _, parameter = word.partition(".")
        key = parameter.partition("=")[0].strip()
        if table != "method" or key == "name":
            continue
        lacking = [choice.name for choice in choices if choice.method and not _has_parameter(choice.method, key)]
        if 0 < len(lacking) < len(choices):
            written = ",".join(c.name if c.name in lacking else f"{c.name}:{parameter}" for c in choices)
            raise ConfigError(f"{word}: {lacking[0]} has no parameter {key!r}; write the methods as {written}")


def _has_parameter(method: str | type[Method] | Method, name: str) -> bool:
    return any(f.name == name for f in fields(find_method(method) if isinstance(method, str) else method))


def folder_name(name: str) -> str:
    """A short, readable name. If more than colons and spaces had to change, a hash keeps names distinct."""
    plain = name.replace(":", "-").replace(" ", "-")
    safe = re.sub(r"[^\w.=+-]+", ".", plain)[:100]
    return safe if safe == plain else f"{safe}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def _parts(text: str, where: str) -> list[str]:
    parts = PART.findall(text)
    if not parts or ",".join(parts) != text or not all(part.strip() for part in parts):
        raise ConfigError(f"{where}: an entry is empty: look for two commas in a row, or one at an end")
    return [part.strip() for part in parts]
