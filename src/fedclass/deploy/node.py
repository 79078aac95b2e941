"""A site as one process to start and to end: a warm worker, and Flower's SuperNode, which is kept alive."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedclass.deploy.answer import worker
from fedclass.deploy.commands import QUIET, supernode
from fedclass.deploy.processes import free_port, kill_group
from fedclass.deploy.settings import SiteSettings
from fedclass.deploy.site import Site
from fedclass.errors import ConfigError
from fedclass.experiment.config import read_table

PAUSES = (2.0, 5.0, 10.0, 20.0)  # seconds before it is started again; the last one from then on
LONG = 60.0  # seconds after which a start counts as one that has worked
PR_SET_PDEATHSIG = 1  # of linux/prctl.h
ENDING = 10.0  # seconds that the SuperNode gets to end


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """A site's file: where the server is, and table [site], which says what the site is (SiteSettings).

    superlink: HOST:PORT of the server, or of the proxy before it.  ca: the certificate of its CA.  key: the site's
    private key.  trusted: whose apps may run here (Flower's --trusted-entities); empty: any that the server sends.
    Files and folders are named as seen from the folder of this one.
    """

    superlink: str
    site: dict[str, Any]
    ca: str = ""
    key: str = ""
    trusted: str = ""

    @classmethod
    def read(cls, path: Path) -> "NodeSettings":
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: not a TOML file: {error}") from error
        for key in ("superlink", "site"):
            if key not in table:
                raise ConfigError(f"{path}: {key} is missing; docs/deploy.md shows such a file")
        for key in ("ca", "key", "trusted"):
            if given := table.get(key):
                table[key] = str((path.parent / Path(str(given)).expanduser()).absolute())
                if not Path(table[key]).is_file():
                    raise ConfigError(f"{path}: {key} = {given!r}: no such file")
        if isinstance(table["site"], dict):
            for key in ("data", "store"):
                given = table["site"].get(key)
                if isinstance(given, str) and given and not given.startswith("~"):
                    table["site"][key] = str((path.parent / given).absolute())
        settings: NodeSettings = read_table(cls, table, str(path))
        return settings


def run_node(settings: NodeSettings, *, insecure: bool, say: Callable[[str], None]) -> None:
    """Until the process is ended. Flower's SuperNode is started again whenever it ends by itself.

    It does so when the server is away for long, and a node with a key that was killed is not let in for a minute.
    """
    if not insecure and not (settings.ca and settings.key):
        raise ConfigError(
            "a site needs ca and key in its file, for TLS and to show who it is (`fedclass deploy keys` makes them); "
            "--insecure does without, in plain text"
        )
    site = SiteSettings.read(settings.site)
    words = _command(settings, insecure=insecure)
    if insecure:
        say("warning: plain text; whoever is on the way can read and change what is sent")
    with worker(Site(site), say):
        say(f"site {site.name}: images in {site.data}, state in {site.store}, server {settings.superlink}")
        ends = 0
        while True:
            began = time.monotonic()
            code = _supernode([*words, "--port", str(free_port())])
            ends = 0 if time.monotonic() - began > LONG else ends + 1
            pause = PAUSES[min(ends, len(PAUSES)) - 1] if ends else PAUSES[0]
            say(f"site {site.name}: Flower's SuperNode ended with code {code}; once more in {pause:.0f} s")
            time.sleep(pause)


def _command(settings: NodeSettings, *, insecure: bool) -> list[str]:
    ca, private = (None, None) if insecure else (Path(settings.ca), Path(settings.key))
    trusted = Path(settings.trusted) if settings.trusted else None
    name, *words = supernode(settings.superlink, config=settings.site, ca=ca, private=private, trusted=trusted)
    program = Path(sys.executable).with_name(name)
    if not program.exists():
        raise ConfigError(f"{program}: not there; pip install 'fedclass[flower]'")
    return [str(program), *words]


def _end_with_parent() -> None:
    """In the child: also if the parent is killed, where the system can do that (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _supernode(words: list[str]) -> int:
    """Its exit code. It ends with this process."""
    process = subprocess.Popen(words, env={**QUIET, **os.environ}, start_new_session=True, preexec_fn=_end_with_parent)
    try:
        return process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(ENDING)
        kill_group(process)  # and whatever it has started and left
