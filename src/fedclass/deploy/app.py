"""The app folder that `flwr run` takes: a pyproject.toml and nothing else; the code is in the package."""

import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tomli_w

import fedclass
from fedclass.deploy.server import ServerSettings
from fedclass.errors import ConfigError, RunError
from fedclass.runs.layout import write_atomically


def write_app(folder: Path, config: Mapping[str, Any]) -> ServerSettings:
    """Make the folder; config: what differs from the defaults, under the keys of ServerSettings."""
    settings = ServerSettings.read(config)
    settings.experiment()  # a mistake is found here and not on the server
    path = folder / "pyproject.toml"
    if path.exists():
        raise ConfigError(f"{path}: exists already; change it, or choose another folder")
    name = re.sub(r"[^a-z0-9-]+", "-", folder.resolve().name.lower()).strip("-") or "federation"
    module = "fedclass.deploy"
    content = {
        "project": {
            "name": name,
            "version": fedclass.__version__,
            "description": "",
            "license": "Apache-2.0",
            "dependencies": [],
        },
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "fedclass",
                    "components": {"serverapp": f"{module}.server_app:app", "clientapp": f"{module}.client_app:app"},
                    "config": {key.replace("_", "-"): value for key, value in asdict(settings).items()},
                }
            }
        },
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, tomli_w.dumps(content))
    except OSError as error:
        raise RunError(f"{folder}: cannot write there ({error.strerror}); choose another folder") from error
    return settings
