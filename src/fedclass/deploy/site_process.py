"""A site as one process to start and to end: it does the work, and keeps Flower's SuperNode connected."""

import contextlib
import os
import re
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from fedclass.deploy.clock import ahead_of, clock_fault
from fedclass.deploy.commands import QUIET, supernode
from fedclass.deploy.executor import Answer, Executor, check_flower
from fedclass.deploy.log import asked, printable, sent
from fedclass.deploy.processes import end_with_parent, free_port, kill_group
from fedclass.deploy.request_handler import respond
from fedclass.deploy.settings import SiteSettings
from fedclass.deploy.site import Site
from fedclass.deploy.site_store import federations
from fedclass.engines.flower.frames import Frame
from fedclass.errors import EXTRA, ConfigError
from fedclass.runs.layout import write_atomically
from fedclass.schema import TableError, read_table, read_toml, table_faults

PAUSES = (2.0, 5.0, 10.0, 20.0)  # seconds before it is started again; the last one from then on
LONG = 60.0  # seconds after which a start counts as one that has worked
ENDING = 10.0  # seconds that the SuperNode gets to end
LOOK = 0.5  # seconds between two looks whether it lives
SECRET, FLOWER_LOG = ".secret", ".flower.log"  # in the store; no federation is called so
MOST_LOG = 1 << 20  # bytes of Flower's own log, then it begins anew

FILES = ("ca", "key", "trusted")  # keys of a site's file that name files

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """A site's file: where the server is, and table [site], which says what the site is (SiteSettings).

    superlink: HOST:PORT of the server, or of the proxy before it.  ca: the certificate of its CA.  key: the site's
    private key.  trusted: whose apps may run here (Flower's --trusted-entities), besides that they must be fedclass's.
    Files and folders are named as seen from the folder of this one.
    """

    superlink: str
    site: dict[str, Any]
    ca: str = ""
    key: str = ""
    trusted: str = ""

    @classmethod
    def read(cls, path: Path) -> "NodeSettings":
        table = cls.table(path)
        for fault in cls.faults(table, path).values():
            raise ConfigError(fault)
        settings: NodeSettings = read_table(cls, table, str(path))
        return settings

    @staticmethod
    def table(path: Path) -> dict[str, Any]:
        """What the file says, with whole paths."""
        try:
            table = read_toml(path)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror}); docs/deploy.md shows such a file") from error
        for key in FILES:
            if isinstance(given := table.get(key), str) and given:
                table[key] = str((path.parent / Path(given).expanduser()).absolute())
        if isinstance(table.get("site"), dict):
            for key in ("data", "store", "store_key", "store-key"):
                given = table["site"].get(key)
                if isinstance(given, str) and given and not given.startswith("~"):
                    table["site"][key] = str((path.parent / given).absolute())
        return table

    @classmethod
    def faults(cls, table: Mapping[str, Any], path: Path) -> dict[str, str]:
        """All that `read` would refuse, by key."""
        known = [fault for fault in table_faults(cls, table, str(path)) if isinstance(fault, TableError)]
        found = {fault.key: str(fault) for fault in known}
        for key in {"superlink", "site"} - set(table):
            found[key] += "; docs/deploy.md shows such a file"
        for key in (key for key in FILES if table.get(key) and key not in found):
            if not Path(table[key]).is_file():
                found[key] = f"{path}: {key} = {table[key]}: there is no such file"
        return found


def check_private(key: Path) -> None:
    """A key that others can read is not only this site's."""
    if key.stat().st_mode & 0o077:
        raise ConfigError(
            f"{key}: others can read this private key; chmod 600 {key}, and ask for a new one if anyone has read it"
        )


def run_node(settings: NodeSettings, config: SiteSettings, *, insecure: bool, say: Say) -> None:
    """Until the process is ended. Flower's SuperNode is started again whenever it ends by itself.

    It does so when the server is away for long, and a node with a key that was killed is not let in for a minute.
    """
    check_flower()
    if not insecure and not (settings.ca and settings.key):
        raise ConfigError(
            "a site needs ca and key in its file, for TLS and to show who it is (`fedclass deploy keys` makes them); "
            "--insecure does without, in plain text"
        )
    if settings.key and not insecure:
        check_private(Path(settings.key))
    os.umask(0o077)  # whatever is written from here on is the owner's alone
    log = Log(say)
    site = Site(config, log)
    if insecure:
        log("warning: plain text; anyone on the network path can read and change what is sent")
    with alone(config):
        secret = secrets.token_bytes(32)
        write_atomically(config.store / SECRET, secret, mode=0o600)
        words = _command(settings, config.store / SECRET, insecure=insecure)
        if site.seal is not None:
            for folder in federations(config.store, site.seal):
                with folder.locked():
                    folder.seal_all()
        with Executor(answering(site, settings.superlink, log), secret, log) as executor:
            log(f"site {config.name}: images in {config.data}, state in {config.store}, server {settings.superlink}")
            ends = 0
            while True:
                began = time.monotonic()
                reason = _supernode(words, executor, Connection(settings.superlink, config.store / FLOWER_LOG, log))
                ends = 0 if time.monotonic() - began > LONG else ends + 1
                pause = PAUSES[min(ends, len(PAUSES)) - 1] if ends else PAUSES[0]
                if not insecure:
                    reason = clock_fault(ahead_of(settings.superlink, settings.ca)) or reason
                log(f"the connection to {settings.superlink} ended ({reason}); trying again in {pause:.0f} s")
                time.sleep(pause)


class Log:
    """Lines of a site's log, each with the time."""

    def __init__(self, say: Say) -> None:
        self.say = say

    def __call__(self, text: str, at: datetime | None = None) -> None:
        time = (at or datetime.now(UTC)).isoformat(timespec="milliseconds")
        self.say("\n".join(f"{time} {line}" for line in text.splitlines()))


def answering(site: Site, server: str, log: Log) -> Answer:
    """A site's answers to a server, of which its log tells."""

    def answer(frame: Frame, *, run: int) -> Frame:
        began, clock = datetime.now(UTC), time.perf_counter()
        answer = respond(frame, lambda: site, log)
        spent = time.perf_counter() - clock
        log(printable(f"{server} (run {run}) asked for {asked(frame)}; {sent(answer)}; {spent:.3f} s"), began)
        return answer

    return answer


@contextlib.contextmanager
def alone(settings: SiteSettings) -> Iterator[None]:
    """The store is this user's, and no other process uses it."""
    where = f"site {settings.name}: store = {settings.store}"
    lock = FileLock(settings.store / ".running", mode=0o600)
    try:
        settings.store.mkdir(mode=0o700, parents=True, exist_ok=True)
        settings.store.chmod(0o700)
        lock.acquire(timeout=0)
    except Timeout:
        raise ConfigError(f"{where}: another `fedclass site run` is using it; end that one first") from None
    except OSError as error:
        raise ConfigError(f"{where}: cannot be used ({error.strerror}); name a folder of yours") from error
    try:
        yield
    finally:
        lock.release()


def _command(settings: NodeSettings, secret: Path, *, insecure: bool) -> list[str]:
    ca, private = (None, None) if insecure else (Path(settings.ca), Path(settings.key))
    trusted = Path(settings.trusted) if settings.trusted else None
    name, *words = supernode(settings.superlink, secret=secret, ca=ca, private=private, trusted=trusted)
    program = Path(sys.executable).with_name(name)
    if not program.exists():
        raise ConfigError(f"{program}: not there; {EXTRA.format('flower')}")
    return [str(program), *words]


class Connection:
    """What Flower's SuperNode says goes to a file of its own; the site's log has what it means, once."""

    def __init__(self, server: str, path: Path, log: Log) -> None:
        self.server, self.path, self.log = server, path, log
        self.reason = ""  # why it may have ended
        self._away = False

    def follow(self, stream: IO[bytes]) -> None:
        with self.path.open("wb") as file:
            for line in stream:
                if file.tell() > MOST_LOG:
                    file.seek(0)
                    file.truncate()
                file.write(line)
                file.flush()
                self._note(line.decode(errors="replace").strip())

    def _note(self, line: str) -> None:
        if (node := re.search(r"SuperNode ID: (\d+)", line)) is not None:
            self.log(f"connected to {self.server}, as node {node[1]}")
        elif (why := next((words for sign, words in MEANING.items() if sign in line), None)) is not None:
            self.reason = why
        elif "Connection attempt failed" in line and not self._away:
            self._away = True
            self.log(f"{self.server} does not answer; this site keeps trying")
        elif "Connection successful" in line and self._away:
            self._away = False
            self.log(f"{self.server} answers again")


MEANING = {
    "[code: 2001]": "the server lets in registered keys only, and this site showed none",
    "[code: 2004]": "key unknown: this site's is not registered; or the server takes the site for connected, for a "
    "minute after it was cut off; or another process uses the key",
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate is not one that `ca` vouches for",
}
TURNED_AWAY = "the server no longer accepts this site's key, or the clocks of the two differ"  # Flower ends with code 0


def _supernode(words: list[str], executor: Executor, connection: Connection) -> str:
    """Why it has ended. It ends with this process."""
    port = free_port()
    process = subprocess.Popen(
        [*words, "--port", str(port)],
        env={**QUIET, **os.environ},
        start_new_session=True,
        preexec_fn=end_with_parent,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    listener = threading.Thread(target=connection.follow, args=[process.stdout], daemon=True)
    listener.start()
    executor.port = port
    try:
        while process.poll() is None and not executor.broken.is_set():
            time.sleep(LOOK)
        if executor.broken.is_set():
            return "a task could not be answered"
        listener.join(ENDING)
        unknown = f"code {process.returncode}; {connection.path} has what Flower said"
        return connection.reason or (unknown if process.returncode else TURNED_AWAY)
    finally:
        executor.port = None
        executor.broken.clear()
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(ENDING)
        kill_group(process)  # and whatever it has started and left
