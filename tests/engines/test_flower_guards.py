"""What the server believes of what nodes say: announcements, frames, and answers that are something else."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra [flower]")

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedclass.engines.flower import codec, frames
from fedclass.engines.flower.codec import Refusal
from fedclass.engines.flower.engine import Flower
from fedclass.engines.flower.exchange import MOST_REASON, Connection, _answer
from fedclass.engines.flower.frames import Frame
from fedclass.engines.flower.roster import LARGEST_SIDE, MOST_CLASSES, MOST_IMAGES, MOST_WORDS, Roster
from fedclass.errors import ClientError
from fedclass.federation.server import Missing
from fedclass.wire import Announcement, Job, Update

HONEST = Announcement("north", {"ant": 5, "bee": None}, {"bee": None}, (8, 8, 3), {"python": "3.11"})


class Answers(Connection):
    """A connection on which nodes give these answers."""

    def __init__(self, said: dict[int, Any]) -> None:
        object.__setattr__(self, "said", said)

    def nodes(self) -> list[int]:
        return sorted(self.said)  # type: ignore[attr-defined]

    def ask(self, questions: Any, *, seconds: float) -> Iterator[tuple[Any, Any]]:  # noqa: ARG002
        return ((key, self.said[question.node]) for key, question in questions.items())  # type: ignore[attr-defined]


def roster(said: dict[int, Any], *, pin: bool = True) -> Roster:
    return Roster(Answers(said), "trial", seconds=1, pin=pin)


def test_an_honest_site_is_listed() -> None:
    found = roster({11: HONEST})
    assert found.refresh(0) == ["north"]
    assert (found.node("north"), found.silent) == (11, {})


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (Refusal("cannot use its images", lacks=False), "cannot use its images"),
        (Update(0, 0, 0, {}, 1, {}), "answered with something other than an announcement"),
        (replace(HONEST, site="../evil"), "calls itself '../evil'; a name has letters, digits, '.', '_' and '-' only"),
        (replace(HONEST, site=""), "calls itself ''; a name has"),
        (replace(HONEST, site="x" * 65), "a name has letters"),
        (replace(HONEST, site="a\n"), "a name has letters"),
        (replace(HONEST, fresh={"ghost": 1}), "north announces classes that do not fit together"),
        (
            replace(HONEST, classes={str(i): 1 for i in range(MOST_CLASSES + 1)}, fresh={}),
            "north announces classes that do not fit together",
        ),
        (replace(HONEST, classes={"ant": -1}, fresh={}), "north announces an impossible count"),
        (replace(HONEST, classes={"ant": MOST_IMAGES + 1}, fresh={}), "north announces an impossible count"),
        (replace(HONEST, fresh={"bee": -1}), "north announces an impossible count"),
        (replace(HONEST, image=(0, 8, 3)), "north announces images of an impossible size"),
        (replace(HONEST, image=(8, LARGEST_SIDE + 1, 3)), "north announces images of an impossible size"),
        (replace(HONEST, image=(8, 8, 2)), "north announces images of an impossible size"),
        (replace(HONEST, machine={"os": "x" * MOST_WORDS}), "north says too much about its machine"),
    ],
)
def test_any_other_takes_no_part_and_the_reason_is_kept(said: Any, reason: str) -> None:
    found = roster({11: said, 12: replace(HONEST, site="south")})
    assert found.refresh(0) == ["south"]
    assert found.connected() == ["south"]
    assert found.silent[11].startswith(reason) or reason in found.silent[11]
    assert found.pins == {"south": 12}


def test_a_name_stays_with_the_node_that_used_it_first_if_nodes_have_keys() -> None:
    found = roster({11: HONEST})
    found.refresh(0)
    found.connection.said[5] = HONEST  # type: ignore[attr-defined]
    assert found.announcements(0).keys() == {"north"}
    assert found.node("north") == 11
    assert found.silent == {5: "calls itself 'north': this name is taken, and belongs to another site's key"}


def test_without_keys_the_later_node_of_a_name_counts() -> None:
    found = roster({11: HONEST}, pin=False)
    found.refresh(0)
    found.connection.said[12] = HONEST  # type: ignore[attr-defined]
    found.announcements(0)
    assert found.node("north") == 12
    assert found.silent == {11: "another node calls itself 'north' now"}


# Answers to jobs.


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (Update(1, 0, 0, {}, 1, {}), "site north: answers for client 1"),
        (HONEST, "site north: answered with something other than an update"),
        (Refusal("no", lacks=False), "site north: no"),
    ],
)
def test_what_is_no_update_of_the_client_that_was_asked_is_missing(said: Any, reason: str) -> None:
    sites = roster({11: HONEST})
    sites.refresh(0)
    sites.connection.said[11] = said  # type: ignore[attr-defined]
    engine = Flower(
        sites.connection, sites, plan=lambda *_: PLAN, site=lambda _: "north", seconds=1, expected=lambda _: 0
    )
    assert list(engine.run([Job(0, 0, 0, "train", {"w": torch.ones(1)}, None)])) == [Missing(0, reason)]


PLAN = codec.Plan("trial", {}, (0.5,), (0.5,), (8, 8, 3), ("ant",), (1,), None, None)


# What comes off the network.


def reply(content: RecordDict | Error) -> Message:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # outside of Flower's own processes
    asked = Message(RecordDict(), 1, "train")
    asked.metadata.__dict__["_message_id"] = "one"
    return Message(content, reply_to=asked)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (Error(0, "line one\nline two " + "x" * 9999), "Flower error 0: line one line two xxx"),
        (RecordDict(), "its answer cannot be used: not a message of fedclass: it holds nothing"),
        (
            Frame({"answer": "update", "update": {"client": 1}}).to_record(),
            "its answer cannot be used: _Update: has other",
        ),
        (Frame({"answer": "shell" * 9999}).to_record(), "its answer cannot be used: answers with 'shellshell"),
        (codec.refused("no\n" + "x" * 9999, lacks=False).to_record(), "no xxx"),
    ],
)
def test_what_cannot_be_read_becomes_a_short_reason(content: RecordDict | Error, reason: str) -> None:
    """It goes to the operator's log and terminal."""
    answer = _answer(reply(content), 0)
    assert isinstance(answer, Refusal)
    assert answer.reason.startswith(reason)
    assert "\n" not in answer.reason
    assert len(answer.reason) < MOST_REASON + 50


def test_a_header_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MOST_HEADER", 30)
    record = RecordDict({"fedclass": ConfigRecord({"json": '{"a": 1}'}), "tensors": ArrayRecord()})
    assert Frame.from_record(record).header == {"a": 1}
    record = RecordDict({"fedclass": ConfigRecord({"json": '{"a": "' + "x" * 30 + '"}'}), "tensors": ArrayRecord()})
    with pytest.raises(ClientError, match="no header, or one that is too long"):
        Frame.from_record(record)


def test_a_site_sends_no_metric_that_is_no_number() -> None:
    with pytest.raises(ClientError, match=r"loss is nan; optimizer\.learning_rate may be too high"):
        codec.update(Update(0, 0, 0, {}, 1, {"samples": 3.0, "loss": float("nan")}))
