"""Which updates to leave out, and when a model is lost: against slow loops, and where they must stay silent."""

import math
from pathlib import Path
from statistics import median

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedclass.experiment.checkpoint import Checkpoints, Earlier, State
from fedclass.federation.guards import (
    agreement,
    at_chance,
    constant,
    labels_in_common,
    left_out,
    lopsided,
    lost,
    mislabelled,
    out_of_scale,
    without_frequencies,
)
from fedclass.models.build import build_model
from reference import aggregation as oracle

values = st.floats(-3, 3).filter(lambda x: abs(x) > 1e-3)


@given(st.lists(st.lists(values, min_size=3, max_size=3), min_size=3, max_size=6))
def test_agreement_is_the_median_cosine_to_the_others(rows: list[list[float]]) -> None:
    def cosine(a: list[float], b: list[float]) -> float:
        inner = sum(x * y for x, y in zip(a, b, strict=True))
        return inner / math.sqrt(sum(x * x for x in a)) / math.sqrt(sum(x * x for x in b))

    want = [median(cosine(a, b) for j, b in enumerate(rows) if j != i) for i, a in enumerate(rows)]
    found = agreement(torch.tensor(rows, dtype=torch.float64))
    torch.testing.assert_close(found, torch.tensor(want, dtype=torch.float64))


def test_whoever_turns_round_is_left_out_and_in_a_crowd_without_a_way_nobody_who_is_not_odd() -> None:
    way, none = torch.tensor([1.0, 1.0, 1.0]), torch.zeros(4, dtype=torch.bool)
    moves = torch.stack([way, way + torch.tensor([0.5, 0, -0.5]), way * 3, -5 * way])
    assert left_out(agreement(moves), none, most=1) == [3]
    assert left_out(agreement(moves), none, most=0) == []
    assert left_out(agreement(torch.eye(4)), none, most=1) == []
    apart = torch.tensor([-0.2, -0.1, 0.3, -0.4])
    assert left_out(apart, none, most=1) == []
    odd = torch.tensor([False, True, False, False])
    assert left_out(apart, odd, most=1) == [1]
    assert left_out(agreement(moves), odd, most=1) == [1]  # the worst first
    assert left_out(agreement(moves), odd, most=2) == [1, 3]


sizes = st.lists(st.tuples(st.integers(0, 100), st.integers(1, 1000)), min_size=3, max_size=6)


@given(sizes, st.sampled_from([0.0, 30.0, 300.0]))
def test_sizes_are_judged_by_the_median_the_examples_and_the_model(given: list[tuple[int, int]], model: float) -> None:
    lengths, examples = [length + 0.001 for length, _ in given], [n for _, n in given]  # none exactly at a limit
    usual, share = median(lengths), median(examples)
    far = [
        length > 2 * usual * max(1, n / share) and length > model / 4
        for length, n in zip(lengths, examples, strict=True)
    ]
    want = [length < 0.1 * usual or away for length, away in zip(lengths, far, strict=True)]
    counts = torch.tensor(examples, dtype=torch.float64)
    assert out_of_scale(torch.tensor(lengths, dtype=torch.float64), counts, model=model).tolist() == want


def test_who_has_more_images_may_go_further_and_who_still_learns_when_others_have_done_may_too() -> None:
    lengths, alike = torch.tensor([1.0, 1.0, 1.0, 9.0]), torch.tensor([50.0, 50.0, 50.0, 50.0])
    assert out_of_scale(lengths, alike, model=10.0).tolist() == [False, False, False, True]
    assert not out_of_scale(lengths, torch.tensor([50.0, 50.0, 50.0, 500.0]), model=10.0).any()
    assert not out_of_scale(lengths, alike, model=100.0).any()
    assert out_of_scale(torch.tensor([1.0, 1.0, 0.05]), torch.ones(3), model=10.0).tolist() == [False, False, True]


def test_more_than_three_quarters_one_way_is_lopsided() -> None:
    ups = [8, 7, 6, 5, 4, 3, 2, 1, 0]
    moves = torch.stack([torch.cat([torch.ones(n), -torch.ones(8 - n)]) for n in ups])
    assert lopsided(moves).tolist() == [n > 6 or n < 2 for n in ups]
    assert not lopsided(torch.tensor([[1.0, 0.0, 0.0, 0.0]])).any()  # what does not move is on no side


def cross_entropy_step(features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """How a head of zeros moves by one step, image by image: rows and bias."""
    rows, bias = torch.zeros(classes, features.shape[1]).double(), torch.zeros(classes).double()
    for f, label in zip(features, labels.tolist(), strict=True):
        for c in range(classes):
            residual = (c == label) - 1 / classes
            rows[c] += residual * f
            bias[c] += residual
    return rows, bias


def test_heads_of_clients_with_uneven_shares_agree_once_frequencies_are_out_and_turned_ones_do_not() -> None:
    """Three classes around a common mean; one client has many of class 0, the other many of class 2."""
    generator = torch.Generator().manual_seed(0)
    centres = 5 + torch.randn(3, 20, generator=generator).double()

    def client(counts: list[int]) -> tuple[Tensor, Tensor]:
        labels = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))
        noise = 0.3 * torch.randn(len(labels), 20, generator=generator).double()
        return cross_entropy_step(centres[labels] + noise, labels, 3)

    (rows, bias), (others, their_bias) = client([40, 8, 6]), client([5, 9, 40])
    m = sum(b * w for b, w in zip(bias, rows, strict=True)) / sum(b * b for b in bias)
    literal = torch.stack([w - b * m for b, w in zip(bias, rows, strict=True)])
    torch.testing.assert_close(without_frequencies(rows, bias), literal)

    def cosine(a: Tensor, b: Tensor) -> float:
        return float(torch.nn.functional.cosine_similarity(a.flatten(), b.flatten(), dim=0))

    assert cosine(rows, others) < -0.5
    assert cosine(without_frequencies(rows, bias), without_frequencies(others, their_bias)) > 0.3
    assert cosine(without_frequencies(-rows, -bias), without_frequencies(others, their_bias)) < -0.3
    assert torch.equal(without_frequencies(rows, torch.zeros(3).double()), rows)  # a bias that is not learned


@given(st.integers(3, 6), st.integers(0, 1000))
def test_labels_in_common_are_counted_in_units_of_all_permutations_of_labels(classes: int, seed: int) -> None:
    rows, others = torch.randn(2, classes, 4, generator=torch.Generator().manual_seed(seed)).double()
    want = oracle.labels_in_common(rows.tolist(), others.tolist())
    assert math.isclose(labels_in_common(rows, others), want, rel_tol=1e-6, abs_tol=1e-9)


def test_agreement_at_right_angles_counts_one_less_than_classes_and_rows_without_a_difference_nothing() -> None:
    rows = torch.eye(7).double()
    assert math.isclose(labels_in_common(rows, rows), 6.0)
    assert labels_in_common(rows, torch.zeros(7, 7).double()) == 0
    for alike in (torch.ones(5, 8), torch.rand(8).expand(5, 8)):  # what is left is rounding
        assert labels_in_common(alike.double(), alike.double()) == 0


held = st.lists(st.sets(st.integers(0, 4), max_size=5), min_size=3, max_size=5)


@given(held, st.integers(0, 1000), st.booleans())
def test_labels_are_compared_with_the_sum_of_the_others_as_in_the_slow_oracle(
    holds: list[set[int]], seed: int, flipped: bool
) -> None:
    drawn = torch.Generator().manual_seed(seed)
    centres = torch.randn(5, 12, generator=drawn).double()
    heads = [centres + 0.3 * torch.randn(5, 12, generator=drawn).double() for _ in holds]
    if flipped:
        heads[-1] = heads[-1].roll(1, dims=0)
    told = oracle.mislabelled([head.tolist() for head in heads], [sorted(labels) for labels in holds])
    below = [usual - z if z < 1 and usual - z > limit else -math.inf for z, usual, limit in told]
    worst = max(range(len(holds)), key=lambda i: below[i])
    want = [worst] if below[worst] > -math.inf else []
    assert mislabelled(heads, holds, most=1) == want


def test_of_many_honest_clients_noise_brings_one_to_be_left_out_in_one_round_of_twenty() -> None:
    generator = torch.Generator().manual_seed(0)
    for clients, classes, rounds in ((4, 10, 200), (10, 3, 200), (50, 3, 40)):
        wrong = 0
        for _ in range(rounds):
            centres = 0.3 * torch.randn(classes, 30, generator=generator).double()
            heads = [centres + torch.randn(classes, 30, generator=generator).double() for _ in range(clients)]
            wrong += bool(mislabelled(heads, [range(classes)] * clients, most=clients // 4))
        assert wrong <= 0.1 * rounds, f"{clients} clients, {classes} classes: {wrong} of {rounds}"


def test_whoever_flips_labels_is_left_out_once_the_others_agree_and_nobody_who_holds_other_classes() -> None:
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(10, 30, generator=generator).double()

    def heads(noise: float) -> list[Tensor]:
        return [centres + noise * torch.randn(10, 30, generator=generator).double() for _ in range(4)]

    def flipped(given: list[Tensor]) -> list[Tensor]:
        return [*given[:3], given[3].flip(0)]

    everything = [range(10)] * 4
    assert mislabelled(flipped(heads(1.0)), everything, most=1) == [3]
    assert mislabelled(flipped(heads(1.0)), everything, most=0) == []
    assert mislabelled(heads(1.0), everything, most=1) == []
    assert mislabelled(flipped(heads(20.0)), everything, most=1) == []  # nobody agrees yet
    # who alone holds new classes, and two old ones: nothing is known of its labels
    assert mislabelled(flipped(heads(1.0)), [range(6)] * 3 + [[4, 5, 6, 7, 8, 9]], most=1) == []
    assert mislabelled(flipped(heads(1.0)), [()] * 4, most=1) == []
    assert mislabelled(flipped(heads(1.0)), [range(20)] * 4, most=1) == [3]  # classes of a later task
    ten = [*heads(1.0), *heads(1.0), *(head.flip(0) for head in heads(1.0)[:2])]
    assert mislabelled(ten, [range(10)] * 10, most=3) == [8, 9]


def test_a_model_that_looks_at_no_image_is_constant() -> None:
    model = build_model("resnet8", norm="batch", image_size=(8, 8), seed=0)
    model.grow_to(3, seed=0)
    images = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    weights = model.weights()
    zero = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
    assert not constant(model, weights, images)
    assert constant(model, zero, images)


def test_chance_is_no_better_than_an_even_guess_or_the_largest_class() -> None:
    assert at_chance(np.full((4, 4), 25))
    assert at_chance(np.array([[90, 0], [10, 0]]))
    assert not at_chance(np.array([[60, 40], [20, 80]]))
    assert not at_chance(np.zeros((3, 3), np.int64))


def test_the_median_of_losses_says_when_the_model_is_lost() -> None:
    assert lost([3.0, 2.9, 3.1, 0.1], 1.0, classes=10)
    assert not lost([1.2, 1.1, 1.0, 99.0], 1.0, classes=10)  # one that makes it up
    assert not lost([2.0, 2.0, 2.0], 1.0, classes=10)  # better than guessing
    assert not lost([3.0, 3.0, 3.0], 2.5, classes=10)
    assert not lost([9.0, 9.0, 9.0], None, classes=10)
    assert not lost([9.0, 9.0], 1.0, classes=10)  # of two, nobody is the majority


def test_what_a_state_is_guarded_with_outlasts_the_process(tmp_path: Path) -> None:
    weights = {"w": torch.randn(3)}
    earlier = Earlier({"w": torch.ones(3)}, {"c": torch.zeros(2)}, {}, 0.75, (1, 3))
    state = State(task=1, round=2, weights=weights, aside={3: 4}, earlier=earlier)
    Checkpoints(tmp_path).save(state, {}, changes=0, events=0, made_with={})
    found = Checkpoints(tmp_path).load(1).state
    assert found.aside == {3: 4}
    assert found.earlier is not None
    assert (found.earlier.loss, found.earlier.suspects) == (0.75, (1, 3))
    assert torch.equal(found.earlier.weights["w"], torch.ones(3))
    assert torch.equal(found.earlier.method["c"], torch.zeros(2))
    Checkpoints(tmp_path / "plain").save(State(weights=weights), {}, changes=0, events=0, made_with={})
    plain = Checkpoints(tmp_path / "plain").load(1).state
    assert (plain.aside, plain.earlier) == ({}, None)
