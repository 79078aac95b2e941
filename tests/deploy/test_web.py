"""The operator's page: who may look, which buttons work, and how it looks in a browser."""

import json
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra [flower]")

import requests

from fedclass.deploy.decisions import ANNOUNCED, read_offers
from fedclass.deploy.presence import FILE
from fedclass.deploy.processes import free_port
from fedclass.deploy.web import Page
from fedclass.deploy.words import NEXT
from fedclass.runs import audit
from fedclass.runs.events import EventLog, RoundFinished, RunStarted, SetAside, SitesKnown, TaskFinished, Warned

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
NASTY = "<script>alert(1)</script>"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A federation with two sites in its second task; a third name waits, and is a nasty one."""
    (tmp_path / "lease.json").write_text("{}")
    started = RunStarted(
        version="0", method="fedavg", variant="", dataset="sites", dataset_sha256="", official=None, tasks=[],
        classes=[], counts=[], exemplars=[], rounds=5, seed=0, engine="flower", machine={},
    )  # fmt: skip
    known = SitesKnown(
        sites=["north", "south"], classes=["ant", "bee"], tasks=[2], counts=[[30, 20], [0, 40]], exemplars=[4]
    )
    done = RoundFinished(
        task=0, round=0, clients=[0], examples=[50], losses=[1.0], loss=1.0, bytes_up=1, bytes_down=1, seconds=1.0
    )
    end = TaskFinished(task=0, confusion=[[9, 1], [5, 5]], exemplars=4, bytes_up=1, bytes_down=1, seconds=1.0)
    aside = SetAside(task=0, round=0, client=1, rounds=5, reason="its update was rejected")
    with EventLog(tmp_path / "events.jsonl") as log:
        for event in (started, known, done, aside, end, Warned(message=f"look at {NASTY}")):
            log.write(event)
    seen = {"north": {"online": True, "heard": time.time()}, "south": {"online": False, "heard": time.time() - 500}}
    (tmp_path / FILE).write_text(json.dumps({"time": time.time(), "sites": seen, "silent": {"node 7": "no name"}}))
    offers = [
        {"name": name, "sites": {"south": 12}, "since": "2026-01-01", "state": "waiting"} for name in ("cat", NASTY)
    ]
    (tmp_path / ANNOUNCED).write_text(json.dumps(offers))
    return tmp_path


@contextmanager
def served(page: Page, port: int) -> Iterator[None]:
    server, listening = page.server(), socket.create_server(("127.0.0.1", port))
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.05)
        yield
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


class Browser(requests.Session):
    """Follows no redirection, and knows its server."""

    def __init__(self, server: str) -> None:
        super().__init__()
        self.server = server

    def request(self, method: str, url: str, **more: Any) -> requests.Response:  # type: ignore[override]
        return super().request(method, self.server + url, **{**more, "allow_redirects": False})


@pytest.fixture
def client(root: Path) -> Iterator[Browser]:
    port = free_port()
    with served(Page(root, "secret", (f"127.0.0.1:{port}",)), port), Browser(f"http://127.0.0.1:{port}") as browser:
        yield browser


def token_of_form(page: str) -> str:
    found = re.search(r'name="form" value="([^"]+)"', page)
    assert found
    return found[1]


def test_only_who_knows_the_token_sees_the_page_and_only_under_its_own_name(client: Browser) -> None:
    for path in ("/", "/part", "/status.json", "/metrics", "/?token=wrong"):
        assert client.get(path).status_code == 401
    assert client.post("/do", data={"action": "next"}).status_code == 401
    assert client.get("/", headers={"host": "evil.example"}).status_code == 421
    come_in = client.get("/?token=secret")
    assert (come_in.status_code, come_in.headers["location"]) == (303, "/")
    cookie = come_in.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    page = client.get("/")
    assert page.status_code == 200
    assert NASTY not in page.text
    assert "&lt;script&gt;alert(1)" in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert client.get("/status.json").json()["task"] == 1
    bearer = {"authorization": "Bearer secret"}
    client.cookies.clear()
    assert 'fedclass_site_online{site="north"} 1' in client.get("/metrics", headers=bearer).text.splitlines()
    assert client.get("/metrics").status_code == 401


def test_buttons_need_the_pages_own_form_and_do_what_the_commands_do(client: Browser, root: Path) -> None:
    client.get("/?token=secret")
    form = token_of_form(client.get("/").text)
    assert client.post("/do", data={"action": "next"}).status_code == 403
    assert client.post("/do", data={"action": "next", "form": "guessed"}).status_code == 403
    foreign = {"origin": "http://evil.example"}
    assert client.post("/do", data={"action": "next", "form": form}, headers=foreign).status_code == 403
    assert client.get("/do?action=next").status_code == 405
    assert not (root / NEXT).exists()
    own = {"origin": client.server}
    assert client.post("/do", data={"action": "next", "form": form}, headers=own).status_code == 303
    assert (root / NEXT).exists()
    assert client.post("/do", data={"action": "approve", "name": "cat", "form": form}).status_code == 303
    assert client.post("/do", data={"action": "reject", "name": NASTY, "form": form}).status_code == 303
    assert {offer.name: offer.state for offer in read_offers(root)} == {"cat": "approved", NASTY: "rejected"}
    nobody = client.post("/do", data={"action": "approve", "name": "dgo", "form": form})
    assert (nobody.status_code, "no site announces a class 'dgo'" in nobody.text) == (400, True)
    assert client.post("/do", data={"action": "shell", "form": form}).status_code == 400
    assert client.post("/do", data={"form": form, "name": "x" * 140_000}).status_code == 413
    entries = list(audit.entries(root))
    assert [entry["said"] for entry in entries] == ["next", "approve", "reject"]
    assert all(entry["by"].endswith("by the page") for entry in entries)


def browsed(address: str, profile: Path) -> tuple[str, str]:
    """The page as the browser has it in the end, and what was said in its console."""
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"]
    words += ["--disable-background-networking", "--disable-component-update", "--enable-logging=stderr"]
    words += ["--allow-file-access-from-files", "--virtual-time-budget=3000", f"--user-data-dir={profile}"]
    done = subprocess.run(
        [str(CHROMIUM), *words, "--dump-dom", address], capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout, done.stderr


FRAME = """<iframe id="frame" src="page.html" style="border: 0; width: 390px; height: 900px"></iframe>
<pre id="out"></pre>
<script>onload = () => {
  const page = frame.contentDocument.documentElement;
  out.textContent = `needs ${page.scrollWidth} of ${page.clientWidth} pixels`;
}</script>"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs a browser; to have it: apt-get install chromium")
def test_the_page_in_a_browser(root: Path, tmp_path: Path) -> None:
    """No error in its console, everything in its place, no script of a class's name, nothing wider than a phone."""
    port = free_port()
    page = Page(root, "secret", (f"127.0.0.1:{port}",))
    with EventLog(root / "events.jsonl") as log:
        log.write(Warned(message="x" * 200))
    with served(page, port):
        shown, said = browsed(f"http://127.0.0.1:{port}/?token=secret", tmp_path / "profile")
        session = requests.Session()
        (tmp_path / "page.html").write_text(session.get(f"http://127.0.0.1:{port}/?token=secret").text)
    assert "CONSOLE" not in said
    for text in ("Next task", "Approve", "online", "away", "set aside", "task 1, round 1 of 5", "90.0 %", "node 7"):
        assert text in shown, text
    assert NASTY not in shown
    (tmp_path / "frame.html").write_text(FRAME)
    narrow, _ = browsed(f"file://{tmp_path / 'frame.html'}", tmp_path / "profile")
    found = re.search(r"needs (\d+) of (\d+) pixels", narrow)
    assert found is not None
    assert int(found[1]) <= int(found[2]) <= 390
