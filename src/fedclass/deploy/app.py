"""The app folder that `flwr run` takes: a pyproject.toml and nothing else; the code is in the package."""

import io
import re
import tomllib
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tomli_w

import fedclass
from fedclass.deploy.server import ServerSettings
from fedclass.errors import ConfigError, RunError
from fedclass.runs.layout import write_atomically

FILE, LIST = "pyproject.toml", ".info/CONTENT"  # all that Flower packs of such a folder: the file, and a list of files
MOST_BYTES = 1 << 20  # of either
NAME = re.compile(r"[a-z0-9-]{1,100}")
VERSION = re.compile(r"[A-Za-z0-9.+!-]{1,50}")


def write_app(folder: Path, config: Mapping[str, Any]) -> ServerSettings:
    """Make the folder; config: what differs from the defaults, under the keys of ServerSettings."""
    settings = ServerSettings.read(config)
    settings.experiment()  # a mistake is found here and not on the server
    path = folder / FILE
    if path.exists():
        raise ConfigError(f"{path}: exists already; change it, or choose another folder")
    name = re.sub(r"[^a-z0-9-]+", "-", folder.resolve().name.lower()).strip("-")[:100] or "federation"
    content = _content(name, fedclass.__version__, {k.replace("_", "-"): v for k, v in asdict(settings).items()})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, tomli_w.dumps(content))
    except OSError as error:
        raise RunError(f"{folder}: cannot write there ({error.strerror}); choose another folder") from error
    return settings


def _content(name: str, version: str, config: Mapping[str, Any]) -> dict[str, Any]:
    module = "fedclass.deploy"
    return {
        "project": {
            "name": name,
            "version": version,
            "description": "",
            "license": "Apache-2.0",
            "dependencies": [],
        },
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "fedclass",
                    "components": {"serverapp": f"{module}.server_app:app", "clientapp": f"{module}.client_app:app"},
                    "config": dict(config),
                }
            }
        },
    }


def app_flaw(packed: bytes) -> str | None:
    """How an app from the server differs from those that write_app makes; None if it does not.

    Its name, its version and the values of its configuration may be any. Nothing is unpacked to the disk.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            entries = archive.infolist()
            odd = sorted({entry.filename for entry in entries} - {FILE, LIST})
            if odd:
                return f"it brings {odd[0][:80]!r}" + (f" and {len(odd) - 1} other files" if len(odd) > 1 else "")
            if sorted(entry.filename for entry in entries) != sorted((FILE, LIST)):
                return f"it must hold {FILE} and {LIST}, once each"
            if any(entry.file_size > MOST_BYTES for entry in entries):
                return f"its files are larger than {MOST_BYTES} bytes"
            with archive.open(FILE) as file:
                text = file.read(MOST_BYTES + 1).decode()
        found = tomllib.loads(text)
        project, config = found["project"], found["tool"]["flwr"]["app"]["config"]
        name, version = project["name"], project["version"]
        plain = all(isinstance(value, str | int | float) for value in config.values())
    except (zipfile.BadZipFile, zlib.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"its {FILE} cannot be read ({type(error).__name__})"
    except (
        NotImplementedError,
        RuntimeError,
        EOFError,
        OSError,
    ) as error:  # unknown compression, passwords, half files
        return f"it cannot be unpacked ({type(error).__name__})"
    if not plain or not isinstance(name, str) or not isinstance(version, str):
        return f"its {FILE} holds values of other kinds"
    if not NAME.fullmatch(name) or not VERSION.fullmatch(version):
        return "its name or version is not valid"
    components = found["tool"]["flwr"]["app"].get("components")
    ours = _content(name, version, config)
    if components != ours["tool"]["flwr"]["app"]["components"]:
        return f"it names other code than fedclass's ({str(components)[:160]})"
    return None if found == ours else f"its {FILE} differs from what `fedclass deploy init` writes"
