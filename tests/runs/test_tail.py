"""A log that grows, is cut back and grows again: every event is news once."""

import json
from pathlib import Path

import pytest

from fedclass.errors import RunError
from fedclass.runs.events import Event, EventLog, RunResumed, TaskStarted, Warned
from fedclass.runs.tail import Tail

EVENTS: list[Event] = [Warned(message=f"{n}: é \u2028 {'x' * n}") for n in range(6)]
RESUMED = RunResumed(task=0, round=1, machine={})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def append(path: Path, *events: Event) -> None:
    with EventLog(path) as log:
        for event in events:
            log.write(event)


def cut_to(path: Path, lines: int) -> None:
    """As a run does when it is resumed: the same file, shorter."""
    content = b"".join(path.read_bytes().splitlines(keepends=True)[:lines])
    with path.open("r+b") as file:
        file.truncate(len(content))


def test_it_starts_with_what_is_there_and_goes_on_with_what_comes(path: Path) -> None:
    tail = Tail(path)
    assert tail.news() == []
    assert tail.written() is None
    append(path, *EVENTS[:2])
    assert tail.news() == EVENTS[:2]
    assert tail.news() == []
    append(path, *EVENTS[2:])
    assert tail.news() == EVENTS[2:]
    assert tail.written() == path.stat().st_mtime


def test_byte_by_byte_each_event_comes_with_the_end_of_its_line(path: Path) -> None:
    append(path, *EVENTS[:3])
    content = path.read_bytes()
    path.unlink()
    tail, heard = Tail(path), []
    with path.open("wb", buffering=0) as file:
        for n in range(len(content)):
            file.write(content[n : n + 1])
            news = tail.news()
            assert len(news) == (content[n] == ord("\n"))
            heard += news
    assert heard == EVENTS[:3]


@pytest.mark.parametrize("kept", range(6))
@pytest.mark.parametrize("looked", [True, False], ids=["looked at while short", "not looked at"])
def test_after_a_cut_only_what_follows_is_news(path: Path, kept: int, looked: bool) -> None:
    append(path, *EVENTS)
    tail = Tail(path)
    assert tail.news() == EVENTS
    cut_to(path, kept)
    if looked:
        assert tail.news() == []
    append(path, RESUMED)
    assert tail.news() == [RESUMED]
    append(path, EVENTS[5])
    assert tail.news() == [EVENTS[5]]


def test_a_log_that_grew_beyond_its_former_length_before_anyone_looked(path: Path) -> None:
    append(path, *EVENTS[:4])
    tail = Tail(path)
    tail.news()
    size = path.stat().st_size
    cut_to(path, 2)
    later = [RESUMED, *(Warned(message="another " * 20) for _ in range(5))]
    append(path, *later)
    assert path.stat().st_size > size
    assert tail.news() == later


def test_resumed_twice_between_two_looks_nothing_is_missed(path: Path) -> None:
    append(path, *EVENTS[:4])
    tail = Tail(path)
    tail.news()
    cut_to(path, 2)
    append(path, RESUMED, EVENTS[2], EVENTS[3])
    cut_to(path, 4)
    append(path, RunResumed(task=1, round=0, machine={}), EVENTS[5])
    assert tail.news() == [RESUMED, EVENTS[2], RunResumed(task=1, round=0, machine={}), EVENTS[5]]


def test_another_run_in_the_same_place_is_news_from_its_start(path: Path) -> None:
    append(path, *EVENTS)
    tail = Tail(path)
    tail.news()
    path.unlink()
    assert tail.news() == []
    append(path, TaskStarted(task=0, new_classes=["a"], clients=1))
    assert tail.news() == [TaskStarted(task=0, new_classes=["a"], clients=1)]


def test_damage_is_named_with_its_line(path: Path) -> None:
    append(path, *EVENTS[:2])
    tail = Tail(path)
    tail.news()
    with path.open("a") as file:
        file.write(json.dumps({"event": "Nonsense"}) + "\n")
    with pytest.raises(RunError, match=r"events\.jsonl, line 3: not an event of fedclass"):
        tail.news()


def test_what_cannot_be_read_is_named(path: Path) -> None:
    path.mkdir()
    with pytest.raises(RunError, match=r"events\.jsonl: cannot be read \(Is a directory\)"):
        Tail(path).news()
