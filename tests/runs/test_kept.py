"""Runs kept as data: small, whole, and what is changed afterwards is noticed."""

import json
import lzma
import shutil

import pytest

from commands import called
from fedclass.errors import RunError
from fedclass.experiment.launch import run_one
from fedclass.experiment.resume import PLACES
from fedclass.report.collect import collect
from fedclass.report.history import read_history
from fedclass.report.page import report
from fedclass.runs import kept
from fedclass.runs.find import list_runs
from fedclass.runs.kept import Kept, check, keep


@pytest.fixture(scope="module")
def finished(tiny, tmp_path_factory):
    root = tmp_path_factory.mktemp("runs") / "one"
    run_one(tiny("train.rounds=1", method="fedavg"), root)
    return root


@pytest.fixture
def target(finished, tmp_path):
    keep(finished, tmp_path / "kept")
    return tmp_path / "kept"


def test_a_kept_run_is_small_and_is_read_as_the_run_itself(finished, target, tiny_file):
    assert {path.name for path in target.iterdir()} == {"config.toml", "summary.json", "events.jsonl.xz", "kept.json"}
    result, history, whole = check(target), read_history(target), read_history(finished)
    assert result.summary == json.loads((finished / "summary.json").read_text())
    assert (history.started, history.tasks, history.tests) == (whole.started, whole.tasks, whole.tests)
    assert history.metrics == {key: result.summary[key] for key in history.metrics}
    assert [run.summary for run in list_runs(target.parent)[0]] == [result.summary]
    assert sum(path.stat().st_size for path in target.iterdir()) < 10_000
    assert str(tiny_file.parent) not in (target / "config.toml").read_text()


@pytest.mark.usefixtures("undrawn")
def test_tables_and_reports_read_it(target):
    table = called("table", str(target.parent), cwd=target.parent)
    assert "fedavg (standard)" in table.stdout
    assert "1 run" in called("report", str(target), cwd=target.parent).stdout


def test_it_names_the_code_that_made_it(finished, target):
    part = json.loads((finished / "source.json").read_text())["parts"][-1]
    found = Kept.read(target)
    assert (found.version, found.commits, found.machine) == (part["version"], part["commits"], part["machine"])
    assert found.commit == part["commits"].get("fedclass")


def test_what_is_kept_can_be_kept_again_elsewhere_and_over_itself_but_not_over_another_run(
    finished, target, tmp_path, tiny
):
    assert keep(finished, target) == keep(target, tmp_path / "again") == Kept.read(target)
    run_one(tiny("train.rounds=1", method="fedavg", seed=1), tmp_path / "other")
    with pytest.raises(RunError, match="holds another run"):
        keep(tmp_path / "other", target)
    assert check(target).summary["seed"] == 0


def test_a_kept_run_without_its_hashes_is_refused_by_all_readers(target):
    (target / "kept.json").unlink()
    for read in (lambda: collect([target], print), lambda: report(target)):
        with pytest.raises(
            RunError, match=r"kept: has no kept\.json .* nothing shows whether the kept run was changed"
        ):
            read()
    ((error,),) = list_runs(target)[1:]
    assert "has no kept.json" in str(error)


@pytest.mark.parametrize("name", ["summary.json", "config.toml", "events.jsonl.xz"])
def test_what_was_changed_is_noticed(target, name):
    path = target / name
    content = path.read_bytes()
    if path.suffix == ".xz":
        path.write_bytes(lzma.compress(lzma.decompress(content).replace(b'"loss": ', b'"loss": 1')))
    else:
        path.write_bytes(content.replace(b"0", b"1", 1))
    with pytest.raises(RunError, match=f"{name}: was changed after the run had been kept"):
        check(target)
    with pytest.raises(RunError, match="was changed after the run had been kept"):
        collect([target], print)
    with pytest.raises(RunError, match="was changed after the run had been kept"):
        report(target, out=target.parent / "report.html")
    _, (damage,) = list_runs(target)
    assert "was changed after the run had been kept" in str(damage)


def test_a_summary_that_is_not_the_runs_is_not_kept(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    path = tmp_path / "run" / "summary.json"
    summary = json.loads(path.read_text())
    path.write_text(json.dumps(summary | {"accuracy_last": 99.9}))
    with pytest.raises(RunError, match="differs from the run's last event"):
        keep(tmp_path / "run", tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_a_kept_run_has_no_weights_to_go_on_or_predict_with(target):
    for words in (("run", "--resume"), ("predict",)):
        done = called(*words, str(target), *([] if words[0] == "run" else [str(target)]), cwd=target)
        assert done.returncode == 4
        assert "is a result kept without its weights; `fedclass benchmark verify" in done.stderr


def test_damage_and_what_is_not_kept_are_told(finished, target):
    with pytest.raises(RunError, match=r"has no kept\.json"):
        check(finished)
    (target / "events.jsonl.xz").write_bytes(b"no xz")
    with pytest.raises(RunError, match=r"events\.jsonl\.xz: is damaged"):
        check(target)
    with pytest.raises(RunError, match="is damaged"):
        read_history(target)
    (target / "kept.json").write_text('{"form": 2}')
    with pytest.raises(RunError, match="has form 2"):
        check(target)
    (target / "kept.json").write_text("{")
    with pytest.raises(RunError, match=r"kept\.json: is damaged"):
        check(target)


def test_places_are_those_of_a_run_that_may_go_on():
    assert {f"{table}.path" for table in kept.PLACES} == PLACES
