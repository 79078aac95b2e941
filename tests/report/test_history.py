"""A run's history: what its events say once a resumed run's second tries are sorted out."""

import json
from pathlib import Path

import pytest

from fedclass import metrics
from fedclass.errors import RunError
from fedclass.report.history import read_history
from fedclass.runs.events import EventLog, RoundFinished, RunFinished, RunResumed, RunStarted, TaskFinished, Warned

CONFUSIONS = [[[8, 2], [5, 5]], [[6, 0, 4], [0, 3, 7], [1, 0, 9]]]  # two classes, then a third


def start(**other):
    about = {
        **{"version": "0.1.0", "method": "fedclass", "variant": "paper", "dataset": "synnum", "official": True},
        **{"dataset_sha256": "ab", "tasks": [2, 1], "classes": ["a", "b", "c"], "seed": 3, "engine": "inprocess"},
        **{"counts": [[1, 0, 3], [4, 5, 0], [0, 0, 2]], "exemplars": [4, 4], "rounds": 2, "machine": {}},
    }
    return RunStarted(**about | other)


def round_(task, round, *, clients=(0, 1), losses=(1.0, 2.0), **other):
    about = {"bytes_up": 10, "bytes_down": 20, "seconds": 2.0, "loss": 1.5, "examples": [1] * len(clients)}
    return RoundFinished(task=task, round=round, clients=list(clients), losses=list(losses), **about | other)


def end(task, **other):
    about = {"exemplars": 4, "bytes_up": 25, "bytes_down": 45, "seconds": 5.0}
    return TaskFinished(task=task, confusion=CONFUSIONS[task], **about | other)


WHOLE = [start(), round_(0, 0), round_(0, 1), end(0), round_(1, 0), round_(1, 1), end(1), RunFinished(summary={})]


def write(root: Path, events, config="seed = 3\n") -> Path:
    root.mkdir(parents=True)
    with EventLog(root / "events.jsonl") as log:
        for event in events:
            log.write(event)
    if config is not None:
        (root / "config.toml").write_text(config)
    return root


def test_a_finished_run(tmp_path):
    run = read_history(write(tmp_path / "r", WHOLE))
    assert run.finished
    assert (run.rounds_done, run.rounds_planned) == (4, 4)
    assert run.config == {"seed": 3}
    assert run.metrics == metrics.summarise(CONFUSIONS, [2, 1])
    assert run.matrix == [[65.0], [45.0, 90.0]]
    assert [(test.after, test.task, test.accuracy, test.forgetting) for test in run.tests] == [
        (2, 0, 65.0, None),
        (4, 1, 60.0, 20.0),
    ]
    assert run.classes == [("a", 80.0, 60.0), ("b", 50.0, 30.0), ("c", 90.0, 90.0)]


def test_tests_within_a_task_count_from_when_each_task_was_learned(tmp_path):
    tested = {"correct": [10, 3, 1], "tested": [20, 10, 10]}
    events = [*WHOLE[:4], round_(1, 0, **tested), *WHOLE[5:]]
    middle = read_history(write(tmp_path / "r", events)).tests[1]
    assert (middle.after, middle.task) == (3, 1)
    assert middle.accuracy == 100 * 14 / 40  # per image
    assert middle.on_tasks == [40.0, 10.0]  # per class: the mean of 50 and 30
    assert middle.forgetting == 65.0 - 40.0


def test_a_run_under_way_says_what_it_has(tmp_path):
    run = read_history(write(tmp_path / "r", WHOLE[:5]))
    assert not run.finished
    assert (run.rounds_done, len(run.tasks)) == (3, 1)
    assert run.metrics is not None
    assert run.metrics["forgetting_fedclass"] is None
    assert [(cost.task, cost.bytes_up, cost.bytes_down, cost.seconds) for cost in run.costs] == [
        (0, 25, 45, 5.0),
        (1, 10, 20, 2.0),
    ]


def test_a_run_that_has_only_begun(tmp_path):
    run = read_history(write(tmp_path / "r", [start()]))
    assert (run.metrics, run.tests, run.costs, run.classes) == (None, [], [], [])
    assert [(record.images, record.classes, record.rounds, record.loss) for record in run.clients] == [
        (4, 2, 0, None),
        (9, 2, 0, None),
        (2, 1, 0, None),
    ]


def test_what_a_resumed_run_did_twice_counts_once(tmp_path):
    second = round_(0, 1, losses=(0.5, 0.25), clients=(1, 2))
    resumed = RunResumed(task=0, round=1, machine={})
    again = [*WHOLE[:4], round_(1, 0, losses=(9.0, 9.0)), resumed, second, *WHOLE[3:]]
    run = read_history(write(tmp_path / "r", again))
    assert [(event.task, event.round) for event in run.rounds] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert run.rounds[1] == second
    assert len(run.tasks) == 2
    assert run.resumed == [resumed]
    assert [record.rounds for record in run.clients] == [3, 4, 1]
    assert run.clients[2].loss == 0.25


def test_a_warning_that_is_repeated_is_one_warning(tmp_path):
    events = [WHOLE[0], Warned(message="mind"), Warned(message="the gap"), Warned(message="mind"), *WHOLE[1:]]
    assert read_history(write(tmp_path / "r", events)).warnings == ["mind", "the gap"]


def test_phases_add_up_to_the_time_of_their_task(tmp_path):
    events = [
        WHOLE[0],
        round_(0, 0, phases={"clients": 1.0, "evaluate": 0.25}),
        round_(0, 1, phases={"clients": 1.5}),
        end(0, phases={"evaluate": 0.5, "checkpoint": 0.125}),
    ]
    (cost,) = read_history(write(tmp_path / "r", events)).costs
    assert cost.phases == {"clients": 2.5, "evaluate": 0.75, "checkpoint": 0.125, "other": 1.625}
    assert sum(cost.phases.values()) == cost.seconds == 5.0


def test_without_phases_rounds_are_told_from_the_end_of_a_task(tmp_path):
    (cost, _) = read_history(write(tmp_path / "r", WHOLE)).costs
    assert cost.phases == {"rounds": 4.0, "end of task": 1.0}


def test_an_event_cut_short_by_a_crash_is_left_out(tmp_path):
    root = write(tmp_path / "r", WHOLE)
    (root / "events.jsonl").write_bytes((root / "events.jsonl").read_bytes()[:-20])
    assert not read_history(root).finished


# What cannot be read.


DAMAGE = {
    "line 2: not an event": lambda lines: [lines[0], lines[1][:40], *lines[2:]],
    "the run has not started yet": lambda lines: lines[1:],
    "rounds are missing or out of order": lambda lines: [lines[0], *lines[2:]],
    "tasks are missing or out of order": lambda lines: [*lines[:3], *lines[4:]],
    "not all of its tasks are": lambda lines: [*lines[:4], lines[-1]],
    "6 classes": lambda lines: [*lines[:3], _with(lines[3], confusion=[[1] * 6] * 6), *lines[4:]],
    "do not fit together (list index out of range)": lambda lines: [
        lines[0],
        _with(lines[1], clients=[0, 7]),
        *lines[2:],
    ],
    "do not fit together (zip": lambda lines: [lines[0], _with(lines[1], losses=[1.0]), *lines[2:]],
    "different numbers of classes": lambda lines: [_with(lines[0], classes=["a"]), *lines[1:]],
}


def _with(line, **other):
    return json.dumps(json.loads(line) | other)


@pytest.mark.parametrize("message", DAMAGE)
def test_damaged_events_are_one_clear_error(tmp_path, message):
    root = write(tmp_path / "r", WHOLE)
    path = root / "events.jsonl"
    path.write_text("\n".join(DAMAGE[message](path.read_text().splitlines())) + "\n")
    with pytest.raises(RunError) as caught:
        read_history(root)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(("config", "message"), [(None, "toml: cannot be read"), ("= 3", "toml: is damaged")])
def test_a_recipe_that_cannot_be_read_is_named(tmp_path, config, message):
    with pytest.raises(RunError, match=message):
        read_history(write(tmp_path / "r", WHOLE, config))
