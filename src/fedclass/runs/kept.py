"""Finished runs kept as small data: enough to make tables, charts and pages again, and to check each figure.

A kept run is a run directory without the large files: the recipe (without paths of files), the summary, the compressed
events, and kept.json with the SHA-256 of each file and the version of the code that made the run.
"""

import hashlib
import json
import lzma
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import tomli_w

from fedclass.errors import RunError
from fedclass.runs.events import RunFinished, read_events
from fedclass.runs.layout import EVENTS, RunDirectory, write_atomically
from fedclass.runs.summary import Result

NAME = "kept.json"
FORM = 1  # of kept.json
PLACES = ("data", "partition")  # tables whose `path` is valid on one machine only


@dataclass(frozen=True, kw_only=True)
class Kept:
    """version, commits: of the code that made the run.  sha256: of each file; of the events, before compression."""

    version: str
    commits: Mapping[str, str]
    machine: Mapping[str, str]
    sha256: Mapping[str, str]
    form: int = field(default=FORM)

    @property
    def commit(self) -> str | None:
        """Of fedclass, followed by " with changes" if files differed from the commit."""
        return self.commits.get("fedclass")

    @classmethod
    def read(cls, root: Path) -> Self:
        path = root / NAME
        try:
            content = json.loads(path.read_bytes())
            if content["form"] != FORM:
                raise RunError(
                    f"{path}: has form {content['form']}, but this version reads form {FORM}; use a newer version"
                )
            return cls(**content)
        except OSError as error:
            raise RunError(
                f"{root}: has no {NAME} ({error.strerror}), so that nothing shows whether the kept run was changed; "
                "restore the file, or keep the run again"
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path}: is damaged ({error})") from error


def check_not_kept(root: Path) -> None:
    """RunError if this is a kept run, of which no weights are there to go on with."""
    if (root / NAME).exists():
        raise RunError(
            f"{root}: is a result kept without its weights; `fedclass benchmark verify {root}` runs it again"
        )


def keep(run: Path, target: Path) -> Kept:
    """Copy a finished run to `target`. If `target` exists, it must hold the same run."""
    directory = RunDirectory(run)
    summary = Result.read(run).summary
    _check_finished(directory, summary)
    contents = {
        "config.toml": _portable(directory.config),
        "summary.json": directory.summary.read_bytes(),
        EVENTS: _content(directory.events),
    }
    about = _made_by(directory)
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    kept = Kept(version=about["version"], commits=about["commits"], machine=about["machine"], sha256=digests)
    if (target / NAME).exists():
        if Kept.read(target).sha256 != kept.sha256:
            raise RunError(f"{target}: holds another run; remove it, or keep {run} under another name")
        check(target)
        return kept
    target.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        if name == EVENTS:
            write_atomically(target / f"{EVENTS}.xz", lzma.compress(content, preset=9))
        else:
            write_atomically(target / name, content)
    write_atomically(target / NAME, json.dumps(asdict(kept), indent=1) + "\n")
    return kept


def check(root: Path) -> Result:
    """The result of a kept run. RunError if any file was changed since."""
    kept, directory = Kept.read(root), RunDirectory(root)
    for name, path in (
        ("config.toml", directory.config),
        ("summary.json", directory.summary),
        (EVENTS, directory.events),
    ):
        if kept.sha256.get(name) != hashlib.sha256(_content(path)).hexdigest():
            raise RunError(f"{path}: was changed after the run had been kept (its sha256 is not the one in {NAME})")
    result = Result.read(root)
    _check_finished(directory, result.summary)
    return result


def is_kept(root: Path) -> bool:
    """Also if kept.json was removed: only runs kept as data have compressed events."""
    return (root / NAME).exists() or RunDirectory(root).events.suffix == ".xz"


def read_result(root: Path) -> Result:
    """The result of a run. A kept run is refused if it was changed since."""
    return check(root) if is_kept(root) else Result.read(root)


def _check_finished(directory: RunDirectory, summary: Mapping[str, Any]) -> None:
    told = [event.summary for event in read_events(directory.events) if isinstance(event, RunFinished)]
    if not told or told[-1] != summary:
        raise RunError(f"{directory.summary}: differs from the run's last event; one of the two was changed")


def _portable(config: Path) -> bytes:
    """The recipe without paths: on another machine files are elsewhere, and are known by their hash."""
    tables = tomllib.loads(config.read_text(encoding="utf-8"))
    for name in PLACES:
        if "path" in tables.get(name, {}):
            tables[name]["path"] = ""
    return tomli_w.dumps(tables).encode()


def _made_by(directory: RunDirectory) -> dict[str, Any]:
    """The code that finished the run. For a run that is already kept, what kept.json says."""
    if (directory.root / NAME).exists():
        return asdict(Kept.read(directory.root))
    try:
        last: dict[str, Any] = json.loads(directory.source.read_bytes())["parts"][-1]
        return {name: last[name] for name in ("version", "commits", "machine")}
    except OSError as error:
        raise RunError(f"{directory.root}: does not say which code made it ({error.strerror})") from error
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise RunError(f"{directory.source}: is damaged ({error})") from error


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        return lzma.decompress(content) if path.suffix == ".xz" else content
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror})") from error
    except lzma.LZMAError as error:
        raise RunError(f"{path}: is damaged ({error})") from error
