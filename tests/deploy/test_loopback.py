"""Real SuperLinks, SuperNodes and processes on this machine: the same bits, through faults; and what sites send."""

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the extra [flower]")

from fedclass.deploy import commands
from fedclass.deploy.app import write_app
from fedclass.deploy.loopback import Loopback
from fedclass.deploy.site_store import FederationFolder
from fedclass.deploy.split import split
from fedclass.deploy.wiretap import Wiretap
from fedclass.experiment.checkpoint import Checkpoints
from fedclass.experiment.config import Experiment
from fedclass.experiment.launch import run_one
from fedclass.runs.events import Event, RoundFinished, RunResumed, UpdateMissing, read_events
from fedclass.runs.layout import RunDirectory
from fedclass.runs.summary import Result
from waiting import wait_until

Tiny = Callable[..., Experiment]

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes to kill through /proc"),
]


def prepared(tmp_path: Path, experiment: Experiment, **config: Any) -> tuple[dict[str, dict[str, Any]], Path]:
    """Sites with the recipe's shares, and an app that learns the recipe."""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(experiment.to_toml())
    sites = {
        path.stem: {"data": str(path), "store": str(tmp_path / "stores" / path.stem), "holdout": 0.0}
        for path in split(experiment, tmp_path / "data")
    }
    usual = {"recipe": str(recipe), "out": str(tmp_path / "there"), "classes-from": "recipe", "min-sites": len(sites)}
    write_app(tmp_path / "app", {**usual, **{key.replace("_", "-"): value for key, value in config.items()}})
    return sites, tmp_path / "app"


def checkpoints(out: Path) -> int:
    """How many have been written: one after each round, and one after each task."""
    return max(Checkpoints(RunDirectory(out).checkpoints).numbers(), default=0)


def rounds_done(out: Path) -> int:
    return len(events(out, RoundFinished)) if RunDirectory(out).events.exists() else 0


def events(out: Path, kind: type[Event]) -> list[Any]:
    return [event for event in read_events(RunDirectory(out).events) if isinstance(event, kind)]


def statuses(federation: Loopback) -> dict[str, str]:
    """Of all runs, by Flower's numbers of them."""
    listed = json.loads(federation.flwr("list", commands.CONNECTION, "--format", "json"))
    return {str(run["run-id"]): str(run["status"]) for run in listed["runs"]}


def processes(word: str, below: Path) -> list[int]:
    """Of those with this word in their command line and this folder in their environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace")
            environment = (entry / "environ").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if word in words and str(below) in environment:
            found.append(int(entry.name))
    return found


ATTACK = """
[project]
name = "attack"
version = "1.0.0"
description = ""
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedclass"

[tool.flwr.app.components]
serverapp = "boss:app"
clientapp = "thief:app"
"""
ATTACKERS_SERVER = """
import json, pathlib
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    words = RecordDict({{"c": ConfigRecord({{"a": 1}})}})
    asked = [Message(words, node, "query") for node in grid.get_node_ids()]
    answers = list(grid.send_and_receive(asked, timeout=600))
    part = pathlib.Path({here!r}) / "answers.part"
    part.write_text(json.dumps([m.error.reason if m.has_error() else "" for m in answers]))
    part.rename(part.with_suffix(".json"))
"""
ATTACKERS_CLIENT = """
import pathlib
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

(pathlib.Path({here!r}) / "executed").touch()
app = ClientApp()


@app.query()
def read_everything(message, context):
    images = [path.read_bytes().hex() for path in pathlib.Path({here!r}).rglob("*.npz")]
    return Message(RecordDict({{"c": ConfigRecord({{"loot": images}})}}), reply_to=message)
"""


def attack(folder: Path) -> Path:
    """An app with a ClientApp of its own, which leaves a mark wherever it is imported and sends a site's images."""
    folder.mkdir()
    (folder / "pyproject.toml").write_text(ATTACK)
    (folder / "boss.py").write_text(ATTACKERS_SERVER.format(here=str(folder.parent)))
    (folder / "thief.py").write_text(ATTACKERS_CLIENT.format(here=str(folder.parent)))
    return folder


@pytest.mark.release
def test_the_same_bits_although_server_and_link_are_killed(tiny: Tiny, tmp_path: Path) -> None:
    """kill -9 of the ServerApp in the first task, of the SuperLink in the second; each run again goes on.

    One of the two sites takes part in each round, as in the simulation.
    """
    settings = ("partition.clients=2", "train.rounds=3", "server.participation=0.5", "evaluation.every=0")
    experiment = tiny(*settings, method="fedclass")
    alone = run_one(experiment, tmp_path / "alone", engine="inprocess", reuse=False)
    sites, app = prepared(tmp_path, experiment)
    out, root = tmp_path / "there", tmp_path / "flower"
    with Loopback(root, sites) as federation:
        first = federation.submit(app)
        wait_until(lambda: checkpoints(out) >= 1, "the first round")
        (server,) = processes("flwr-serverapp", root)
        os.kill(server, signal.SIGKILL)
        second = federation.submit(app)
        wait_until(lambda: checkpoints(out) >= 5, "the second task")
        federation.kill("superlink", alone=True)  # its ServerApp lives on for a while
        federation.start_link()
        third = federation.submit(app)
        federation.follow(third, out, lambda _: None)
        wait_until(lambda: statuses(federation)[third].startswith("finished"), "the end of the third run")
        ended = statuses(federation)
        assert ended.pop(third) == "finished:completed"
        assert set(ended) == {first, second}
        assert "finished:completed" not in ended.values()
    there = Result.read(out).summary
    assert there["weights_sha256"] == alone["weights_sha256"]
    assert there["accuracy_matrix"] == alone["accuracy_matrix"]
    assert len(events(out, RunResumed)) == 2
    for path in (out, *out.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path  # no other user of the server's machine can read it
    wait_until(lambda: processes("flower-", root) + processes("flwr-", root) == [], "the end of all processes")


@pytest.mark.slow
def test_rounds_go_on_while_sites_come_and_go(tiny: Tiny, tmp_path: Path) -> None:
    """One joins late and fails later, one is killed and comes back, one sleeps past the deadline: nobody is waited for.

    No exemplar is among the bytes that sites have sent, in plain text here so that they can be read. And before all of
    it, somebody who reaches the control port sends an app with code of their own, which no site executes.
    """
    experiment = tiny("train.rounds=4", "train.local_epochs=2", "evaluation.every=0", "stream.tasks=4")
    sites, app = prepared(tmp_path, experiment, deadline_seconds=60.0, poll_seconds=1.0, pin_nodes=False, min_sites=2)
    out, root = tmp_path / "there", tmp_path / "flower"
    with Wiretap(keep=True) as tap:
        federation = Loopback(root, sites, secure=False, door=tap.port, asleep=["site-002"])
        tap.target = federation.port
        with federation:
            for name in ("site-000", "site-001"):
                wait_until(lambda name=name: "connected to" in federation.log(name).read_text(), name)
            federation.submit(attack(tmp_path / "attack"))
            wait_until((tmp_path / "answers.json").exists, "answers to the attack")
            answers = json.loads((tmp_path / "answers.json").read_text())
            assert len(answers) == 2
            assert all("this site runs fedclass's own app only" in answer for answer in answers)
            assert processes("flwr-clientapp", root) == []
            number = federation.submit(app)
            wait_until(lambda: rounds_done(out) == 1, "the first round")
            federation.kill("site-001")
            federation.start_site("site-002")
            wait_until(lambda: rounds_done(out) == 2, "the second round")
            federation.start_site("site-001")
            sleeper = federation.processes["site-000"].pid  # does the work; Flower's own processes stay awake
            os.kill(sleeper, signal.SIGSTOP)
            wait_until(lambda: rounds_done(out) == 3, "the third round")
            os.kill(sleeper, signal.SIGCONT)
            Path(sites["site-002"]["data"]).write_bytes(b"damaged")  # its job of the fourth round raises
            federation.follow(number, out, lambda _: None)
    assert not (tmp_path / "executed").exists()
    for name in ("site-000", "site-001"):
        said = federation.log(name).read_text()
        assert said.count("REFUSED, nothing of it was executed: it brings 'boss.py' and 1 other files") == 1
        assert re.search(r"asked for federation-\w+: training, task 1, round 1; sent \d+ bytes: number of images", said)
        assert "INFO" not in said  # Flower's own words are elsewhere
    took_part = [set(event.clients) for event in events(out, RoundFinished)]
    assert took_part[0] == {0, 1}
    assert 1 not in took_part[1]
    assert 0 not in took_part[2]
    reasons = {(event.round, event.client): event.reason for event in events(out, UpdateMissing)}
    assert reasons[0, 2] == "site site-002 is not connected"
    assert "site-001" in reasons[1, 1]
    assert reasons[2, 0] == "site site-000: no answer within 60 s"
    assert reasons[3, 2] == "site site-002: cannot use its images; its own log says why"
    assert 2 not in took_part[3]
    assert {client for clients in took_part for client in clients} == {0, 1, 2}

    sent = b"".join(tap.sent)
    update = Result.read(out).summary["bytes_up"]
    assert len(sent) > update  # all of it is there ...
    name = b"head.weight"
    assert sent.count(name) >= 6  # ... and readable
    looked_for = 0
    for settings in sites.values():
        (folder,) = Path(settings["store"]).glob("federation-*")
        kept = FederationFolder(folder)
        for image in [image for tasks in kept.states() for image in kept.state(tasks).images]:
            looked_for += 1
            assert image.tobytes()[:64] not in sent
            assert (image.astype(np.float32) / 255).tobytes()[:64] not in sent
    assert looked_for >= 8
