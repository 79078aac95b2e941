"""docs/REPRODUCTION.md and the recipes' headers say what the kept runs say, and nothing else."""

import json
import re

import pytest
import reproduction
import reproduction_page
from reproduction import DATA, grouped, headers, learned_printed, picture_name, read_runs, stamp

from fedclass.errors import RunError
from fedclass.experiment.recipe import load
from fedclass.report.history import read_history
from fedclass.report.paper import find
from fedclass.report.units import show_seconds
from fedclass.runs.events import RunFinished
from fedclass.runs.find import find_runs
from fedclass.runs.kept import check

SOURCE = {"version": "0.2.0", "commits": {"fedclass": "0123456789abcdef"}, "machine": {"torch": "2.13.0"}}


@pytest.fixture(scope="module")
def groups():
    return grouped(read_runs(DATA))


def test_the_page_is_what_the_data_give(groups):
    made = reproduction_page.page(groups)
    assert reproduction_page.PAGE.read_text(encoding="utf-8") == made, "python bench/reproduction.py page"


def test_the_figures_are_of_these_data(groups):
    wanted = {picture_name(groups, each): stamp(each) for each in groups}
    there = {path.name: path.read_text() for path in reproduction_page.IMAGES.glob("reproduction-*.svg")}
    assert {name: re.search(r"data: (\w+)", text)[1] for name, text in there.items()} == wanted


def test_the_recipes_promise_what_was_measured(groups):
    for path, content in headers(groups).items():
        assert path.read_text(encoding="utf-8") == content, "python bench/reproduction.py page"


def test_what_is_kept_is_whole_and_its_figures_follow_from_its_counts():
    for root in find_runs(DATA) if DATA.exists() else []:
        summary, derived = check(root).summary, read_history(root).metrics
        assert {key: summary[key] for key in derived} == derived


@pytest.fixture
def kept(told, written, tmp_path, monkeypatch):
    """kept("emnist_3task", "method.beta=8", method="fedclass", seed=1): such a run, made up and taken over."""
    monkeypatch.setattr(reproduction, "DATA", tmp_path / "results")
    monkeypatch.setattr(reproduction, "ROOT", tmp_path)

    def make(recipe, *overrides, method=None, seed=0, official=False):
        experiment = load(recipe, overrides, method=method, seed=seed)
        e = experiment
        about = {"method": e.method_name, "variant": e.method.variant_name, "dataset": e.data.name, "seed": seed}
        events = told(
            **about, tasks=tuple(e.stream.tasks), rounds=e.train.rounds, every=0, clients=2, official=official
        )
        name = f"{recipe}-{'-'.join(overrides)}-{e.method_name}-s{seed}"
        root = written(tmp_path / name, events, e.to_toml())
        facts = {"official_data": official, "tasks": list(e.stream.tasks), "seconds": 120.0, "images_used": 1000}
        facts |= {"images_available": 1000, "test_images_used": 100, "test_images_available": 100}
        summary = about | facts | {"validation_images": 0} | read_history(root).metrics
        lines = (root / "events.jsonl").read_text().splitlines()[:-1]
        last = {"event": RunFinished.__name__, "time": 0, "summary": summary}
        (root / "events.jsonl").write_text("\n".join([*lines, json.dumps(last)]) + "\n")
        (root / "summary.json").write_text(json.dumps(summary))
        (root / "source.json").write_text(json.dumps({"parts": [SOURCE]}))
        reproduction.take_over([root])
        return summary

    return make


def test_rows_ablations_and_verdicts_of_made_up_runs(kept, tmp_path):
    first, second = (kept("emnist_3task", method="fedavg", seed=seed) for seed in (0, 1))
    for beta in (1, 5, 8):
        kept("emnist_3task", f"method.beta={beta}")
    kept("emnist_3task", "memory.per_class=4")
    kept("emnist_3task_released")
    groups = grouped(read_runs(tmp_path / "results"))
    assert [(each.recipe, len(each.runs)) for each in groups] == [("emnist_3task", 6), ("emnist_3task_released", 1)]
    text = reproduction_page.page(groups)
    assert "| `emnist_3task` | EMNIST (17,15,15) | EMNIST-47, partial | 2 | 0, 1 | as the recipe |" in text
    assert "| `svhn_2task` | SVHN (5,5) | SVHN | 0 | - | not run: we could not get its files" in text
    overall = [run["accuracy_last"] for run in (first, second)]
    deviation = abs(overall[0] - overall[1]) / 2**0.5
    gap = sum(overall) / 2 - 73.65
    assert f"{sum(overall) / 2:.1f} ± {deviation:.1f}<br>73.65 ({gap:+.1f})" in text
    assert "### fedclass (paper): `method.beta`" in text
    assert "| 8 | 0 | " in text
    assert "fedclass (paper): 2, 4" in text  # of the memory
    row = r"\| forgetting falls with beta \| fedclass \(paper\) \| \*\*[a-z ]+\*\* \| .*; no runs with beta = 3 \|"
    assert re.search(row, text)  # FedAvg stands for beta = 0
    made = headers(groups)
    (promised,) = (line for path, line in made.items() if path.stem == "emnist_3task")
    assert "# Measured: fedclass (paper) " in promised
    assert "#   (EMNIST-47, partial; seed 0; fedclass 0.2.0, commit 0123456; docs/REPRODUCTION.md)." in promised
    assert f"forgetting, {show_seconds(120)} a run" in promised
    assert reproduction.picture(groups[0]).startswith(b"<svg")


def test_a_changed_result_stops_the_page(kept, tmp_path):
    kept("emnist_3task", method="fedavg")
    (path,) = (tmp_path / "results").rglob("summary.json")
    path.write_text(path.read_text().replace('"seconds": 120.0', '"seconds": 12.0'))
    with pytest.raises(RunError, match=r"summary\.json: was changed after the run had been kept"):
        read_runs(tmp_path / "results")


def test_reduced_runs_are_named_so_and_decide_nothing(kept, tmp_path):
    kept("emnist_3task", "data.fraction=0.1", method="fedavg")
    kept("emnist_3task", "data.fraction=0.1")
    (group,) = grouped(read_runs(tmp_path / "results"))
    text = reproduction_page.page([group])
    assert "| reduced: data.fraction=0.1 (recipe: 1) |" in text
    assert "| all | - | **not decidable** | reduced runs, not the paper's setting |" in text


def test_other_rounds_are_no_reduction_because_the_paper_names_none(kept, tmp_path):
    kept("emnist_3task", "train.rounds=2", method="fedavg")
    (group,) = grouped(read_runs(tmp_path / "results"))
    assert not group.reduced
    assert "| full scale, with train.rounds=2 (recipe: 20) |" in reproduction_page.page([group])


def test_the_papers_accuracy_right_after_a_task_follows_from_its_table():
    """75.68 on CIFAR-10 {5,5}, and 189.0 summed over EMNIST's first two tasks: what rounds and epochs are chosen by."""
    (cifar,), (emnist,) = find("cifar10_2task"), find("emnist_3task")
    assert learned_printed(cifar, "fedavg") == pytest.approx(75.68)
    assert 2 * learned_printed(emnist, "fedavg") == pytest.approx(189.0, abs=0.1)
    assert learned_printed(find("beta")[0], "8") == pytest.approx((60.85 + 76.82) / 2 + 22.81)


def test_other_data_are_no_setting_of_the_paper(told, written, tmp_path):
    root = written(tmp_path / "run", told(), load(None).to_toml())
    summary = {"method": "fedavg", "variant": "standard", "dataset": "mnist", "official_data": True, "tasks": [5, 5]}
    (root / "summary.json").write_text(
        json.dumps(summary | {"seed": 0, "accuracy_matrix": [], "accuracy_last": 1.0, "forgetting_fedclass": 1.0})
    )
    with pytest.raises(RunError, match="mnist in tasks of \\[5, 5\\] is no setting of the paper"):
        reproduction.take_over([root])
