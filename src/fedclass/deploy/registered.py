"""Which key belongs to which site: registered once with Flower, and written down beside the keys.

    KEYS/registered.json   site -> the number that Flower has given to its key; null for one that was removed
    KEYS/retired/          public keys that were replaced

Every run of the server reads it, so that a name belongs to a key whatever run it is.
"""

import json
import os
import re
import subprocess
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

from fedclass.deploy import commands
from fedclass.deploy.keys import NOT_A_KEY, Keys, make_keys
from fedclass.errors import ConfigError, RunError
from fedclass.runs.layout import write_atomically

FOLDER = "FEDCLASS_KEYS"  # in the environment of what `fedclass deploy link` starts
FILE = "registered.json"
SECONDS = 300.0  # that Flower's command may take
KNOWN_KEY = "[code: 23]"  # Flower's "Public key already in use."
ASK = "does `fedclass deploy link` run, as this user, and is [superlink.fedclass] in Flower's config.toml?"
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
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
        said = " ".join(COLOURS.sub("", done.stderr or done.stdout).split())
        raise RunError(f"flwr {' '.join(words)}: {said[:500]}; {ASK}")
    return done.stdout


def fingerprint(public: Path) -> str:
    """Of a public key, as `ssh-keygen -l` shows it."""
    try:
        key = load_ssh_public_key(public.read_bytes())
    except FileNotFoundError:
        raise ConfigError(f"{public}: does not exist; `fedclass deploy keys --site {public.stem}` makes it") from None
    except (OSError, *NOT_A_KEY):
        raise ConfigError(
            f"{public}: is not a public key of `fedclass deploy keys`; bring back the right file"
        ) from None
    wire = b64decode(key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).split()[1])
    return f"SHA256:{b64encode(sha256(wire).digest()).decode().rstrip('=')}"


def register(keys: Keys, site: str, call: Flwr = flwr) -> int:
    """Let a site's key in, under its name; returns Flower's number of it."""
    known = dict(registered_nodes(keys.folder) or {})
    another = f"`fedclass deploy keys --rotate {site}` gives it another one"
    if site in known:
        state = "was removed, and is refused for good" if known[site] is None else "is registered already"
        raise ConfigError(f"{site}: its key {state}; {another}")
    fingerprint(keys.public(site))
    node = _registered(keys, site, call)
    _write(keys, known | {site: node})
    return node


def _registered(keys: Keys, site: str, call: Flwr) -> int:
    """The number that Flower gives to a site's key."""
    said = json.loads(call(*commands.register(keys, site)[1:], "--format", "json"))
    if "node-id" in said:
        return int(said["node-id"])
    reason = str(said.get("error-message", said)).strip().splitlines()[-1]
    if KNOWN_KEY in reason:
        raise RunError(
            f"{site}: the server knows its key, but {keys.folder / FILE} does not; restore that file from a backup, or "
            "make a key for another name: fedclass deploy keys --site NAME"
        )
    raise RunError(f"{site}: Flower has not registered its key ({reason.rstrip('.')}); {ASK}")


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
        node = _registered(keys, site, call)
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
