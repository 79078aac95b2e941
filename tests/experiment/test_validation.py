"""Runs that hold out validation images, and what every run says of the images it uses."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from conftest import write_tiny
from fedclass import metrics
from fedclass.cli import app
from fedclass.experiment.config import Experiment
from fedclass.experiment.launch import run_one
from fedclass.experiment.recipe import load
from fedclass.experiment.setup import prepare
from fedclass.report.history import read_history
from fedclass.report.html import build
from fedclass.runs.dataframe import results
from fedclass.runs.events import RoundFinished, RunStarted, TaskFinished, read_events
from fedclass.runs.layout import RunDirectory
from fedclass.runs.progress import ProgressLines

Tiny = Callable[..., Experiment]


@pytest.fixture(scope="module")
def run(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("validation") / "run"
    run_one(tiny("data.validation=0.25", "train.rounds=3", method="fedavg"), root)
    return root


def test_held_out_images_are_tested_and_neither_trained_on_nor_kept(tiny: Tiny, run: Path) -> None:
    stream = prepare(tiny("data.validation=0.25", method="fedavg")).stream
    held = np.concatenate(stream.held_out)
    events = list(read_events(RunDirectory(run).events))
    (started,) = [e for e in events if isinstance(e, RunStarted)]
    assert sum(map(sum, started.counts)) == started.images_used == 96 - len(held)
    assert (started.images_available, started.validation_images) == (96, len(held))
    assert (started.test_images_used, started.test_images_available) == (40, 40)
    of_class = np.bincount(stream.targets[held], minlength=4).tolist()
    ends = [e for e in events if isinstance(e, TaskFinished)]
    for task, end in enumerate(ends, start=1):
        assert end.validation is not None
        assert [sum(row) for row in end.validation] == of_class[: 2 * task]
        assert [sum(row) for row in end.confusion] == [10] * 2 * task
    for event in (e for e in events if isinstance(e, RoundFinished)):
        sizes = [len(stream.new_data(client, event.task)) for client in event.clients]
        assert event.examples == sizes, "they count in no client's weight"
        within = event.round < 2
        assert (event.validation_tested == of_class[: 2 * (event.task + 1)]) == within
        assert event.tested is None, "test figures are for the end of a task"


def test_exemplars_are_never_validation_images(tiny: Tiny, tmp_path: Path) -> None:
    from fedclass.engines.inprocess import InProcess
    from fedclass.experiment.runner import run as carry_out
    from fedclass.federation.store import MemoryStore
    from fedclass.runs.layout import create

    setup, store = prepare(tiny("data.validation=0.5", "memory.per_class=4", method="fedicarl")), MemoryStore()
    carry_out(setup, InProcess(setup.client(store)), create(tmp_path / "run"), store=store)
    kept = np.concatenate([state.exemplars.index for state in store.states.values()])
    held = np.concatenate(setup.stream.held_out)
    assert len(held) == 48
    assert set(kept.tolist()) <= set(range(96)) - set(held.tolist())
    assert len(kept) == sum(map(len, setup.stream.shares)), "four of each class are all that trained"


def test_the_summary_has_every_figure_twice(run: Path) -> None:
    summary = json.loads(RunDirectory(run).summary.read_text())
    ends = [e for e in read_events(RunDirectory(run).events) if isinstance(e, TaskFinished)]
    for prefix, counts in (("", [e.confusion for e in ends]), ("validation_", [e.validation for e in ends])):
        for name, value in metrics.summarise(counts, [2, 2]).items():  # type: ignore[arg-type]
            assert summary[prefix + name] == value
    (record,) = results(run)
    assert record["validation_accuracy_task_2"] == summary["validation_accuracy_matrix"][1][1]
    assert record["validation_forgetting_after_task_2"] == summary["validation_forgetting_per_task"][0]
    assert record["accuracy_task_2"] == summary["accuracy_matrix"][1][1]
    rounds = results(run, per="round")
    assert [row["accuracy"] is None for row in rounds] == [True, True, False] * 2
    assert rounds[-1]["validation_accuracy"] == summary["validation_accuracy_last"]


def test_a_killed_run_goes_on_with_the_same_figures(tiny: Tiny, run: Path, tmp_path: Path) -> None:
    """Stopped in the second task: the validation counts of the first are in the checkpoint."""

    class StoppedError(Exception):
        pass

    def stop(event: object) -> None:
        if isinstance(event, RoundFinished) and (event.task, event.round) == (1, 1):
            raise StoppedError

    experiment = tiny("data.validation=0.25", "train.rounds=3", method="fedavg")
    with pytest.raises(StoppedError):
        run_one(experiment, tmp_path / "run", stop)
    resumed = run_one(experiment, tmp_path / "run", go_on=True)
    undisturbed = json.loads(RunDirectory(run).summary.read_text())
    timed = {"seconds", "samples_per_second"}
    assert {k: v for k, v in resumed.items() if k not in timed} == {
        k: v for k, v in undisturbed.items() if k not in timed
    }


def test_a_reused_task_brings_its_validation_counts(tiny: Tiny, tmp_path: Path) -> None:
    first = run_one(tiny("data.validation=0.25", method="fedavg"), tmp_path / "a", reuse=True)
    lines: list[str] = []
    heard = ProgressLines()
    experiment = tiny("data.validation=0.25", method="fedclass")
    second = run_one(experiment, tmp_path / "b", lambda e: lines.append(heard.line(e) or ""), reuse=True)
    assert any("task 1 reused from an earlier run" in line for line in lines)
    assert second["validation_accuracy_matrix"][0] == first["validation_accuracy_matrix"][0]
    alone = run_one(experiment, tmp_path / "c")
    assert second["validation_accuracy_matrix"] == alone["validation_accuracy_matrix"]
    without = run_one(tiny(method="fedavg"), tmp_path / "d", reuse=True)
    assert without["weights_sha256"] != first["weights_sha256"]
    assert "validation_accuracy_last" not in without


def test_a_saved_partition_has_the_held_out_images_too(tiny_settings: list[str], tmp_path: Path) -> None:
    """Saved and read again, it holds out the same ones, and none twice."""
    wanted = [*tiny_settings, "partition.kind=dirichlet", "partition.min_size=1", "data.validation=0.25"]
    words = [word for setting in wanted for word in ("--set", setting)]
    CliRunner().invoke(app, ["plan", *words, "--save", str(tmp_path / "p.json")], catch_exceptions=False)
    drawn = prepare(load(None, wanted)).stream
    saved = [*wanted, "partition.kind=file", f"partition.path={tmp_path / 'p.json'}"]
    read = prepare(load(None, saved)).stream
    assert drawn.held_out
    for one, other in ((drawn.shares, read.shares), (drawn.held_out, read.held_out)):
        assert [part.tolist() for part in one] == [part.tolist() for part in other]


def test_the_lines_of_a_run_speak_of_validation(run: Path) -> None:
    lines = ProgressLines()
    told = [line for event in read_events(RunDirectory(run).events) if (line := lines.line(event))]
    assert "trains on" in told[0]
    assert "of 96 images; holds out" in told[0]
    assert all(", validation accuracy " in line for line in told if "round 1/3" in line or "round 2/3" in line)
    assert [line.partition(":")[2].startswith(" validation accuracy") for line in told if "learned" in line] == [
        True
    ] * 2


def test_a_report_says_which_images_its_charts_are_on(run: Path) -> None:
    report = build([read_history(run)])
    titles = {chart.name: chart.title for chart in report.charts}
    assert titles["accuracy-over-rounds"] == "Accuracy over rounds, on validation images"
    assert titles["loss-over-rounds"] == "Training loss over rounds"
    assert "Accuracy on the validation images of all classes so far" in report.page
    summary = json.loads(RunDirectory(run).summary.read_text())
    matrix = next(chart for chart in report.charts if chart.name == "accuracy-matrix")
    assert matrix.numbers.rows[1][1:] == tuple(f"{v:.1f}" for v in summary["validation_accuracy_matrix"][1])
    assert f"{summary['accuracy_last']:.1f} %" in report.page
    assert "Not all images are used to train and test: the run trains on" in report.page


@pytest.mark.parametrize(
    ("settings", "trained", "tested"),
    [
        ([], None, None),
        (["data.fraction=0.5"], "trains on 48 of 96 images", None),
        (["data.test_fraction=0.5"], None, "tests on 20 of 40 images"),
        (["stream.class_order=[0,1,2]"], "trains on 72 of 96 images", "tests on 30 of 40 images"),
    ],
)
def test_every_run_says_what_it_leaves_out(
    settings: list[str], trained: str | None, tested: str | None, tmp_path: Path
) -> None:
    path = write_tiny(tmp_path / "t.npz")
    usual = ["data.name=npz", f"data.path={path}", "partition.clients=2", "partition.kind=iid", "memory.per_client=4"]
    told: list[str] = []
    lines = ProgressLines()
    experiment = load(None, [*usual, "train.rounds=1", *settings], method="fedavg")
    summary = run_one(experiment, tmp_path / "run", lambda event: told.append(lines.line(event) or ""))
    assert ("trains on" in told[0]) == (trained is not None)
    assert ("tests on" in told[0]) == (tested is not None)
    assert (trained or "") in told[0]
    assert (tested or "") in told[0]
    assert summary["images_used"] == (int(trained.split()[2]) if trained else 96)
    assert summary["images_available"] == 96
