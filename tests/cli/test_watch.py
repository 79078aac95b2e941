"""fedclass watch, in a process of its own, beside logs that grow; and what the displays make of events."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from commands import called
from fedclass.cli.display import Live, Plain
from fedclass.runs.events import (
    Event,
    EventLog,
    RoundFinished,
    RunFinished,
    RunResumed,
    RunStarted,
    TaskFinished,
    TaskReused,
    UpdateReceived,
    Warned,
)
from fedclass.runs.layout import RunDirectory, write_atomically
from fedclass.runs.outlook import Outlook, TimeLeft

# Fails if anything imports torch on the way.
WATCH = [
    sys.executable,
    "-c",
    "import sys; sys.modules['torch'] = None; from fedclass.cli import main; sys.argv[0] = 'fedclass'; main()",
    "watch",
]

STARTED = RunStarted(
    version="0.1.0",
    method="fedavg",
    variant="standard",
    dataset="synnum",
    dataset_sha256="ab",
    official=True,
    tasks=[2, 2],
    classes=list("abcd"),
    counts=[[5, 5, 5, 5], [1, 1, 1, 1]],
    exemplars=[4, 4],
    rounds=3,
    seed=0,
    engine="inprocess",
    machine={},
)
SUMMARY = {
    **{"method": "fedavg", "variant": "standard", "seed": 0, "tasks": [2, 2], "dataset": "synnum"},
    **{"official_data": True, "accuracy_last": 64.3, "accuracy_matrix": [[90.0], [51.2, 77.4]]},
    "forgetting_fedclass": 38.8,
}


def a_round(task: int, round: int, *, seconds: float = 2.0) -> RoundFinished:
    return RoundFinished(
        task=task,
        round=round,
        clients=[0, 1],
        examples=[20, 4],
        losses=[0.5, 0.5],
        loss=0.5,
        bytes_up=1,
        bytes_down=1,
        seconds=seconds,
        correct=[3, 0],
        tested=[4, 6],
    )


LEARNED = TaskFinished(task=0, confusion=[[4, 1], [0, 5]], exemplars=4, bytes_up=1, bytes_down=1, seconds=6.0)


def write(root: Path, *events: Event) -> None:
    root.mkdir(parents=True, exist_ok=True)
    (root / "config.toml").write_text('seed = 0\n[method]\nname = "fedclass"\n')
    for event in events:
        if isinstance(event, RunFinished):
            write_atomically(RunDirectory(root).summary, json.dumps(event.summary))
    with EventLog(RunDirectory(root).events) as log:
        for event in events:
            log.write(event)


@contextmanager
def watching(*words: str | Path) -> Iterator["Watching"]:
    process = subprocess.Popen(
        [*WATCH, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "120"},
    )
    with process:
        try:
            yield Watching(process)
        finally:
            process.kill()


class Watching:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def hears(self, text: str) -> None:
        """Its next line."""
        assert self.process.stdout is not None
        assert text in self.process.stdout.readline()

    def ends(self) -> tuple[int, str, str]:
        out, error = self.process.communicate()
        return self.process.returncode, out, error


def shown(*words: str | Path, cwd: Path) -> tuple[int, str, str]:
    """What it prints of runs that are over, or cannot be read."""
    done = called("watch", *map(str, words), cwd=cwd)
    return done.returncode, done.stdout, done.stderr


def test_it_follows_a_run_from_what_is_there_through_a_resumption_to_its_results(tmp_path: Path) -> None:
    root = tmp_path / "mine"
    write(root, STARTED, a_round(0, 0))
    with watching(root) as it:
        it.hears("mine: synnum {2,2}, seed 0: 2 clients hold 4 to 20 training images each")
        it.hears("mine: task 1/2, round 1/3, 2 clients, loss 0.500, accuracy 30.0 %, about 10 s left")
        write(root, a_round(0, 1))
        it.hears("mine: task 1/2, round 2/3, 2 clients, loss 0.500, accuracy 30.0 %, about 8 s left")
        log = RunDirectory(root).events
        with log.open("r+b") as file:
            file.truncate(sum(map(len, log.read_bytes().splitlines(keepends=True)[:2])))
        write(root, RunResumed(task=0, round=1, machine={}))
        it.hears("mine: resumed before task 1, round 2")
        with log.open("ab", buffering=0) as file:
            file.write(b'{"event": "RoundFini')  # the run is killed while it writes
        write(root, a_round(0, 1), LEARNED)
        it.hears("mine: task 1/2, round 2/3")
        it.hears("mine: task 1 learned: accuracy 90.0 % on all classes so far")
        write(root, RunFinished(summary=SUMMARY))
        code, out, error = it.ends()
    assert (code, error) == (0, "")
    assert "mine: finished" in out
    assert "fedavg (standard)" in out
    for figure in ("51.2", "77.4", "64.3", "38.8"):
        assert figure in out


def test_it_waits_for_all_runs_of_a_folder_also_for_those_that_have_yet_to_begin(tmp_path: Path) -> None:
    write(tmp_path / "fedavg-s0", STARTED, RunFinished(summary=SUMMARY))
    (tmp_path / "fedwa-s0").mkdir()
    with watching(tmp_path) as it:
        it.hears("fedavg-s0: synnum")
        it.hears("fedavg-s0: finished")
        time.sleep(1)
        assert it.process.poll() is None
        other = SUMMARY | {"method": "fedwa", "variant": "wa", "accuracy_last": 71.9}
        write(tmp_path / "fedwa-s0", replace(STARTED, method="fedwa"), RunFinished(summary=other))
        code, out, _ = it.ends()
    assert code == 0
    assert "fedavg (standard)" in out
    assert "fedwa (wa)" in out
    assert "71.9" in out


def test_runs_on_other_data_get_a_table_of_their_own(tmp_path: Path) -> None:
    write(tmp_path / "a", STARTED, RunFinished(summary=SUMMARY))
    write(tmp_path / "b", replace(STARTED, dataset="mnist"), RunFinished(summary=SUMMARY | {"dataset": "mnist"}))
    code, out, _ = shown(tmp_path, cwd=tmp_path)
    assert code == 0
    titles = [line.strip() for line in out.splitlines() if line.strip().endswith("seed 0")]
    assert titles == ["synnum {2,2}, seed 0", "mnist {2,2}, seed 0"]


def test_once_is_a_line_per_run(tmp_path: Path) -> None:
    write(tmp_path / "a", STARTED, a_round(0, 0), a_round(0, 1), Warned(message="odd"))
    (tmp_path / "b").mkdir()
    write(tmp_path / "c", STARTED, RunFinished(summary=SUMMARY))
    code, out, error = shown(tmp_path, "--once", cwd=tmp_path)
    assert (code, error) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "a: task 1/2, round 2/3, 2 clients, loss 0.500, accuracy 30.0 %, about 8 s left"
    assert lines[1:3] == ["b: no event yet", "c: finished"]
    assert "38.8" in out


@pytest.mark.parametrize(
    ("age", "seconds", "said"),
    [
        (60, 2.0, ""),
        (61, 2.0, "no event for 61 s; the run may have been stopped"),
        (61, 60.0, ""),
        (120, 60.0, ""),
        (7200, 60.0, "no event for 2:00:00; the run may have been stopped"),
    ],
    ids=["just now", "silent", "in a long round", "in two of them", "silent after long rounds"],
)
def test_it_says_when_a_run_has_been_silent_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age: float, seconds: float, said: str
) -> None:
    """By a clock that stands still."""
    write(tmp_path, STARTED, a_round(0, 0, seconds=seconds))
    os.utime(RunDirectory(tmp_path).events, (1e9, 1e9))
    monkeypatch.setattr("fedclass.cli.watch.time", SimpleNamespace(time=lambda: 1e9 + age))
    out = called("watch", str(tmp_path), "--once", cwd=tmp_path).stdout
    assert [line for line in out.splitlines() if "no event for" in line] == [said] * bool(said)


def test_it_says_so_once_and_goes_on_watching(tmp_path: Path) -> None:
    write(tmp_path, STARTED)
    os.utime(RunDirectory(tmp_path).events, (1e9, 1e9))
    with watching(tmp_path) as it:
        it.hears("2 clients hold")
        it.hears("the run may have been stopped")
        time.sleep(1.5)
        write(tmp_path, a_round(0, 0), RunFinished(summary=SUMMARY))
        code, out, _ = it.ends()
    assert code == 0
    assert "stopped" not in out
    assert "round 1/3" in out


def test_an_interrupt_ends_it_quietly(tmp_path: Path) -> None:
    write(tmp_path, STARTED)
    with watching(tmp_path) as it:
        it.hears("2 clients hold")
        it.process.send_signal(signal.SIGINT)
        code, _, error = it.ends()
    assert code == 130
    assert "Traceback" not in error
    assert "rror" not in error


def test_what_is_no_run_ends_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    for where, what in ((tmp_path, "is not a run directory"), (tmp_path / "nowhere", "no such folder")):
        code, _, error = shown(where, cwd=tmp_path)
        assert code == 4
        assert error.startswith("error: ")
        assert what in error
        assert error.count("\n") == 1
    write(tmp_path / "run", STARTED)
    with RunDirectory(tmp_path / "run").events.open("a") as log:
        log.write("no event\n")
    code, _, error = shown(tmp_path / "run", cwd=tmp_path)
    assert code == 4
    assert "events.jsonl, line 2: not an event of fedclass" in error
    assert error.count("\n") == 1


# What displays make of events.


def test_bars_follow_a_run_that_goes_on_and_a_task_that_is_reused(capsys: pytest.CaptureFixture[str]) -> None:
    live = Live(["mine"])
    (bar,) = live.progress.tasks
    for event in (STARTED, TaskReused(task=0, key="ab"), a_round(0, 0), a_round(0, 1), a_round(0, 2), LEARNED):
        live.tell(0, event)
    assert (bar.total, bar.completed) == (6, 3)
    assert bar.fields["where"] == "task 1/2, round 3/3"
    assert bar.fields["accuracy"] == "accuracy 90.0 %"
    assert bar.fields["left"] == "", "what is taken over takes no time"
    live.tell(0, a_round(1, 0, seconds=7.0))
    assert bar.fields["left"] == "elapsed, 0:00:14 left"  # two rounds of 7 s; those of 2 s were another run's
    live.tell(0, RunResumed(task=1, round=0, machine={}))
    assert bar.completed == 3
    live.tell(0, UpdateReceived(task=1, round=0, done=1, of=2))
    assert bar.completed == 3.5
    assert bar.fields["where"] == "task 2/2, round 1/3, client 1/2"
    shown = " ".join(capsys.readouterr().out.split())
    assert "mine: task 1 reused from an earlier run with the same beginning" in shown
    assert "mine: resumed before task 2, round 1" in shown


def test_a_bar_that_joins_late_is_as_old_as_the_rounds_before_it() -> None:
    live = Live(["mine"])
    for event in (STARTED, a_round(0, 0, seconds=100.0), a_round(0, 1, seconds=300.0)):
        live.tell(0, event)
    (bar,) = live.progress.tasks
    assert bar.elapsed is not None
    assert bar.elapsed >= 400
    assert bar.fields["left"] == "elapsed, 0:13:20 left"  # four rounds of 200 s
    live.tell(0, RunFinished(summary=SUMMARY))
    assert bar.fields["where"] == "finished"


def test_lines_tell_of_a_run_that_goes_on_and_a_task_that_is_reused(capsys: pytest.CaptureFixture[str]) -> None:
    plain = Plain(["mine"])
    for event in (STARTED, TaskReused(task=0, key="ab"), a_round(0, 2), RunResumed(task=1, round=2, machine={})):
        plain.tell(0, event)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "mine: task 1 reused from an earlier run with the same beginning",
        "mine: task 1/2, round 3/3, 2 clients, loss 0.500, accuracy 30.0 %",
        "mine: resumed before task 2, round 3",
    ]


def test_several_runs_show_what_is_left_of_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    """Two runs of two tasks, 3 x 10 images each; the second takes over its first task. 10 of 90 images take 6 s."""
    now = 0.0
    left = TimeLeft([Outlook((30, 30), 3), Outlook((30, 30), 3, cached=1)], clock=lambda: now)
    live, plain = Live(["a", "b"]), Plain(["a", "b"])
    events: list[tuple[int, Event]] = [
        (0, STARTED),
        (1, STARTED),
        (1, TaskReused(task=0, key="ab")),
        (1, a_round(0, 2)),
    ]
    live.expect(left)
    plain.expect(left)
    for number, event in [*events, (0, a_round(0, 0))]:
        now = 6.0 if number == 0 and isinstance(event, RoundFinished) else now
        left.tell(number, event)
        live.tell(number, event)
        plain.tell(number, event)
    bar = live.progress.tasks[-1]
    assert bar.fields["left"] == "elapsed, 0:00:48 left"  # 80 of 90 images
    assert bar.completed == pytest.approx(1 / 9)
    *_, replayed, trained = capsys.readouterr().out.splitlines()
    assert replayed == "b: task 1/2, round 3/3, 2 clients, loss 0.500, accuracy 30.0 %"
    assert trained.endswith("about 10 s left; all runs: about 0:00:48 left")


def test_rounds_that_are_read_again_show_no_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    left = TimeLeft([Outlook((30, 30), 3, done=2)])
    live, plain = Live(["a"]), Plain(["a"])
    live.expect(left)
    plain.expect(left)
    shown = []
    for event in (STARTED, a_round(0, 0), a_round(0, 1), RunResumed(task=0, round=2, machine={}), a_round(0, 2)):
        live.tell(0, event)
        plain.tell(0, event)
        shown.append(live.progress.tasks[0].fields["left"])
    assert shown == ["", "", "", "", "elapsed, 0:00:06 left"]
    rounds = [line for line in capsys.readouterr().out.splitlines() if "loss" in line]
    assert [line.endswith(" left") for line in rounds] == [False, False, True]
