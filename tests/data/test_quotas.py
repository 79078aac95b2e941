"""Quotas that balance all clients' exemplars together (memory.quota = "balanced")."""

from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from fedclass.data.memory import MemorySettings, exemplar_counts_by_class
from fedclass.data.quotas import balanced_quotas
from fedclass.errors import ClientError, ConfigError
from fedclass.experiment.config import Experiment
from fedclass.experiment.launch import run_one
from fedclass.experiment.setup import prepare
from fedclass.federation.client import Client
from fedclass.federation.store import MemoryStore
from fedclass.runs.events import Event, TaskFinished
from fedclass.wire import Job
from reference.quotas import most_balanced

Tiny = Callable[..., Experiment]

counts = st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), min_size=2, max_size=3)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(available=counts, budget=st.integers(0, 4), first=st.integers(0, 4))
def test_the_union_is_as_balanced_as_holdings_and_budgets_allow(available, budget, first):
    budgets = [first, *[budget] * (len(available) - 1)]
    quotas = balanced_quotas(np.array(available), np.array(budgets))
    assert (quotas <= available).all()
    assert (quotas >= 0).all()
    assert (quotas.sum(axis=1) <= budgets).all()
    assert sorted(quotas.sum(axis=0).tolist()) == most_balanced(available, budgets)


def test_a_full_client_gives_up_what_another_can_keep_instead():
    """Client 0 alone has class 1; with even shares the union would be 6 and 2."""
    quotas = balanced_quotas(np.array([[9, 9], [9, 0]]), np.array([4, 4]))
    assert quotas.tolist() == [[0, 4], [4, 0]]


def test_exemplars_of_a_class_are_spread_over_those_who_have_it():
    quotas = balanced_quotas(np.full((4, 2), 50), np.full(4, 10))
    assert quotas.tolist() == [[5, 5]] * 4


def test_the_plan_balances_each_task_from_what_was_kept():
    """What was dropped does not come back: after the second task, classes 0 and 1 have what the first one left."""
    held = np.array([[30, 2, 30, 0], [30, 0, 0, 30]])
    memory = MemorySettings(per_client=8, quota="balanced")
    plan = exemplar_counts_by_class(memory, held, (2, 2))
    assert plan[0].sum(axis=0).tolist() == [14, 2, 0, 0]
    assert plan[1].sum(axis=0).tolist() == [5, 2, 5, 4]
    assert (plan[1] <= np.where(np.arange(4) < 2, plan[0], held)).all()
    assert (plan.sum(axis=2) <= 8).all()


def test_a_budget_per_class_cannot_be_divided(tiny: Tiny) -> None:
    with pytest.raises(ConfigError, match=r'\[memory\] quota = "balanced" divides per_client'):
        tiny("memory.per_class=2", "memory.quota=balanced")


def test_counts_leave_clients_only_where_quotas_need_them(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what is then kept is what the plan says."""
    asked, work = [], Client.run
    monkeypatch.setattr(Client, "run", lambda self, job: asked.append(job) or work(self, job))
    uneven = ("partition.kind=dirichlet", "partition.alpha=0.3", "partition.min_size=5", "memory.per_client=6")
    for quota in ("even", "balanced"):
        experiment = tiny(*uneven, f"memory.quota={quota}", method="fedavg")
        told: list[Event] = []
        run_one(experiment, tmp_path / quota, told.append, engine="inprocess", reuse=False)
        phases = [job.phase for job in asked]
        assert phases.count("count") == (6 if quota == "balanced" else 0)
        ends = [job for job in asked if job.phase == "end_task"]
        stream = prepare(experiment).stream
        plan = exemplar_counts_by_class(experiment.memory, stream.counts(), stream.task_sizes)
        for job in ends:
            wanted = tuple(plan[job.task, job.client, : stream.classes_until(job.task)].tolist())
            assert job.quotas == (wanted if quota == "balanced" else None)
        kept = [event.exemplars for event in told if isinstance(event, TaskFinished)]
        assert kept == plan.sum(axis=(1, 2)).tolist()
        asked.clear()


def test_a_client_keeps_no_more_than_its_own_budget(tiny: Tiny) -> None:
    setup = prepare(tiny("memory.quota=balanced"))
    model = setup.build()
    model.grow_to(2, seed=0)
    job = Job(0, 0, 2, "end_task", model.weights(), None, quotas=(5, 4))
    message = "client 0, task 1, end of the task: the server's quotas add up to 9 exemplars, but memory.per_client is 8"
    with pytest.raises(ClientError, match=message):
        setup.client(MemoryStore()).run(job)
