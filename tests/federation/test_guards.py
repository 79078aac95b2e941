"""Who points away, and when a model is lost: against slow loops, and where they must stay silent."""

import json
import math
from pathlib import Path
from statistics import median

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedclass.experiment.checkpoint import Checkpoints, Earlier, State
from fedclass.federation.guards import agreement, at_chance, constant, lost, pointing_away
from fedclass.models.build import build_model

values = st.floats(-3, 3).filter(lambda x: abs(x) > 1e-3)


@given(st.lists(st.lists(values, min_size=3, max_size=3), min_size=3, max_size=6))
def test_agreement_is_the_median_cosine_to_the_others(rows: list[list[float]]) -> None:
    def cosine(a: list[float], b: list[float]) -> float:
        inner = sum(x * y for x, y in zip(a, b, strict=True))
        return inner / math.sqrt(sum(x * x for x in a)) / math.sqrt(sum(x * x for x in b))

    sizes = [math.sqrt(sum(x * x for x in row)) for row in rows]
    idle = [size < 0.1 * median(sizes) for size in sizes]
    want = [-1.0 if idle[i] else median(cosine(a, b) for j, b in enumerate(rows) if j != i) for i, a in enumerate(rows)]
    found = agreement(torch.tensor(rows, dtype=torch.float64))
    torch.testing.assert_close(found, torch.tensor(want, dtype=torch.float64))


def test_whoever_turns_round_points_away_and_a_crowd_without_a_way_has_nobody_who_does() -> None:
    way = torch.tensor([1.0, 1.0, 1.0])
    moves = torch.stack([way, way + torch.tensor([0.5, 0, -0.5]), way * 3, -5 * way])
    assert pointing_away(agreement(moves), most=1) == [3]
    assert pointing_away(agreement(moves), most=0) == []
    assert pointing_away(agreement(torch.eye(4)), most=1) == []
    assert pointing_away(agreement(torch.stack([way, way, way, way / 20])), most=1) == [3]  # a free rider
    apart = torch.tensor([-0.2, -0.1, 0.3, -0.4])
    assert pointing_away(apart, most=1) == []


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
    assert not {"earlier", "aside"} & json.loads((tmp_path / "plain" / "00000001.json").read_bytes()).keys()
