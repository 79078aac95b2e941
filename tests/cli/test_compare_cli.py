"""compare, sweep, reproduce and table as a user types them, with real runs on the tiny data set."""

import csv
import json
import shutil
import tomllib
from pathlib import Path

import pytest

from commands import called, started
from fedclass.cli.reproduce import System, _runs_of
from fedclass.report.paper import find
from users import Project


def done(*words: str, cwd: Path) -> str:
    result = called(*words, cwd=cwd)
    assert result.returncode == 0, result.stderr
    return result.stdout


def failed(*words: str, cwd: Path, code: int) -> str:
    """The one line of a user's mistake."""
    result = called(*words, cwd=cwd)
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
    words = ["--methods", "fedavg,fedclass:released,fedclass:beta=8", "--seeds", "0,1", *settings(tiny_settings)]
    shown = done("compare", *words, "--out", "both", cwd=tmp_path)
    both = tmp_path / "both"
    folders = {"fedavg (standard)": "fedavg", "fedclass (released) beta=5": "fedclass-released"}
    folders["fedclass (paper) beta=8"] = "fedclass-beta=8"
    with (both / "results.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [(line["label"], line["seed"]) for line in lines] == [(label, s) for label in folders for s in ("0", "1")]
    for line in lines:
        stored = summary(both / f"{folders[line['label']]}-s{line['seed']}")
        assert float(line["accuracy_last"]) == stored["accuracy_last"]
        assert line["weights_sha256"] == stored["weights_sha256"]

    ours, reference = (
        [summary(both / f"{name}-s{seed}")["accuracy_last"] for seed in (0, 1)]
        for name in ("fedclass-released", "fedavg")
    )
    from scipy import stats

    test = stats.ttest_rel(ours, reference)
    low, high = test.confidence_interval(0.95)
    verdict = "not distinguishable" if low <= 0 <= high else "higher" if low > 0 else "lower"
    gap = (sum(ours) - sum(reference)) / 2
    row = f"| fedclass (released) beta=5 | global | {gap:+.1f} | [{low:+.1f}, {high:+.1f}] | {verdict} |"
    assert row in (both / "results.md").read_text()
    for label in folders:
        assert label in shown
    assert "Differences from fedavg (standard), paired over seeds 0, 1" in shown

    for name, ending in (("markdown", "md"), ("latex", "tex"), ("csv", "csv")):
        first = [f"both/{method}-s{seed}" for method in ("fedavg", "fedclass-released") for seed in (0, 1)]
        again = done("table", *first, "both", "--format", name, cwd=tmp_path)
        assert again == (both / f"results.{ending}").read_text()
    assert r"\bottomrule" in (both / "results.tex").read_text()
    against = done("table", "both", "--against", "fedclass:beta=8", cwd=tmp_path)
    assert "Differences from fedclass (paper) beta=8" in against
    part = done("compare", "--methods", "fedavg", *words[2:], "--out", "both", cwd=tmp_path)
    assert "not in these tables: 4 other runs in that folder (fedclass-beta=8-s0, fedclass-beta=8-s1, " in part
    assert "not in these tables" not in shown

    assert "against fedclass: names several rows" in failed(
        "table", "both", "--against", "fedclass", cwd=tmp_path, code=2
    )
    shutil.copytree(both / "fedavg-s0", tmp_path / "copy")
    assert "the same setting and seed" in failed("table", "both", "copy", cwd=tmp_path, code=4)
    line = failed("table", "both/fedavg-s0", "both/fedavg-s1", "both/fedclass-released-s1", cwd=tmp_path, code=4)
    assert "seeds differ: fedclass (released) lacks 0" in line
    (both / "fedavg-s1" / "summary.json").unlink()
    line = failed("table", "both/fedavg-s0", "both/fedavg-s1", cwd=tmp_path, code=4)
    assert "both/fedavg-s1: contains no finished runs" in line


def test_table_has_the_rows_and_the_reference_of_the_comparison(tiny_settings: list[str], tmp_path: Path) -> None:
    """By name, fedavg comes before fedwa, and the differences would change their sign."""
    words = [*settings([*tiny_settings, "train.rounds=1"]), "--out", "both"]
    shown = done("compare", "--methods", "fedwa,fedclass,fedavg", *words, cwd=tmp_path)
    assert "Differences from fedwa" in shown
    printed = shown[: shown.index("runs and tables")]
    assert done("table", "both", cwd=tmp_path).split() == printed[printed.rindex("npz {2,2}, seed 0") :].split()
    stored = (tmp_path / "both" / "results.md").read_text()
    assert done("table", "both", "--format", "markdown", cwd=tmp_path) == stored

    shown = done("compare", "--methods", "fedclass,fedavg", "--against", "fedavg", *words, cwd=tmp_path)
    assert "Differences from fedavg (standard)" in shown
    assert "Differences from fedavg (standard)" in done("table", "both", cwd=tmp_path), "as typed the last time"
    assert "Differences from fedwa" in done("table", "both", "--against", "fedwa", cwd=tmp_path)
    (tmp_path / "both" / "order.json").write_text("[]")
    assert "order.json: is damaged" in failed("table", "both", cwd=tmp_path, code=4)


MINE = """
from dataclasses import dataclass
from fedclass import FedAvg
from helper import FACTOR

@dataclass(frozen=True, kw_only=True)
class Mine(FedAvg):
    def loss(self, client, batch):
        return FACTOR * super().loss(client, batch)
"""


@pytest.mark.slow
def test_a_comparison_of_edited_code_is_refused_and_never_shows_the_old_figures_as_new(
    tiny_settings: list[str], project: Project
) -> None:
    project.write(mine=MINE, helper="FACTOR = 1.0")
    root = project.root
    words = ["--methods", "fedavg,mine:Mine", *settings([*tiny_settings, "train.rounds=1"]), "--out", "both"]
    first = done("compare", *words, cwd=root)
    assert done("compare", *words, cwd=root)[-200:] == first[-200:], "the same code shows the same again"
    project.write(helper="FACTOR = 30.0")
    line = failed("compare", *words, cwd=root, code=4)
    assert "both/mine-Mine-s0: its code has changed: helper.py changed." in line
    assert "--changed-code" in line
    project.forget()
    shown = done("compare", *words, "--seeds", "0,1", "--changed-code", cwd=root)
    assert "MIXED CODE: the seeds of mine:Mine (standard) were run by different code." in shown
    assert "MIXED CODE" in done("table", "both", cwd=root)
    other = done("compare", *words[:-1], "new", cwd=root)
    assert "MIXED CODE" not in other
    assert summary(root / "new" / "mine-Mine-s0") != summary(root / "both" / "mine-Mine-s0")
    shas = [summary(root / folder / "mine-Mine-s0")["weights_sha256"] for folder in ("both", "new")]
    assert shas[0] != shas[1]


@pytest.mark.slow
def test_resume_refuses_edited_code_too_as_new_processes_see_it(tiny_settings: list[str], project: Project) -> None:
    project.write(mine=MINE, helper="FACTOR = 1.0")
    root = project.root
    done("run", "--method", "mine:Mine", *settings([*tiny_settings, "train.rounds=1"]), "--out", "run", cwd=root)
    (root / "run" / "summary.json").unlink()
    project.write(helper="FACTOR = 30.0")
    refused = started("run", "--resume", "run", cwd=root)
    assert refused.returncode == 4
    assert "helper.py changed" in refused.stderr
    assert "MIXED CODE: run went on" in done("run", "--resume", "run", "--changed-code", cwd=root)
    assert "--changed-code is for --resume" in failed("run", "--changed-code", cwd=root, code=2)


def test_an_unfinished_run_is_left_out_with_a_warning_and_no_runs_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "runs" / "begun").mkdir(parents=True)
    (tmp_path / "runs" / "begun" / "events.jsonl").touch()
    assert "contains no finished runs" in failed("table", "runs", cwd=tmp_path, code=4)
    assert "nowhere: no such folder" in failed("table", "nowhere", cwd=tmp_path, code=4)
    (tmp_path / "empty").mkdir()
    assert "empty: contains no runs; `fedclass run` makes one" in failed("table", "empty", cwd=tmp_path, code=4)
    run = tmp_path / "runs" / "run"
    run.mkdir()
    (run / "events.jsonl").touch()
    (run / "config.toml").write_text('seed = 0\n[method]\nname = "fedavg"\n')
    figures = {"accuracy_matrix": [[90.0], [40.0, 80.0]], "accuracy_last": 60.0, "forgetting_fedclass": 50.0}
    about = {"method": "fedavg", "variant": "standard", "dataset": "npz", "official_data": True, "tasks": [2, 2]}
    (run / "summary.json").write_text(json.dumps({**about, **figures, "seed": 0}))
    result = called("table", "runs", cwd=tmp_path)
    assert result.returncode == 0
    assert "fedavg (standard)" in result.stdout
    assert result.stderr == "warning: runs/begun: not finished, left out\n"
    (run / "config.toml").unlink()
    assert "config.toml: cannot be read" in failed("table", "runs/run", cwd=tmp_path, code=4)


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
    assert "to choose between them use data.validation=0.1" in shown
    assert [float(line["accuracy_last"]) for line in lines] == [summary(run)["accuracy_last"] for run in runs]


@pytest.mark.slow
def test_a_sweep_with_validation_images_chooses_by_them(tiny_settings: list[str], tmp_path: Path) -> None:
    fixed = [setting for setting in tiny_settings if not setting.startswith(("stream.tasks", "memory.per_client"))]
    fixed += ["stream.tasks=[2,2]", "data.validation=0.25"]
    words = ["--method", "fedavg", *settings([*fixed, "memory.per_client=0,8"])]
    shown = done("sweep", *words, "--out", "swept", cwd=tmp_path)
    runs = {n: summary(tmp_path / "swept" / f"memory.per_client={n}-s0") for n in (0, 8)}
    best = max(runs, key=lambda n: runs[n]["validation_accuracy_last"])
    text = (tmp_path / "swept" / "results.md").read_text()
    on_validation, _, on_test = text.split("### ")[1:]
    for n, own in runs.items():
        mark = " *" if n == best else ""
        figures = f"{own['validation_accuracy_last']:.1f}{mark} | {own['validation_forgetting_fedclass']:.1f} |"
        (line,) = [
            line
            for line in on_validation.splitlines()
            if line.startswith(f"| fedavg (standard) memory.per_client={n} ")
        ]
        assert line.endswith(figures)
    (line,) = [line for line in on_test.splitlines() if line.startswith("| fedavg")]
    assert line.startswith(f"| fedavg (standard) memory.per_client={best} |")
    assert line.endswith(f"{runs[best]['accuracy_last']:.1f} | {runs[best]['forgetting_fedclass']:.1f} |")
    assert "on validation images" in shown
    assert "validation accuracy" in shown
    assert "to choose between them" not in text
    with (tmp_path / "swept" / "results.csv").open() as file:
        assert [line["accuracy_last"] != "" for line in csv.DictReader(file)] == [n == best for n in runs]
    assert done("table", "swept", "--format", "markdown", cwd=tmp_path) == text
    assert "(validation)" in done("list", "swept", cwd=tmp_path)


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
    assert "train.rounds=2 (recipe: 7)" in line["changed"]
    assert len(lines) == 2 * 4
    assert "| fedavg (standard) | task 1 | 34.66 † |" in (folder / "results.md").read_text()


@pytest.mark.slow
def test_an_ablation_shares_the_run_that_is_the_recipes_own(tiny_settings: list[str], tmp_path: Path) -> None:
    reduced = [*tiny_settings, "stream.tasks=1,1,2", "train.rounds=1"]
    words = [*settings(reduced), "--seeds", "0", "--out", "here"]
    shown = done("reproduce", "beta", *words, cwd=tmp_path)
    names = {path.name for path in (tmp_path / "here" / "emnist_3task").iterdir() if path.is_dir()}
    assert names == {"fedclass-paper-s0", *(f"fedclass-paper-beta={beta}-s0" for beta in (0, 1, 3, 8))}
    with (tmp_path / "here" / "beta" / "results.csv").open() as file:
        lines = [line for line in csv.DictReader(file) if line["figure"] == "global_accuracy"]
    assert [line["label"] for line in lines] == [f"fedclass (paper) beta={beta}" for beta in (0, 1, 3, 5, 8)]
    assert [line["paper"] for line in lines] == ["73.65", "72.65", "72.36", "74.44", "76.99"]
    assert "method.beta" not in shown, "what the ablation varies is no change of the recipe"


def test_the_release_as_a_system_beside_the_paper(tiny_settings: list[str], tmp_path: Path) -> None:
    """Rows as the authors' code computes them, in the recipe that does all else as that code does."""
    reduced = settings([*tiny_settings, "partition.classes_per_task=0", "train.rounds=1", "partition.kind=released"])
    words = ["--methods", "fedwa:released,fedclass:released", "--seeds", "0", *reduced, "--out", "r"]
    shown = done("reproduce", "svhn_2task", "--system", "released", *words, cwd=tmp_path)
    folder = tmp_path / "r" / "svhn_2task_released"
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {"fedwa-released-s0", "fedclass-released-s0"}
    with (folder / "results.csv").open() as file:
        lines = [line for line in csv.DictReader(file) if line["figure"] == "global_accuracy"]
    assert [(line["method"], line["variant"], line["paper"]) for line in lines] == [
        ("fedwa", "released", "69.34"),
        ("fedclass", "released", "86.14"),
    ]
    told = " ".join(shown.split())
    assert "the partition is 'released', the paper's is FedML's" in told
    assert "fedclass (released): what the authors' code computes" in told
    config = tomllib.loads((folder / "fedclass-released-s0" / "config.toml").read_text())
    assert (config["memory"]["select"], config["server"]["weighting"]) == ("first", "with-exemplars")


def test_by_default_the_papers_rows_are_claimed_by_like_and_the_others_stand_alone(tmp_path: Path) -> None:
    """Nothing is run: what would be run and beside which row of the paper."""
    (part,) = find("cifar10_2task")
    planned = _runs_of(part, None, System.paper, "0,1", [], tmp_path)
    rows = {p.member.choice.name: p.row for p in planned}
    assert rows == {
        "fedavg": "fedavg",
        "glfc": "glfc",
        "fedicarl:released": "fedicarl",
        "fedwa:released": "fedwa",
        "fedclass:paper": "fedclass",
        "fedclass:released": "fedclass",
        "fedicarl:icarl": None,
        "fedwa:wa": None,
    }
    assert all(p.changed == () for p in planned)
    released = {p.member.choice.name: p for p in _runs_of(part, None, System.released, "0", [], tmp_path)}
    assert [p.row for p in released.values()] == ["fedavg", "glfc", "fedicarl", "fedwa", "fedclass"]
    assert {p.member.experiment.partition.kind for p in released.values()} == {"released"}
    assert {p.member.path.parent.name for p in released.values()} == {"cifar10_2task_released"}


def test_reproduce_lists_what_there_is(tmp_path: Path) -> None:
    shown = done("reproduce", cwd=tmp_path)
    for words in (
        ["two-task", "svhn_2task, cifar10_2task, synnum_2task", "fedclass reproduce two-task"],
        ["memory_per_class", "emnist_3task", "fedclass, memory.per_class = 0, 2, 4, 6, 8"],
    ):
        (line,) = [line for line in shown.splitlines() if line.strip().startswith(words[0])]
        assert all(word in line for word in words)


MISTAKES = {
    "did you mean 'svhn_2task'?": (["reproduce", "svhn"], 2),
    "this ablation only for fedclass": (["reproduce", "beta", "--methods", "fedavg"], 2),
    "against fedwa: there is no such row; name one of: fedavg (standard); fedclass (paper)": (
        ["compare", "--against", "fedwa"],
        2,
    ),
    "are the same setting; name it once": (["compare", "--methods", "fedclass,fedclass:beta=5"], 2),
    "write a list in brackets": (["sweep", "--set", "stream.tasks=5,5"], 2),
    "seed=3: the seed is not a setting here; give --seeds 3": (["compare", "--set", "seed=3", "--dry-run"], 2),
    "seed=4: the seed is not a setting here; give --seeds 4": (["reproduce", "svhn_2task", "--set", "seed=4"], 2),
    "seed=5: the seed is not a setting here; give --seeds 5": (["sweep", "--set", "seed=5"], 2),
    "and seeds as --seeds 0,1": (["benchmark", "run", "digits_5task", "--set", "seed=3"], 2),
    "seed=6: the seed is also given as seed 1": (["run", "--seed", "1", "--set", "seed=6"], 2),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_ends_in_one_line_before_anything_is_run(message: str, tmp_path: Path) -> None:
    words, code = MISTAKES[message]
    assert message in failed(*words, cwd=tmp_path, code=code)
    assert not (tmp_path / "runs").exists()
