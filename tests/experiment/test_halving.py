"""Successive halving: what a budget is spent on; runs that stop and go on; and the file with what was found."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from fedclass.errors import ConfigError
from fedclass.experiment.best import Best, read_best, save_best
from fedclass.experiment.config import Experiment
from fedclass.experiment.halving import Rung, better_half, parts, rungs
from fedclass.experiment.launch import run_one
from fedclass.runs.layout import RunDirectory


def test_rungs_of_a_long_stream() -> None:
    """Eight candidates, ten tasks, four full runs: 8 x 2 + 4 x 2 + 2 x 6 = 36 tasks of 40."""
    found = rungs(8, tasks=10, seeds=1, budget=4)
    assert found == [Rung(8, 2), Rung(4, 4), Rung(2, 10), Rung(1, 10)]


def test_with_few_tasks_the_seeds_are_what_is_saved() -> None:
    """Two tasks are the least by which anyone is judged, so that all five learn both of the first seed."""
    assert rungs(5, tasks=2, seeds=3, budget=9) == [Rung(5, 2), Rung(3, 3), Rung(2, 5), Rung(1, 6)]
    assert rungs(5, tasks=2, seeds=1, budget=5) == [Rung(5, 2), Rung(1, 2)]


@given(some.integers(1, 40), some.integers(1, 50), some.integers(1, 5), some.floats(1, 300, allow_nan=False, width=16))
def test_no_more_is_spent_than_the_budget_and_the_winner_finishes(
    candidates: int, tasks: int, seeds: int, budget: float
) -> None:
    try:
        found = rungs(candidates, tasks=tasks, seeds=seeds, budget=budget)
    except ConfigError:
        assert budget * tasks < tasks * seeds + (candidates - 1) * min(2, tasks)
        return
    before, spent = 0, 0
    for rung in found:
        spent += rung.candidates * (rung.tasks - before)
        before = rung.tasks
    assert spent <= budget * tasks
    assert found[-1] == Rung(1, tasks * seeds)
    assert found[0].candidates == candidates
    assert found[0].tasks >= min(2, tasks)
    sizes = [rung.candidates for rung in found]
    assert sizes == sorted(sizes, reverse=True)
    assert all(after.tasks > rung.tasks for rung, after in pairwise(found[:-1]))


def test_too_small_a_budget_says_how_much_is_needed() -> None:
    with pytest.raises(ConfigError, match=r"budget 2: 5 candidates and 2 seeds need at least 6 full runs"):
        rungs(5, tasks=2, seeds=2, budget=2)
    assert rungs(5, tasks=2, seeds=2, budget=6)


def test_tasks_are_learned_seed_after_seed() -> None:
    assert parts(2, 3, [7, 8]) == {7: 2}
    assert parts(3, 3, [7, 8]) == {7: 3}
    assert parts(5, 3, [7, 8]) == {7: 3, 8: 2}
    assert parts(6, 3, [7, 8]) == {7: 3, 8: 3}


def test_the_better_half_is_the_same_whenever_it_is_asked_for() -> None:
    assert better_half([1.0, 3.0, 3.0, 2.0], 2) == [1, 2]
    assert better_half([3.0, 3.0, 3.0], 1) == [0]


def test_a_run_that_stops_after_a_task_and_goes_on_has_the_bits_of_one_that_does_not(
    tiny: Callable[..., Experiment], tmp_path: Path
) -> None:
    experiment = tiny("train.rounds=1", method="fedclass")
    whole = run_one(experiment, tmp_path / "whole")
    assert run_one(experiment, tmp_path / "parts", until=1) == {}
    assert not RunDirectory(tmp_path / "parts").finished
    assert run_one(experiment, tmp_path / "parts", go_on=True, until=1) == {}, "it is there already"
    found = run_one(experiment, tmp_path / "parts", go_on=True, until=2)
    assert found["weights_sha256"] == whole["weights_sha256"]
    assert found["accuracy_matrix"] == whole["accuracy_matrix"]


FOUND = Best(
    settings=["method.beta=5"],
    validation_accuracy=61.5,
    candidates=4,
    seeds=[0, 1],
    budget=5.0,
    recipe="demo",
    beside=["data.validation=0.1"],
)


def test_what_was_found_is_kept_beside_other_methods(tmp_path: Path) -> None:
    file = tmp_path / "best.toml"
    save_best(file, "fedclass", FOUND)
    save_best(file, "fedwa", FOUND)
    later = Best(**{**vars(FOUND), "settings": ["method.beta=1"]})
    save_best(file, "fedclass", later)
    assert read_best(file) == {"fedclass": later, "fedwa": FOUND}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[fedclass", r"cannot be read"),
        ("[fedclass]\nsettings = 5\n", r"fedclass\.settings: "),
        (None, r"cannot be read \(.*No such file"),
    ],
)
def test_a_file_that_is_none_of_ours_is_refused(content: str | None, message: str, tmp_path: Path) -> None:
    file = tmp_path / "best.toml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=message):
        read_best(file)
    if content is not None:
        with pytest.raises(ConfigError, match=message):
            save_best(file, "fedwa", FOUND)
        assert file.read_text() == content
