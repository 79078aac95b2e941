"""fedclass benchmark as a user types it, with real runs of a protocol on the tiny data set."""

import json
import shlex
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import tomli_w

from commands import called
from fedclass.cli.benchmark import PAGE_TITLE
from fedclass.cli.display import Plain
from fedclass.experiment.protocol import STORED
from fedclass.runs.events import RoundFinished

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "results" / "benchmark"


def done(*words: str, cwd: Path) -> str:
    result = called("benchmark", *words, cwd=cwd)
    assert result.returncode == 0, result.stderr
    return result.stdout


def failed(*words: str, cwd: Path, code: int) -> str:
    """The one line of a user's mistake."""
    result: CompletedProcess[str] = called("benchmark", *words, cwd=cwd)
    assert (result.returncode, result.stderr.count("\n")) == (code, 1), result.stderr
    assert result.stderr.startswith("error: ")
    return result.stderr


@pytest.fixture(scope="module")
def folder(tiny_settings: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A protocol of one's own, two methods and two seeds of it; and the same as kept data."""
    root = tmp_path_factory.mktemp("benchmark")
    tables: dict[str, dict[str, object]] = {}
    for word in tiny_settings:
        key, _, value = word.partition("=")
        section, _, name = key.partition(".")
        tables.setdefault(section, {})[name] = json.loads(value) if value.replace(".", "").isdigit() else value
    tables["protocol"] = {"version": 2, "about": "four patterns", "origin": "ours", "seeds": "0-1"}
    tables["protocol"] |= {"methods": "fedavg,derpp", "reduced": ["train.rounds=1"]}
    (root / "tiny.toml").write_text(tomli_w.dumps(tables))
    shown = done("run", "tiny.toml", "--workers", "1", cwd=root)
    assert "tiny, version 2" in shown
    done("keep", "runs/benchmark", "--out", "kept", cwd=root)
    return root


def test_rows_have_figures_intervals_costs_and_hashes(folder: Path) -> None:
    runs = folder / "runs" / "benchmark" / "tiny-v2"
    assert {path.name for path in runs.iterdir() if path.is_dir()} == {
        f"{m}-s{s}" for m in ("fedavg", "derpp") for s in "01"
    }
    shown = done("table", "runs/benchmark", cwd=folder)
    figures, _, _ = shown.partition("Every run, to be checked")
    assert done("table", "kept", cwd=folder).startswith(figures)  # the same rows in the same order
    assert "Differences from fedavg (standard), paired over seeds 0, 1" in shown
    summary = json.loads((runs / "derpp-s1" / "summary.json").read_text())
    assert summary["weights_sha256"][:16] in shown
    memory = summary["memory_bytes"]
    assert (memory["exemplars"], memory["rows"]) == (24 * 192, 24 * 16)
    (line,) = [line for line in shown.splitlines() if "derpp" in line and "none" in line]  # no teacher
    assert f"{(24 * 192 + 24 * 16) / 1000:.1f} kB" in line


def test_typed_again_it_goes_on_and_more_seeds_can_be_added_later(folder: Path) -> None:
    before = {path: path.stat().st_mtime for path in (folder / "runs").rglob("summary.json")}
    done("run", "tiny.toml", "--workers", "1", cwd=folder)
    assert before == {path: path.stat().st_mtime for path in (folder / "runs").rglob("summary.json")}


def test_the_page_is_one_file_with_the_tables_and_charts(folder: Path) -> None:
    done("page", "kept/tiny-v2", "--out", "page.html", cwd=folder)
    page = (folder / "page.html").read_text()
    for word in (
        "Benchmark: tiny, version 2",
        "four patterns. Origin: ours.",
        "weights_sha256",
        "What it costs",
        "<svg",
    ):
        assert word in page
    done("page", "kept", "--out", "page.md", cwd=folder)
    text = (folder / "page.md").read_text()
    assert text.startswith(PAGE_TITLE)
    assert text.removeprefix(PAGE_TITLE).strip() == done("table", "kept", "--markdown", cwd=folder).strip()


def test_a_result_is_verified_by_running_it_again(folder: Path, tiny_file: Path) -> None:
    here = ["--set", f"data.path={tiny_file}"]
    shown = done("verify", "kept/tiny-v2/derpp-s0/kept.json", *here, "--out", "again", cwd=folder)
    assert "Verified: the same weights, to the bit, and the same figures." in shown
    assert "differs" not in shown
    assert "The new run: again" in shown
    told = failed("verify", "kept/tiny-v2/derpp-s0", *here, "--out", "again", cwd=folder, code=4)
    assert "again: is a finished run, which would be compared and not repeated" in told


def test_an_interrupted_check_goes_on_as_it_says(
    folder: Path, tiny_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_display: object, _number: int, event: object) -> None:
        if isinstance(event, RoundFinished) and event.task == 1:  # the first task may come from the cache
            raise KeyboardInterrupt

    words = ["verify", "kept/tiny-v2/fedavg-s0", "--set", f"data.path={tiny_file}"]
    with monkeypatch.context() as patched:
        patched.setattr(Plain, "tell", interrupt)
        stopped = called("benchmark", *words, cwd=folder)
    advice = stopped.stderr.splitlines()[0]
    assert advice.startswith("stopped; to go on, type the same again with --out verified/")
    shown = done(*words, *shlex.split(advice)[-2:], cwd=folder)
    assert "resumed before task 2, round" in shown
    assert "Verified" in shown


def test_a_result_that_is_not_what_comes_out_is_found_out(folder: Path) -> None:
    """Even one that was changed together with its hashes: an own run that nobody has kept has none."""
    run = folder / "runs" / "benchmark" / "tiny-v2" / "fedavg-s0"
    path = run / "summary.json"
    content = path.read_text()
    summary = json.loads(content)
    path.write_text(json.dumps(summary | {"accuracy_last": 99.5}))
    try:
        result = called("benchmark", "verify", str(run), "--out", "once-more", cwd=folder)
    finally:
        path.write_text(content)
    assert result.returncode == 1
    assert "NOT the same: accuracy_last (the code is the same" in result.stdout


def test_a_kept_result_that_was_changed_is_refused_before_anything_runs(folder: Path, tmp_path: Path) -> None:
    path = folder / "kept" / "tiny-v2" / "fedavg-s1" / "summary.json"
    content = path.read_text()
    path.write_text(content.replace('"seed": 1', '"seed": 2'))
    try:
        for words in (["verify", str(path.parent)], ["table", str(folder / "kept")]):
            assert "summary.json: was changed after the run had been kept" in failed(*words, cwd=tmp_path, code=4)
    finally:
        path.write_text(content)


def test_other_images_are_refused_before_anything_runs(folder: Path, tmp_path: Path) -> None:
    from conftest import write_tiny

    other = write_tiny(tmp_path / "other.npz", train=23)
    told = failed("verify", "kept/tiny-v2/fedavg-s0", "--set", f"data.path={other}", cwd=folder, code=4)
    assert "was made with images of npz with sha256" in told
    assert "--set data.path" in told


def test_a_run_of_another_recipe_is_not_taken_for_the_protocols(folder: Path, tmp_path: Path) -> None:
    stored = folder / "kept" / "tiny-v2" / STORED
    content = stored.read_text()
    stored.write_text(content.replace("rounds = 2", "rounds = 3"))
    try:
        told = failed("table", str(folder / "kept"), cwd=tmp_path, code=2)
    finally:
        stored.write_text(content)
    assert "differs from the protocol tiny, version 2: train.rounds=2 (tiny: 3)" in told


def test_mistakes_are_told_before_anything_runs(tmp_path: Path) -> None:
    def wrong(*words: str, code: int = 2) -> str:
        return failed("run", *words, cwd=tmp_path, code=code)

    assert "did you mean 'digits_5task'" in wrong("digits_5tsk")
    assert "unknown method 'fedxyz'" in wrong("digits_5task-reduced", "--methods", "fedxyz")
    assert "no best settings for fedavg" in wrong("digits_5task-reduced", "--methods", "fedavg:best")
    told = wrong("digits_5task-reduced", "--set", "train.rounds=1")
    assert "a protocol is fixed; only data.path" in told
    assert "seeds x" in wrong("digits_5task-reduced", "--seeds", "x")
    missing = wrong("cifar100_10task-reduced", "--methods", "fedavg", "--seeds", "0", code=3)
    assert "cifar100" in missing
    assert not list(tmp_path.rglob("*.toml"))  # nothing is left behind
    assert "no such folder" in failed("table", "nowhere", cwd=tmp_path, code=4)
    assert "contains no results of a protocol" in failed("table", ".", cwd=tmp_path, code=4)
    assert "the name must end in .html or .md" in failed("page", ".", "--out", "x.pdf", cwd=tmp_path, code=2)


def test_the_protocols_are_listed_and_shown(tmp_path: Path) -> None:
    shown = done("list", cwd=tmp_path)
    for name in ("cifar10_2task", "emnist_10task-reduced", "cifar100_10task", "digits_misaligned"):
        assert name in shown
    rows = {words[0]: words[1:4] for words in map(str.split, shown.splitlines()) if words}
    assert rows["characters_50task-reduced"] == ["1", "drawn-characters", "50"]  # B3-Inc1 of 52 classes
    assert rows["digits_5task"] == ["1", "synnum", "5"]
    about = done("show", "cifar100_10task-reduced", cwd=tmp_path)
    assert "LANDER" in about
    assert "REDUCED, to take minutes on two cores: data.fraction=0.1" in about
    assert "model.name = resnet8" in about


def test_the_page_in_the_documentation_is_what_the_kept_results_give(tmp_path: Path) -> None:
    done("page", str(KEPT), "--against", "fedeven", "--out", "page.md", cwd=tmp_path)
    assert (tmp_path / "page.md").read_text() == (ROOT / "docs" / "benchmark-results.md").read_text(), (
        "fedclass benchmark page results/benchmark --against fedeven --out docs/benchmark-results.md"
    )
