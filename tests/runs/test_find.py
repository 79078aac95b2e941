"""One finder for all commands: which run directories a place stands for."""

from pathlib import Path

import pytest

from fedclass.errors import RunError
from fedclass.runs.find import find_all, find_runs


def begun(root: Path) -> Path:
    root.mkdir(parents=True)
    (root / "events.jsonl").touch()
    return root


def test_a_folder_stands_for_all_runs_within_it(tmp_path: Path) -> None:
    one, two, a = (begun(tmp_path / name) for name in ("b/one", "b/two", "a"))
    assert find_runs(tmp_path / "b") == [one, two]
    assert find_runs(one) == [one]
    assert find_all([two, tmp_path]) == [two, a, one], "each once, in the order of the places"


def test_runs_that_have_yet_to_begin_count_where_they_are_waited_for(tmp_path: Path) -> None:
    """`fedclass compare` makes the folders of all its runs first."""
    running, deep = begun(tmp_path / "b"), begun(tmp_path / "d" / "comparison" / "fedavg-s0")
    for name in ("a", "c", "pictures"):
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "config.toml").touch()
    (tmp_path / "pictures" / "plan.png").touch()
    (tmp_path / "notes.txt").touch()
    assert find_runs(tmp_path) == [running, deep]
    assert find_runs(tmp_path, waiting=True) == [tmp_path / "a", running, tmp_path / "c", deep]
    assert find_runs(tmp_path / "a", waiting=True) == [tmp_path / "a"]


def test_what_holds_no_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    assert find_runs(tmp_path) == []
    for waiting in (False, True):
        with pytest.raises(RunError, match="is not a run directory and contains none"):
            find_all([tmp_path], waiting=waiting)
    for name in ("nowhere", "notes.txt"):
        with pytest.raises(RunError, match=f"{name}: no such folder; name a folder that holds runs"):
            find_runs(tmp_path / name)
