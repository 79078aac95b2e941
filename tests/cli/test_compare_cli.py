"""compare, sweep, reproduce and table as a user types them, with real runs on the tiny data set."""

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from scipy import stats

from commands import called as fedclass


def done(*words: str, cwd: Path) -> str:
    result = fedclass(*words, cwd=cwd)
    assert result.returncode == 0, result.stderr
    return result.stdout


def failed(*words: str, cwd: Path, code: int) -> str:
    """The one line of a user's mistake."""
    result = fedclass(*words, cwd=cwd)
    assert result.returncode == code, result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def settings(overrides: list[str]) -> list[str]:
    return [word for override in overrides for word in ("--set", override)]


def summary(run: Path) -> dict[str, float]:
    return json.loads((run / "summary.json").read_text())  # type: ignore[no-any-return]


@pytest.mark.slow
def test_compare_writes_its_tables_and_table_prints_them_again(tiny_settings: list[str], tmp_path: Path) -> None:
    words = ["--methods", "fedavg,fedclass:paper,fedclass:beta=8", "--seeds", "0,1", *settings(tiny_settings)]
    shown = done("compare", *words, "--out", "both", cwd=tmp_path)
    both = tmp_path / "both"
    folders = {"fedavg (standard)": "fedavg", "fedclass (paper) beta=5": "fedclass-paper"}
    folders["fedclass (tuned) beta=8"] = "fedclass-beta=8"
    with (both / "results.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [(line["label"], line["seed"]) for line in lines] == [(label, s) for label in folders for s in ("0", "1")]
    for line in lines:
        stored = summary(both / f"{folders[line['label']]}-s{line['seed']}")
        assert float(line["accuracy_last"]) == stored["accuracy_last"]
        assert line["weights_sha256"] == stored["weights_sha256"]

    ours, reference = (
        [summary(both / f"{name}-s{seed}")["accuracy_last"] for seed in (0, 1)] for name in ("fedclass-paper", "fedavg")
    )
    test = stats.ttest_rel(ours, reference)
    low, high = test.confidence_interval(0.95)
    verdict = "not distinguishable" if low <= 0 <= high else "higher" if low > 0 else "lower"
    gap = (sum(ours) - sum(reference)) / 2
    row = f"| fedclass (paper) beta=5 | global | {gap:+.1f} | [{low:+.1f}, {high:+.1f}] | {verdict} |"
    assert row in (both / "results.md").read_text()
    for label in folders:
        assert label in shown
    assert "Differences from fedavg (standard), paired over seeds 0, 1" in shown

    for name, ending in (("markdown", "md"), ("latex", "tex"), ("csv", "csv")):
        again = done("table", "both/fedavg-s0", "both/fedavg-s1", "both/fedclass-paper-s0", "both/fedclass-paper-s1",
                     "both", "--format", name, cwd=tmp_path)  # fmt: skip
        assert again == (both / f"results.{ending}").read_text()
    assert r"\bottomrule" in (both / "results.tex").read_text()
    against = done("table", "both", "--against", "fedclass:beta=8", cwd=tmp_path)
    assert "Differences from fedclass (tuned) beta=8" in against

    assert "--against fedclass: names several rows" in failed(
        "table", "both", "--against", "fedclass", cwd=tmp_path, code=2
    )
    shutil.copytree(both / "fedavg-s0", tmp_path / "copy")
    assert "the same setting and seed" in failed("table", "both", "copy", cwd=tmp_path, code=4)
    line = failed("table", "both/fedavg-s0", "both/fedavg-s1", "both/fedclass-paper-s1", cwd=tmp_path, code=4)
    assert "seeds differ: fedclass (paper) lacks 0" in line
    (both / "fedavg-s1" / "summary.json").unlink()
    line = failed("table", "both/fedavg-s0", "both/fedavg-s1", cwd=tmp_path, code=4)
    assert "both/fedavg-s1: no finished runs to compare" in line


def test_an_unfinished_run_is_left_out_with_a_warning_and_no_runs_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "runs" / "begun").mkdir(parents=True)
    (tmp_path / "runs" / "begun" / "events.jsonl").touch()
    assert "no finished runs to compare there" in failed("table", "runs", cwd=tmp_path, code=4)
    assert "nowhere: no such folder" in failed("table", "nowhere", cwd=tmp_path, code=4)
    run = tmp_path / "runs" / "run"
    run.mkdir()
    (run / "events.jsonl").touch()
    (run / "config.toml").write_text('seed = 0\n[method]\nname = "fedavg"\n')
    figures = {"accuracy_matrix": [[90.0], [40.0, 80.0]], "accuracy_last": 60.0, "forgetting_fedclass": 50.0}
    about = {"method": "fedavg", "variant": "standard", "dataset": "npz", "official_data": True, "tasks": [2, 2]}
    (run / "summary.json").write_text(json.dumps({**about, **figures, "seed": 0}))
    result = fedclass("table", "runs", cwd=tmp_path)
    assert result.returncode == 0
    assert "fedavg (standard)" in result.stdout
    assert result.stderr == "warning: runs/begun: not finished, left out\n"
    (run / "config.toml").unlink()
    assert "has no config.toml" in failed("table", "runs/run", cwd=tmp_path, code=4)


@pytest.mark.slow
def test_a_sweep_makes_a_row_per_setting_whatever_the_key(tiny_settings: list[str], tmp_path: Path) -> None:
    fixed = [setting for setting in tiny_settings if not setting.startswith(("stream.tasks", "memory.per_client"))]
    words = ["--method", "fedavg", *settings([*fixed, "stream.tasks=[2,2]", "memory.per_client=0,8"])]
    shown = done("sweep", *words, "--out", "swept", "--against", "memory.per_client=8", cwd=tmp_path)
    assert "fedavg (standard) memory.per_client=0" in shown
    assert "Differences from fedavg (standard) memory.per_client=8, paired over seed 0" in shown
    assert "one seed: no interval" in shown
    runs = [tmp_path / "swept" / f"memory.per_client={n}-s0" for n in (0, 8)]
    assert len({summary(run)["weights_sha256"] for run in runs}) == 2
    with (tmp_path / "swept" / "results.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["memory.per_client"] for line in lines] == ["0", "8"]
    assert [float(line["accuracy_last"]) for line in lines] == [summary(run)["accuracy_last"] for run in runs]


@pytest.mark.slow
def test_the_paper_beside_ours_at_a_reduced_scale(tiny_settings: list[str], tmp_path: Path) -> None:
    words = ["--seeds", "0,1", "--methods", "fedavg,fedclass:paper", *settings(tiny_settings), "--out", "here"]
    shown = done("reproduce", "synnum_2task", *words, cwd=tmp_path)
    assert "the paper beside ours, seeds 0, 1, reduced" in shown
    assert "data.name=npz (recipe: synnum)" in shown
    assert "data.path" not in shown
    folder = tmp_path / "here" / "synnum_2task"
    mean = sum(summary(folder / f"fedclass-paper-s{seed}")["accuracy_last"] for seed in (0, 1)) / 2
    with (folder / "results.csv").open() as file:
        lines = {(line["label"], line["figure"]): line for line in csv.DictReader(file)}
    line = lines["fedclass (paper)", "global_accuracy"]
    assert (float(line["paper"]), float(line["ours"])) == (97.0, pytest.approx(mean))
    assert float(line["difference"]) == pytest.approx(mean - 97.0)
    assert "train.rounds=2 (recipe: 20)" in line["changed"]
    assert len(lines) == 2 * 4
    assert "| fedavg (standard) | task 1 | 34.66 † |" in (folder / "results.md").read_text()


@pytest.mark.slow
def test_an_ablation_shares_the_run_that_is_the_recipes_own(tiny_settings: list[str], tmp_path: Path) -> None:
    reduced = [*tiny_settings, "stream.tasks=1,1,2", "train.rounds=1"]
    words = [*settings(reduced), "--seeds", "0", "--out", "here"]
    shown = done("reproduce", "beta", *words, cwd=tmp_path)
    names = {path.name for path in (tmp_path / "here" / "emnist_3task").iterdir()}
    assert names == {"fedclass-s0", *(f"fedclass-beta={beta}-s0" for beta in (0, 1, 3, 8))}
    with (tmp_path / "here" / "beta" / "results.csv").open() as file:
        lines = [line for line in csv.DictReader(file) if line["figure"] == "global_accuracy"]
    assert [line["label"] for line in lines] == [f"fedclass (tuned) beta={beta}" for beta in (0, 1, 3, 5, 8)]
    assert [line["paper"] for line in lines] == ["73.65", "72.65", "72.36", "74.44", "76.99"]
    assert "method.beta" not in shown, "what the ablation varies is no change of the recipe"


def test_reproduce_lists_what_there_is_and_needs_no_torch_for_it(tmp_path: Path) -> None:
    code = "import sys; sys.argv[1:] = ['reproduce']; from fedclass.cli import main\n"
    code += "try: main()\nexcept SystemExit: pass\nassert 'torch' not in sys.modules"
    environment = {**os.environ, "COLUMNS": "200"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert result.returncode == 0, result.stderr
    for words in (
        ["two-task", "svhn_2task, cifar10_2task, synnum_2task", "fedclass reproduce two-task"],
        ["memory_per_class", "emnist_3task", "fedclass, memory.per_class = 0, 2, 4, 6, 8"],
    ):
        (line,) = [line for line in result.stdout.splitlines() if line.strip().startswith(words[0])]
        assert all(word in line for word in words)


MISTAKES = {
    "did you mean 'svhn_2task'?": (["reproduce", "svhn"], 2),
    "this ablation for fedclass only": (["reproduce", "beta", "--methods", "fedavg"], 2),
    "--against fedwa: there is no such row; name one of: fedavg (standard); fedclass (tuned)": (
        ["compare", "--against", "fedwa"],
        2,
    ),
    "are the same setting; name it once": (["compare", "--methods", "fedclass,fedclass:beta=5"], 2),
    "a list is one value in brackets": (["sweep", "--set", "stream.tasks=5,5"], 2),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_ends_in_one_line_before_anything_is_run(message: str, tmp_path: Path) -> None:
    words, code = MISTAKES[message]
    assert message in failed(*words, cwd=tmp_path, code=code)
    assert not (tmp_path / "runs").exists()
