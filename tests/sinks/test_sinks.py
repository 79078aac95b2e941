"""Sinks, with the real libraries: what is written is read back with their own readers."""

import io
import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fedclass.errors import ConfigError
from fedclass.experiment.config import Experiment
from fedclass.experiment.launch import run_one
from fedclass.runs.config_file import flat
from fedclass.runs.events import (
    Event,
    EventLog,
    RoundFinished,
    RunFinished,
    RunResumed,
    RunStarted,
    TaskFinished,
    TaskStarted,
    read_events,
)
from fedclass.sinks import SINKS, open_sinks

pytestmark = [
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning"),  # MLflow's own queries
]

Series = dict[str, list[tuple[int, float]]]  # per figure: step, value


@pytest.fixture(autouse=True)
def _no_settings_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_PROJECT", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)  # whatever a library writes to the working folder does not belong there


# What the libraries find.


def tensorboard_reads(root: Path) -> tuple[Series, str]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(root / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    (recipe,) = found.Tensors("recipe")
    series = {tag: [(point.step, point.value) for point in found.Scalars(tag)] for tag in found.Tags()["scalars"]}
    return series, recipe.tensor_proto.string_val[0].decode()


def mlflow_reads(root: Path, uri: str | None = None) -> tuple[Series, str]:
    from mlflow import MlflowClient

    client = MlflowClient(uri or f"sqlite:///{root.resolve()}/mlflow/mlflow.db")
    experiment = client.get_experiment_by_name("fedclass")
    (run,) = client.search_runs([experiment.experiment_id])
    series = {
        name: [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, name)]
        for name in run.data.metrics
    }
    return series, "\n".join(f"{key} = {value}" for key, value in run.data.params.items())


def wandb_records(path: Path) -> Iterator[bytes]:
    """W&B's log: seven bytes of header, then blocks of 32 KiB with records (checksum, length, part, content)."""
    content = path.read_bytes()
    assert content[:4] == b":W&B"
    file, whole = io.BytesIO(content), b""
    file.seek(7)
    while header := file.read(7):
        _, length, part = struct.unpack("<IHB", header)
        whole += file.read(length)
        if part in (1, 4):  # all of it, or its last part
            yield whole
            whole = b""
        if 32768 - file.tell() % 32768 < 7:
            file.seek(32768 - file.tell() % 32768, io.SEEK_CUR)


def wandb_has_written() -> None:
    """Its background process may still write when a run has finished; it is waited for when Python ends, or here."""
    import wandb

    wandb.teardown()


def wandb_reads(root: Path) -> tuple[Series, str]:
    from wandb.proto.wandb_internal_pb2 import Record

    wandb_has_written()
    (path,) = root.glob("wandb/offline-run-*/run-*.wandb")
    series: Series = {}
    recipe: list[str] = []
    for content in wandb_records(path):
        record = Record.FromString(content)
        if record.HasField("run"):
            recipe += [f"{item.key} = {json.loads(item.value_json)}" for item in record.run.config.update]
        for item in record.history.item:
            name = item.key or "/".join(item.nested_key)
            if not name.startswith("_"):
                series.setdefault(name, []).append((record.history.step.num, json.loads(item.value_json)))
        for item in record.summary.update:
            name = item.key or "/".join(item.nested_key)
            if name in ("accuracy_last", "forgetting_fedclass"):
                series[f"summary/{name}"] = [(3, json.loads(item.value_json))]
    return series, "\n".join(recipe)


READERS: dict[str, Callable[[Path], tuple[Series, str]]] = {
    "tensorboard": tensorboard_reads,
    "mlflow": mlflow_reads,
    "wandb": wandb_reads,
}


# A real run.


@pytest.mark.parametrize("name", SINKS)
def test_a_sink_holds_what_the_events_say(name: str, tiny: Callable[..., Experiment], tmp_path: Path) -> None:
    root = tmp_path / "run"
    with open_sinks([name], [root]) as tell:
        summary = run_one(tiny(method="fedavg"), root, lambda event: tell(0, event))
    series, recipe = READERS[name](root)

    events = list(read_events(root / "events.jsonl"))
    rounds = [event for event in events if isinstance(event, RoundFinished)]
    tasks = [event for event in events if isinstance(event, TaskFinished)]
    assert [step for step, _ in series["loss"]] == [0, 1, 2, 3]
    for figure, want in {
        "loss": [event.loss for event in rounds],
        "seconds": [event.seconds for event in rounds],
        "bytes/up": [event.bytes_up for event in rounds],
        "bytes/down": [event.bytes_down for event in rounds],
    }.items():
        assert [value for _, value in series[figure]] == pytest.approx(want, rel=1e-6), figure
    after = [100 * sum(r[i] for i, r in enumerate(t.confusion)) / sum(map(sum, t.confusion)) for t in tasks]
    tested = [rounds[0].accuracy, after[0], rounds[2].accuracy, after[1]]
    assert series["accuracy/all"] == [(step, pytest.approx(value)) for step, value in enumerate(tested)]
    matrix = summary["accuracy_matrix"]
    assert series["accuracy/task_1"] == [(1, pytest.approx(matrix[0][0])), (3, pytest.approx(matrix[1][0]))]
    assert series["accuracy/task_2"] == [(3, pytest.approx(matrix[1][1]))]
    assert series["summary/accuracy_last"] == [(3, pytest.approx(summary["accuracy_last"]))]
    assert series["summary/forgetting_fedclass"] == [(3, pytest.approx(summary["forgetting_fedclass"]))]
    lines = [line.strip() for line in recipe.splitlines()]
    for fact in ("train.rounds = 2", "method.name = fedavg", "variant = standard", "seed = 0"):
        assert fact in lines
    assert {path.name for path in tmp_path.iterdir()} <= {"run", "cache"}, "everything is below the run directory"


def test_mlflow_says_how_a_run_ended(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    def status(root: Path) -> str:
        client = MlflowClient(f"sqlite:///{root}/mlflow/mlflow.db")
        (run,) = client.search_runs([client.get_experiment_by_name("fedclass").experiment_id])
        found: str = run.info.status
        return found

    play(EVENTS, tmp_path / "whole", ["mlflow"])
    play(EVENTS[:3], tmp_path / "part", ["mlflow"])
    assert (status(tmp_path / "whole"), status(tmp_path / "part")) == ("FINISHED", "KILLED")


@pytest.mark.slow
def test_wandb_itself_would_upload_the_run(tmp_path: Path) -> None:
    play(EVENTS, tmp_path, ["wandb"])
    (folder,) = (tmp_path / "wandb").iterdir()
    words = [sys.executable, "-m", "wandb", "sync", "--dry-run", str(folder)]
    result = subprocess.run(words, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "Would sync 1 run(s)" in result.stdout + result.stderr


# Made-up runs, for what is rare.

STARTED = RunStarted(
    version="0.1.0",
    method="fedclass",
    variant="paper",
    dataset="synnum",
    dataset_sha256="ab",
    official=True,
    tasks=[2, 1],
    classes=["a", "b", "c"],
    counts=[[4, 4, 4]],
    exemplars=[2, 2],
    rounds=2,
    seed=5,
    engine="inprocess",
    machine={},
)


def a_round(task: int, round: int) -> RoundFinished:
    return RoundFinished(
        task=task,
        round=round,
        clients=[0],
        examples=[8],
        losses=[1.0],
        loss=1 / (1 + 2 * task + round),
        bytes_up=10,
        bytes_down=20,
        seconds=0.5,
    )


def a_task(task: int, confusion: list[list[int]]) -> TaskFinished:
    return TaskFinished(task=task, confusion=confusion, exemplars=2, bytes_up=1, bytes_down=1, seconds=1.0)


EVENTS: list[Event] = [
    STARTED,
    TaskStarted(task=0, new_classes=["a", "b"], clients=1),
    a_round(0, 0),
    a_round(0, 1),
    a_task(0, [[3, 1], [0, 4]]),
    TaskStarted(task=1, new_classes=["c"], clients=1),
    a_round(1, 0),
    a_round(1, 1),
    a_task(1, [[2, 1, 1], [0, 3, 1], [0, 0, 4]]),
    RunFinished(
        summary={
            "accuracy_last": 75.0,
            "forgetting_fedclass": 25.0,
            "weights_sha256": "cd",
            "official_data": True,
            "accuracy_matrix": [[87.5], [62.5, 100.0]],
        }
    ),
]


def play(events: Sequence[Event], root: Path, names: Sequence[str]) -> None:
    """As a run does: an event is in the log before anyone hears of it."""
    root.mkdir(exist_ok=True)
    (root / "config.toml").write_text("seed = 5\n[train]\nrounds = 2\n")
    with EventLog(root / "events.jsonl") as log, open_sinks(names, [root]) as tell:
        for event in events:
            log.write(event)
            tell(0, event)
    if "wandb" in names:
        wandb_has_written()


@pytest.mark.parametrize("name", SINKS)
def test_a_resumed_run_has_every_round_once(name: str, tmp_path: Path) -> None:
    """Killed after the third round, with a checkpoint after the second: the third is done again."""
    play(EVENTS[:7], tmp_path, [name])
    log = tmp_path / "events.jsonl"
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:6]))
    play([RunResumed(task=1, round=0, machine={}), *EVENTS[6:]], tmp_path, [name])
    series, _ = READERS[name](tmp_path)
    assert series["loss"] == [(step, pytest.approx(1 / (1 + step))) for step in range(4)]
    assert series["accuracy/task_1"] == [(1, 87.5), (3, 62.5)]
    assert series["summary/accuracy_last"] == [(3, 75.0)]


def test_a_sink_that_joins_when_a_run_is_resumed_has_its_beginning_too(tmp_path: Path) -> None:
    play(EVENTS[:6], tmp_path, [])
    play([RunResumed(task=1, round=0, machine={}), *EVENTS[6:]], tmp_path, ["tensorboard"])
    series, recipe = tensorboard_reads(tmp_path)
    assert [step for step, _ in series["loss"]] == [0, 1, 2, 3]
    assert "train.rounds = 2" in recipe


def test_a_log_that_is_ahead_of_its_listener_is_not_read_twice(tmp_path: Path) -> None:
    """`compare` hears of events through a queue, from processes that write on meanwhile."""
    play([*EVENTS[:6], RunResumed(task=1, round=0, machine={}), *EVENTS[6:]], tmp_path, [])
    with open_sinks(["tensorboard"], [tmp_path]) as tell:
        for event in [RunResumed(task=1, round=0, machine={}), *EVENTS[6:]]:
            tell(0, event)
    assert [step for step, _ in tensorboard_reads(tmp_path)[0]["loss"]] == [0, 1, 2, 3]


def test_several_runs_at_a_time_do_not_mix(tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    play(EVENTS, roots[0], [])
    shutil.copytree(*roots)  # the same to the millisecond
    with open_sinks(["wandb", "tensorboard"], roots) as tell:
        for event in EVENTS:
            for number in (0, 1):
                changed = replace(event, loss=event.loss + number) if isinstance(event, RoundFinished) else event
                tell(number, changed)
    for read in (wandb_reads, tensorboard_reads):
        for number, root in enumerate(roots):
            assert read(root)[0]["loss"] == [(step, pytest.approx(1 / (1 + step) + number)) for step in range(4)]


def test_half_a_database_of_mlflow_is_made_anew(tmp_path: Path) -> None:
    """A run that was stopped within its first seconds."""
    (tmp_path / "mlflow").mkdir()
    (tmp_path / "mlflow" / "mlflow.db.part").write_bytes(b"half a table")
    play(EVENTS, tmp_path, ["mlflow"])
    assert len(mlflow_reads(tmp_path)[0]["loss"]) == 4
    assert [path.name for path in (tmp_path / "mlflow").iterdir()] == ["mlflow.db"]


def test_mlflow_goes_where_the_user_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = f"sqlite:///{tmp_path}/central.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    play(EVENTS, tmp_path / "run", ["mlflow"])
    assert not (tmp_path / "run" / "mlflow").exists()
    series, _ = mlflow_reads(tmp_path / "run", uri)
    assert len(series["loss"]) == 4


# What goes wrong.


def test_an_unknown_sink_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match=r"sink tensorbord: no such sink; there are tensorboard, mlflow, wandb"),
        open_sinks(["tensorbord"], [tmp_path]),
    ):
        raise AssertionError("not reached")


@pytest.mark.parametrize(
    ("name", "module"),
    [("tensorboard", "tensorboard.compat.proto.event_pb2"), ("mlflow", "mlflow"), ("wandb", "wandb")],
)
def test_a_missing_library_is_found_before_anything_is_written(
    name: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    root = tmp_path / "run"
    with (
        pytest.raises(ConfigError, match=rf"sink {name}: .*; in a clone .* '\.\[{name}\]'"),
        open_sinks([name], [root]),
    ):
        raise AssertionError("not reached")
    assert not root.exists()


def test_a_sink_that_breaks_down_warns_once_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "run"
    play(EVENTS, root, [])
    with open_sinks(["mlflow", "tensorboard"], [root]) as tell:
        for number, event in enumerate(EVENTS):
            if number == 4:
                (root / "mlflow" / "mlflow.db").write_bytes(b"no database" * 1000)
            tell(0, event)
    # MLflow may tell what it does, if a test before this one has imported it at its own level.
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert line.startswith(f"warning: {root}: mlflow failed and is left out (")
    assert line.endswith("; the run continues")
    assert len(tensorboard_reads(root)[0]["loss"]) == 4


def test_a_server_that_is_not_there_does_not_stop_a_run(
    tiny: Callable[..., Experiment],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")  # discard: nobody listens
    root = tmp_path / "run"
    with open_sinks(["mlflow"], [root]) as tell:
        summary = run_one(tiny("train.rounds=1", method="fedavg"), root, lambda event: tell(0, event))
    assert len(summary["accuracy_matrix"]) == 2
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 1
    assert "mlflow failed and is left out" in warnings[0]


def test_a_folder_that_cannot_be_made_does_not_stop_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tensorboard").touch()  # where the folder should be
    play(EVENTS, tmp_path, ["tensorboard"])
    (line,) = capsys.readouterr().err.splitlines()
    assert "tensorboard failed and is left out (FileExistsError" in line


@pytest.mark.slow
def test_sinks_are_silent_and_do_without_torch(tmp_path: Path) -> None:
    play(EVENTS, tmp_path, [])
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from fedclass.runs.events import read_events\n"
        "from fedclass.sinks import SINKS, open_sinks\n"
        "root = Path(sys.argv[1])\n"
        "with open_sinks(list(SINKS), [root]) as tell:\n"
        "    for event in read_events(root / 'events.jsonl'):\n"
        "        tell(0, event)\n"
        "assert not {'torch', 'tensorflow'} & set(sys.modules)\n"
    )
    result = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    for read in READERS.values():
        assert len(read(tmp_path)[0]["loss"]) == 4


def test_importing_sinks_imports_none_of_the_libraries() -> None:
    code = "import sys, fedclass.sinks; assert not {'tensorboard', 'mlflow', 'wandb', 'torch'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_tables_become_dotted_names() -> None:
    assert flat({"seed": 1, "train": {"rounds": 2, "device": "cpu"}, "stream": {"tasks": [5, 5]}}) == {
        "seed": 1,
        "train.rounds": 2,
        "train.device": "cpu",
        "stream.tasks": [5, 5],
    }
