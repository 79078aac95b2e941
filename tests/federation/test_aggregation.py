"""The table [aggregation]: rules against literal oracles, heads by holders, and whole runs with a hostile client."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedclass.data.partition import save_partition
from fedclass.engines.inprocess import InProcess
from fedclass.experiment.config import Experiment
from fedclass.experiment.runner import run
from fedclass.experiment.setup import Setup, prepare
from fedclass.federation import aggregation
from fedclass.federation.aggregation import Aggregation, AggregationSettings, guarded_against
from fedclass.federation.store import MemoryStore
from fedclass.models.incremental import IncrementalModel
from fedclass.models.weights import Packed, weighted_mean
from fedclass.runs.events import RoundFinished, SetAside, TaskFinished, Warned, read_events
from fedclass.runs.layout import RunDirectory, create
from fedclass.wire import Job, Update, Weights
from reference import aggregation as oracle

Tiny = Callable[..., Experiment]
ROBUST = ("trimmed-mean", "median", "geometric-median", "multi-krum")


@st.composite
def rows(draw: st.DrawFn) -> list[list[float]]:
    """Up to seven updates of three numbers, some far away, some alike."""
    near = st.integers(-40, 40).map(lambda n: n / 8)
    far = st.integers(-40, 40).map(lambda n: n * 5.0)
    return draw(st.lists(st.lists(near | far, min_size=3, max_size=3), min_size=1, max_size=7))


@given(rows(), st.sampled_from([0.0, 0.2, 0.34, 0.49]))
def test_rules_are_those_of_the_oracle(updates: list[list[float]], hostile: float) -> None:
    stacked, n = torch.tensor(updates, dtype=torch.float64), len(updates)
    f = guarded_against(n, hostile)
    assert 2 * f < n
    close: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-9}
    pairs = [
        (aggregation.trimmed_mean(stacked, hostile=hostile), oracle.trimmed_mean(updates, f)),
        (aggregation.median(stacked), oracle.median(updates)),
    ]
    if n >= 3:
        pairs.append((aggregation.multi_krum(stacked, hostile=hostile), oracle.multi_krum(updates, f)))
    for got, want in pairs:
        torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float64), **close)


@given(rows())
def test_no_point_is_nearer_to_all_rows_than_the_geometric_median(updates: list[list[float]]) -> None:
    """By the sum of distances: on a line of two rows, every point between them is one."""

    def apart(z: list[float]) -> float:
        return sum(oracle.distance(z, row) for row in updates)

    got = aggregation.geometric_median(torch.tensor(updates, dtype=torch.float64)).tolist()
    assert apart(got) <= apart(oracle.geometric_median(updates, within=1e-4)) * (1 + 1e-4) + 1e-6


@given(rows(), st.sampled_from([0.5, 1.0, 2.0]))
def test_updates_are_shortened_to_a_multiple_of_the_median(updates: list[list[float]], most: float) -> None:
    norms = [oracle.distance(row, [0.0] * 3) for row in updates]
    factors = aggregation.clip_factors(norms, most=most)
    got = [[x * factor for x in row] for row, factor in zip(updates, factors, strict=True)]
    np.testing.assert_allclose(got, oracle.clipped(updates, most), rtol=1e-9, atol=1e-12)


# On a model's weights.


class Known:
    """Claims, as given."""

    def __init__(self, held: Sequence[Collection[int]] = (), most: int | None = None) -> None:
        self.held, self.most = held, most

    def holds(self, client: int, task: int, round: int) -> Collection[int]:  # noqa: ARG002
        return self.held[client] if self.held else ()

    def most_examples(self, client: int) -> int | None:
        return self.most if client == 0 else None


def network() -> IncrementalModel:
    model = IncrementalModel(nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.BatchNorm1d(5)), 5)
    model.grow_to(3, seed=0)
    return model


def updates_of(model: IncrementalModel, clients: int) -> tuple[Packed, list[Update]]:
    torch.manual_seed(1)
    before, found = model.weights(), []
    for client in range(clients):
        moved = before.clone()
        for tensor in moved.values():
            tensor.add_(torch.randn(tensor.shape) if tensor.is_floating_point() else client)
        found.append(Update(client, 0, 0, moved, client + 1, {}))
    return before, found


def test_the_plain_mean_is_what_it_was_and_takes_one_update_at_a_time() -> None:
    before, updates = updates_of(network(), 4)
    taken: list[int] = []

    def one_by_one() -> Iterator[Update]:
        for update in updates:
            weights = dict(update.weights)
            taken.append(update.client)
            yield replace(update, weights=weights)
            weights.clear()  # whoever needs it later finds nothing

    got = Aggregation(AggregationSettings(), before, Known(), at=(0, 0))(one_by_one())
    want = weighted_mean((update.weights, update.examples) for update in updates)
    assert taken == [0, 1, 2, 3]
    assert all(torch.equal(got[name], want[name]) for name in want)


@pytest.mark.parametrize("rule", ROBUST)
def test_heads_are_combined_over_those_who_hold_a_class_and_the_rest_over_all(rule: Any) -> None:
    """Class 0 is held by three of four, class 1 by one alone, class 2 by nobody."""
    before, updates = updates_of(network(), 4)
    held = [{0}, {0}, {1}, {0}]
    settings = AggregationSettings(rule=rule, hostile=0.25)
    got = Aggregation(settings, before, Known(held), at=(0, 0))(updates)

    def want(parts: Callable[[Weights], Tensor], clients: Sequence[int]) -> Tensor:
        listed = [parts(updates[client].weights).double().flatten().tolist() for client in clients]
        f = guarded_against(len(listed), 0.25)
        literal = {
            "trimmed-mean": lambda: oracle.trimmed_mean(listed, f),
            "median": lambda: oracle.median(listed),
            "geometric-median": lambda: aggregation.geometric_median(torch.tensor(listed).double()).tolist(),
            "multi-krum": lambda: oracle.multi_krum(listed, f) if len(listed) > 2 else oracle.trimmed_mean(listed, 0),
        }[rule]()
        return torch.tensor(literal)

    def row(label: int) -> Callable[[Weights], Tensor]:
        return lambda weights: torch.cat([weights["head.weight"][label], weights["head.bias"][label, None]])

    for label, clients in ((0, [0, 1, 3]), (1, [2]), (2, [0, 1, 2, 3])):
        torch.testing.assert_close(row(label)(got), want(row(label), clients))
    trained = [name for name, _ in network().named_parameters() if not name.startswith("head.")]
    for names in (trained, ["backbone.2.running_mean", "backbone.2.running_var"]):

        def together(weights: Weights, names: Sequence[str] = names) -> Tensor:
            return torch.cat([weights[name].flatten() for name in names])

        torch.testing.assert_close(together(got), want(together, range(4)))
    assert int(got["backbone.2.num_batches_tracked"]) == 3


def test_long_updates_are_shortened_parameters_and_statistics_apart() -> None:
    before, updates = updates_of(network(), 4)
    wild = updates[2].weights
    assert isinstance(wild, Packed)
    for mine, start in zip(wild.sections, before.sections, strict=True):
        if mine.is_floating_point() and len(mine) < 100:  # BatchNorm's means and variances
            mine.copy_(start + 1000 * (mine - start))
    made = Aggregation(AggregationSettings(clip_norm=1.5), before, Known(), at=(0, 0))
    got = made(updates)
    assert made.clipped == [2]
    name = "backbone.2.running_var"
    norms = [aggregation.distances(update.weights, before)[1] for update in updates]
    factor = 1.5 * float(np.median(norms)) / norms[2]
    factors = [1.0, 1.0, factor, 1.0]
    moves = [f * n * (u.weights[name] - before[name]) for f, n, u in zip(factors, (1, 2, 3, 4), updates, strict=True)]
    torch.testing.assert_close(got[name], before[name] + sum(moves) / 10)
    plain = weighted_mean((update.weights, update.examples) for update in updates)
    torch.testing.assert_close(got["backbone.1.weight"], plain["backbone.1.weight"])
    assert aggregation.standing_out(
        {u.client: aggregation.distances(u.weights, before) for u in updates}, dict.fromkeys(range(4), 5)
    ) == [2]


def test_a_free_rider_is_screened_before_lengths_are_compared_and_the_rest_is_the_plain_mean() -> None:
    """Its length of zero would otherwise lower the median, to which the others are shortened."""
    before, _ = updates_of(network(), 1)
    way = torch.Generator().manual_seed(3)
    common = {name: torch.randn(tensor.shape, generator=way) for name, tensor in before.items()}

    def update(client: int, factor: float) -> Update:
        moved = before.clone()
        for name, tensor in moved.items():
            if tensor.is_floating_point():
                tensor.add_(factor * common[name])
        return Update(client, 0, 0, moved, client + 1, {})

    updates = [update(0, 0.01), update(1, 0.012), update(2, 0.0), update(3, 0.011)]
    made = Aggregation(AggregationSettings(screen=True, clip_norm=1.1), before, Known(), at=(0, 0))
    got = made(updates)
    assert (made.screened, made.clipped) == ([2], [])
    want = weighted_mean((u.weights, u.examples) for u in updates if u.client != 2)
    assert all(torch.equal(got[name], want[name]) for name in want)
    # who turns round; who turns the head only, and whose backbone goes nowhere in particular; zeros; all one way
    turned = replace(update(2, -0.01), examples=9)
    aside = {
        n: t + 0.01 * torch.randn(t.shape, generator=way) if t.is_floating_point() else t for n, t in before.items()
    }
    head = {name: turned.weights[name] if name.startswith("head.") else aside[name] for name in before}
    zero = {name: torch.zeros_like(tensor) for name, tensor in before.items()}
    fallen = {n: t - 0.01 * common[n].abs() if t.is_floating_point() else t for n, t in before.items()}
    for weights in (turned.weights, head, zero, fallen):
        made = Aggregation(AggregationSettings(screen=True), before, Known(), at=(0, 0))
        got = made([*updates[:2], updates[3], replace(turned, weights=weights)])
        assert made.screened == [2]
        assert all(torch.equal(got[name], want[name]) for name in want)


def test_examples_count_up_to_the_recipes_limit_and_to_what_a_client_has_announced() -> None:
    before, updates = updates_of(network(), 2)
    updates = [replace(updates[0], examples=2**40), replace(updates[1], examples=60)]
    for settings, claims, counted in (
        (AggregationSettings(max_examples=50), Known(), (50, 50)),
        (AggregationSettings(), Known(most=30), (30, 60)),
        (AggregationSettings(max_examples=50), Known(most=30), (30, 50)),
    ):
        got = Aggregation(settings, before, claims, at=(0, 0))(updates)
        want = weighted_mean((u.weights, n) for u, n in zip(updates, counted, strict=True))
        assert torch.equal(got["head.weight"], want["head.weight"])


def test_a_class_counts_as_held_once_it_has_reached_the_client(tiny: Tiny) -> None:
    setup = prepare(tiny("stream.arrival=own-order", "stream.arrival_delay=2", "train.rounds=4"))
    for client in range(3):
        late = set(setup.stream.awaited(client, 0, 0))
        assert late
        everything = set(range(4))
        assert set(setup.holds(client, 0, 0)) == everything - late
        assert set(setup.holds(client, 0, 3)) == everything


# In whole runs.


class Hostile(InProcess):
    """Client 1 sends something else."""

    def __init__(self, setup: Setup, change: Callable[[Update, Job], Update]) -> None:
        super().__init__(setup.client(MemoryStore()))
        self.change = change

    def run(self, jobs: Sequence[Job]) -> Iterator[Update]:
        for job, update in zip(jobs, super().run(jobs), strict=True):
            yield self.change(update, job) if update.client == 1 and job.phase == "train" else update


def away(update: Update, job: Job, factor: float) -> Update:
    """The update with its move from the model multiplied."""
    weights = {
        name: (start + factor * (update.weights[name] - start)).to(start.dtype) for name, start in job.weights.items()
    }
    return replace(update, weights=weights)


def outcome(experiment: Experiment, out: Path, change: Callable[[Update, Job], Update] | None = None) -> RunDirectory:
    setup, directory = prepare(experiment), create(out)
    run(setup, Hostile(setup, change or (lambda update, _: update)), directory)
    return directory


@pytest.fixture
def sole_holder(tiny: Tiny, tmp_path: Path) -> Callable[..., Experiment]:
    """Class 3 is at client 3 alone, the others are at all four; all classes come in one task."""
    whole = prepare(tiny("stream.tasks=4")).stream
    of_class = [np.flatnonzero(whole.targets == label) for label in range(4)]
    shares = [np.concatenate([of_class[label][client::4] for label in range(3)]) for client in range(4)]
    shares[3] = np.concatenate([shares[3], of_class[3]])
    save_partition([np.sort(share) for share in shares], tmp_path / "p.json", dataset=whole.data.sha256)
    settings = ("stream.tasks=4", "partition.kind=file", f"partition.path={tmp_path / 'p.json'}", "partition.clients=4")
    learning = ("train.rounds=5", "train.local_epochs=3", "optimizer.learning_rate=0.05", "evaluation.every=0")
    return lambda *more: tiny(*settings, *learning, *more, method="fedavg")


def recall(directory: RunDirectory, label: int) -> float:
    """Percent of a class's test images that are told as such, at the end."""
    last = [event for event in read_events(directory.events) if isinstance(event, TaskFinished)][-1]
    return 100 * last.confusion[label][label] / sum(last.confusion[label])


SITES = ("aggregation.screen=true", f"aggregation.clip_norm={aggregation.CLIP_NORM}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "defences",
    [
        ("aggregation.rule=median", "aggregation.clip_norm=2"),
        ("aggregation.rule=multi-krum", "aggregation.clip_norm=2", "train.rounds=8"),
        SITES,
        (*SITES, "stream.tasks=2,2", "memory.per_client=12"),
    ],
)
def test_the_class_of_a_sole_holder_is_learned_with_defences_on(
    defences: Sequence[str], sole_holder: Callable[..., Experiment], tmp_path: Path
) -> None:
    directory = outcome(sole_holder(*defences), tmp_path / "run")
    assert recall(directory, 3) >= 80
    assert min(recall(directory, label) for label in range(3)) >= 80


@pytest.mark.slow
def test_without_knowing_the_holders_it_would_be_outvoted(
    sole_holder: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The contrast that makes the test above one of heads by holders."""
    monkeypatch.setattr(Setup, "holds", lambda *_: range(4))
    directory = outcome(sole_holder("aggregation.rule=median"), tmp_path / "run")
    assert recall(directory, 3) <= 20


def broken_statistics(update: Update, _: Job) -> Update:
    """Running variances below zero, whose root is NaN; every value is a number, and none is large."""
    changed = {n: -50 * torch.ones_like(t) for n, t in update.weights.items() if n.endswith("running_var")}
    return replace(update, weights={**update.weights, **changed})


@pytest.mark.slow
def test_a_round_that_would_break_the_model_is_undone_and_the_suspect_named(tiny: Tiny, tmp_path: Path) -> None:
    def once(update: Update, job: Job) -> Update:
        return broken_statistics(update, job) if (job.task, job.round) == (0, 1) else update

    experiment = tiny("partition.clients=4", "train.rounds=3", "server.optimizer=momentum", method="scaffold")
    directory = outcome(experiment, tmp_path / "run", once)
    events = list(read_events(directory.events))
    rounds = [event for event in events if isinstance(event, RoundFinished)]
    assert [event.rolled_back for event in rounds] == [False, True, False, False, False, False]
    said = [event.message for event in events if isinstance(event, Warned)]
    assert len(said) == 1
    assert "task 1, round 2: undone, because" in said[0]
    assert "NaN or infinite" in said[0]
    assert said[0].endswith("claimed examples: client 1)")
    assert recall(directory, 3) > 25
    clipped = outcome(tiny("partition.clients=4", "aggregation.clip_norm=1"), tmp_path / "clipped", broken_statistics)
    assert not [event for event in read_events(clipped.events) if isinstance(event, Warned)]
    told = [event for event in read_events(clipped.events) if isinstance(event, RoundFinished)]
    assert all(1 in event.clipped for event in told)


@pytest.mark.slow
def test_one_client_in_four_that_turns_its_update_round_does_not_win(tiny: Tiny, tmp_path: Path) -> None:
    settings = ("partition.clients=4", "stream.tasks=4", "train.rounds=4", "train.local_epochs=2")
    rates = ("optimizer.learning_rate=0.05", "evaluation.every=0")

    def last(*more: str) -> float:
        experiment = tiny(*settings, *rates, *more, method="fedavg")
        name = "-".join(more).replace("=", "-") or "mean"
        directory = outcome(experiment, tmp_path / name, lambda update, job: away(update, job, -5.0))
        return sum(recall(directory, label) for label in range(4)) / 4

    assert last() <= 50
    for rule in ("trimmed-mean", "geometric-median"):
        assert last(f"aggregation.rule={rule}") >= 90


def emptied(update: Update, _: Job) -> Update:
    """Zero everywhere, and a claim that drowns all others: every output would be the same."""
    zero = {name: torch.zeros_like(tensor) for name, tensor in update.weights.items()}
    return replace(update, weights=zero, examples=2**40)


@pytest.mark.slow
def test_a_round_that_would_turn_the_model_to_chance_is_undone_and_the_suspect_set_aside(
    tiny: Tiny, tmp_path: Path
) -> None:
    """Then a client that is rejected again and again cannot end the run, though all updates are wanted."""

    def hostile(update: Update, job: Job) -> Update:
        if job.task == 0:
            return emptied(update, job) if job.round == 1 else update
        return replace(update, weights={name: tensor * torch.nan for name, tensor in update.weights.items()})

    guarded = ("aggregation.clip_norm=1000", "server.min_updates=4", "partition.clients=4", "train.rounds=3")
    directory = outcome(tiny(*guarded, method="fedavg"), tmp_path / "run", hostile)
    events = list(read_events(directory.events))
    rounds = [event for event in events if isinstance(event, RoundFinished)]
    assert [event.rolled_back for event in rounds[:3]] == [False, True, False]
    assert "the model's outputs would be the same for every image" in next(
        event.message for event in events if isinstance(event, Warned)
    )
    aside = [event for event in events if isinstance(event, SetAside)]
    assert [(event.task, event.round, event.client) for event in aside] == [(0, 1, 1)]
    assert [event.clients for event in rounds] == [[0, 1, 2, 3]] * 2 + [[0, 2, 3]] * 4
    assert recall(directory, 3) > 25


@pytest.mark.slow
def test_losses_that_rise_say_that_the_round_before_has_spoilt_the_model(tiny: Tiny, tmp_path: Path) -> None:
    """Weights at random give numbers, and other ones for other images; only clients notice."""

    def hostile(update: Update, job: Job) -> Update:
        if job.round != 3:
            return update
        noise = torch.Generator().manual_seed(1)
        weights = {
            name: 30 * torch.randn(t.shape, generator=noise) if t.is_floating_point() and t.ndim > 1 else t
            for name, t in update.weights.items()
        }
        return replace(update, weights=weights, examples=2**40)

    settings = ("partition.clients=4", "stream.tasks=4", "train.rounds=6", "train.local_epochs=2")
    rates = ("optimizer.learning_rate=0.05", "evaluation.every=0", "aggregation.clip_norm=1e9")
    directory = outcome(tiny(*settings, *rates, method="fedavg"), tmp_path / "run", hostile)
    events = list(read_events(directory.events))
    rounds = [event for event in events if isinstance(event, RoundFinished)]
    assert [event.rolled_back for event in rounds] == [False, False, False, False, True, False]
    assert [event.client for event in events if isinstance(event, SetAside)] == [1]
    assert sum(recall(directory, label) for label in range(4)) / 4 >= 80
