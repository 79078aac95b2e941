"""What the server makes of answers."""

import pytest
import torch
from torch import Tensor, nn

from fedclass.federation.server import breakage, usable
from fedclass.methods import FedICARL
from fedclass.methods.declare import Sizes
from fedclass.models.incremental import IncrementalModel
from fedclass.wire import Job, Update

WEIGHTS = {"b": torch.zeros(2), "a": torch.zeros(3), "head.weight": torch.zeros(1, 2), "head.bias": torch.zeros(1)}
SIZES = Sizes(classes=1, features=2, parameters=8)


def test_hooks_see_weights_in_the_model_s_order_whichever_way_they_came() -> None:
    """A network sorts them by name; a method that draws a number for each would draw others than in a simulation."""
    job = Job(0, 0, 0, "train", WEIGHTS, None)
    sent = {name: WEIGHTS[name] + 1 for name in sorted(WEIGHTS)}
    answer = Update(0, 0, 0, sent, 5, {"loss": 1.0, "samples": 5.0})
    (update,) = usable([answer], [job], FedICARL(), SIZES, lambda _, reason: pytest.fail(reason))
    assert list(update.weights) == list(WEIGHTS)
    assert all(update.weights[name] is sent[name] for name in sent)
    in_order = Update(0, 0, 0, {name: WEIGHTS[name] for name in WEIGHTS}, 5, {"loss": 1.0, "samples": 5.0})
    (update,) = usable([in_order], [job], FedICARL(), SIZES, lambda _, reason: pytest.fail(reason))
    assert update is in_order


class Root(nn.Module):
    """Of a negative number there is none."""

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1).sqrt()


def test_weights_break_a_model_if_they_are_no_numbers_or_give_none() -> None:
    model = IncrementalModel(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(12)), 12)
    model.grow_to(2, seed=0)
    images, good = torch.randn(2, 3, 2, 2, generator=torch.Generator().manual_seed(0)), model.weights()
    assert breakage(model, good, good, images) is None
    negative = {**good, "backbone.1.running_var": torch.full((12,), -1.0)}
    assert breakage(model, negative, good, images) == "the model's outputs would be NaN or infinite"
    infinite = {**good, "head.bias": torch.full((2,), torch.inf)}
    assert breakage(model, infinite, good, images) == "head.bias holds NaN or infinite values"
    other = IncrementalModel(Root(), 12)
    other.grow_to(2, seed=0)
    assert breakage(other, other.weights(), other.weights(), images) is None, "it wants other images, and always did"
