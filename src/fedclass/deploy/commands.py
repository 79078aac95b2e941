"""Flower's commands for a deployment, as lists of words."""

from pathlib import Path

from fedclass.deploy.keys import Keys

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}  # both call out by default
LINK_PORT = 8000
CONNECTION = "fedclass"  # its name in Flower's config.toml


def superlink(keys: Keys, database: Path, secret: Path, *, port: int) -> list[str]:
    """The server's part of Flower. It listens on this machine only. Whoever knows the secret starts ServerApps."""
    return [
        "flower-superlink",
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--ssl-ca-certfile", str(keys.ca), "--ssl-certfile", str(keys.server), "--ssl-keyfile", str(keys.server_key)),
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
        *("--isolation", "process", "--superexec-auth-secret-file", str(secret)),
        *("--database", str(database)),
    ]


def superexec(keys: Keys, secret: Path, *, port: int) -> list[str]:
    """What starts ServerApps."""
    return [
        "flower-superexec",
        *("--runtime-api-address", f"127.0.0.1:{port}", "--root-certificates", str(keys.ca)),
        *("--superexec-auth-secret-file", str(secret)),
    ]


def connection(keys: Keys, *, port: int = LINK_PORT) -> str:
    """What Flower's command line has to know of the server, for $FLWR_HOME/config.toml (~/.flwr by default)."""
    return f'[superlink.{CONNECTION}]\naddress = "127.0.0.1:{port}"\nroot-certificates = "{keys.ca.absolute()}"\n'


def register(keys: Keys, site: str) -> list[str]:
    return ["flwr", "supernode", "register", str(keys.public(site)), CONNECTION, "--name", site]


def supernode(address: str, *, secret: Path, ca: Path | None, private: Path | None, trusted: Path | None) -> list[str]:
    """A site's connection. address: HOST:PORT of the server or its proxy.  Without ca: in plain text.

    With `--isolation process` it executes nothing itself. Whoever knows the secret can take its tasks: `fedclass site
    run`, which does them with fedclass's own code.
    """
    return [
        "flower-supernode",
        *("--superlink", address),
        *("--isolation", "process", "--superexec-auth-secret-file", str(secret)),
        *(("--root-certificates", str(ca)) if ca else ("--insecure",)),
        *(("--auth-supernode-private-key", str(private)) if private else ()),
        *(("--trusted-entities", str(trusted)) if trusted else ()),
    ]
