"""Who is let in, and who is not: real Flower processes on this machine, with the keys and commands of `deploy keys`."""

import base64
import importlib.util
import json
import os
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest

from fedclass.deploy import commands
from fedclass.deploy.app import write_app
from fedclass.deploy.clock import ahead_of, clock_fault
from fedclass.deploy.keys import Keys, make_keys
from fedclass.deploy.processes import accepts, free_port
from fedclass.deploy.registered import register, registered_nodes, remove, rotate
from fedclass.errors import ConfigError
from waiting import PATIENCE, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("flwr") is None, reason="needs the extra flower"),
]

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
NGINX_CONF = Path(__file__).parents[2] / "docs" / "deploy" / "nginx.conf"


# Imports Flower's command once, with the operator's credentials; each call is then carried out by a copy.
COPIES = """
import json, os, sys
from flwr.cli.app import app
for line in sys.stdin:
    words = json.loads(line)
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for file, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), file)
        sys.argv = ["flwr", *words]
        sys.exit(app())
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@dataclass(frozen=True)
class Link:
    """A SuperLink that runs, with two registered sites."""

    keys: Keys
    port: int
    folder: Path
    environment: dict[str, str]
    copies: subprocess.Popen[str] | None

    @property
    def secret(self) -> Path:
        return self.folder / "secret"

    def flwr(self, *words: str) -> subprocess.CompletedProcess[str]:
        if self.copies is None:
            command = ["flwr", *words]
            return subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True)
        assert self.copies.stdin
        assert self.copies.stdout
        print(json.dumps(words), file=self.copies.stdin, flush=True)
        code = int(self.copies.stdout.readline())
        said = [(self.folder / name).read_text() for name in ("stdout", "stderr")]
        return subprocess.CompletedProcess(words, code, *said)

    def operator(self, *words: str) -> str:
        done = self.flwr(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def states(self) -> list[str]:
        listed = self.flwr("supernode", "list", commands.CONNECTION, "--format", "json")
        assert listed.returncode == 0, listed.stdout + listed.stderr
        return sorted(node["status"] for node in json.loads(listed.stdout)["nodes"])

    def site(self, site: str, *, port: int, ca: Path | None = None, private: Path | None = None) -> list[str]:
        """The site's command; its own port is any that is free."""
        words = commands.supernode(
            f"127.0.0.1:{port}",
            ca=ca or self.keys.ca,
            private=private or self.keys.private(site),
            secret=self.secret,
            trusted=None,
        )
        return [*words, "--port", str(free_port())]

    @contextmanager
    def running(self, command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
        with log.open("wb") as stream:
            process = subprocess.Popen(
                command, cwd=self.folder, env=self.environment, stdout=stream, stderr=subprocess.STDOUT
            )
        try:
            yield process
        finally:
            process.terminate()  # Flower's processes then end their own children
            try:
                process.wait(120)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def refused(self, command: list[str], log: Path) -> str:
        """What a SuperNode says that gives up by itself. Not through a pipe: its children hold that open longer."""
        with self.running(command, log) as process:
            assert process.wait() == 1, log.read_text()
        return log.read_text()


@pytest.fixture(scope="module")
def link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Link]:
    folder = tmp_path_factory.mktemp("link")
    keys = make_keys(folder / "keys", hosts=["fl.example.org"], sites=["alpha", "beta"])
    environment = {
        **os.environ,
        **commands.QUIET,
        "FLWR_HOME": str(folder / "flwr"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}",
    }
    link = Link(keys, free_port(), folder, environment, None)
    (folder / "flwr").mkdir()
    link.secret.write_bytes(b"of a site")
    (folder / "flwr" / "config.toml").write_text(commands.connection(keys, port=link.port))
    log = folder / "superlink.log"
    words = [sys.executable, "-m", "fedclass", "deploy", "link", "--database", "link.db", "--port", str(link.port)]
    with link.running(words, log) as process:
        wait_until(lambda: "the server runs on" in log.read_text() or process.poll() is not None, "the SuperLink")
        assert process.poll() is None, log.read_text()
        with subprocess.Popen(
            [sys.executable, "-c", COPIES],
            cwd=folder,
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as copies:
            link = replace(link, copies=copies)
            for site in keys.sites:
                register(keys, site, link.operator)
            yield link


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    """Keys of another deployment, whose site has the same name."""
    return make_keys(tmp_path_factory.mktemp("stranger") / "keys", hosts=["fl.example.org"], sites=["alpha"])


def test_the_control_port_is_the_operators(link: Link, stranger: Keys, tmp_path: Path) -> None:
    """Another user of the server's machine reaches the port, knows the address and the CA, and gets nothing."""
    shutil.copy(link.folder / "flwr" / "config.toml", tmp_path)
    other = replace(link, environment={**link.environment, "FLWR_HOME": str(tmp_path)}, copies=None)
    write_app(tmp_path / "app", {"out": str(tmp_path / "run")})
    wrong = link.environment | {"FLWR_HOME": str(tmp_path / "wrong")}
    shutil.copytree(link.folder / "flwr", tmp_path / "wrong")
    credentials = tmp_path / "wrong" / "credentials.yaml"
    token = (link.keys.folder / "operator.token").read_bytes()
    told = credentials.read_text()
    guessed = told.replace(base64.b64encode(token).decode(), base64.b64encode(b"x" + token[1:]).decode())
    assert guessed != told
    credentials.write_text(guessed)
    for who, words in (
        (other, ("list", commands.CONNECTION)),
        (other, ("run", str(tmp_path / "app"), commands.CONNECTION)),
        (other, ("supernode", "register", str(stranger.public("alpha")), commands.CONNECTION)),
        (replace(link, environment=wrong, copies=None), ("list", commands.CONNECTION)),
    ):
        done = who.flwr(*words)
        assert done.returncode == 1, words
        assert "authenticat" in (done.stdout + done.stderr).lower(), done.stdout + done.stderr
    url = f"https://127.0.0.1:{link.port}/v1/runtime/acquire-task"
    kind = {"content-type": "application/protobuf"}
    asked = httpx.post(url, verify=ssl.create_default_context(cafile=str(link.keys.ca)), headers=kind, timeout=PATIENCE)
    assert asked.status_code == 401, asked.text
    assert link.flwr("list", commands.CONNECTION).returncode == 0
    private = [*link.folder.glob("link.db*"), *link.keys.folder.glob("*.token"), *link.keys.folder.glob("*.secret")]
    for path in (*private, link.folder / "flwr" / "credentials.yaml"):
        assert path.stat().st_mode & 0o077 == 0, path
    assert len(private) >= 3


def test_a_registered_key_is_let_in(link: Link, tmp_path: Path) -> None:
    log = tmp_path / "alpha.log"
    with link.running(link.site("alpha", port=link.port), log) as process:
        wait_until(lambda: "SuperNode ID:" in log.read_text() or process.poll() is not None, "the SuperNode")
        assert process.poll() is None, log.read_text()
        assert link.states() == ["online", "registered"]
    wait_until(lambda: link.states() == ["offline", "registered"], "the link to know that the site has gone")


def test_no_key_is_refused(link: Link, tmp_path: Path) -> None:
    command = ["flower-supernode", "--superlink", f"127.0.0.1:{link.port}", "--root-certificates", str(link.keys.ca)]
    said = link.refused([*command, "--port", str(free_port())], tmp_path / "log")
    assert "Exit Code: 305" in said
    assert "[code: 2001] SuperNode authentication is enabled. All SuperNodes must be registered via the CLI." in said


def test_a_key_that_is_not_registered_is_refused(link: Link, stranger: Keys, tmp_path: Path) -> None:
    said = link.refused(link.site("alpha", port=link.port, private=stranger.private("alpha")), tmp_path / "log")
    assert "Exit Code: 305" in said
    assert "[code: 2004] Failed to activate SuperNode." in said


def test_a_site_refuses_a_server_of_another_ca(link: Link, stranger: Keys, tmp_path: Path) -> None:
    said = link.refused(link.site("beta", port=link.port, ca=stranger.ca), tmp_path / "log")
    assert "Exit Code: 305" in said
    assert "CERTIFICATE_VERIFY_FAILED" in said


def test_plain_text_is_refused(link: Link, tmp_path: Path) -> None:
    command = ["flower-supernode", "--superlink", f"127.0.0.1:{link.port}", "--insecure", "--max-retries", "1"]
    said = link.refused([*command, "--port", str(free_port())], tmp_path / "log")
    assert "Exit Code: 305" in said
    assert "SuperNode ID:" not in said


@pytest.mark.skipif(NGINX is None, reason="needs nginx; to have it: apt-get install nginx")
def test_the_proxy_lets_sites_in_and_nobody_else(link: Link, stranger: Keys, tmp_path: Path) -> None:
    port = free_port()
    text = NGINX_CONF.read_text()
    for old, new in (
        ("/etc/fedclass/keys", str(link.keys.folder)),
        ("/var/log/nginx/fedclass.log", str(tmp_path / "access.log")),
        ("listen 8443", f"listen 127.0.0.1:{port}"),
        ("https://127.0.0.1:8000", f"https://127.0.0.1:{link.port}"),
    ):
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "nginx.conf").write_text(text)
    proxied = "proxied"
    with (link.folder / "flwr" / "config.toml").open("a") as config:
        config.write(commands.connection(link.keys, port=port).replace(commands.CONNECTION, proxied, 1))

    assert NGINX is not None
    here = f"daemon off; pid {tmp_path}/nginx.pid;"
    nginx = [NGINX, "-p", str(tmp_path), "-e", "error.log", "-c", str(tmp_path / "nginx.conf"), "-g", here]
    with ExitStack() as stack:
        stack.enter_context(link.running(nginx, tmp_path / "nginx.out"))
        wait_until(lambda: accepts(port), "nginx")
        log = tmp_path / "beta.log"
        process = stack.enter_context(link.running(link.site("beta", port=port), log))
        wait_until(lambda: "SuperNode ID:" in log.read_text() or process.poll() is not None, "the SuperNode")
        assert process.poll() is None, log.read_text()
        assert "online" in link.states()

        said = link.refused(link.site("alpha", port=port, private=stranger.private("alpha")), tmp_path / "log")
        assert "[code: 2004] Failed to activate SuperNode." in said
        for words in (
            ("supernode", "register", str(stranger.public("alpha")), proxied),
            ("list", proxied),
        ):
            done = link.flwr(*words)
            assert done.returncode == 1
            assert "403 Forbidden" in done.stderr
    paths = {line.split()[6] for line in (tmp_path / "access.log").read_text().splitlines() if '" 200 ' in line}
    assert "/v1/fleet/activate-node" in paths
    assert all(path.startswith("/v1/fleet/") for path in paths)


@pytest.mark.release
def test_a_key_is_replaced_and_a_site_removed(link: Link, tmp_path: Path) -> None:
    """The last test of this module: alpha's key is another one then, and beta is out."""
    before = registered_nodes(link.keys.folder)
    assert before is not None
    stolen = tmp_path / "stolen"
    shutil.copy(link.keys.private("alpha"), stolen)
    private = rotate(link.keys, "alpha", link.operator)
    remove(link.keys, "beta", link.operator)
    after = registered_nodes(link.keys.folder)
    assert after is not None
    assert after["alpha"] not in (None, before["alpha"])
    assert after["beta"] is None
    assert private.read_bytes() != stolen.read_bytes()
    ahead = ahead_of(f"127.0.0.1:{link.port}", str(link.keys.ca))
    assert ahead is not None
    assert clock_fault(ahead) is None
    assert "clock skew: this site's clock is 6" in str(clock_fault(60 + abs(ahead)))
    assert "s behind the server's" in str(clock_fault(-400))
    for old in (stolen, link.keys.private("beta")):
        said = link.refused(link.site("alpha", port=link.port, private=old), tmp_path / f"{old.name}.log")
        assert "[code: 2004] Failed to activate SuperNode." in said
    log = tmp_path / "alpha.log"
    with link.running(link.site("alpha", port=link.port), log) as process:
        wait_until(lambda: "SuperNode ID:" in log.read_text() or process.poll() is not None, "the SuperNode")
        assert f"SuperNode ID: {after['alpha']}" in log.read_text()
    with pytest.raises(ConfigError, match="its key is registered already"):
        register(link.keys, "alpha", link.operator)
    with pytest.raises(ConfigError, match="no key is registered under this name; there are alpha"):
        remove(link.keys, "beta", link.operator)
