"""Runs as flat rows, without torch."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import fedclass
from fedclass.errors import ConfigError, RunError
from fedclass.experiment.config import Experiment
from fedclass.runs.events import EventLog, RoundFinished, RunStarted, TaskFinished, read_events


@pytest.fixture(scope="module")
def folder(tiny: Callable[..., Experiment], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs and one that stopped in its second task."""
    root = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        fedclass.run(tiny("method.beta=2.5", method="fedclass", seed=seed), root / f"s{seed}")
    (root / "cut").mkdir()
    lines = (root / "s0" / "events.jsonl").read_bytes().splitlines(keepends=True)
    kinds = [type(event).__name__ for event in read_events(root / "s0" / "events.jsonl")]
    second = kinds.index("TaskStarted", kinds.index("TaskStarted") + 1)
    (root / "cut" / "events.jsonl").write_bytes(b"".join(lines[: second + 2]) + b'{"event": "Rou')
    return root


def test_what_a_row_is_must_be_one_of_three_things(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"results: per = 'site': must be one of 'run', 'round', 'client'"):
        fedclass.results(folder, per="site")  # type: ignore[arg-type]


def test_a_client_is_a_row_after_each_task(folder: Path) -> None:
    rows = fedclass.results(folder / "s0", per="client")
    assert [(row["task"], row["client"], row["name"], row["classes"]) for row in rows] == [
        *((1, client, str(client), 2) for client in range(3)),
        *((2, client, str(client), 4) for client in range(3)),
    ]
    (run,) = fedclass.results(folder / "s0")
    summary = fedclass.runs.summary.Result.read(folder / "s0").summary
    assert [row["accuracy"] for row in rows[3:]] == summary["accuracy_per_client"]
    assert (
        min(summary["accuracy_per_client"]) == run["accuracy_worst_client"] == rows[3 + run["worst_client"]]["accuracy"]
    )
    events = list(read_events(folder / "s0" / "events.jsonl"))
    (held,) = [event.counts for event in events if isinstance(event, RunStarted)]
    *_, last = [event.confusion for event in events if isinstance(event, TaskFinished)]
    right = [100 * row[i] / sum(row) for i, row in enumerate(last)]
    for row, counts in zip(rows[3:], held, strict=True):
        assert row["images"] == sum(counts)
        assert row["accuracy"] == pytest.approx(sum(n * r for n, r in zip(counts, right, strict=True)) / sum(counts))
    assert "accuracy_per_client" not in run


def test_a_finished_run_is_a_row_of_plain_values(folder: Path) -> None:
    first, second = fedclass.results(folder)
    summary = fedclass.runs.summary.Result.read(folder / "s0").summary
    assert [row["run"] for row in (first, second)] == [str(folder / "s0"), str(folder / "s1")]
    assert [row["seed"] for row in (first, second)] == [0, 1]
    assert list(first) == list(second)
    for key in ("method", "variant", "accuracy_last", "forgetting_fedclass", "weights_sha256", "bytes_up"):
        assert first[key] == summary[key]
    assert [first["accuracy_task_1"], first["accuracy_task_2"]] == summary["accuracy_matrix"][-1]
    assert [first["forgetting_after_task_2"]] == summary["forgetting_per_task"]
    assert (first["tasks"], first["stream.tasks"]) == ("2,2", "2,2")
    assert (first["method.beta"], first["train.rounds"], first["data.name"]) == (2.5, 2, "npz")
    assert {type(value) for value in first.values()} <= {str, int, float, bool, type(None)}


def test_a_tested_round_is_a_row(folder: Path) -> None:
    rows = fedclass.results([folder / "s0"], per="round")
    assert [(row["task"], row["round"], row["round_in_run"], row["classes"]) for row in rows] == [
        *((1, 1, 1, 2), (1, 2, 2, 2), (2, 1, 3, 4), (2, 2, 4, 4)),
    ]
    (summary,) = fedclass.results(folder / "s0")
    assert rows[-1]["accuracy"] == summary["accuracy_last"]
    losses = [e.loss for e in read_events(folder / "s0" / "events.jsonl") if isinstance(e, RoundFinished)]
    assert [row["loss"] for row in rows] == losses
    cut = fedclass.results(folder / "cut", per="round")
    assert [{**row, "run": None} for row in cut] == [{**row, "run": None} for row in rows[:3]]
    assert fedclass.results(folder / "cut") == []  # it has not finished


def test_rounds_that_were_not_tested_have_no_row_and_repeated_ones_one(folder: Path, tmp_path: Path) -> None:
    start = next(e for e in read_events(folder / "s0" / "events.jsonl") if isinstance(e, RunStarted))

    def round(number: int, correct: int | None) -> RoundFinished:
        counts = {} if correct is None else {"correct": [correct, 0], "tested": [10, 10]}
        return RoundFinished(
            **{"task": 0, "round": number, "clients": [0], "examples": [1], "losses": [1.0], "loss": 1.0},
            **{"bytes_up": 1, "bytes_down": 1, "seconds": 0.1, **counts},
        )

    with EventLog(tmp_path / "events.jsonl") as log:
        for event in (start, round(0, 3), round(0, 4), round(1, None)):  # stopped, and gone on from the beginning
            log.write(event)
    (row,) = fedclass.results(tmp_path, per="round")
    assert (row["round"], row["accuracy"]) == (1, 20.0)


def test_pandas_takes_them_as_they_are(folder: Path) -> None:
    import pandas  # by this test alone, and for seconds

    table = pandas.DataFrame(fedclass.results(folder))
    means = table.groupby("method.beta")["accuracy_last"].mean()
    assert means[2.5] == pytest.approx(sum(row["accuracy_last"] for row in fedclass.results(folder)) / 2)
    rounds = pandas.DataFrame(fedclass.results([folder / "s0", folder / "s1"], per="round"))
    curves = rounds.pivot(index="round_in_run", columns="seed", values="accuracy")
    assert curves.shape == (4, 2)
    assert not curves.isna().any(axis=None)


def test_what_holds_no_runs_is_named_and_damage_is_warned_of(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="gone: no such folder"):
        fedclass.results(tmp_path / "gone")
    with pytest.raises(RunError, match="contains no runs"):
        fedclass.results(tmp_path)
    for name in ("good", "bad"):
        (tmp_path / name).mkdir()
        for file in ("events.jsonl", "summary.json", "config.toml"):
            (tmp_path / name / file).write_bytes((folder / "s0" / file).read_bytes())
    (tmp_path / "bad" / "summary.json").write_text("{")
    with pytest.warns(UserWarning, match=r"bad/summary\.json: is damaged"):
        (row,) = fedclass.results(tmp_path)
    assert row["run"] == str(tmp_path / "good")
    (tmp_path / "good" / "config.toml").write_text("seed = ")
    with pytest.raises(RunError, match=r"config\.toml: is damaged"):
        fedclass.results(tmp_path / "good")
    (tmp_path / "good" / "config.toml").unlink()
    with pytest.raises(RunError, match=r"config\.toml: cannot be read \(No such file"):
        fedclass.results(tmp_path / "good")


def test_results_are_read_without_torch(folder: Path) -> None:
    code = (
        f"import sys, fedclass\n"
        f"assert len(fedclass.results({str(folder)!r})) == 2\n"
        f"assert len(fedclass.results({str(folder)!r}, per='round')) == 11\n"
        f"assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
