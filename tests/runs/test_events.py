"""Events: what is written is read back, and a log cut anywhere is still a log."""

import json
import time
from dataclasses import replace
from typing import get_args

import pytest

from fedclass.errors import RunError
from fedclass.runs.events import (
    KINDS,
    Event,
    EventLog,
    RoundFinished,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
    SetAside,
    SiteChanged,
    SitesKnown,
    SiteTested,
    TaskFinished,
    TaskReused,
    TaskStarted,
    UpdateMissing,
    UpdateReceived,
    UpdateRejected,
    Warned,
    read_events,
)

ROUND = RoundFinished(
    task=0,
    round=1,
    clients=[0, 2],
    examples=[30, 10],
    losses=[0.5, 1.25],
    loss=0.6875,
    bytes_up=2000,
    bytes_down=3000,
    seconds=1.5,
    correct=[3, 0],
    tested=[4, 6],
    phases={"clients": 1.25, "aggregate": 0.25},
)

EVENTS = [
    RunStarted(
        version="0.1.0",
        method="fedclass",
        variant="paper",
        dataset="synnum",
        dataset_sha256="ab" * 32,
        official=True,
        tasks=[2, 1],
        classes=["null", "één", "二\u2028"],
        counts=[[4, 0, 1], [2, 6, 0], [0, 0, 0]],
        exemplars=[5, 6],
        rounds=2,
        seed=7,
        engine="inprocess",
        machine={"python": "3.11.7"},
    ),
    Warned(message='a "quoted"\nsecond line'),
    TaskStarted(task=0, new_classes=["null", "één"], clients=2),
    TaskReused(task=0, key="cd" * 32),
    RunResumed(task=0, round=1, machine={"python": "3.11.8"}),
    UpdateRejected(task=0, round=0, client=1, reason="head.bias holds NaN or infinite values"),
    UpdateMissing(task=0, round=0, client=2, reason="no answer within 60 s"),
    SiteChanged(site="a", connected=False),
    SitesKnown(sites=["a", "b"], classes=["null", "één"], tasks=[2], counts=[[1, 0], [2, 3]], exemplars=[4]),
    SetAside(task=0, round=1, client=1, rounds=5, reason="its update was rejected"),
    ROUND,
    SiteTested(task=0, client=1, correct=[3, 0], tested=[4, 6], capped=[1]),
    RunFailed(reason="RoundError: too few"),
    replace(ROUND, round=2, correct=None, tested=None),
    TaskFinished(task=0, confusion=[[3, 1], [6, 0]], exemplars=5, bytes_up=1, bytes_down=2, seconds=0.25),
    RunFinished(summary={"accuracy_last": 30.0, "forgetting_fedclass": None, "accuracy_matrix": [[37.5]]}),
]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "events.jsonl"


def written(path, events=EVENTS):
    with EventLog(path) as log:
        for event in events:
            log.write(event)
    return path


def test_every_kind_is_tested_here():
    assert {type(event) for event in EVENTS} == set(KINDS.values()) == set(get_args(Event)) - {UpdateReceived}


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_each_kind_comes_back_as_it_was(event, path):
    (found,) = read_events(written(path, [event]))
    assert type(found) is type(event)
    assert found == event


def test_events_come_back_in_order(path):
    assert list(read_events(written(path))) == EVENTS


def test_one_event_is_one_json_object_on_one_line_with_its_kind_and_time(path):
    before = time.time()
    records = [json.loads(line) for line in written(path).read_bytes().split(b"\n")[:-1]]
    assert [record["event"] for record in records] == [type(event).__name__ for event in EVENTS]
    assert all(before - 1 <= record["time"] <= time.time() + 1 for record in records)
    assert records[1]["message"] == 'a "quoted"\nsecond line'


def test_updates_are_shown_but_not_stored(path):
    received = UpdateReceived(task=0, round=0, done=1, of=2)
    assert list(read_events(written(path, [received, EVENTS[1], received]))) == [EVENTS[1]]
    assert len(path.read_text().splitlines()) == 1


def test_a_line_is_on_disk_as_soon_as_it_is_written(path):
    """So that a run that is killed loses nothing that it had finished."""
    with EventLog(path) as log:
        for count, event in enumerate(EVENTS, start=1):
            log.write(event)
            assert len(list(read_events(path))) == count


def test_a_log_is_appended_to(path):
    written(path, EVENTS[:3])
    assert list(read_events(written(path, EVENTS[3:]))) == EVENTS


def test_cut_anywhere_a_log_yields_the_events_before_the_cut(path):
    content = written(path).read_bytes()
    ends = [i + 1 for i, byte in enumerate(content) if byte == ord("\n")]
    assert len(ends) == len(EVENTS)
    for cut in {*range(0, len(content), 11), *(end + near for end in ends for near in (-3, -2, -1, 0))}:
        path.write_bytes(content[:cut])
        complete = sum(end - 1 <= cut for end in ends)  # a line may lack its end-of-line
        assert list(read_events(path)) == EVENTS[:complete]


def test_a_log_that_was_cut_can_be_appended_to(path):
    """Resuming after a crash: the cut line is lost, and only that."""
    path.write_bytes(written(path).read_bytes()[:-5])
    assert list(read_events(written(path, [EVENTS[1]]))) == [*EVENTS[:-1], EVENTS[1]]


@pytest.mark.parametrize(
    "damage",
    [
        '{"event": "Warned", "mess',
        "",
        "[]",
        "3",
        "null",
        '{"message": "no kind"}',
        '{"event": "Unknown", "message": "x"}',
        '{"event": ["Warned"], "message": "x"}',
        '{"event": "Warned"}',
        '{"event": "UpdateReceived", "task": 0, "round": 0, "done": 1, "of": 2}',
    ],
)
@pytest.mark.parametrize("line", [1, 3, len(EVENTS)])
def test_a_damaged_line_is_named_wherever_it_is(path, damage, line):
    """Also the last one, if it is complete: no crash of ours writes that."""
    lines = written(path).read_text().splitlines()
    lines[line - 1] = damage
    path.write_text("\n".join(lines) + "\n")
    events = read_events(path)
    for want in EVENTS[: line - 1]:
        assert next(events) == want
    with pytest.raises(RunError, match=rf"events\.jsonl, line {line}: not an event of fedclass"):
        next(events)


def test_what_a_later_version_adds_to_an_event_is_passed_over(path):
    path.write_text('{"event": "Warned", "time": 1, "message": "x", "colour": "red"}\n')
    assert list(read_events(path)) == [Warned(message="x")]


def test_optional_counts_may_be_missing(path):
    record = json.loads(written(path, [ROUND]).read_text())
    del record["correct"], record["tested"]
    path.write_text(json.dumps(record) + "\n")
    assert list(read_events(path)) == [replace(ROUND, correct=None, tested=None)]


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_is_no_json_number_is_not_written(path, wrong):
    """Half of the world's readers stop at NaN. Nothing of the event reaches the file."""
    with EventLog(path) as log:
        log.write(EVENTS[1])
        with pytest.raises(ValueError, match="JSON"):
            log.write(replace(ROUND, loss=wrong))
        log.write(EVENTS[2])
    assert list(read_events(path)) == EVENTS[1:3]


def test_what_is_no_run_directory_is_named(tmp_path):
    with pytest.raises(RunError, match=r"events\.jsonl: cannot be read \(No such file.*is .* a run directory\?"):
        list(read_events(tmp_path / "events.jsonl"))
    (tmp_path / "events.jsonl").mkdir()
    with pytest.raises(RunError, match="Is a directory"):
        list(read_events(tmp_path / "events.jsonl"))


def test_an_empty_log_has_no_events(path):
    path.touch()
    assert list(read_events(path)) == []


def test_bytes_that_are_no_text_are_damage_like_any_other(path):
    written(path)
    path.write_bytes(path.read_bytes().replace(b"synnum", b"\xff\xfe\xfd"))
    with pytest.raises(RunError):
        list(read_events(path))


def test_clients_without_images_are_clients_too():
    assert EVENTS[0].clients == 3


def test_accuracy_is_percent_of_the_images_tested():
    assert ROUND.accuracy == 30.0  # 3 of 10, not the mean of 75 % and 0 %
    assert replace(ROUND, correct=None).accuracy is None
    assert replace(ROUND, tested=None).accuracy is None
