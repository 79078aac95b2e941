"""The files of a run directory, and how they are written."""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from fedclass.errors import RunError

Writing = Callable[[], AbstractContextManager[object]]  # wraps every write to a run

EVENTS = "events.jsonl"
LEASE_WAIT = 30.0  # seconds that one write may take


@dataclass(frozen=True)
class RunDirectory:
    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config.toml"

    @property
    def source(self) -> Path:
        return self.root / "source.json"

    @property
    def events(self) -> Path:
        """Compressed if the run is kept as data (runs.kept)."""
        plain, compressed = self.root / EVENTS, self.root / f"{EVENTS}.xz"
        return compressed if compressed.exists() and not plain.exists() else plain

    @property
    def summary(self) -> Path:
        return self.root / "summary.json"

    @property
    def model(self) -> Path:
        return self.root / "model.safetensors"

    @property
    def classes(self) -> Path:
        return self.root / "classes.json"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    def ended(self, tasks: int) -> Path:
        """A federation's checkpoint after this many tasks."""
        return self.checkpoints / f"ended-{tasks:04d}"

    @property
    def finished(self) -> bool:
        """The summary is the last thing that a run writes."""
        return self.summary.exists()

    @property
    def lease(self) -> Path:
        return self.root / "lease.json"

    @contextlib.contextmanager
    def locked(self) -> Iterator[Writing]:
        """No other process writes here meanwhile. The lock ends with the process, however it ends."""
        lock = FileLock(self.root / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise RunError(f"{self.root}: another process is writing this run; wait for it, or end it") from None
        try:
            yield contextlib.nullcontext
        finally:
            lock.release()

    @contextlib.contextmanager
    def leased(self, holder: str) -> Iterator[Writing]:
        """From now on only `holder` writes here, and no earlier holder: each write checks who holds the lease.

        For servers that may lose their connection and keep running while another server takes their place. A process
        that has locked the run is not replaced.
        """
        lock = FileLock(self.root / ".lock")

        @contextlib.contextmanager
        def writing() -> Iterator[None]:
            with self._briefly(lock):
                self.check_holder(holder)
                yield

        with self._briefly(lock):
            write_atomically(self.lease, json.dumps({"holder": holder}) + "\n")
        yield writing

    def check_holder(self, holder: str) -> None:
        if _holder(self.lease) != holder:
            raise RunError(f"{self.root}: another server has taken over this run; this one ends")

    @contextlib.contextmanager
    def _briefly(self, lock: FileLock) -> Iterator[None]:
        try:
            lock.acquire(timeout=LEASE_WAIT)
        except Timeout:
            raise RunError(f"{self.root}: another process is writing this run; wait for it, or end it") from None
        try:
            yield
        finally:
            lock.release()


def _holder(lease: Path) -> str | None:
    try:
        holder = json.loads(lease.read_bytes())["holder"]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # missing or damaged: nobody may write
    return str(holder)


def create(root: Path) -> RunDirectory:
    """Make a new run directory. An existing one must be empty."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        if {path.name for path in root.iterdir()} - {".lock", "config.toml.part"}:  # left by a run that never began
            raise RunError(f"{root}: is not empty; choose another directory, or remove it")
        probe = root / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise RunError(f"{root}: cannot write there ({error.strerror}); choose another directory") from error
    return RunDirectory(root)


def write_atomically(path: Path, content: str | bytes, *, mode: int = 0o666) -> None:
    """Write all or nothing, through to the disk: a reader never sees half a file, not even after a power cut.

    mode: the permissions, less the umask; set before the first byte is written.
    """
    part = path.with_name(path.name + ".part")
    try:
        part.unlink(missing_ok=True)  # a crash may have left one with other permissions
        with open(part, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def fresh(name: str, *, below: str = "runs") -> Path:
    """A new path below runs/ or another folder: the time, then the name."""
    milliseconds = time.time_ns() // 1_000_000 % 1000  # two runs may start within a second
    return Path(below) / f"{time.strftime('%Y%m%d-%H%M%S')}{milliseconds:03d}-{name}"
