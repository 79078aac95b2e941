"""What is left of several runs, before they begin and while they are under way."""

import pytest

from fedclass.runs.events import Event, RoundFinished, RunFinished, TaskReused
from fedclass.runs.outlook import Outlook, TimeLeft


def a_round(task: int, round: int) -> RoundFinished:
    about = {"clients": [0], "examples": [1], "losses": [0.5], "loss": 0.5, "bytes_up": 1, "bytes_down": 1}
    return RoundFinished(task=task, round=round, seconds=1.0, **about)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("outlook", "untrained"),
    [
        (Outlook((40, 60), 4), [40, 60]),
        (Outlook((40, 60), 4, done=1), [30, 60]),
        (Outlook((40, 60), 4, done=6), [0, 30]),
        (Outlook((40, 60), 4, done=8), [0, 0]),
        (Outlook((40, 60), 4, cached=1), [0, 60]),
        (Outlook((40, 60), 4, shared=True), [0, 60]),
        (Outlook((40, 60), 4, done=1, cached=2), [30, 60]),
        (Outlook((40, 60), 4, until=1), [40, 0]),
        (Outlook((), 0), []),
    ],
    ids=["new", "begun", "second task", "done", "cached", "shared", "begun before it was cached", "stops", "finished"],
)
def test_what_is_still_to_be_trained(outlook: Outlook, untrained: list[float]) -> None:
    assert outlook.untrained == untrained
    assert outlook.finished == (untrained == [])


def test_a_run_has_reached_its_stop_once_the_task_before_it_has_ended() -> None:
    assert not Outlook((1, 1, 1), 2, done=2, ended=0, until=1).reached
    assert Outlook((1, 1, 1), 2, done=2, ended=1, until=1).reached
    assert not Outlook((1, 1, 1), 2, done=6, ended=3, until=3).reached, "the summary is still to be written"
    assert Outlook((), 0, until=3).reached, "it is finished"
    assert not Outlook((1,), 2).reached


def left_after(*events: tuple[int, Event], outlooks: list[Outlook], seconds: float) -> float | None:
    now = [0.0]
    left = TimeLeft(outlooks, clock=lambda: now[0])
    left.began = 0.0
    for number, event in events:
        left.tell(number, event)
    now[0] = seconds
    return left.seconds


def test_time_left_is_that_of_the_images_left_at_the_rate_so_far() -> None:
    two = [Outlook((40, 60), 4), Outlook((40, 60), 4)]
    assert left_after(outlooks=two, seconds=5.0) is None, "nothing is known yet"
    assert left_after((0, a_round(0, 0)), outlooks=two, seconds=5.0) == 5.0 / 10 * 190
    assert left_after((0, a_round(0, 0)), (1, a_round(0, 0)), outlooks=two, seconds=5.0) == 5.0 / 20 * 180
    assert left_after((0, a_round(0, 0)), (0, a_round(0, 0)), outlooks=two, seconds=5.0) == 5.0 / 10 * 190


def test_what_is_taken_over_or_finished_or_has_failed_is_neither_left_nor_a_measure() -> None:
    two = [Outlook((40, 60), 4), Outlook((40, 60), 4)]
    reused = [(1, TaskReused(task=0, key="ab")), *((1, a_round(0, round)) for round in range(4))]
    assert left_after(*reused, outlooks=two, seconds=5.0) is None
    assert left_after(*reused, (0, a_round(0, 0)), outlooks=two, seconds=5.0) == 5.0 / 10 * 150
    over = (1, RunFinished(summary={}))
    assert left_after((0, a_round(0, 0)), over, outlooks=two, seconds=5.0) == 5.0 / 10 * 90
    finished = [two[0], Outlook((), 0)]
    assert left_after((1, a_round(1, 3)), over, (0, a_round(0, 0)), outlooks=finished, seconds=5.0) == 5.0 / 10 * 90
    resumed = [Outlook((40, 60), 4, done=2), Outlook((), 0)]
    replayed = [(0, a_round(0, 0)), (0, a_round(0, 1))]
    assert left_after(*replayed, outlooks=resumed, seconds=5.0) is None, "its log is read again"
    assert left_after(*replayed, (0, a_round(0, 2)), outlooks=resumed, seconds=5.0) == 5.0 / 10 * 70
