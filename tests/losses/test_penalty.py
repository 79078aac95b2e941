"""The pull of FedProx and EWC."""

import pytest
import torch

from fedclass.losses import pull
from reference.penalty import quadratic_penalty


@pytest.mark.parametrize("each", [True, False], ids=["EWC: a number for each weight", "FedProx: one for all"])
def test_it_is_the_derivative_of_the_penalty(each: bool) -> None:
    """By differences of the penalty as the papers write it, weight by weight. It is quadratic: they are exact."""
    rng = torch.Generator().manual_seed(0)
    weights, anchor, importance = torch.randn(3, 7, generator=rng, dtype=torch.float64)
    importance = importance.square() if each else torch.full((7,), 0.3, dtype=torch.float64)
    got = pull(weights, anchor, importance if each else 0.3)
    for i in range(7):
        up, down = weights.clone(), weights.clone()
        up[i] += 0.5
        down[i] -= 0.5
        rows = [quadratic_penalty(w.tolist(), anchor.tolist(), importance.tolist()) for w in (up, down)]
        assert float(got[i]) == pytest.approx(rows[0] - rows[1], rel=1e-12)
    assert not pull(anchor, anchor, importance).any()
