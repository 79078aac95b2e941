"""One hostile site, on the server's side: false counts, the audit of a run, withdrawal, and what the operator sees."""

import json
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra [flower]")

from flwr.app import Message
from typer.testing import CliRunner

from deploy.test_sites import Federation, header, once
from fedclass.cli import app
from fedclass.deploy.status import metrics, read_status
from fedclass.engines.flower import codec
from fedclass.engines.flower.frames import Frame
from fedclass.runs import audit
from fedclass.runs.events import RunFailed, SiteTested, TaskFinished, Warned

call = CliRunner().invoke


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    made = Federation(tmp_path)
    for name in ("north", "south", "west"):
        made.site(name, {"ant": 30, "bee": 30})
    return made


def claims(message: Message, reply: Message) -> Message:
    """West is always right, a thousand times."""
    asked = header(message)
    if asked.get("job", {}).get("phase") != "evaluate" or asked["job"]["client"] != 2:
        return reply
    sent = codec.read_answer(Frame.from_record(reply.content))
    counts = sent.extras["confusion"] * 0
    counts[0, 0] = counts[1, 1] = 1000
    frame = codec.update(codec.Update(2, sent.task, sent.round, {}, 2000, {}, {"confusion": counts}))
    return Message(frame.to_record(), reply_to=message)


@pytest.mark.slow
def test_false_counts_are_capped_and_named_and_the_run_can_be_looked_at(federation: Federation) -> None:
    federation.grid.tamper = claims
    federation.run(tasks=1, classes_admit="all", min_class_images=0)
    root = federation.root / "run"
    tested = {event.client: event for event in federation.events(SiteTested)}
    assert set(tested) == {0, 1, 2}
    assert tested[2].capped == [0, 1]
    assert max(tested[2].tested) <= 15  # six are held out, told as ten, and five more for rounding
    (end,) = federation.events(TaskFinished)
    assert sum(map(sum, end.confusion)) == sum(sum(event.tested) for event in tested.values())
    said = [event.message for event in federation.events(Warned)]
    assert any("site west counts more held-out images than it has announced, of 'ant', 'bee'" in text for text in said)

    found = audit.verify(root)
    assert found.flaws == []
    entries = list(audit.entries(root))
    rounds = [entry for entry in entries if entry["kind"] == "round"]
    assert [entry["accepted"] for entry in rounds] == [["north", "south", "west"]] * 2
    answers = [entry for entry in entries if entry["kind"] == "answer" and entry["phase"] == "train"]
    assert [entry["site"] for entry in answers] == ["north", "south", "west"] * 2
    assert len({entry["weights_sha256"] for entry in answers}) == 6
    assert all(entry["examples"] > 0 and entry["node"] >= 100 for entry in answers)
    assert entries[-1]["kind"] == "finished"

    status = read_status(root)
    assert (status.state, status.task, status.round, status.rounds) == ("finished", 1, 2, 2)
    assert [site.name for site in status.sites] == ["north", "south", "west"]
    assert set(status.accuracies) == {"ant", "bee"}
    assert status.sites[2].accuracy == 100
    assert 'fedclass_site_accuracy_percent{site="west"} 100' in metrics(status).splitlines()
    shown = call(app, ["deploy", "status", str(root), "--json"])
    assert json.loads(shown.output)["sites"][0]["name"] == "north"
    assert "north" in call(app, ["deploy", "status", str(root)]).output


@pytest.mark.slow
def test_a_site_that_withdraws_takes_no_part_and_what_was_learned_with_it_can_be_learned_again(
    federation: Federation,
) -> None:
    """Withdrawn after two tasks, back to before the second; the log keeps what happened the first time."""
    root = federation.root / "run"
    easy = {"classes_admit": "all", "min_class_images": 0}

    def more() -> None:
        for name in ("north", "south", "west"):
            federation.hold(name, {"ant": 30, "bee": 30, "cat": 30})

    federation.grid.tamper = once(more, task=0, phase="end_task")
    federation.run(**easy)
    unknown = call(app, ["deploy", "withdraw", str(root), "est"])
    assert "no site 'est' has taken part; did you mean 'west'?" in str(unknown.exception)
    before = len(list(audit.entries(root)))
    done = call(app, ["deploy", "withdraw", str(root), "west", "--since", "2", "--yes"])
    assert done.exit_code == 0, done.output
    federation.run(**easy)
    entries = list(audit.entries(root))
    assert audit.verify(root).flaws == []
    late = entries[before:]
    assert [entry["kind"] for entry in late[:2]] == ["operator", "withdrawn"]
    assert late[1]["site"] == "west"
    assert "west" not in {entry.get("site") for entry in late[2:]}
    assert {tuple(entry["accepted"]) for entry in late if entry["kind"] == "round"} == {("north", "south")}
    assert {entry["task"] for entry in late if entry["kind"] == "round"} == {2}
    (west,) = [site for site in read_status(root).sites if site.name == "west"]
    assert west.left_out.startswith("withdrawn, by ")


def test_a_run_that_fails_says_so(federation: Federation) -> None:
    def fail() -> None:
        raise ZeroDivisionError("of the server's own")

    federation.grid.tamper = once(fail, task=0, phase="train")
    with pytest.raises(ZeroDivisionError):
        federation.run(tasks=1, classes_admit="all", min_class_images=0)
    root = federation.root / "run"
    assert [event.reason for event in federation.events(RunFailed)] == ["ZeroDivisionError: of the server's own"]
    assert (read_status(root).state, list(audit.entries(root))[-1]["kind"]) == ("failed", "failed")
    assert "fedclass_failed 1" in metrics(read_status(root)).splitlines()
