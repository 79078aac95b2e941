"""Neither side believes the other: hostile updates are rejected by the server, hostile jobs by the site."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra [flower]")

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from safetensors.torch import load, load_file, save
from torch import Tensor

from deploy.test_sites import Federation, header
from fedclass.deploy.admission import Admission
from fedclass.deploy.announced import Announced
from fedclass.deploy.registry import Registry
from fedclass.deploy.request_handler import answer, respond, site_of
from fedclass.deploy.server import ServerSettings
from fedclass.deploy.site_process import Log, alone, answering
from fedclass.engines.flower import codec
from fedclass.engines.flower.frames import Frame
from fedclass.errors import ClientError, ConfigError
from fedclass.experiment.recipe import load as load_recipe
from fedclass.runs.events import RoundFinished, SitesKnown, UpdateMissing, UpdateRejected, Warned
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
    "extras": (lambda f: Frame(f.header, {**f.tensors, "extras": save({"x": torch.ones(1)})}), "uploads differ"),
    "no safetensors": (
        lambda f: Frame(f.header, {**f.tensors, "weights": b"\x80\x04pickle"}),
        "weights: cannot be read",
    ),
    "an announcement": (
        lambda _: Frame(
            {
                "answer": "announcement",
                "announcement": {"site": "x", "classes": {}, "fresh": {}, "image": None, "machine": {}, "held_out": {}},
            }
        ),
        "something other than an update",
    ),
    "nonsense": (lambda _: Frame({"answer": "shell"}), "answers with 'shell'"),
    "far too large": (
        lambda frame: Frame(frame.header, {**frame.tensors, "weights": bytes(8 * 2**20)}),
        "site hostile: its answer cannot be used: it has 8.0 MiB of tensors, and was not read; at most",
    ),
}


def test_hostile_updates_are_left_out_with_a_reason(federation: Federation) -> None:
    """One kind a round; each goes on with the good site alone. Guards are off: they would set it aside."""

    def tamper(message: Message, reply: Message) -> Message:
        job = header(message).get("job", {})
        if job.get("client") == 1 and job.get("phase") == "train":
            forge, _ = list(FORGED.values())[job["round"]]
            reply.content = forge(Frame.from_record(reply.content)).to_record()
        return reply

    federation.grid.tamper = tamper
    settings = "train.local_epochs=1 server.participation=1.0 memory.per_client=4 evaluation.every=0"
    unguarded = "aggregation.clip_norm=0 aggregation.screen=false"
    federation.run(tasks=1, set=f"train.rounds={len(FORGED)} {settings} {unguarded}")
    assert [event.clients for event in federation.events(RoundFinished)] == [[0]] * len(FORGED)
    told = [*federation.events(UpdateRejected), *federation.events(UpdateMissing)]
    reasons = {event.round: event.reason for event in told if event.client == 1}
    for number, (kind, (_, reason)) in enumerate(FORGED.items()):
        assert reason in reasons[number], kind
    assert len(told) == len(FORGED)


def test_weights_of_zero_and_a_claim_of_many_examples_do_not_take_the_model_over(federation: Federation) -> None:
    """Of the right form, so that nothing is rejected: examples count as announced, and the update is screened."""
    federation.site("kind", {"ant": 20, "bee": 20})

    def tamper(message: Message, reply: Message) -> Message:
        job = header(message).get("job", {})
        if job.get("client") == 1 and job.get("phase") == "train":
            zeros = with_weights(lambda weights: {name: torch.zeros_like(w) for name, w in weights.items()})
            forged = with_update(examples=2**40)(zeros(Frame.from_record(reply.content)))
            reply.content = forged.to_record()
        return reply

    federation.grid.tamper = tamper
    federation.run(tasks=1)
    assert load_recipe(str(federation.root / "run" / "config.toml")).aggregation.clip_norm == 2.0
    rounds = federation.events(RoundFinished)
    assert [event.clients for event in rounds] == [[0, 1, 2]] * 2
    assert [event.screened for event in rounds] == [[1]] * 2
    head = load_file(federation.root / "run" / "model.safetensors")["head.weight"]
    assert head.abs().mean() > 0.05, "as drawn, it is uniform within 1/8"


def test_what_sites_announce_says_who_holds_a_class_and_how_many_examples_may_count(tmp_path: Path) -> None:
    settings = ServerSettings(out=str(tmp_path))
    admission = Admission(settings.admission, tmp_path)
    announced = Announced(load_recipe(), None, cast(Any, None), settings.rules, admission, tmp_path)
    announced.known = Registry(
        sites=["north", "south"],
        classes=["ant", "bee", "cat"],
        counts={"north": {"ant": 20, "cat": 10, "elk": 40}, "south": {"ant": 0}},  # south withholds its numbers
    )
    assert [list(announced.holds(client, 0, 0)) for client in (0, 1)] == [[0, 2], [0]]
    assert [announced.most_examples(client) for client in (0, 1)] == [20 + 10 + 2 * 5, None]
    assert announced.named(1) == "site south"


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


ANNOUNCED: list[tuple[dict[str, Any], str]] = [
    ({"site": "../evil"}, "calls itself '../evil'"),
    ({"fresh": {"ghost": 3}}, "classes that do not fit together"),
    ({"classes": {"ant": -5}, "fresh": {}}, "impossible count"),
    ({"classes": {"": 5}, "fresh": {}}, "no class can be called"),
    ({"classes": "all"}, "classes"),
    ({"classes": {"ant": 2**80}, "fresh": {"ant": 2**80}}, "impossible count"),
    ({"classes": {"\x1b[2J": 5}, "fresh": {}}, "no class can be called"),
    ({"classes": {"\ud800": 5}, "fresh": {}}, "no class can be called"),
    ({"image": [-8, 8, 3]}, "images of an impossible size"),
    ({"image": [8, 8, 7]}, "images of an impossible size"),
    ({"image": [10**6, 10**6, 3]}, "images of an impossible size"),
    ({"machine": {"python": "3" * 2000}}, "too much about its machine"),
]


def test_who_announces_the_impossible_takes_no_part(federation: Federation) -> None:
    """Each kind by a site of its own; these come first by name, and the size of images is the first one's."""
    said = {federation.site(f"a-{number}", {"ant": 20}): says for number, (says, _) in enumerate(ANNOUNCED)}

    def tamper(message: Message, reply: Message) -> Message:
        node = message.metadata.dst_node_id
        if header(message)["ask"] == "announcement" and node in said:
            frame = Frame.from_record(reply.content)
            about = {**frame.header["announcement"], **said[node]}
            reply.content = Frame({**frame.header, "announcement": about}).to_record()
        return reply

    federation.grid.tamper = tamper
    federation.run(tasks=1)
    warned = [event.message for event in federation.events(Warned)]
    for number, (node, (_, reason)) in enumerate(zip(said, ANNOUNCED, strict=True)):
        about = [message for message in warned if f"({node})" in message or f"site a-{number}:" in message]
        assert any(reason in message for message in about), reason
    (known,) = federation.events(SitesKnown)
    assert known.sites == ["a-3", "a-6", "a-7", "good", "hostile"], "who names what no class can be called has no class"
    assert all(event.clients == [3, 4] for event in federation.events(RoundFinished))


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
    plan = Plan("f", {"seed": 1}, (0.5,), (0.25,), (8, 8, 3), ("ä", "b"), (2,), None, None)
    weights = {"w": torch.randn(2, 3), "n": torch.tensor(5)}
    job = Job(3, 0, 1, "train", weights, {"w": torch.ones(1)}, {"c": torch.ones(2)}, quotas=(4, 0))
    frame = codec.job(plan, job, teacher=True, broadcast=True)
    read = codec.read_ask(Frame.from_record(frame.to_record()))
    assert isinstance(read, tuple)
    assert read[0] == plan
    bare = {"weights": {}, "teacher": None, "broadcast": {}}
    assert replace(read[1], **bare) == replace(job, **bare)
    assert torch.equal(read[1].broadcast["c"], torch.ones(2))
    assert torch.equal(read[1].weights["w"], job.weights["w"])
    assert read[1].weights["n"].shape == ()
    assert torch.equal(read[1].teacher["w"], torch.ones(1))
    assert set(codec.job(plan, job, teacher=False, broadcast=False).tensors) == {"weights"}


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*_: object) -> Any:
        raise error

    return fail


def test_a_sites_log_says_who_asked_what_and_what_was_sent(
    asked: tuple[Frame, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with its time, once; what went wrong is there in full, and the server is told less."""
    frame, config = asked
    site, said = site_of(config), list[str]()
    tell = answering(site, "fl.example.org:8443", Log(said.append))
    done = tell(frame, run=7)
    assert done == answer(frame, config)
    size = sum(map(len, done.tensors.values())) + len(json.dumps(done.header))
    (line,) = said
    time, _, words = line.partition(" ")
    assert datetime.fromisoformat(time).tzinfo is not None
    federation = frame.header["plan"]["federation"]
    assert words.startswith(
        f"fl.example.org:8443 (run 7) asked for {federation}: training, task 1, round 1; sent {size} "
    )
    assert re.search(r"bytes: number of images \(\d+\), loss, samples, weights \(\d+ tensors\); \d+\.\d{3} s$", words)
    tell(codec.announcement_asked(federation, 1), run=7)
    assert f"asked for {federation}: what this site holds, before task 2; sent" in said[1]
    assert "names of 2 classes and their numbers of images (" in said[1]
    tell(Frame({"ask": "shell"}), run=8)
    assert "(run 8) asked for None: shell None; REFUSED: asks for 'shell', which fedclass does not do" in said[2]
    with monkeypatch.context() as broken:
        broken.setattr(site, "run", failing(ZeroDivisionError("ward 7")))
        reason = tell(frame, run=9).header["reason"]
    assert reason == "failed (ZeroDivisionError); its own log says why"
    assert "ward 7" in said[3]
    assert "REFUSED: failed (ZeroDivisionError)" in said[4]
    assert tell(frame, run=9) == done


def test_a_loss_that_is_no_number_is_said(asked: tuple[Frame, dict[str, Any]]) -> None:
    frame, config = asked
    wild = recipe(recipe(frame, "optimizer", learning_rate=1e30), "train", local_epochs=3)
    for _ in range(2):
        assert "optimizer.learning_rate may be too high" in answer(wild, config).header["reason"]


def test_the_server_cannot_write_into_a_sites_log(asked: tuple[Frame, dict[str, Any]]) -> None:
    frame, config = asked
    said: list[str] = []
    tell = answering(site_of(config), "fl.example.org:8443", Log(said.append))
    tell(changed(frame, "job", phase="train\n\x1b[2Jall is well" + 10_000 * "!"), run=1)
    tell(changed(frame, "plan", federation={"x\r": 10_000 * ["y"]}), run=1)
    for line in said:
        assert line.isprintable()
        assert len(line) < 3000


def test_a_store_has_one_process_and_one_owner(asked: tuple[Frame, dict[str, Any]], tmp_path: Path) -> None:
    _, config = asked
    settings = site_of(config).settings
    settings.store.mkdir(exist_ok=True)
    settings.store.chmod(0o755)
    with alone(settings):
        assert settings.store.stat().st_mode & 0o777 == 0o700
        with pytest.raises(ConfigError, match="another `fedclass site run` is using it"), alone(settings):
            pass
    (tmp_path / "file").touch()
    elsewhere = replace(settings, store=tmp_path / "file" / "store")
    with pytest.raises(ConfigError, match="cannot be used"), alone(elsewhere):
        pass
