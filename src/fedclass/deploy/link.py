"""Flower's SuperLink with a door: whoever wants to start runs or to register keys has to show the operator's token.

Flower's own has none. Its Control API answers everybody who reaches the port, also other users of the server's machine,
and so does the call that hands out a ServerApp's task. Here the first wants the token, which lies beside the keys and
which `flwr` takes from its own file of credentials, and the second a secret. What is imported from Flower here is not
its public interface: another version is refused, and a SuperLink that answers without the token is ended.
"""

import hmac
import os
import secrets
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

import httpx
from flwr.cli.constant import ACCESS_TOKEN_STORE_KEY, AUTHN_TYPE_STORE_KEY, REFRESH_TOKEN_STORE_KEY
from flwr.common.constant import ACCESS_TOKEN_KEY, AuthnType
from flwr.supercore.auth.typing import AccountInfo
from flwr.supercore.credential_store import get_credential_store
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.utils import get_flwr_home
from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin

from fedclass.deploy import commands
from fedclass.deploy.executor import check_flower
from fedclass.deploy.keys import Keys
from fedclass.deploy.processes import end_with_parent
from fedclass.deploy.registered import FOLDER
from fedclass.errors import ConfigError
from fedclass.runs.layout import write_atomically

TOKEN, SECRET = "operator.token", "superexec.secret"  # in the folder of the keys
STARTING = 300.0  # seconds until it must answer
Metadata = Sequence[tuple[str, str | bytes]]


def make_token(keys: Keys) -> str:
    """The operator's, made once."""
    path = keys.folder / TOKEN
    try:
        if not path.exists():
            write_atomically(path, secrets.token_urlsafe(32), mode=0o600)
        if path.stat().st_mode & 0o077:
            raise ConfigError(f"{path}: others can read it, so they know it; delete it, and begin with a new one")
        token = path.read_text().strip()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be used ({error.strerror})") from error
    if len(token) < 32:
        raise ConfigError(f"{path}: holds no token; delete it, and a new one is made")
    return token


def introduce(keys: Keys, *, port: int) -> None:
    """Give `flwr` of this user the token for this server, in $FLWR_HOME, which is ~/.flwr by default."""
    get_flwr_home().mkdir(mode=0o700, parents=True, exist_ok=True)
    address, token, store = f"127.0.0.1:{port}", make_token(keys).encode(), get_credential_store()
    store.set(AUTHN_TYPE_STORE_KEY % address, AuthnType.OIDC.encode())
    store.set(ACCESS_TOKEN_STORE_KEY % address, token)
    store.set(REFRESH_TOKEN_STORE_KEY % address, b"none")


class OperatorAlone(NoOpControlAuthnPlugin):
    """Lets in whoever shows the token, as the only account."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self.token = token.encode()

    def validate_tokens_in_metadata(self, metadata: Metadata) -> tuple[bool, AccountInfo | None]:
        shown = dict(metadata).get(ACCESS_TOKEN_KEY, "")
        shown = shown.encode() if isinstance(shown, str) else shown
        return (
            super().validate_tokens_in_metadata(metadata) if hmac.compare_digest(shown, self.token) else (False, None)
        )

    def refresh_tokens(self, metadata: Metadata) -> tuple[Metadata | None, AccountInfo | None]:  # noqa: ARG002
        raise FlowerError(ApiErrorCode.NO_ACCOUNT_AUTH, "This is not the operator's token.")


def run_link(keys: Keys, database: Path, *, port: int, say: Callable[[str], None]) -> None:
    """Until the process is ended; it is the SuperLink itself."""
    check_flower()
    os.umask(0o077)  # the database and apps are the owner's alone, and so is whatever a ServerApp writes
    _check_database(database)
    token = make_token(keys)
    introduce(keys, port=port)
    secret = keys.folder / SECRET
    write_atomically(secret, secrets.token_bytes(32), mode=0o600)
    os.environ |= {**commands.QUIET, **os.environ, FOLDER: str(keys.folder.absolute())}
    flower = import_module("flwr.superlink.cli.flower_superlink")
    assert callable(flower.load_control_authn_plugin)
    flower.load_control_authn_plugin = lambda: OperatorAlone(token)  # type: ignore[attr-defined]
    threading.Thread(target=_watch, args=[keys, port, say], daemon=True).start()
    program = Path(sys.executable).with_name("flower-superexec")
    executor = [str(program), *commands.superexec(keys, secret, port=port)[1:], "--parent-pid", str(os.getpid())]
    sys.argv = commands.superlink(keys, database, secret, port=port)
    subprocess.Popen(executor, preexec_fn=end_with_parent)
    flower.flower_superlink()


def _check_database(database: Path) -> None:
    """It holds updates, registered keys and whatever runs were given."""
    try:
        database.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in database.parent.glob(f"{database.name}*"):
            path.chmod(0o600)
    except OSError as error:
        raise ConfigError(f"--database {database}: cannot be made yours alone ({error.strerror})") from error


def _watch(keys: Keys, port: int, say: Callable[[str], None]) -> None:
    """End everything if a call without the token is answered."""
    until, trusted = time.monotonic() + STARTING, ssl.create_default_context(cafile=str(keys.ca))
    while time.monotonic() < until:
        try:
            found = httpx.post(f"https://127.0.0.1:{port}/v1/control/list-runs", verify=trusted, timeout=10)
        except httpx.TransportError:
            time.sleep(0.5)
            continue
        if found.status_code == httpx.codes.UNAUTHORIZED:
            say(f"the server runs on 127.0.0.1:{port}; only whoever has {keys.folder / TOKEN} can start runs")
            return
        say(f"Flower's control port answers without a token ({found.status_code}): ended, for safety")
        os._exit(1)
    say(f"the server has not answered for {STARTING:.0f} s: ended")
    os._exit(1)
