"""Nothing but fedclass's own code is executed for a server: the executor at a real Runtime API of Flower's."""

import hashlib
import io
import socket
import threading
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra [flower]")

import tomli_w
import uvicorn
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.cli.build import build_fab_from_disk, build_fab_from_files
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity

from fedclass.deploy import executor
from fedclass.deploy.app import app_flaw, write_app
from fedclass.deploy.executor import FLOWER, Executor, check_flower
from fedclass.engines.flower.frames import Frame
from fedclass.errors import ConfigError
from waiting import PATIENCE, wait_until

pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's own

SECRET = b"known to the site alone"


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """An app of `fedclass deploy init`, as Flower packs it."""
    folder = tmp_path_factory.mktemp("app") / "first"
    write_app(folder, {"out": "/runs/first", "next-task": "manual", "min-sites": 3})
    return build_fab_from_disk(folder)


def test_the_example_is_what_deploy_init_writes_and_flower_builds_it(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "flower-app"
    stored = tomllib.loads((example / "pyproject.toml").read_text())
    write_app(tmp_path / "flower-app", stored["tool"]["flwr"]["app"]["config"])
    assert (tmp_path / "flower-app" / "pyproject.toml").read_text() == (example / "pyproject.toml").read_text()
    assert app_flaw(build_fab_from_disk(example)) is None


def packed(**files: bytes) -> bytes:
    """A zip file of any files; `_` in names stands for a dot."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr({"pyproject": "pyproject.toml", "content": ".info/CONTENT"}.get(name, name), data)
    return content.getvalue()


def project(app: bytes) -> dict[str, Any]:
    with zipfile.ZipFile(io.BytesIO(app)) as archive:
        return tomllib.loads(archive.read("pyproject.toml").decode())


def evil(ours: bytes, ref: str = "evil.client:app") -> bytes:
    """An app with a ClientApp of its own, as an attacker would have Flower build it."""
    content = project(ours)
    content["tool"]["flwr"]["app"]["components"]["clientapp"] = ref
    return build_fab_from_files({"pyproject.toml": tomli_w.dumps(content).encode(), "evil/client.py": b"app = None"})[0]


# Which apps are ours.


def test_apps_of_deploy_init_are_accepted(ours: bytes, tmp_path: Path) -> None:
    assert app_flaw(ours) is None
    write_app(tmp_path / "Ward 7 (ä)", {"out": "/x", "set": "train.rounds=3", "pin-nodes": False})
    assert app_flaw(build_fab_from_disk(tmp_path / "Ward 7 (ä)")) is None


def test_every_other_app_is_refused(ours: bytes) -> None:
    """Also one that says it is ours and brings a package of our name."""
    content = project(ours)

    def told(change: Callable[[dict[str, Any]], object], **files: bytes) -> str:
        changed = tomllib.loads(tomli_w.dumps(content))
        change(changed)
        flaw = app_flaw(packed(pyproject=tomli_w.dumps(changed).encode(), content=b"", **files))
        assert flaw is not None
        return flaw

    def flwr(table: dict[str, Any]) -> dict[str, Any]:
        return table["tool"]["flwr"]["app"]  # type: ignore[no-any-return]

    assert "it brings 'evil/client.py'" in str(app_flaw(evil(ours)))
    assert told(lambda _: None, **{"fedclass/__init__.py": b""}) == "it brings 'fedclass/__init__.py'"
    assert told(lambda _: None, **{"../x.pth": b"", "a.py": b""}) == "it brings '../x.pth' and 1 other files"
    assert "names other code" in told(lambda table: flwr(table)["components"].update(clientapp="os:system"))
    assert "names other code" in told(lambda table: flwr(table)["components"].update(agentapp="x:y"))
    for change in (
        lambda table: table["project"].update(dependencies=["evil"]),
        lambda table: table["project"].update(scripts={"x": "y:z"}),
        lambda table: flwr(table).update(hooks="x:y"),
        lambda table: table.update({"build-system": {"requires": ["evil"]}}),
    ):
        assert "differs from what `fedclass deploy init` writes" in told(change)
    assert "values of other kinds" in told(lambda table: flwr(table)["config"].update(x=["y"]))
    assert "name or version" in told(lambda table: table["project"].update(name="../../x"))
    assert "cannot be read" in told(lambda table: table.pop("project"))
    assert "cannot be read" in str(app_flaw(b"no archive"))
    assert "cannot be read" in str(app_flaw(packed(pyproject=b"\xff[", content=b"")))
    assert "once each" in str(app_flaw(packed(pyproject=b"")))
    assert "larger than" in str(app_flaw(packed(pyproject=b" " * (2 << 20), content=b"")))
    for cut in range(0, len(ours), 7):  # half files, and files with a byte changed
        assert app_flaw(ours[:cut]) is not None
        app_flaw(ours[:cut] + bytes([ours[cut] ^ 255]) + ours[cut + 1 :])


# The executor.


class Node:
    """A SuperNode's own state and Runtime API, to which messages come as from a SuperLink."""

    def __init__(self) -> None:
        # Slow to import, and every test worker imports every module of tests.
        from flwr.supercore.object_store import ObjectStoreFactory
        from flwr.supernode.main import create_app
        from flwr.supernode.nodestate import NodeStateFactory

        objects = ObjectStoreFactory()
        factory = NodeStateFactory(objectstore_factory=objects)
        self.state, self.objects = factory.state(), objects.store()
        self.state.set_node_id(1)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        app = create_app(state_factory=factory, superexec_auth_secret=SECRET)
        settings = uvicorn.Config(app, host="127.0.0.1", port=self.port, log_level="error", ws="none")
        self.server = uvicorn.Server(settings)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        wait_until(lambda: self.server.started, "the server")
        self.runs = 0

    def ask(self, app: bytes, content: RecordDict, kind: str = "") -> Message:
        """What comes back when a run with this app sends this."""
        self.send(app, content, kind)
        replies: list[Message] = []
        wait_until(lambda: bool(replies.extend(self.state.get_messages_legacy(is_reply=True)) or replies), "a reply")
        return replies[0]

    def send(self, app: bytes, content: RecordDict, kind: str = "", *, arrives: bool = True) -> None:
        """arrives: else the run ends before the message has come whole, as when its server is killed."""
        from flwr.supernode.start_client_internal import _pull_and_store_message

        self.runs += 1
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = self.runs, 1, 1
        message = Message(content, 1, "train")
        message.metadata.__dict__["_message_id"] = message.object_id
        pieces = {name: piece.deflate() for name, piece in get_all_nested_objects(message).items()}
        run = Run.create_empty(self.runs)
        run.fab_hash, run.primary_task_type, run.series_id = hashlib.sha256(app).hexdigest(), kind, self.runs
        stored = _pull_and_store_message(
            state=self.state,
            object_store=self.objects,
            node_config={},
            receive=lambda: (message, get_object_tree(message)),
            get_run=lambda _: run,
            get_fab=lambda *_: Fab(run.fab_hash, app, {}),
            pull_object=lambda _, name: pieces[name] if arrives else over(),
            confirm_message_received=lambda *_: None,
            trusted_entities=None,
        )
        assert stored == (self.runs if arrives else None)


def over() -> bytes:
    raise RunNotRunningException


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    made = Node()
    yield made
    made.server.should_exit = True
    made.thread.join(20)


def test_only_fedclass_is_executed_and_the_executor_lives_on(
    ours: bytes, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other apps, other kinds of apps, other messages and failures get an error; the next honest message an answer."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    seen, said = list[Frame](), list[str]()

    def answer(frame: Frame, *, run: int) -> Frame:
        seen.append(frame)
        if frame.header.get("ask") == "failure":
            raise MemoryError(run)
        return Frame({"answer": run})

    honest, foreign = Frame({"ask": "x"}).to_record(), RecordDict({"c": ConfigRecord({"a": 1})})
    with Executor(answer, SECRET, said.append) as works:
        works.port = node.port
        assert not node.ask(ours, honest).has_error()
        refused = [
            node.ask(evil(ours), honest),
            node.ask(evil(ours, ref="fedclass.deploy.client_app:app"), honest),
            node.ask(ours, honest, kind="flwr-agentapp"),
            node.ask(ours, foreign),
        ]
        assert [reply.error.code for reply in refused] == [7, 7, 7, 2]
        assert len(said) == 4
        assert all("REFUSED, nothing of it was executed" in line for line in said)
        assert "run 4: REFUSED, nothing of it was executed: it is an app of another kind (flwr-agentapp)" in said
        assert not node.ask(ours, honest).has_error()
        assert len(seen) == 2
        assert not works.broken.is_set()
        assert node.ask(ours, Frame({"ask": "failure"}).to_record()).error.reason == "failed (MemoryError)"
        assert "MemoryError: 7" in said[-1]
        assert not node.ask(ours, honest).has_error()
        node.send(ours, Frame({"ask": "lost"}).to_record(), arrives=False)
        wait_until(lambda: not node.state.get_tasks(statuses=["pending"]), "that a task is taken")
        assert not node.ask(ours, honest).has_error()  # whoever waits for that message is in nobody's way
    node.send(ours, honest)
    node.state.delete_messages()  # a task without a message cannot be answered
    with Executor(answer, SECRET, said.append) as works:
        works.port = node.port
        assert works.broken.wait(PATIENCE)
    assert not (tmp_path / "flwr").exists()  # where Flower would have unpacked apps


def test_a_task_is_handed_out_to_whoever_knows_the_secret_alone(node: Node) -> None:
    said: list[str] = []
    with Executor(lambda frame, *, run: frame, b"guessed", said.append) as stranger:  # noqa: ARG005
        stranger.port = node.port
        assert stranger.broken.wait(PATIENCE)
    assert "401 Unauthorized" in said[0]


def test_another_version_of_flower_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_flower()
    pin = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert f"flwr=={FLOWER}*" in pin["project"]["optional-dependencies"]["flower"]
    monkeypatch.setattr(executor, "version", lambda _: "1.42.0")
    with pytest.raises(ConfigError, match=r"Flower 1\.42\.0 is installed, and a site runs with 1\.41"):
        check_flower()
