"""A server and its sites in network namespaces of their own: nothing is shared but wires, and those are slow.

80 ms there and back, one packet of a hundred lost, 20 Mbit/s (`slow_wire.py`).

By the docs: keys, `fedclass deploy link` on the server's own 127.0.0.1, nginx before it, TLS all the way, and names
of classes that the operator approves. Addresses are of these namespaces alone; no packet leaves them.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the extra [flower]")

from deploy.test_sites import pictures
from fedclass.deploy.app import write_app
from fedclass.deploy.loopback import Loopback
from fedclass.deploy.registered import registered_nodes
from fedclass.experiment.trained import load_model
from fedclass.runs.events import RoundFinished, SitesKnown, read_events
from waiting import wait_until

PATHS = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
IP, NGINX = (shutil.which(name, path=PATHS) for name in ("ip", "nginx"))
WIRE = Path(__file__).with_name("slow_wire.py")
DELAY, LOSS, RATE = 0.04, 0.01, 20e6  # seconds in each direction, share of packets, bits per second
NGINX_CONF = Path(__file__).parents[2] / "docs" / "deploy" / "nginx.conf"
DOOR = 8443
SITES = ("north", "south")
TRIAL = f"fc{os.getpid()}"  # begins the names of what is made


def may_make_namespaces() -> bool:
    if IP is None:
        return False
    made = subprocess.run([IP, "netns", "add", f"{TRIAL}-try"], capture_output=True).returncode == 0
    if made:
        subprocess.run([IP, "netns", "del", f"{TRIAL}-try"], check=True)
    return made


pytestmark = [
    pytest.mark.release,
    pytest.mark.skipif(NGINX is None, reason="needs nginx; to have it: apt-get install nginx"),
    pytest.mark.skipif(
        not Path("/dev/net/tun").exists(),
        reason="has no /dev/net/tun, for wires that lose packets; to have it: modprobe tun, as root",
    ),
    pytest.mark.skipif(
        not may_make_namespaces(),
        reason="may not make network namespaces; to try it: as root on Linux, with iproute2 (apt-get install iproute2)",
    ),
]


def ip(*words: str) -> None:
    assert IP is not None
    subprocess.run([IP, *words], check=True, capture_output=True)


@contextlib.contextmanager
def namespaces() -> Iterator[list[str]]:
    """One for the server and one for each site, with a slow wire from each site to the server.

    Yields a list which in the end has what each wire says.
    """
    names = [f"{TRIAL}-server", *(f"{TRIAL}-{site}" for site in SITES)]
    wires, said = list[subprocess.Popen[str]](), list[str]()
    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        for number, there in enumerate(names[1:]):
            words = [sys.executable, str(WIRE), names[0], there, f"wire{number}", *map(str, (DELAY, LOSS, RATE))]
            wires.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
            assert wires[-1].stdout is not None
            assert wires[-1].stdout.readline() == "ready\n"
            for name, here, other in ((names[0], 1, 2), (there, 2, 1)):
                address = [f"10.77.{number}.{here}", "peer", f"10.77.{number}.{other}", "dev", f"wire{number}"]
                ip("-n", name, "address", "add", *address)
                ip("-n", name, "link", "set", f"wire{number}", "up")
        yield said
    finally:
        for wire in wires:
            wire.terminate()
            said.append(wire.communicate()[0])
        for name in names:
            subprocess.run([str(IP), "netns", "del", name], capture_output=True)


class Apart(Loopback):
    hosts = tuple(f"10.77.{number}.1" for number in range(len(SITES)))

    def address(self, name: str) -> str:
        return f"10.77.{SITES.index(name)}.1:{DOOR}"

    def within(self, name: str) -> list[str]:
        return [str(IP), "netns", "exec", f"{TRIAL}-{name if name in SITES else 'server'}"]

    def answers(self) -> bool:
        return "the server runs on" in self.log("superlink").read_text()

    def start_link(self) -> None:
        super().start_link()
        text = NGINX_CONF.read_text()
        for old, new in (
            ("/etc/fedclass/keys", str(self.keys.folder)),
            ("/var/log/nginx/fedclass.log", str(self.root / "access.log")),
            ("https://127.0.0.1:8000", f"https://127.0.0.1:{self.port}"),
        ):
            assert old in text
            text = text.replace(old, new)
        (self.root / "nginx.conf").write_text(text)
        here = f"daemon off; pid {self.root}/nginx.pid;"
        words = ["-p", str(self.root), "-e", "error.log", "-c", str(self.root / "nginx.conf"), "-g", here]
        self._start("nginx", [str(NGINX), *words])


CONNECT = """
import socket, sys, time
began = time.monotonic()
socket.create_connection((sys.argv[1], int(sys.argv[2]))).close()
print(time.monotonic() - began)
"""


def seconds_to_connect(federation: Apart, site: str) -> float:
    words = [*federation.within(site), sys.executable, "-c", CONNECT, *federation.address(site).split(":")]
    return float(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def test_a_federation_whose_machines_share_nothing_but_wires(tmp_path: Path) -> None:
    sites, run = {}, tmp_path / "run"
    for number, site in enumerate(SITES):
        images = np.concatenate([pictures("ant", 20, number), pictures("bee", 20, number)])
        labels = np.repeat([0, 1], 20)
        np.savez(tmp_path / f"{site}.npz", x_train=images, y_train=labels, classes=np.array(["ant", "bee"]))
        sites[site] = {"data": str(tmp_path / f"{site}.npz"), "store": str(tmp_path / f"store-{site}")}
    settings = "train.rounds=2 train.local_epochs=1 memory.per_client=6 evaluation.every=0"
    write_app(tmp_path / "app", {"out": str(run), "set": settings, "tasks": 1, "ask-every-seconds": 1.0})
    with namespaces() as wires_said, Apart(tmp_path / "flower", sites) as federation:
        for site in SITES:
            wait_until(lambda site=site: "connected to" in federation.log(site).read_text(), site)
        number = federation.submit(tmp_path / "app")
        wait_until(lambda: (run / "announced.json").exists(), "names to approve")
        words = [sys.executable, "-m", "fedclass", "deploy", "classes", str(run), "approve", "--all"]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.stdout == "approved: 'ant', 'bee'\n", done.stderr
        federation.follow(number, run, lambda _: None)
        nodes = registered_nodes(federation.keys.folder)
        there_and_back = [seconds_to_connect(federation, site) for site in SITES]
    events = list(read_events(run / "events.jsonl"))
    assert [event.clients for event in events if isinstance(event, RoundFinished)] == [[0, 1], [0, 1]]
    assert [event.sites for event in events if isinstance(event, SitesKnown)][-1] == list(SITES)
    assert load_model(run).classes == ("ant", "bee")
    assert nodes is not None
    assert set(nodes) == set(SITES)
    asked = {line.split()[0] for line in (tmp_path / "flower" / "access.log").read_text().splitlines()}
    assert asked == {f"10.77.{number}.2" for number in range(len(SITES))}, "each came by its own wire"
    assert min(there_and_back) >= 2 * DELAY
    for line in wires_said:
        carried, lost = map(int, line.split())
        assert 0.2 * LOSS < lost / (carried + lost) < 5 * LOSS
