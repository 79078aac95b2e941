"""The head among a model's weights, and the one place that knows its tensors' names."""

import re
from pathlib import Path

import torch
from torch import nn

import fedclass
from fedclass.models.head import head_rows, with_first_classes, with_head_rows, with_shapes_for
from fedclass.models.incremental import IncrementalModel
from fedclass.wire import sha256


def model(classes, *, head_bias=True):
    made = IncrementalModel(nn.Flatten(), 12, head_bias=head_bias)
    made.grow_to(classes, seed=0)
    return made


def test_the_first_classes_are_the_model_that_knew_no_others():
    weights = model(5).weights()
    before = sha256(weights)
    assert sha256(with_first_classes(weights, 3)) == sha256(model(3).weights())
    assert sha256(weights) == before


def test_rows_are_replaced_and_nothing_else():
    weights = model(3).weights()
    before, doubled = sha256(weights), with_head_rows(weights, 2 * head_rows(weights))
    assert torch.equal(head_rows(doubled), 2 * model(3).head.rows)
    assert sha256(with_head_rows(doubled, head_rows(weights))) == before == sha256(weights)


def test_shapes_for_other_numbers_of_classes_cost_no_memory():
    made = model(2, head_bias=False)
    shapes = with_shapes_for(dict(made.state_dict(keep_vars=True)), 10**9)
    rows, bias = shapes.values()
    assert (rows.shape, rows.device.type, rows.requires_grad) == ((10**9, 12), "meta", True)
    assert (bias.shape, bias.device.type, bias.requires_grad) == ((10**9,), "meta", False)


def test_no_other_package_knows_the_names_of_its_tensors():
    package = Path(fedclass.__file__).parent
    found = [path for path in package.rglob("*.py") if re.search(r"head\.(weight|bias)\b", path.read_text())]
    assert {path.relative_to(package).parts[0] for path in found} <= {"models"}
