"""Which key belongs to which site: registered once with Flower, and written down beside the keys.

    KEYS/registered.json   site -> the number that Flower has given to its key; null for one that was removed
    KEYS/retired/          public keys that were replaced

Every run of the server reads it, so that a name belongs to a key whatever run it is.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from fedclass.deploy import commands
from fedclass.deploy.keys import Keys, make_keys
from fedclass.errors import ConfigError, RunError
from fedclass.runs.layout import write_atomically

FOLDER = "FEDCLASS_KEYS"  # in the environment of what `fedclass deploy link` starts
FILE = "registered.json"
SECONDS = 300.0  # that Flower's command may take
Flwr = Callable[..., str]


def registered_nodes(folder: Path | None = None) -> dict[str, int | None] | None:
    """Node numbers by site; none if keys are not registered by us."""
    folder = folder or (Path(os.environ[FOLDER]) if FOLDER in os.environ else None)
    if folder is None or not (folder / FILE).exists():
        return None
    try:
        table = json.loads((folder / FILE).read_bytes())
        return {str(site): None if node is None else int(node) for site, node in table.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise RunError(f"{folder / FILE}: cannot be read ({error}); restore it from a backup") from error


def flwr(*words: str) -> str:
    """Flower's own command, as this user."""
    program = Path(sys.executable).with_name("flwr")
    done = subprocess.run(
        [str(program), *words], env={**commands.QUIET, **os.environ}, capture_output=True, text=True, timeout=SECONDS
    )
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())
        raise RunError(f"flwr {' '.join(words)}: {said[:500]}; does `fedclass deploy link` run, as this user?")
    return done.stdout


def register(keys: Keys, site: str, call: Flwr = flwr) -> int:
    """Let a site's key in, under its name; returns Flower's number of it."""
    known = dict(registered_nodes(keys.folder) or {})
    if known.get(site) is not None:
        raise ConfigError(
            f"{site}: its key is registered already; `fedclass deploy keys --rotate {site}` gives it another one"
        )
    if not keys.public(site).exists():
        raise ConfigError(f"{keys.public(site)}: not there; `fedclass deploy keys --site {site}` makes it")
    said = json.loads(call(*commands.register(keys, site)[1:], "--format", "json"))
    if "node-id" not in said:
        raise RunError(f"{site}: Flower has not registered its key ({said})")
    _write(keys, known | {site: int(said["node-id"])})
    return int(said["node-id"])


def remove(keys: Keys, site: str, call: Flwr = flwr) -> None:
    """Shut a site out for good: its key is refused from now on, and its name belongs to nobody else."""
    known = _known(keys, site)
    node = known[site]
    assert node is not None
    call("supernode", "unregister", str(node), commands.CONNECTION)
    _write(keys, known | {site: None})


def rotate(keys: Keys, site: str, call: Flwr = flwr) -> Path:
    """A new key for a site, which keeps its name; the old one is refused from now on. Returns the new private key."""
    known = dict(registered_nodes(keys.folder) or {})
    if site not in known:
        _known(keys, site)
    retired = keys.folder / "retired"
    retired.mkdir(mode=0o700, exist_ok=True)
    old = keys.public(site)
    away = retired / f"{site}-{datetime.now(UTC):%Y%m%dT%H%M%S}.pub"
    held = keys.private(site).read_bytes() if keys.private(site).exists() else None
    old.replace(away)
    keys.private(site).unlink(missing_ok=True)
    try:
        make_keys(keys.folder, sites=[site])
        said = json.loads(call(*commands.register(keys, site)[1:], "--format", "json"))
        node = int(said["node-id"])
    except BaseException:
        away.replace(old)
        keys.private(site).unlink(missing_ok=True)
        if held is not None:
            write_atomically(keys.private(site), held, mode=0o600)
        raise
    before = known.get(site)
    _write(keys, known | {site: node})
    if before is not None:
        call("supernode", "unregister", str(before), commands.CONNECTION)
    return keys.private(site)


def _known(keys: Keys, site: str) -> dict[str, int | None]:
    known = dict(registered_nodes(keys.folder) or {})
    if known.get(site) is None:
        there = ", ".join(sorted(name for name, node in known.items() if node is not None)) or "none"
        raise ConfigError(f"{site}: no key is registered under this name; there are {there}")
    return known


def _write(keys: Keys, known: Mapping[str, int | None]) -> None:
    write_atomically(keys.folder / FILE, json.dumps(dict(sorted(known.items())), indent=1) + "\n", mode=0o600)
