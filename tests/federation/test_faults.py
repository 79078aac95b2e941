"""Clients that drop out or do less: how many, which, the same on every engine, and what is told of them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedclass.errors import ConfigError
from fedclass.experiment import calibrate
from fedclass.experiment.config import Experiment
from fedclass.experiment.launch import run_one
from fedclass.experiment.setup import prepare
from fedclass.federation.faults import FaultSettings, dropped_out, epochs_done
from fedclass.runs.events import Event, RoundFinished, UpdateMissing

Tiny = Callable[..., Experiment]


def test_the_share_of_clients_that_drop_out() -> None:
    half, some = FaultSettings(dropout=0.5), FaultSettings(dropout=0.1)
    asked = [3, 5, 8, 9]
    drawn = [dropped_out(half, asked, seed=0, task=0, round=r) for r in range(50)]
    assert {len(gone) for gone in drawn} == {2}
    assert {client for gone in drawn for client in gone} == set(asked)
    assert drawn == [dropped_out(half, asked, seed=0, task=0, round=r) for r in range(50)]
    assert drawn != [dropped_out(half, asked, seed=1, task=0, round=r) for r in range(50)]
    counts = [len(dropped_out(some, asked, seed=0, task=0, round=r)) for r in range(2000)]
    assert set(counts) == {0, 1}
    assert np.mean(counts) == pytest.approx(0.4, abs=0.05)  # of four; the deviation of this mean is 0.011
    nearly_all = FaultSettings(dropout=0.99)
    assert {len(dropped_out(nearly_all, asked, seed=0, task=0, round=r)) for r in range(50)} == {3}
    assert dropped_out(nearly_all, [7], seed=0, task=0, round=0) == []
    assert dropped_out(FaultSettings(), asked, seed=0, task=0, round=0) == []


def test_what_stragglers_manage() -> None:
    def done(share: float | None) -> list[int]:
        settings = FaultSettings(stragglers=share)
        return [epochs_done(settings, 4, seed=0, client=c, task=1, round=r) for c in range(20) for r in range(50)]

    assert set(done(None)) == set(done(0.0)) == {4}
    assert set(done(1.0)) == {1, 2, 3}
    assert np.mean(np.array(done(0.3)) < 4) == pytest.approx(0.3, abs=0.06)  # the deviation of this mean is 0.014
    assert np.bincount(done(1.0))[1:] / 1000 == pytest.approx([1 / 3] * 3, abs=0.06)


@pytest.mark.slow
def test_faults_are_told_and_give_the_same_bits_on_every_engine_and_when_taken_from_another_run(
    tiny: Tiny, tmp_path: Path
) -> None:
    faulty = tiny("faults.dropout=0.4", "faults.stragglers=0.5", "train.local_epochs=3", "train.rounds=3")
    told: list[Event] = []
    one = run_one(faulty, tmp_path / "one", told.append, engine="inprocess", reuse=True)
    again: list[Event] = []
    taken = run_one(faulty, tmp_path / "taken", again.append, engine="inprocess", reuse=True)
    two = run_one(faulty, tmp_path / "two", engine="processes", workers=2)
    assert one["weights_sha256"] == two["weights_sha256"] == taken["weights_sha256"]
    missing = [(e.task, e.round, e.client) for e in told if isinstance(e, UpdateMissing)]
    assert missing
    assert missing == [(e.task, e.round, e.client) for e in again if isinstance(e, UpdateMissing)]
    for event in told:
        if isinstance(event, RoundFinished):
            gone = {client for task, round, client in missing if (task, round) == (event.task, event.round)}
            assert sorted({*event.clients} | gone) == [0, 1, 2]
            assert not gone & {*event.clients}
    whole = run_one(tiny("train.local_epochs=3", "train.rounds=3"), tmp_path / "whole")
    assert one["bytes_up"] < whole["bytes_up"]
    assert one["bytes_down"] == whole["bytes_down"]


def test_stragglers_need_epochs_to_leave_out(tiny: Tiny) -> None:
    with pytest.raises(
        ConfigError, match=r"\[faults\] stragglers: with train\.local_epochs = 1 no client can do fewer"
    ):
        tiny("faults.stragglers=0.5", "train.local_epochs=1")
    with pytest.raises(ConfigError, match=r"faults\.dropout=1: must be below 1"):
        tiny("faults.dropout=1")


def test_the_speed_of_a_recipe_with_stragglers_can_be_measured(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """For `--dry-run`, by single epochs, of which no client can do fewer."""
    monkeypatch.setattr(calibrate, "SECONDS", 0.01)
    setup = prepare(tiny("faults.stragglers=0.5", "train.local_epochs=2", method="fedavg"))
    assert calibrate.images_per_second(setup).alone > 0
