"""A server and its sites in network namespaces of their own: nothing is shared but wires, and those are slow.

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
IP, TC, NGINX = (shutil.which(name, path=PATHS) for name in ("ip", "tc", "nginx"))
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
        not may_make_namespaces(),
        reason="may not make network namespaces; to try it: as root on Linux, with iproute2 (apt-get install iproute2)",
    ),
]


def ip(*words: str) -> None:
    assert IP is not None
    subprocess.run([IP, *words], check=True, capture_output=True)


@contextlib.contextmanager
def namespaces() -> Iterator[bool]:
    """One for the server and one for each site, with a wire from each site to the server.

    Where the kernel can, it takes 40 ms in each direction and loses 1 %; yields whether that is so.
    """
    names = [f"{TRIAL}-server", *(f"{TRIAL}-{site}" for site in SITES)]
    slow = True
    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        for number, site in enumerate(SITES):
            here, there = f"{TRIAL}-server", f"{TRIAL}-{site}"
            ip("-n", here, "link", "add", f"to{number}", "type", "veth", "peer", "name", "out", "netns", there)
            for name, device, last in ((here, f"to{number}", 1), (there, "out", 2)):
                ip("-n", name, "address", "add", f"10.77.{number}.{last}/30", "dev", device)
                ip("-n", name, "link", "set", device, "up")
                words = [str(TC), "-n", name, "qdisc", "add", "dev", device, "root", "netem", "delay", "40ms"]
                slow &= TC is not None and not subprocess.run([*words, "loss", "1%"], capture_output=True).returncode
        yield slow
    finally:
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


def test_a_federation_whose_machines_share_nothing_but_wires(tmp_path: Path) -> None:
    sites, run = {}, tmp_path / "run"
    for number, site in enumerate(SITES):
        images = np.concatenate([pictures("ant", 20, number), pictures("bee", 20, number)])
        labels = np.repeat([0, 1], 20)
        np.savez(tmp_path / f"{site}.npz", x_train=images, y_train=labels, classes=np.array(["ant", "bee"]))
        sites[site] = {"data": str(tmp_path / f"{site}.npz"), "store": str(tmp_path / f"store-{site}")}
    settings = "train.rounds=2 train.local_epochs=1 memory.per_client=6 evaluation.every=0"
    write_app(tmp_path / "app", {"out": str(run), "set": settings, "tasks": 1, "ask-every-seconds": 1.0})
    with namespaces() as slow, Apart(tmp_path / "flower", sites) as federation:
        for site in SITES:
            wait_until(lambda site=site: "connected to" in federation.log(site).read_text(), site)
        number = federation.submit(tmp_path / "app")
        wait_until(lambda: (run / "announced.json").exists(), "names to approve")
        words = [sys.executable, "-m", "fedclass", "deploy", "classes", str(run), "approve", "--all"]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.stdout == "approved: 'ant', 'bee'\n", done.stderr
        federation.follow(number, run, lambda _: None)
        nodes = registered_nodes(federation.keys.folder)
    events = list(read_events(run / "events.jsonl"))
    assert [event.clients for event in events if isinstance(event, RoundFinished)] == [[0, 1], [0, 1]]
    assert [event.sites for event in events if isinstance(event, SitesKnown)][-1] == list(SITES)
    assert load_model(run).classes == ("ant", "bee")
    assert nodes is not None
    assert set(nodes) == set(SITES)
    asked = {line.split()[0] for line in (tmp_path / "flower" / "access.log").read_text().splitlines()}
    assert asked == {f"10.77.{number}.2" for number in range(len(SITES))}, "each came by its own wire"
    print(f"wires with 80 ms there and back, and 1 % loss: {slow}")
