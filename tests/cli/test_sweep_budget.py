"""fedclass sweep --budget, --save and --dry-run, and --nice, as a user types them."""

import os
import tomllib
from pathlib import Path

import pytest

import fedclass
from commands import called, started
from fedclass.runs.events import TaskFinished, read_events


def settings(overrides: list[str]) -> list[str]:
    return [word for override in overrides for word in ("--set", override)]


def ends(run: Path) -> list[float | None]:
    """Validation accuracy after each task."""
    return [e.validation_accuracy for e in read_events(run / "events.jsonl") if isinstance(e, TaskFinished)]


def test_a_budget_stops_the_worse_candidates_and_finishes_the_best(
    tiny_settings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three tasks and three full runs: three candidates learn two tasks, two of them the third."""
    monkeypatch.setattr("fedclass.experiment.calibrate.SECONDS", 0.01)
    own = ["stream.tasks=[2,1,1]", "train.rounds=1", "data.validation=0.25", "optimizer.learning_rate=1e-9,0.01,0.03"]
    keys = [key for key in tiny_settings if not key.startswith(("stream", "train.rounds", "optimizer"))]
    sweep = ["sweep", *settings([*keys, *own]), "--method", "fedavg", "--out", "few"]

    planned = called(*sweep, "--dry-run", cwd=tmp_path)
    assert planned.returncode == 0, planned.stderr
    assert planned.stdout.count("tasks 1 to 3, 1 round each") == 3
    assert "By a calibration" in planned.stdout
    assert not (tmp_path / "few").exists()

    shown = called(*sweep, "--budget", "3", "--save", "best.toml", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "3 rungs: 3 with 2 tasks, 2 with 3 tasks, 1 with 3 tasks" in shown.stdout
    after = {path.name.split("=")[1].removesuffix("-s0"): ends(path) for path in (tmp_path / "few").glob("*-s0")}
    two = {value: accuracies[1] for value, accuracies in after.items()}
    stopped = min(after, key=lambda value: (two[value], list(after).index(value)))
    assert {value: len(accuracies) for value, accuracies in after.items()} == {
        value: 2 if value == stopped else 3 for value in ("1e-9", "0.01", "0.03")
    }
    best = max((value for value in after if value != stopped), key=lambda value: after[value][2] or 0)
    assert f"best: optimizer.learning_rate={best}, validation accuracy {after[best][2]:.2f} %" in shown.stdout
    assert f"fedavg (standard) optimizer.learning_rate={best} " in shown.stdout, "the tables name the winner"
    found = tomllib.loads((tmp_path / "best.toml").read_text())["fedavg"]
    assert found["settings"] == [f"optimizer.learning_rate={best}"]
    assert found["validation_accuracy"] == after[best][2]
    assert "data.validation=0.25" in found["beside"]

    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "few").rglob("events.jsonl")}
    again = called(*sweep, "--budget", "3", cwd=tmp_path)
    assert again.stdout.splitlines()[-2:] == [shown.stdout.splitlines()[-3], "runs: few"]
    assert {path: path.stat().st_mtime_ns for path in files} == files, "nothing is learned again"

    table = called("table", "few", cwd=tmp_path)
    assert table.returncode == 0, table.stderr
    assert f"dropped are left out; what is shown: optimizer.learning_rate={best}-s0\n" in table.stderr
    assert table.stderr.count("\n") == 1
    assert f"{after[best][2]:.1f}" in table.stdout
    assert table.stdout.count("fedavg (standard)") == 2, "one row on validation images, one on test images"

    left = called(*sweep, "--dry-run", cwd=tmp_path).stdout
    assert left.count("finished") == 2
    assert "2 rounds" in left
    assert "task 3, 1 round each" in left

    same = {"method": "fedavg", "out": tmp_path / "few", "progress": False}
    (row,) = fedclass.sweep(None, [*keys, *own], budget=3, save=tmp_path / "again.toml", **same)
    assert row["validation_accuracy_last"] == after[best][2]
    assert tomllib.loads((tmp_path / "again.toml").read_text())["fedavg"] == found
    rows = fedclass.sweep(None, [*keys, *own], dry_run=True, **same)
    assert [record["finished"] for record in rows].count(True) == 2
    assert [bool(record["images"] and record["seconds"]) for record in rows].count(True) == 1
    assert {path: path.stat().st_mtime_ns for path in files} == files, "nor from Python"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--budget", "9"), "budget: chooses by validation images, and there are none; set data.valid"),
        (("--budget", "nan"), "budget nan: must be a finite number"),
        (("--budget", "inf"), "budget inf: must be a finite number"),
        (("--save", "b.toml"), "save: chooses by validation images"),
        (
            ("--budget", "1", "--set", "data.validation=0.25"),
            "budget 1: 3 candidates and 1 seed need at least 3 full",
        ),
        (("--budget", "9", "--dry-run", "--set", "data.validation=0.25"), "leave out against and dry run"),
        (
            ("--budget", "9", "--set", "data.validation=0.25", "--set", "stream.tasks=[2,2],[1,3]"),
            "candidates must have the same data and tasks",
        ),
    ],
)
def test_what_cannot_be_chosen_is_refused_before_anything_is_run(
    words: tuple[str, ...], message: str, tiny_settings: list[str], tmp_path: Path
) -> None:
    keys = [key for key in tiny_settings if not key.startswith("stream")]
    result = called(
        "sweep", "--method", "fedclass", *settings([*keys, "method.beta=0,1,5"]), *words, "--out", "none", cwd=tmp_path
    )
    assert result.returncode == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "none").exists()


POLITE = """
import os
from dataclasses import dataclass
from pathlib import Path
from fedclass import FedAvg

@dataclass(frozen=True, kw_only=True)
class Polite(FedAvg):
    def loss(self, client, batch):
        Path("nice").write_text(f"{os.getpid()} {os.nice(0)}")
        return super().loss(client, batch)
"""


def test_nice_reaches_the_workers(tiny_settings: list[str], tmp_path: Path) -> None:
    (tmp_path / "polite.py").write_text(POLITE)
    words = ["--method", "polite:Polite", "--engine", "processes", "--workers", "1", "--set", "train.rounds=1"]
    result = started("run", *settings(tiny_settings), *words, "--no-reuse", "--nice", "3", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    worker, niceness = map(int, (tmp_path / "nice").read_text().split())
    assert niceness == min(os.nice(0) + 3, 19)
    assert worker != os.getpid()
