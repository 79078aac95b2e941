"""What a site answers to a frame: here, or through its warm worker."""

import contextlib
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedclass.engines.flower.frames import Frame
from fedclass.errors import ClientError, ConfigError, DataError, FedclassError

if TYPE_CHECKING:  # brings PyTorch along
    from fedclass.deploy.settings import SiteSettings
    from fedclass.deploy.site import Site

SOCKET = ".worker.sock"  # in the site's store; no federation is called so
SITES = "FEDCLASS_SITES"  # a folder that `fedclass deploy split` has written, for simulated nodes
LONGEST_SOCKET = 103  # bytes of a path that a socket can have, on Linux and macOS
CHUNK = 1 << 20
LONGEST_LINE = 2000  # characters of a site's log, where the server's words are quoted


def answer(frame: Frame, node_config: Mapping[str, Any]) -> Frame:
    """The answer of the site that a node is configured for.

    A worker that `fedclass site run` keeps warm is asked if there is one: it saves the time to import torch and to read
    the images anew for every message.
    """
    config = _config(node_config)
    path = Path(str(config.get("store", ""))).expanduser() / SOCKET
    if _fits(path):
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
            return _ask_worker(path, frame)
    return respond(frame, lambda: site_of(config))


def _config(node_config: Mapping[str, Any]) -> dict[str, Any]:
    """Flower's simulation only numbers its nodes; the owner of the machine says where their data are."""
    config = dict(node_config)
    if "data" not in config and "partition-id" in config and SITES in os.environ:
        name, root = f"site-{int(config['partition-id']):03d}", Path(os.environ[SITES])
        return {"name": name, "data": str(root / f"{name}.npz"), "store": str(root / "stores" / name), "holdout": 0.0}
    config.pop("partition-id", None)
    config.pop("num-partitions", None)
    return config


def site_of(config: Mapping[str, Any]) -> "Site":
    from fedclass.deploy.settings import SiteSettings
    from fedclass.deploy.site import Site

    return Site(SiteSettings.read(config))


def _to_log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def respond(frame: Frame, open_site: "Callable[[], Site]", say: Callable[[str], None] = _to_log) -> Frame:
    """Do what the frame asks, if it may be asked; a refusal is an answer too.

    What is wrong with the site's images is said here and not to the server: it would name files.
    """
    from fedclass.deploy.site import TeacherMissing
    from fedclass.engines.flower import codec

    try:
        site = open_site()
        asked = codec.read_ask(frame)
        if isinstance(asked, codec.AnnouncementAsked):
            return codec.announcement(site.announce(asked.federation, asked.task))
        return codec.update(site.run(*asked))
    except DataError as error:
        say(printable(str(error)))
        return codec.refused("cannot use its images; its own log says why", lacks=False)
    except FedclassError as error:
        return codec.refused(str(error), lacks=isinstance(error, TeacherMissing))
    except Exception as error:  # whatever it is, the next request must find the site alive
        say(traceback.format_exc())
        return codec.refused(f"failed ({type(error).__name__}); its own log says why", lacks=False)


# The worker.


def _fits(path: Path) -> bool:
    return len(os.fsencode(path)) <= LONGEST_SOCKET


def _ask_worker(path: Path, frame: Frame) -> Frame:
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(str(path))
        _send(line, frame)
        answer = _receive(line)
    if answer is None:
        raise ClientError(f"{path}: the site's worker ended while it was asked")
    return answer


@contextlib.contextmanager
def worker(site: "Site", say: Callable[[str], None]) -> Iterator[None]:
    """Answer frames that come through a socket in the store, which only its owner can open; say what was asked."""
    path = site.settings.store / SOCKET
    with _alone(site.settings):
        path.unlink(missing_ok=True)
        if _fits(path):
            with _open_door(path, site, say):
                yield
            return
        say(f"{path}: too long a name for a socket, so that every message waits for a process to start; shorten store")
        yield


@contextlib.contextmanager
def _alone(settings: "SiteSettings") -> Iterator[None]:
    """Two workers would take each other's door away."""
    from filelock import FileLock, Timeout

    where = f"site {settings.name}: store = {settings.store}"
    lock = FileLock(settings.store / ".running", mode=0o600)
    try:
        settings.store.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise ConfigError(f"{where}: another `fedclass site run` is using it; end that one first") from None
    except OSError as error:
        raise ConfigError(f"{where}: cannot be used ({error.strerror}); name a folder of yours") from error
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _open_door(path: Path, site: "Site", say: Callable[[str], None]) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(path))
        path.chmod(0o600)
        door.listen()
        threading.Thread(target=_answer_all, args=(door, site, say), daemon=True).start()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            door.shutdown(socket.SHUT_RDWR)  # wakes the thread, which ends


def _answer_all(door: socket.socket, site: "Site", say: Callable[[str], None]) -> None:
    while True:
        try:
            line, _ = door.accept()
        except OSError:
            if door.fileno() < 0:
                return  # it is closed
            time.sleep(1)  # too many open files, for example
            continue
        with line:
            try:
                _answer_one(line, site, say)
            except ConnectionError:
                continue  # whoever asked has gone: nobody wants the answer
            except Exception:  # without this thread, all who ask would wait for ever
                with contextlib.suppress(Exception):
                    say(traceback.format_exc())


def _answer_one(line: socket.socket, site: "Site", say: Callable[[str], None]) -> None:
    asked = _receive(line)
    if asked is None:
        return
    began, clock = datetime.now(UTC), time.perf_counter()
    answer = respond(asked, lambda: site, say)
    spent = time.perf_counter() - clock
    say(printable(f"{began.isoformat(timespec='milliseconds')} {summary(asked, answer)}, {spent:.3f} s"))
    _send(line, answer)


def summary(asked: Frame, answer: Frame) -> str:
    """For a site's log: what the server wanted, and how it ended."""
    job = asked.header.get("job")
    wanted = f"{job.get('phase')} {job.get('task')}.{job.get('round')}" if isinstance(job, dict) else "announcement"
    refused = f": refused, {answer.header['reason']}" if answer.header.get("answer") == "refused" else ""
    return wanted + refused


def printable(text: str) -> str:
    """On one line, and of a length that can be read: the server must not write into a site's log."""
    short = text if len(text) <= LONGEST_LINE else f"{text[:LONGEST_LINE]} ..."
    return "".join(letter if letter.isprintable() else "?" for letter in short)


def _send(line: socket.socket, frame: Frame) -> None:
    data = frame.to_bytes()
    line.sendall(len(data).to_bytes(8, "big"))
    line.sendall(data)


def _receive(line: socket.socket) -> Frame | None:
    """None if the other side has gone."""
    size = _exactly(line, 8)
    data = None if size is None else _exactly(line, int.from_bytes(size, "big"))
    return None if data is None else Frame.from_bytes(data)


def _exactly(line: socket.socket, size: int) -> bytes | None:
    parts, left = [], size
    while left:
        part = line.recv(min(left, CHUNK))
        if not part:
            return None
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
