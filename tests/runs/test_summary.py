"""Run directories: made, read, listed; without torch."""

import json
import os
import subprocess
import sys

import pytest

from fedclass.errors import RunError
from fedclass.runs.events import EventLog, RoundFinished, RunStarted, TaskStarted
from fedclass.runs.find import list_runs
from fedclass.runs.layout import RunDirectory, create, write_atomically
from fedclass.runs.summary import Result

SUMMARY = {
    **{"method": "fedclass", "variant": "paper", "seed": 3, "accuracy_last": 61.5, "tasks": [1], "dataset": "mnist"},
    **{"official_data": True, "accuracy_matrix": [[61.5]], "forgetting_fedclass": None},
}


def started(method="fedclass", *, seed=3):
    return RunStarted(
        version="0.1.0",
        method=method,
        variant="paper",
        dataset="synnum",
        dataset_sha256="ab",
        official=True,
        tasks=[2, 2, 1],
        classes=list("abcde"),
        counts=[[1, 2, 3, 4, 5]] * 2,
        exemplars=[4, 4, 4],
        rounds=4,
        seed=seed,
        engine="inprocess",
        machine={},
    )


def finished(round):
    return RoundFinished(
        task=0, round=round, clients=[0], examples=[1], losses=[1.0], loss=1.0, bytes_up=1, bytes_down=1, seconds=0.1
    )


def a_run(root, *, events=(), summary=None, age=0):
    root.mkdir(parents=True)
    with EventLog(root / "events.jsonl") as log:
        for event in events:
            log.write(event)
    if summary is not None:
        (root / "summary.json").write_text(summary if isinstance(summary, str) else json.dumps(summary))
    os.utime(root / "events.jsonl", (1e9 - age, 1e9 - age))
    return root


# Reading one.


def test_a_result_is_its_summary(tmp_path):
    result = Result.read(a_run(tmp_path / "r", summary=SUMMARY))
    assert result.path == tmp_path / "r"
    assert result.summary == SUMMARY
    assert result.label == "fedclass (paper)"


def test_a_run_without_a_summary_is_not_finished(tmp_path):
    with pytest.raises(RunError, match=r"r: has no summary\.json \(No such file.*\); is it a finished run\?"):
        Result.read(a_run(tmp_path / "r", events=[started()]))


@pytest.mark.parametrize("damage", ["", "{", '{"method": "fed', "\x00"])
def test_a_damaged_summary_is_named(tmp_path, damage):
    with pytest.raises(RunError, match=r"summary\.json: is damaged"):
        Result.read(a_run(tmp_path / "r", summary=damage))


def test_a_summary_of_bytes_that_are_no_text_is_damaged_too(tmp_path):
    root = a_run(tmp_path / "r", summary=SUMMARY)
    (root / "summary.json").write_bytes(b"\xff\xfe")
    with pytest.raises(RunError, match=r"summary\.json: is damaged"):
        Result.read(root)


@pytest.mark.parametrize("content", ["[]", "3", "null", "{}"])
def test_json_that_is_no_summary_is_damaged_too(tmp_path, content):
    with pytest.raises(RunError):
        Result.read(a_run(tmp_path / "r", summary=content))


# Listing many.


def test_runs_are_listed_oldest_first_finished_or_not(tmp_path):
    a_run(tmp_path / "b" / "done", events=[started(), finished(0), finished(1)], summary=SUMMARY, age=50)
    a_run(tmp_path / "a", events=[started("fedavg", seed=4), TaskStarted(task=0, new_classes=[], clients=1)], age=10)
    a_run(tmp_path / "c", events=[started("glfc"), finished(0)], age=90)
    (tmp_path / "not a run").mkdir()
    (oldest, done, running), damaged = list_runs(tmp_path)
    assert damaged == []
    assert [run.path for run in (oldest, done, running)] == [tmp_path / "c", tmp_path / "b" / "done", tmp_path / "a"]
    assert [run.rounds_done for run in (oldest, done, running)] == [1, 2, 0]
    assert [run.rounds for run in (oldest, done, running)] == [12, 12, 12]  # four rounds, three tasks
    assert done.summary == SUMMARY
    assert oldest.summary is running.summary is None
    assert (running.started.method, running.started.seed) == ("fedavg", 4)


def test_a_run_whose_first_event_was_cut_is_passed_over(tmp_path):
    a_run(tmp_path / "empty")
    root = a_run(tmp_path / "cut", events=[started()])
    (root / "events.jsonl").write_bytes((root / "events.jsonl").read_bytes()[:40])
    assert list_runs(tmp_path) == ([], [])


def test_a_folder_without_runs_lists_nothing(tmp_path):
    assert list_runs(tmp_path) == ([], [])


def test_damage_is_named_when_listing(tmp_path):
    """One damaged run does not hide the others."""
    root = a_run(tmp_path / "r", events=[started()], summary="{")
    a_run(tmp_path / "good", events=[started()])
    found, (error,) = list_runs(tmp_path)
    assert [run.path.name for run in found] == ["good"]
    assert "r/summary.json: is damaged" in str(error)
    (root / "summary.json").unlink()
    (root / "events.jsonl").write_text("no event\n")
    found, (error,) = list_runs(tmp_path)
    assert [run.path.name for run in found] == ["good"]
    assert "r/events.jsonl, line 1" in str(error)


# Making one.


def test_where_things_are(tmp_path):
    directory = RunDirectory(tmp_path)
    assert [
        path.relative_to(tmp_path).as_posix()
        for path in (
            directory.config,
            directory.events,
            directory.summary,
            directory.model,
            directory.classes,
        )
    ] == ["config.toml", "events.jsonl", "summary.json", "model.safetensors", "classes.json"]


def test_a_new_directory_is_made_with_its_parents_and_left_empty(tmp_path):
    directory = create(tmp_path / "a" / "b")
    assert directory.root == tmp_path / "a" / "b"
    assert list(directory.root.iterdir()) == []
    assert create(directory.root) == directory  # an empty one may be there


def test_a_directory_that_holds_anything_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(RunError, match="is not empty; choose another directory, or remove it"):
        create(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("below", ["", "run"])
def test_a_file_is_no_place_for_a_run(tmp_path, below):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot write there \(.+\); choose another directory"):
        create(tmp_path / "file" / below)


@pytest.mark.parametrize("content", ["één\n", b"\x00\xff"])
def test_files_are_replaced_as_a_whole(tmp_path, content):
    path = tmp_path / "summary.json"
    path.write_text("old, and longer than the new one")
    write_atomically(path, content)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "summary.json"
    path.write_text("old")

    def full(descriptor: int) -> None:  # noqa: ARG001
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_one_process_at_a_time_writes_a_run(tmp_path):
    directory = RunDirectory(tmp_path)
    code = (
        "import sys\nfrom pathlib import Path\nfrom fedclass.runs.layout import RunDirectory\n"
        "with RunDirectory(Path(sys.argv[1])).locked():\n    print('mine')\n"
    )
    other = [sys.executable, "-c", code, str(tmp_path)]
    with directory.locked():
        refused = subprocess.run(other, capture_output=True, text=True, check=False)
        assert refused.returncode == 1
        assert "another process is writing this run" in refused.stderr
    assert subprocess.run(other, capture_output=True, text=True, check=True).stdout == "mine\n"


# Without torch.


def test_results_and_tables_are_read_without_torch():
    """Importing torch takes seconds; a table of finished runs must not."""
    code = (
        "import fedclass.report.tables, fedclass.runs.summary, fedclass.metrics, sys\n"
        "assert 'torch' not in sys.modules\n"
        "assert 'matplotlib' not in sys.modules\n"
        "import fedclass.report.drawing\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
