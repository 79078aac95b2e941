"""What a site answers to a frame: here, or through its warm worker."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedclass.engines.flower.frames import Frame
from fedclass.errors import ClientError, FedclassError

if TYPE_CHECKING:  # brings PyTorch along
    from fedclass.deploy.site import Site

SOCKET = "worker.sock"  # in the site's store
SITES = "FEDCLASS_SITES"  # a folder that `fedclass deploy split` has written, for simulated nodes
CHUNK = 1 << 20


def answer(frame: Frame, node_config: Mapping[str, Any]) -> Frame:
    """The answer of the site that a node is configured for.

    A worker that `fedclass site run` keeps warm is asked if there is one: it saves the time to import torch and to read
    the images anew for every message.
    """
    config = _config(node_config)
    with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
        return _ask_worker(Path(str(config.get("store", ""))).expanduser() / SOCKET, frame)
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


def respond(frame: Frame, open_site: "Callable[[], Site]") -> Frame:
    """Do what the frame asks, if it may be asked; a refusal is an answer too."""
    from fedclass.deploy.site import TeacherMissing
    from fedclass.engines.flower import codec

    try:
        site = open_site()
        asked = codec.read_ask(frame)
        if isinstance(asked, codec.AnnouncementAsked):
            return codec.announcement(site.announce(asked.federation, asked.task))
        return codec.update(site.run(*asked))
    except FedclassError as error:
        return codec.refused(str(error), teacher=isinstance(error, TeacherMissing))


# The worker.


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
    store = site.settings.store
    path = store / SOCKET
    store.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
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
        except OSError:  # the door is closed
            return
        with line, contextlib.suppress(ConnectionError):  # whoever asked has gone: nobody wants the answer
            asked = _receive(line)
            if asked is None:
                continue
            began, clock = datetime.now(UTC), time.perf_counter()
            answer = respond(asked, lambda: site)
            spent = time.perf_counter() - clock
            say(f"{began.isoformat(timespec='milliseconds')} {summary(asked, answer)}, {spent:.3f} s")
            _send(line, answer)


def summary(asked: Frame, answer: Frame) -> str:
    """For a site's log: what the server wanted, and how it ended."""
    job = asked.header.get("job")
    wanted = f"{job.get('phase')} {job.get('task')}.{job.get('round')}" if isinstance(job, dict) else "announcement"
    refused = f": refused, {answer.header['reason']}" if answer.header.get("answer") == "refused" else ""
    return wanted + refused


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
