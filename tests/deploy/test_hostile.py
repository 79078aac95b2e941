"""Neither side believes the other: hostile updates are rejected by the server, hostile jobs by the site."""

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra [flower]")

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from safetensors.torch import load, save
from torch import Tensor

from deploy.test_sites import Federation, header
from fedclass.deploy.answer import SOCKET, answer, respond, site_of, worker
from fedclass.deploy.settings import FILE_NAME
from fedclass.engines.flower import codec
from fedclass.engines.flower.frames import Frame
from fedclass.errors import ClientError, ConfigError
from fedclass.runs.events import RoundFinished, UpdateMissing, UpdateRejected, Warned
from fedclass.wire import Job, Plan

Weights = Mapping[str, Tensor]


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    made = Federation(tmp_path)
    for name in ("good", "hostile"):
        made.site(name, {"ant": 20, "bee": 20})
    return made


# What a hostile site may answer.


def with_weights(change: Callable[[dict[str, Tensor]], Weights]) -> Callable[[Frame], Frame]:
    def forged(frame: Frame) -> Frame:
        return Frame(frame.header, {**frame.tensors, "weights": save(dict(change(load(frame.tensors["weights"]))))})

    return forged


def with_update(**changes: Any) -> Callable[[Frame], Frame]:
    return lambda frame: Frame({**frame.header, "update": {**frame.header["update"], **changes}}, frame.tensors)


def head(value: float) -> Callable[[dict[str, Tensor]], Weights]:
    return lambda weights: {**weights, "head.weight": torch.full_like(weights["head.weight"], value)}


FORGED: dict[str, tuple[Callable[[Frame], Frame], str]] = {
    "NaN": (with_weights(head(float("nan"))), "head.weight holds NaN or infinite values"),
    "infinite": (with_weights(head(float("inf"))), "head.weight holds NaN or infinite values"),
    "huge": (with_weights(head(1e30)), "head.weight holds values beyond"),
    "another shape": (with_weights(lambda w: {**w, "head.bias": torch.zeros(2, 3)}), "head.bias has shape (2, 3)"),
    "more classes": (
        with_weights(
            lambda w: {**w, "head.weight": torch.zeros(3, w["head.weight"].shape[1]), "head.bias": torch.zeros(3)}
        ),
        "instead of",
    ),
    "another dtype": (with_weights(lambda w: {n: t.double() for n, t in w.items()}), "is torch.float64"),
    "a tensor less": (with_weights(lambda w: {n: t for n, t in w.items() if n != "head.bias"}), "names differ"),
    "a tensor more": (with_weights(lambda w: {**w, "images": torch.zeros(4)}), "names differ"),
    "another client": (with_update(client=0), "answers for client 0"),
    "an earlier round": (with_update(round=-1), "answers for client 1, task 0, round -1"),
    "many examples": (with_update(examples=2**60), f"claims {2**60} examples"),
    "no examples": (with_update(examples=0), "claims 0 examples"),
    "another metric": (with_update(metrics={"loss": 1.0, "samples": 3.0, "secret": 4.0}), "reports"),
    "text for a number": (with_update(examples="many"), "examples"),
    "a field more": (with_update(note="hello"), "has other fields than it should (note)"),
    "other tensors": (
        lambda f: Frame(f.header, {**f.tensors, "loot": save({"x": torch.ones(1)})}),
        "nobody asked for: loot",
    ),
    "extras": (lambda f: Frame(f.header, {**f.tensors, "extras": save({"x": torch.ones(1)})}), "extras differ"),
    "no safetensors": (
        lambda f: Frame(f.header, {**f.tensors, "weights": b"\x80\x04pickle"}),
        "weights: cannot be read",
    ),
    "an announcement": (
        lambda _: Frame(
            {
                "answer": "announcement",
                "announcement": {"site": "x", "classes": {}, "fresh": {}, "image": None, "machine": {}},
            }
        ),
        "something else than an update",
    ),
    "nonsense": (lambda _: Frame({"answer": "shell"}), "answers with 'shell'"),
}


def test_hostile_updates_are_left_out_with_a_reason(federation: Federation) -> None:
    """One kind a round; each goes on with the good site alone."""

    def tamper(message: Message, reply: Message) -> Message:
        job = header(message).get("job", {})
        if job.get("client") == 1 and job.get("phase") == "train":
            forge, _ = list(FORGED.values())[job["round"]]
            reply.content = forge(Frame.from_record(reply.content)).to_record()
        return reply

    federation.grid.tamper = tamper
    settings = "train.local_epochs=1 train.participation=1.0 memory.per_client=4 evaluation.every=0"
    federation.run(tasks=1, set=f"train.rounds={len(FORGED)} {settings}")
    assert [event.clients for event in federation.events(RoundFinished)] == [[0]] * len(FORGED)
    told = [*federation.events(UpdateRejected), *federation.events(UpdateMissing)]
    reasons = {event.round: event.reason for event in told if event.client == 1}
    for number, (kind, (_, reason)) in enumerate(FORGED.items()):
        assert reason in reasons[number], kind
    assert len(told) == len(FORGED)


def test_a_site_cannot_answer_for_another(federation: Federation) -> None:
    """Not even if its answer is looked at first: the other one's own answer still counts."""

    def tamper(message: Message, reply: Message) -> Message:
        job = header(message).get("job", {})
        if job.get("client") == 0 and job.get("phase") == "train":
            reply.content = with_update(client=1)(Frame.from_record(reply.content)).to_record()
        return reply

    federation.grid.tamper = tamper
    federation.run(tasks=1)
    assert [event.clients for event in federation.events(RoundFinished)] == [[1], [1]]
    assert {event.reason for event in federation.events(UpdateMissing)} == {"site good: answers for client 1"}


def test_a_replayed_round_is_rejected(federation: Federation) -> None:
    kept: list[RecordDict] = []

    def tamper(message: Message, reply: Message) -> Message:
        job = header(message).get("job", {})
        if job.get("client") == 1 and job.get("phase") == "train":
            kept.append(reply.content)
            reply.content = kept[0]
        return reply

    federation.grid.tamper = tamper
    federation.run(tasks=1)
    assert [event.clients for event in federation.events(RoundFinished)] == [[0, 1], [0]]
    (rejected,) = federation.events(UpdateRejected)
    assert rejected.reason == "answers for client 1, task 0, round 0"


def test_a_name_belongs_to_the_node_that_used_it_first(federation: Federation) -> None:
    """With keys a node keeps its number, so that another one cannot speak for it."""
    impostor = {**federation.grid.nodes[100], "store": str(federation.root / "impostor")}

    def tamper(_: Message, reply: Message) -> Message:
        federation.grid.nodes[999] = impostor
        return reply

    federation.grid.tamper = tamper
    federation.run(tasks=1)
    assert all(message.metadata.dst_node_id != 999 or "job" not in header(message) for message in federation.grid.sent)


def test_a_name_belongs_to_its_node_also_if_the_server_begins_again(federation: Federation) -> None:
    """Whoever it meets before it has read its checkpoint."""

    def stop(message: Message, reply: Message) -> Message:
        if header(message).get("job", {}).get("round") == 1:
            raise RuntimeError("power cut")
        return reply

    federation.grid.tamper = stop
    with pytest.raises(RuntimeError, match="power cut"):
        federation.run(tasks=1)
    federation.grid.tamper = lambda _, reply: reply
    federation.grid.nodes[7] = {**federation.grid.nodes[100], "store": str(federation.root / "impostor")}
    federation.grid.sent.clear()
    federation.run(tasks=1)
    asked = {message.metadata.dst_node_id for message in federation.grid.sent if "job" in header(message)}
    assert asked == {100, 101}


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"site": "../evil"}, "calls itself '../evil'"),
        ({"fresh": {"ghost": 3}}, "classes that do not fit together"),
        ({"classes": {"ant": -5}, "fresh": {}}, "impossible class name or count"),
        ({"classes": {"": 5}, "fresh": {}}, "impossible class name or count"),
        ({"classes": "all"}, "classes"),
        ({"classes": {"ant": 2**80}, "fresh": {"ant": 2**80}}, "impossible class name or count"),
        ({"classes": {"\x1b[2J": 5}, "fresh": {}}, "impossible class name or count"),
        ({"classes": {"\ud800": 5}, "fresh": {}}, "impossible class name or count"),
        ({"image": [-8, 8, 3]}, "images of an impossible size"),
        ({"image": [8, 8, 7]}, "images of an impossible size"),
        ({"image": [10**6, 10**6, 3]}, "images of an impossible size"),
        ({"machine": {"python": "3" * 2000}}, "too much about its machine"),
    ],
)
def test_a_hostile_announcement_keeps_a_site_out(federation: Federation, said: dict[str, Any], reason: str) -> None:
    federation.site("third", {"ant": 20})
    federation.grid.nodes[101]["name"] = "a-hostile"  # the first by name, and the size of images is the first one's

    def tamper(message: Message, reply: Message) -> Message:
        if header(message)["ask"] == "announcement" and message.metadata.dst_node_id == 101:
            frame = Frame.from_record(reply.content)
            reply.content = Frame(
                {**frame.header, "announcement": {**frame.header["announcement"], **said}}
            ).to_record()
        return reply

    federation.grid.tamper = tamper
    federation.run(tasks=1)
    assert any(reason in event.message for event in federation.events(Warned))
    assert all("hostile" not in json.dumps(asdict(e)) for e in federation.events(RoundFinished))


# What a hostile server may ask.


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Frame, dict[str, Any]]:
    """A train job as a good server sends it, and the configuration of the node that gets it."""
    frames: list[Frame] = []
    federation = Federation(tmp_path_factory.mktemp("asked"))
    for name in ("good", "other"):
        federation.site(name, {"ant": 20, "bee": 20})

    def tamper(message: Message, reply: Message) -> Message:
        if "job" in header(message):
            frames.append(Frame.from_record(message.content))
        return reply

    federation.grid.tamper = tamper
    federation.run(tasks=1)
    return frames[0], federation.grid.nodes[100]


def changed(frame: Frame, part: str, **changes: Any) -> Frame:
    return Frame({**frame.header, part: {**frame.header[part], **changes}}, frame.tensors)


def recipe(frame: Frame, table: str, **changes: Any) -> Frame:
    tables = frame.header["plan"]["recipe"]
    return changed(frame, "plan", recipe={**tables, table: {**tables[table], **changes}})


HOSTILE: dict[str, Callable[[Frame], Frame]] = {
    "asks for 'read_file'": lambda _: Frame({"ask": "read_file", "path": "/etc/passwd"}),
    "asks for None": lambda _: Frame({}),
    "has other fields than it should (path)": lambda f: changed(f, "job", path="/etc/passwd"),
    "has other fields than it should (data)": lambda f: changed(f, "plan", data="/etc"),
    "carries tensors that nobody asked for": lambda f: Frame(f.header, {**f.tensors, "more": b""}),
    "phase": lambda f: changed(f, "job", phase="upload"),
    "weights: cannot be read": lambda f: Frame(f.header, {"weights": b"cos\nsystem\n"}),
    "'os:system'": lambda f: recipe(f, "model", name="os:system"),
    "'subprocess:Popen'": lambda f: recipe(f, "method", name="subprocess:Popen"),
    "federation": lambda f: changed(f, "plan", federation="../../home"),
}


@pytest.mark.parametrize("reason", HOSTILE)
def test_a_hostile_job_is_refused(asked: tuple[Frame, dict[str, Any]], reason: str) -> None:
    """It may ask for nothing but what wire.py names."""
    frame, config = asked
    answer = respond(HOSTILE[reason](frame), lambda: site_of(config))
    assert answer.header["answer"] == "refused"
    assert reason in answer.header["reason"]
    assert respond(frame, lambda: site_of(config)).header["answer"] == "update"  # as it was, it would do


@pytest.mark.parametrize(
    "record",
    [
        RecordDict(),
        RecordDict({"fedclass": ConfigRecord({"json": "{}"})}),
        RecordDict({"fedclass": ConfigRecord({"json": "{"}), "tensors": ArrayRecord()}),
        RecordDict({"fedclass": ConfigRecord({"json": "[1]"}), "tensors": ArrayRecord()}),
        RecordDict({"fedclass": ConfigRecord({"json": "[" * 100_000}), "tensors": ArrayRecord()}),
        RecordDict({"fedclass": ConfigRecord({"json": "{}", "x": 1}), "tensors": ArrayRecord()}),
        RecordDict({"fedclass": MetricRecord({"x": 1}), "tensors": ArrayRecord()}),
    ],
)
def test_what_is_no_frame_is_refused(record: RecordDict) -> None:
    with pytest.raises(ClientError, match="not a message of fedclass"):
        Frame.from_record(record)


# Frames.


def test_a_frame_comes_back_as_it_was() -> None:
    plan = Plan("f", {"seed": 1}, (0.5,), (0.25,), (8, 8, 3), ("ä", "b"), (2,), None)
    job = Job(3, 0, 1, "train", {"w": torch.randn(2, 3), "n": torch.tensor(5)}, {"w": torch.ones(1)})
    frame = codec.job(plan, job, with_teacher=True)
    for again in (Frame.from_record(frame.to_record()), Frame.from_bytes(frame.to_bytes())):
        read = codec.read_ask(again)
        assert isinstance(read, tuple)
        assert read[0] == plan
        assert replace(read[1], weights={}, teacher=None) == replace(job, weights={}, teacher=None)
        assert torch.equal(read[1].weights["w"], job.weights["w"])
        assert read[1].weights["n"].shape == ()
        assert torch.equal(read[1].teacher["w"], torch.ones(1))
    assert "teacher" not in codec.job(plan, job, with_teacher=False).tensors


def test_a_warm_worker_gives_the_same_answer(asked: tuple[Frame, dict[str, Any]], tmp_path: Path) -> None:
    frame, config = asked
    said: list[str] = []
    cold = answer(frame, config)
    with worker(site_of(config), said.append):
        warm = answer(frame, config)
        refused = answer(Frame({"ask": "shell"}), config)
    assert warm == cold
    assert refused.header["answer"] == "refused"
    assert "train 0.0" in said[0]
    assert "refused, asks for 'shell'" in said[1]
    assert answer(frame, config) == cold  # once the worker is gone
    assert np.array_equal(list(tmp_path.rglob("*.sock")), [])


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*_: object) -> Any:
        raise error

    return fail


def test_a_worker_outlives_whatever_goes_wrong(
    asked: tuple[Frame, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If its thread ended, all who ask would wait for ever."""
    frame, config = asked
    said: list[str] = []
    site = site_of(config)
    with worker(site, said.append):
        with monkeypatch.context() as broken:
            broken.setattr(site, "run", failing(ZeroDivisionError("ward 7")))
            reason = answer(frame, config).header["reason"]
        assert reason == "failed (ZeroDivisionError); its own log says why"
        assert "ward 7" in said[0]
        with monkeypatch.context() as broken:
            broken.setattr("fedclass.deploy.answer.summary", failing(ValueError("no summary")))
            with pytest.raises(ClientError, match="worker ended while it was asked"):
                answer(frame, config)
        assert answer(frame, config).header["answer"] == "update"


def test_a_loss_that_is_no_number_is_said(asked: tuple[Frame, dict[str, Any]]) -> None:
    frame, config = asked
    wild = recipe(frame, "train", learning_rate=1e30, local_epochs=3)
    with worker(site_of(config), lambda _: None):
        for _ in range(2):
            assert "train.learning_rate may be too high" in answer(wild, config).header["reason"]


@pytest.mark.parametrize("warm", [True, False])
def test_names_of_files_stay_at_the_site(
    asked: tuple[Frame, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str], warm: bool
) -> None:
    frame, config = asked
    bad = tmp_path / "photos" / "ant" / "jane-doe-1970.png"
    bad.parent.mkdir(parents=True)
    bad.write_bytes(b"no image")
    config = {**config, "data": str(tmp_path / "photos")}
    said: list[str] = []
    with worker(site_of(config), said.append) if warm else contextlib.nullcontext():
        refused = answer(frame, config)
    assert refused.header == {
        "answer": "refused",
        "reason": "cannot use its images; its own log says why",
        "teacher": False,
    }
    assert "jane-doe-1970.png" in (said[0] if warm else capsys.readouterr().err)


def test_the_server_cannot_write_into_a_sites_log(asked: tuple[Frame, dict[str, Any]]) -> None:
    frame, config = asked
    said: list[str] = []
    with worker(site_of(config), said.append):
        answer(changed(frame, "job", phase="train\n\x1b[2Jall is well" + 10_000 * "!"), config)
    (line,) = said
    assert line.isprintable()
    assert len(line) < 3000


def test_a_federation_cannot_take_the_place_of_the_workers_door() -> None:
    assert not FILE_NAME.fullmatch(SOCKET)


def test_a_store_whose_name_is_too_long_for_a_socket_works_without(
    asked: tuple[Frame, dict[str, Any]], tmp_path: Path
) -> None:
    frame, config = asked
    config = {**config, "store": str(tmp_path / ("long" * 25))}
    said: list[str] = []
    with worker(site_of(config), said.append):
        assert answer(frame, config).header["answer"] == "update"
    assert "too long a name for a socket" in said[0]


def test_a_store_has_one_worker(asked: tuple[Frame, dict[str, Any]], tmp_path: Path) -> None:
    frame, config = asked
    said: list[str] = []
    with worker(site_of(config), said.append):
        with (
            pytest.raises(ConfigError, match="another `fedclass site run` is using it"),
            worker(site_of(config), lambda _: None),
        ):
            pass
        assert answer(frame, config).header["answer"] == "update"
        assert len(said) == 1
    (tmp_path / "file").touch()
    config = {**config, "store": str(tmp_path / "file" / "store")}
    with pytest.raises(ConfigError, match="cannot be used"), worker(site_of(config), lambda _: None):
        pass
