"""A whole federation on this machine: a SuperLink and sites, with TLS and keys, for demonstrations and tests."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import tomli_w

from fedclass.deploy import commands
from fedclass.deploy.keys import Keys, make_keys
from fedclass.deploy.processes import accepts, free_port, kill_group
from fedclass.deploy.registered import register
from fedclass.errors import RunError
from fedclass.runs.events import Event
from fedclass.runs.layout import RunDirectory
from fedclass.runs.tail import Tail

STARTING = 600.0  # seconds that Flower's processes and commands may take, on a busy machine too
ENDING = 10.0
LOOK = 20.0  # seconds between two looks whether a run still lives


class Loopback:
    """Everything lies below `root`; no process outlives the `with` block.

    sites: their settings by name.  secure: with TLS and keys.  door: the port that sites dial, if not the server's.
    asleep: sites that are started later.
    """

    def __init__(
        self,
        root: Path,
        sites: Mapping[str, Mapping[str, Any]],
        *,
        secure: bool = True,
        door: int | None = None,
        asleep: Collection[str] = (),
    ) -> None:
        self.root, self.sites, self.secure = root, sites, secure
        self.port = free_port()
        self.door = door or self.port
        self.asleep = asleep
        self.keys: Keys
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self.keys = make_keys(self.root / "keys", hosts=self.hosts, sites=list(self.sites))
            (self.root / "flwr").mkdir(exist_ok=True)
            connection = commands.connection(self.keys, port=self.port)
            if not self.secure:
                connection = f'[superlink.{commands.CONNECTION}]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
            (self.root / "flwr" / "config.toml").write_text(connection)
            self.start_link()
            for name in self.sites:
                if self.secure:
                    register(self.keys, name, self.flwr)
                if name not in self.asleep:
                    self.start_site(name)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for process in self.processes.values():
            process.terminate()
        until = time.monotonic() + ENDING
        for process in self.processes.values():
            while process.poll() is None and time.monotonic() < until:
                time.sleep(0.05)
            kill_group(process)
        self.processes = {}

    # What differs where its parts are not all on one machine.

    hosts: Sequence[str] = ("localhost",)

    def address(self, name: str) -> str:  # noqa: ARG002
        """That a site dials."""
        return f"127.0.0.1:{self.door}"

    def within(self, name: str) -> list[str]:  # noqa: ARG002
        """Words before a command of one of its parts: a site, or "superlink"."""
        return []

    def answers(self) -> bool:
        """Whether the server does."""
        return accepts(self.port)

    # Its parts.

    @property
    def environment(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        return {**os.environ, **commands.QUIET, "FLWR_HOME": str(self.root / "flwr"), "PATH": path}

    def start_link(self) -> None:
        database = str(self.root / "superlink.db")
        words = [sys.executable, "-m", "fedclass", "deploy", "link", "--keys", str(self.keys.folder)]
        words += ["--database", database, "--port", str(self.port)]
        if not self.secure:
            words = ["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(self.port)]
            words += ["--disable-runtime-dependency-installation", "--database", database]
        process = self._start("superlink", words)
        self._until(self.answers, process, "superlink")

    def start_site(self, name: str) -> None:
        file = self.root / f"{name}.toml"
        settings: dict[str, Any] = {
            "superlink": self.address(name),
            "ca": str(self.keys.ca.absolute()),
            "key": str(self.keys.private(name).absolute()),
            "site": {"name": name, **self.sites[name]},
        }
        file.write_text(tomli_w.dumps(settings))
        words = [sys.executable, "-m", "fedclass", "site", "run", str(file), *([] if self.secure else ["--insecure"])]
        self._start(name, words)

    def kill(self, name: str, *, alone: bool = False) -> None:
        """As the machine's failure would: the process and all that it has started are gone; or it alone."""
        process = self.processes.pop(name)
        if alone:
            process.kill()
            process.wait()
        else:
            kill_group(process)

    def flwr(self, *words: str) -> str:
        program = [*self.within("superlink"), str(Path(sys.executable).with_name("flwr"))]
        done = subprocess.run(
            [*program, *words], cwd=self.root, env=self.environment, capture_output=True, text=True, timeout=STARTING
        )
        if done.returncode:
            raise RunError(f"flwr {' '.join(words)}: {' '.join((done.stderr or done.stdout).split())}")
        return done.stdout

    def submit(self, app: Path) -> str:
        """Start a run of an app folder; returns Flower's number of it."""
        started = json.loads(self.flwr("run", str(app), commands.CONNECTION, "--format", "json"))
        if "run-id" not in started:
            raise RunError(f"{app}: Flower has not started it ({started})")
        return str(started["run-id"])

    def status(self, run: str) -> str:
        """Such as "running", "finished:completed" or "finished:failed"."""
        listed = json.loads(self.flwr("list", commands.CONNECTION, "--run-id", run, "--format", "json"))
        return str(listed["runs"][0]["status"])

    def follow(self, number: str, out: Path, listen: Callable[[Event], None]) -> None:
        """Hand on what a run writes to its directory, until it has ended."""
        tail, looked = Tail(RunDirectory(out).events), time.monotonic()
        while True:
            for event in tail.news():
                listen(event)
            if RunDirectory(out).finished:
                return
            if time.monotonic() - looked > LOOK:
                status = self.status(number)
                if status.startswith("finished") and not RunDirectory(out).finished:  # it may have ended meanwhile
                    raise RunError(f"the run ended early ({status}); {self.log('superlink')} says why")
                looked = time.monotonic()
            time.sleep(0.2)

    def log(self, name: str) -> Path:
        return self.root / f"{name}.log"

    def _start(self, name: str, words: list[str]) -> subprocess.Popen[bytes]:
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                [*self.within(name), *words],
                cwd=self.root,
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes[name] = process
        return process

    def _until(self, ready: Callable[[], bool], process: subprocess.Popen[bytes], name: str) -> None:
        until = time.monotonic() + STARTING
        while not ready():
            if process.poll() is not None or time.monotonic() > until:
                raise RunError(f"{name} has not started; {self.log(name)} says why")
            time.sleep(0.1)
