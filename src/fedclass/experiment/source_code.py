"""The code and files that a result depends on, besides recipe and data, by their SHA-256.

This covers all of fedclass that can change a result. For a user's method, backbone, data set or transform, it covers
all modules reached by import statements, except the standard library and installed packages. Files that such code
opens are found by watching: while it is imported and builds the model, and during training, when it is too late to
look for a cached task. Images have their own hash. Where something may have been missed, there is a doubt; a run with
doubts neither uses the task cache nor adds to it.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import fedclass
from fedclass import usercode
from fedclass.errors import RunError
from fedclass.experiment.config import Experiment
from fedclass.experiment.curriculum import Curriculum
from fedclass.experiment.machine import fingerprint
from fedclass.experiment.module_graph import file_digest, is_ours_or_python, is_stray, reached, time_changed
from fedclass.runs.layout import RunDirectory, write_atomically
from fedclass.schema import json_sha256, read_record
from fedclass.wire import sha256

ONLY_SHOW = ("cli", "report", "sinks")  # parts of fedclass that only show results
_trained = set[int]()  # processes in which training may have opened files


@dataclass(frozen=True, kw_only=True)
class Sources:
    """files: hashes of code, by name; None: no file shows what is executed.  opened: hashes of other files, by path.

    model: hash of the initial weights, frozen ones included.  own_model: whether the backbone is the user's.  doubts:
    why results may depend on something else as well.  variables: hashes of the environment variables that the code
    reads; None: it is not set.
    """

    files: Mapping[str, str | None]
    opened: Mapping[str, str | None]
    model: str | None
    own_model: bool
    doubts: tuple[str, ...]
    machine: Mapping[str, str]
    variables: Mapping[str, str | None] = field(default_factory=dict)

    @cached_property
    def digests(self) -> dict[str, str]:
        """One hash of fedclass's code, and one of the user's code and files."""
        ours = {name: digest for name, digest in self.files.items() if name.startswith("fedclass/")}
        own = {name: digest for name, digest in self.files.items() if name not in ours}
        content = sorted(str(digest) for digest in self.opened.values())  # regardless of their paths
        about = [own, content, dict(self.variables)] if self.variables else [own, content]
        return {"fedclass": json_sha256(ours), "own": json_sha256(about) if own else ""}


def of_code(experiment: Experiment) -> Sources:
    """What is known before a model is built."""
    files: dict[str, str | None] = dict(_of_fedclass())
    doubts = [f"{name} was edited after fedclass was imported" for name, digest in files.items() if digest is None]
    opened: dict[str, str | None] = {}
    variables: dict[str, str | None] = {}
    own_model = ":" in experiment.model.name
    classes = [kind for kind in type(experiment.method).__mro__ if not is_ours_or_python(kind.__module__)]
    doubts += [f"{kind.__qualname__} is not in its module under this name" for kind in classes if is_stray(kind)]
    transform = experiment.data.transform
    in_training = [kind.__module__ for kind in classes] + ([transform.partition(":")[0]] if transform else [])
    of_method = reached(in_training)
    of_model = reached([experiment.model.name.partition(":")[0]] if own_model else [])
    of_data = reached([experiment.data.name.partition(":")[0]] if ":" in experiment.data.name else [])
    modules = {module.name: module for module in [*of_method, *of_model, *of_data]}
    for name, module in modules.items():
        files[module.label] = module.digest
        doubts += module.doubts(in_functions=module in of_method)
        doubts += [f"{module.label} uses {what}, which may read anything" for what in usercode.went_beyond(name)]
        opened |= dict.fromkeys(usercode.opened_by(name))
        variables |= {variable: _value_digest(variable) for variable in module.variables.values()}
    opened = {path: file_digest(Path(path)) for path in sorted(opened)}
    doubts += [f"{path} was opened, and is gone" for path, digest in opened.items() if not digest]
    return Sources(
        files=files,
        opened=opened,
        model=None,
        own_model=own_model,
        doubts=tuple(dict.fromkeys(doubts)),
        machine=fingerprint(),
        variables=variables,
    )


def _value_digest(variable: str) -> str | None:
    """Not the value itself, which may be a secret."""
    value = os.environ.get(variable)
    return None if value is None else json_sha256(value)


def sources(curriculum: Curriculum) -> Sources:
    """The same, with the initial weights and the files that the model was built from."""
    model = sha256(curriculum.build().state_dict())  # first, because the files this opens are watched
    return replace(of_code(curriculum.experiment), model=model)


def seen_in_training(experiment: Experiment, known: Sources) -> tuple[Sources, list[str]]:
    """What is now known about the user's code, and what is new, in words."""
    if known.digests["own"] == "":
        return known, []
    _trained.add(os.getpid())
    now = of_code(experiment)
    news = [f"{path} was read in training" for path in now.opened if path not in known.opened]
    news += [doubt for doubt in now.doubts if doubt not in known.doubts and not doubt.startswith("fedclass/")]
    return replace(known, opened={**now.opened, **known.opened}, doubts=(*known.doubts, *news)), news


def differences(then: Sources, now: Sources) -> list[str]:
    """What has changed, in words. Files that user code had opened are compared as well."""
    found = []
    for name in {**then.files, **now.files}:
        before, after = then.files.get(name), now.files.get(name)
        if name not in now.files:
            found.append(f"{name} is gone")
        elif name not in then.files:
            found.append(f"{name} is new")
        elif before is None or after is None:
            found.append(f"{name} has no file to show whether it changed")
        elif before != after:
            found.append(f"{name} changed")
    for path, before in then.opened.items():
        if before is not None and now.opened.get(path, file_digest(Path(path))) != before:
            found.append(f"{path} changed")
    known = set(then.opened.values())
    others = [path for path, digest in now.opened.items() if path not in then.opened and digest not in known]
    if os.getpid() not in _trained or set(then.opened) - set(now.opened):  # else, other runs may have opened them
        found += [f"{path} is opened now, and was not then" for path in others]
    found += _variables(then, now)
    if then.own_model and then.machine == now.machine and now.model is not None and then.model != now.model:
        found.append("the initial weights of the model changed")
    return found


def _variables(then: Sources, now: Sources) -> list[str]:
    both = [name for name in then.variables if name in now.variables]
    return [f"the environment variable {name} changed" for name in both if then.variables[name] != now.variables[name]]


def listed(changes: Sequence[str]) -> str:
    return ", ".join(changes[:4]) + (f" and {len(changes) - 4} more" if len(changes) > 4 else "")


@dataclass(frozen=True)
class About:
    """For people to read: what a part of a run was made with, and what had changed before it."""

    version: str
    commits: Mapping[str, str]
    changed: tuple[str, ...]


@dataclass(frozen=True)
class Parts:
    """The code of each part of a run, in order; the last one is in use."""

    known: tuple[Sources, ...] = ()
    about: tuple[About, ...] = ()

    @property
    def mixed_code(self) -> bool:
        return any(about.changed for about in self.about)

    def went_on(self, now: Sources, changed: Sequence[str]) -> Self:
        about = About(fedclass.__version__, _commits(now), tuple(changed))
        return type(self)((*self.known, now), (*self.about, about))

    def with_last(self, now: Sources) -> Self:
        return type(self)((*self.known[:-1], now), self.about)

    def write(self, directory: RunDirectory) -> None:
        parts = [asdict(about) | asdict(part) for part, about in zip(self.known, self.about, strict=True)]
        write_atomically(directory.source, json.dumps({"parts": parts}, indent=1) + "\n")

    @classmethod
    def read(cls, directory: RunDirectory) -> Self:
        """Empty for a run that an older version began."""
        try:
            stored = read_record(dict[str, list[dict[str, Any]]], json.loads(directory.source.read_bytes()))
            parts = [(read_record(Sources, part), read_record(About, part)) for part in stored["parts"]]
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, KeyError) as error:
            raise RunError(
                f"{directory.source}: is damaged ({error}); it records the code that the run was made with"
            ) from error
        return cls(tuple(known for known, _ in parts), tuple(about for _, about in parts))


def edited_since(run: RunDirectory, recipe: Experiment) -> list[str]:
    """What has changed in the user's method and backbone since this run, as far as that was recorded, in words."""
    known, now = Parts.read(run).known, of_code(recipe)
    if not known:
        return []
    then = known[-1]
    shared = [
        name for name in now.files if not name.startswith("fedclass/") and then.files.get(name) and now.files[name]
    ]
    return [f"{name} changed" for name in shared if then.files[name] != now.files[name]] + _variables(then, now)


def check_code(directory: RunDirectory, now: Sources, *, changed_code: bool) -> list[str]:
    """Which code has changed since the run in this directory. RunError if any has, unless changed_code is set."""
    parts = Parts.read(directory)
    back = "Change it back"
    if parts.known:
        found = differences(parts.known[-1], now)
        what, version = f"its code has changed: {listed(found)}", parts.about[-1].version
        if version != fedclass.__version__:
            own = [change for change in found if not change.startswith("fedclass/")]
            news = [f"fedclass was {version} and is {fedclass.__version__}", *own]
            what, back = f"its code has changed: {listed(news)}", f"Use fedclass {version}"
    else:
        found = ["an older version of fedclass did not record its code"]
        what = f"an older version of fedclass began it and did not record its code (no {directory.source.name})"
    if found and not changed_code:
        go_on = "accepts it as it is" if directory.finished else "resumes it anyway"
        raise RunError(
            f"{directory.root}: {what}. {back}, or choose another directory and run it again; "
            f"--changed-code (changed_code=True) {go_on}, and the results say so"
        )
    return found


def _commits(now: Sources) -> dict[str, str]:
    """Git commits by top-level module or package, fedclass included, where there are any."""
    tops = sorted({name.partition("/")[0].removesuffix(".py") for name in now.files})
    files = {top: getattr(sys.modules.get(top), "__file__", None) for top in tops}
    found = {top: _commit(Path(file).parent) for top, file in files.items() if file}
    return {top: commit for top, commit in found.items() if commit is not None}


def _commit(folder: Path) -> str | None:
    """Of the git checkout that tracks this folder's code, and whether it has changes; None if there is none."""

    def git(*words: str) -> str:
        command = ["git", "--no-optional-locks", "-C", str(folder), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()

    try:
        if not git("ls-files", "--", "*.py"):
            return None
        changes = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD") + (" with changes" if changes else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _of_fedclass() -> dict[str, str | None]:
    """Hashes by file. None: edited after fedclass was imported, so the executed code is unknown."""
    package = Path(fedclass.__file__).parent
    found = {}
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package)
        if name.parts[0] not in ONLY_SHOW:
            digest = None if time_changed(path) > fedclass._IMPORTED else file_digest(path)
            found[f"fedclass/{name.as_posix()}"] = digest
    return found
