"""What the server makes of answers."""

import pytest
import torch

from fedclass.federation.server import usable
from fedclass.methods import FedICARL
from fedclass.methods.declare import Sizes
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
