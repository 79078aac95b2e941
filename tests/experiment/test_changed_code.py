"""A run directory belongs to the code that made it. Other code is refused by name, and recorded if it is accepted."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedclass.errors import RunError
from fedclass.experiment.config import Experiment
from fedclass.experiment.launch import run_one
from fedclass.experiment.parallel import run_all
from fedclass.experiment.reuse import usual_store
from fedclass.report.tables import results_tables
from fedclass.runs.events import Event, RoundFinished, RunResumed, Warned
from fedclass.runs.summary import Result
from stopping import Stop, stop_after
from users import METHOD, Project

Tiny = Callable[..., Experiment]


def stopped(experiment: Experiment, root: Path, *, rounds: int = 2, reuse: bool = False) -> None:
    with pytest.raises(Stop):
        run_one(experiment, root, stop_after(rounds), reuse=reuse)


def went_on(experiment: Experiment, root: Path, **how: Any) -> tuple[dict[str, Any], list[str]]:
    """The summary, and warnings."""
    heard: list[Event] = []
    summary = run_one(experiment, root, heard.append, go_on=True, **how)
    return summary, [event.message for event in heard if isinstance(event, Warned)]


def parts(root: Path) -> list[dict[str, Any]]:
    return json.loads((root / "source.json").read_text())["parts"]  # type: ignore[no-any-return]


def mixed(*results: Result) -> list[str]:
    """What their table says of mixed code."""
    (table,) = results_tables(results)
    return [note for note in table.notes if note.startswith("MIXED CODE")]


@pytest.fixture
def mine(project: Project) -> Project:
    project.write(mine=METHOD.format(imports="import helper", within="pass", factor="helper.F"), helper="F = 1.0")
    return project


def test_code_edited_between_stop_and_resume_is_refused_by_name_and_accepted_if_told(
    mine: Project, tiny: Tiny, tmp_path: Path
) -> None:
    root = tmp_path / "cut"
    stopped(tiny(method="mine:Mine"), root)
    mine.write(helper="F = 30.0")
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    with pytest.raises(
        RunError,
        match=r"cut: its code has changed: helper\.py changed\. .*--changed-code \(changed_code=True\) resumes it",
    ):
        went_on(tiny(method="mine:Mine"), root, reuse=True)
    assert before == {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}

    summary, warnings = went_on(tiny(method="mine:Mine"), root, reuse=True, changed_code=True)
    assert summary["mixed_code"] is True
    assert warnings == ["resumes with other code than before: helper.py changed"]
    assert [part["changed"] for part in parts(root)] == [[], ["helper.py changed"]]
    assert list(usual_store().entries()) == [], "no program would give these weights"
    (note,) = mixed(Result.read(root))
    assert note == f"MIXED CODE: {root} went on after its code had changed; source.json says which files."


def test_a_mixture_stays_one_when_it_is_stopped_again(mine: Project, tiny: Tiny, tmp_path: Path) -> None:
    experiment, root = tiny("train.rounds=3", method="mine:Mine"), tmp_path / "cut"
    stopped(experiment, root)
    mine.write(helper="F = 30.0")
    heard: list[Event] = []

    def listen(event: Event) -> None:
        heard.append(event)
        if isinstance(event, RoundFinished) and event.task == 1:
            raise Stop

    with pytest.raises(Stop):
        run_one(tiny("train.rounds=3", method="mine:Mine"), root, listen, go_on=True, changed_code=True)
    summary, warnings = went_on(tiny("train.rounds=3", method="mine:Mine"), root, reuse=True)
    assert (summary["mixed_code"], len(parts(root))) == (True, 2)
    assert list(usual_store().entries()) == []
    assert warnings == ["resumes with other code than before: helper.py changed"], "of the first time"


def test_the_same_code_goes_on_without_a_word_and_is_kept_for_others(mine: Project, tiny: Tiny, tmp_path: Path) -> None:
    root = tmp_path / "cut"
    stopped(tiny(method="mine:Mine"), root)
    mine.forget()
    summary, warnings = went_on(tiny(method="mine:Mine"), root, reuse=True)
    assert (summary["mixed_code"], warnings, len(parts(root))) == (False, [], 1)
    assert len(list(usual_store().entries())) == 2
    assert {"helper.py", "mine.py"} < parts(root)[0]["files"].keys()
    assert "fedclass/losses/augmented.py" in parts(root)[0]["files"]


def test_files_that_came_or_went_are_named(mine: Project, tiny: Tiny, tmp_path: Path) -> None:
    root = tmp_path / "cut"
    stopped(tiny(method="mine:Mine"), root)
    mine.write(mine=METHOD.format(imports="from other import F", within="pass", factor="F"), other="F = 1.0")
    with pytest.raises(RunError, match=r"mine\.py changed, helper\.py is gone, other\.py is new\."):
        went_on(tiny(method="mine:Mine"), root)


def test_a_run_without_a_checkpoint_begins_anew_and_is_no_mixture(mine: Project, tiny: Tiny, tmp_path: Path) -> None:
    root = tmp_path / "cut"
    stopped(tiny(method="mine:Mine"), root, rounds=1)
    mine.write(helper="F = 30.0")
    summary, warnings = went_on(tiny(method="mine:Mine"), root)
    assert (summary["mixed_code"], warnings, len(parts(root))) == (False, [], 1)
    assert summary["weights_sha256"] == run_one(tiny(method="mine:Mine"), tmp_path / "alone")["weights_sha256"]


def test_a_finished_run_of_other_code_is_not_shown_as_this_codes(mine: Project, tiny: Tiny, tmp_path: Path) -> None:
    root = tmp_path / "run"
    first = run_one(tiny(method="mine:Mine"), root)
    mine.write(helper="F = 30.0")
    with pytest.raises(RunError, match=r"run: its code has changed: helper\.py changed\. .*accepts it as it is"):
        went_on(tiny(method="mine:Mine"), root)
    shown, warnings = went_on(tiny(method="mine:Mine"), root, changed_code=True)
    assert shown == first
    assert warnings == [f"{root}: was made with other code: helper.py changed"]
    with pytest.raises(RunError, match=r"run: its code has changed"):
        run_all([(tiny(), tmp_path / "new"), (tiny(method="mine:Mine"), root)], listen=lambda *_: None)
    assert not (tmp_path / "new").exists(), "refused before anything is begun"


def test_seeds_that_were_run_by_different_code_are_marked(mine: Project, tiny: Tiny, tmp_path: Path) -> None:
    for seed, factor in enumerate(("1.0", "30.0")):
        mine.write(helper=f"F = {factor}")
        run_one(tiny("train.rounds=1", method="mine:Mine", seed=seed), tmp_path / str(seed))
    first, second = Result.read(tmp_path / "0"), Result.read(tmp_path / "1")
    assert "MIXED CODE: the seeds of mine:Mine (standard) were run by different code." in mixed(first, second)
    assert not mixed(first)


def test_a_run_of_an_older_version_is_refused_and_can_be_accepted(tiny: Tiny, tmp_path: Path) -> None:
    root = tmp_path / "old"
    stopped(tiny(), root)
    (root / "source.json").unlink()
    with pytest.raises(
        RunError,
        match=r"older version of fedclass began it.*no source\.json.*--changed-code \(changed_code=True\) resumes it",
    ):
        went_on(tiny(), root)
    summary, _ = went_on(tiny(), root, changed_code=True)
    assert summary["mixed_code"] is True


def test_a_damaged_record_of_the_code_is_an_error(tiny: Tiny, tmp_path: Path) -> None:
    root = tmp_path / "cut"
    stopped(tiny(), root)
    (root / "source.json").write_text('{"parts": [{}]}')
    with pytest.raises(RunError, match=r"source\.json: is damaged"):
        went_on(tiny(), root, changed_code=True)


def test_a_run_that_went_on_elsewhere_is_not_kept_for_others(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bits may be those of neither machine; its code is the same."""
    root = tmp_path / "cut"
    stopped(tiny("train.rounds=3"), root)
    for module in ("resume", "source_code", "reuse"):
        monkeypatch.setattr(f"fedclass.experiment.{module}.fingerprint", lambda: {"processor": "abacus"})
    summary, _ = went_on(tiny("train.rounds=3"), root, reuse=True)
    assert (summary["mixed_code"], len(parts(root))) == (False, 2)
    assert list(usual_store().entries()) == []


def test_weights_that_a_builder_loads_may_not_change_either(project: Project, tiny: Tiny, tmp_path: Path) -> None:
    """Opened by a library that does not tell: noticed by the initial weights, of stopped and of finished runs."""
    import torch
    from safetensors.torch import save_file

    path = project.root / "net.safetensors"
    project.write(
        net=f"""
from safetensors.torch import load_file
from torch import nn

def build():
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.ReLU())
    net.load_state_dict(load_file({str(path)!r}))
    return net
"""
    )
    made = {"1.weight": torch.randn(8, 192), "1.bias": torch.zeros(8)}
    save_file(made, path)
    experiment = tiny("model.name=net:build", method="fedavg")
    stopped(experiment, tmp_path / "cut")
    run_one(experiment, tmp_path / "whole")
    save_file({**made, "1.bias": torch.ones(8)}, path)
    for name in ("cut", "whole"):
        with pytest.raises(RunError, match="the initial weights of the model changed"):
            went_on(experiment, tmp_path / name)


def test_a_resumed_run_says_from_where_it_went_on(mine: Project, tiny: Tiny, tmp_path: Path) -> None:
    """The order of events that a report reads: resumed, then warned."""
    root = tmp_path / "cut"
    stopped(tiny(method="mine:Mine"), root)
    mine.write(helper="F = 30.0")
    heard: list[Event] = []
    run_one(tiny(method="mine:Mine"), root, heard.append, go_on=True, changed_code=True)
    kinds = [type(event) for event in heard]
    assert kinds.index(RunResumed) + 1 == kinds.index(Warned)
