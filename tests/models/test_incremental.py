"""A head that grows: what was learned stays, bit for bit; what is new depends on the seed and the class alone."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedclass.models.head import GrowingHead
from fedclass.models.incremental import IncrementalModel
from fedclass.models.resnet import ResNet


def small():
    """3x4x4 images to five features."""
    torch.manual_seed(0)
    return IncrementalModel(nn.Sequential(nn.Flatten(), nn.Linear(48, 5)), 5)


def grown(*steps, seed=0):
    model = small()
    for classes in steps:
        model.grow_to(classes, seed=seed)
    return model


def test_a_new_model_knows_no_class():
    model = small()
    assert model.classes == 0
    assert model.head.weight.shape == (0, 5)
    assert model(torch.zeros(2, 3, 4, 4)).shape == (2, 0)


def test_building_one_leaves_the_global_stream_alone():
    backbone = nn.Flatten()
    state = torch.random.get_rng_state()
    IncrementalModel(backbone, 48).grow_to(3, seed=0)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_learned_rows_never_move():
    model = grown(4)
    with torch.no_grad():
        model.head.weight.add_(torch.randn(4, 5))  # learning
        model.head.bias.add_(torch.randn(4))
    weight, bias = model.head.weight.clone(), model.head.bias.clone()
    for classes in (5, 9, 9):
        model.grow_to(classes, seed=0)
        assert model.classes == model.head.out_features == len(model.head.bias) == classes
        assert torch.equal(model.head.weight[:4], weight)
        assert torch.equal(model.head.bias[:4], bias)


def test_logits_of_old_classes_stay_and_new_ones_are_w_x_plus_b():
    model, images = grown(4), torch.randn(3, 3, 4, 4)
    before = model(images)
    model.grow_to(7, seed=0)
    features = model.features(images)
    torch.testing.assert_close(model(images)[:, :4], before)
    torch.testing.assert_close(model(images), features @ model.head.weight.T + model.head.bias)


@pytest.mark.parametrize("steps", [(9,), (1, 9), (4, 9), tuple(range(1, 10)), (9, 3)])
def test_equal_seeds_give_equal_rows_however_many_steps_it_takes(steps):
    want, found = grown(2, 9), grown(*steps)
    assert torch.equal(found.head.weight, want.head.weight)
    assert torch.equal(found.head.bias, want.head.bias)


def test_other_seeds_and_other_classes_give_other_rows():
    rows = torch.cat([grown(6, seed=0).head.weight, grown(6, seed=1).head.weight])
    assert len(torch.unique(rows, dim=0)) == 12


def test_rows_are_drawn_as_linear_layers_draw_theirs():
    """Uniform within 1/sqrt(D), weights and biases: deviation 1/sqrt(3 D)."""
    head = IncrementalModel(nn.Identity(), 64).head
    head.grow(2000, torch.Generator().manual_seed(0))
    for drawn in (head.weight.detach(), head.bias.detach()):
        assert float(drawn.abs().max()) <= 1 / 8
        assert float(drawn.abs().max()) > 0.99 / 8
        assert float(drawn.std()) == pytest.approx(1 / math.sqrt(3 * 64), rel=0.05)
        assert abs(float(drawn.mean())) < 0.01


def test_everything_can_be_trained_after_growing():
    model = grown(2, 4)
    model(torch.randn(3, 3, 4, 4)).square().sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    assert len(gradients) == 4
    assert all(gradient is not None and bool(gradient.abs().sum() > 0) for gradient in gradients)


def test_a_head_grows_in_its_own_precision():
    head = GrowingHead(3, init="linear", learns_bias=True).double()
    head.grow(1, torch.Generator().manual_seed(0))
    assert head.weight.dtype == head.bias.dtype == torch.float64


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize(("mine", "theirs"), [(0, 7), (3, 7), (7, 7), (9, 7), (7, 0)])
def test_load_takes_over_weights_for_any_number_of_classes(mine, theirs, norm):
    source, target = (IncrementalModel(ResNet(depth=8, norm=norm), 64) for _ in range(2))
    source.grow_to(theirs, seed=1)
    target.grow_to(mine, seed=2)
    source.train()(torch.randn(4, 3, 8, 8))  # moves the running means
    weights = source.weights()
    target.load(weights)
    assert target.classes == theirs
    assert target.weights().keys() == weights.keys()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in target.weights().items())
    images = torch.randn(2, 3, 8, 8)
    assert torch.equal(source.eval()(images), target.eval()(images))
    assert target.head.weight.requires_grad
    assert target.head.bias.requires_grad


@pytest.mark.parametrize("mine", [4, 6])
def test_what_was_loaded_is_a_copy(mine):
    """Training afterwards must not change the weights that other clients are about to receive."""
    weights = grown(6).weights()
    before = {name: tensor.clone() for name, tensor in weights.items()}
    model = grown(mine)
    model.load(weights)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    assert all(torch.equal(weights[name], before[name]) for name in before)


def test_after_load_the_head_goes_on_growing_from_there():
    model = grown(2)
    model.load(grown(5).weights())
    model.grow_to(8, seed=0)
    assert torch.equal(model.head.weight, grown(8).head.weight)


def test_weights_of_another_backbone_are_refused():
    other = IncrementalModel(nn.Sequential(nn.Flatten(), nn.Linear(48, 5, bias=False)), 5)
    other.grow_to(3, seed=0)
    with pytest.raises(ValueError, match=r"names of weights differ from the model's: backbone\.1\.bias"):
        grown(3).load(other.weights())


# In one piece.


def test_parameters_gradients_and_buffers_are_views_of_the_long_tensors():
    model = IncrementalModel(ResNet(depth=8), 64)
    model.grow_to(4, seed=0)
    (movable,) = model.movable
    before = model.packed["head.weight"].clone()
    assert torch.equal(before, model.head.weight)
    F.cross_entropy(model(torch.randn(6, 3, 8, 8)), torch.tensor([0, 1, 2, 3, 0, 1])).backward()
    assert model.head.weight.grad.abs().sum() > 0
    total = sum(parameter.grad.abs().sum() for parameter in model.parameters())
    torch.testing.assert_close(movable.grad.abs().sum(), total)
    movable.add_(movable.grad, alpha=-0.5)
    torch.testing.assert_close(model.head.weight.detach(), before - 0.5 * model.head.weight.grad)
    assert int(model.weights()["backbone.norm.num_batches_tracked"]) == 1


@pytest.mark.parametrize(
    "change", [lambda m: m.grow_to(7, seed=0), lambda m: m.double(), lambda m: m.load(grown(6).weights())]
)
def test_they_stay_views_when_the_model_changes(change):
    model = grown(4)
    change(model)
    for name, tensor in model.state_dict().items():
        assert torch.equal(model.packed[name], tensor)
        assert tensor.untyped_storage().data_ptr() in {s.untyped_storage().data_ptr() for s in model.packed.sections}
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_frozen_parameter_is_not_moved():
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    backbone[1].bias.requires_grad_(False)
    model = IncrementalModel(backbone, 3)
    model.grow_to(2, seed=0)
    frozen = backbone[1].bias.detach().clone()
    for section in model.movable:
        section.add_(1)
    assert torch.equal(backbone[1].bias, frozen)
    assert set(model.weights()) == {"backbone.1.weight", "head.weight", "head.bias"}


def test_kaiming_rows_lie_within_the_square_root_of_three_over_the_width_and_their_bias_is_zero():
    """torch's own kaiming_uniform_ for a linear layer: 0.2165 for 64 features."""
    model = IncrementalModel(nn.Flatten(), 64, head_init="kaiming")
    model.grow_to(500, seed=0)
    rows = model.head.weight.detach()
    drawn = nn.init.kaiming_uniform_(torch.empty(500, 64), nonlinearity="linear")
    bound = math.sqrt(3 / 64)
    assert drawn.abs().max() <= bound
    assert 0.99 * bound < rows.abs().max() <= bound
    assert rows.std().item() == pytest.approx(drawn.std().item(), rel=0.02)
    assert not model.head.bias.any()
    assert model.head.bias.requires_grad


def test_a_head_without_bias_keeps_it_at_zero_whatever_the_optimizer_does():
    model = IncrementalModel(nn.Flatten(), 6, head_bias=False)
    model.grow_to(3, seed=0)
    before = model.head.weight.detach().clone()
    with_bias = IncrementalModel(nn.Flatten(), 6)
    with_bias.grow_to(3, seed=0)
    assert torch.equal(before, with_bias.head.weight)
    optimizer = torch.optim.SGD(model.movable, lr=0.5, momentum=0.9, weight_decay=0.1)
    for _ in range(3):
        optimizer.zero_grad(set_to_none=False)
        (model(torch.randn(4, 6)) + 5).square().sum().backward()
        optimizer.step()
    assert not torch.equal(model.head.weight, before)
    assert not model.head.bias.any()
    other = IncrementalModel(nn.Flatten(), 6, head_bias=False)
    other.load(model.weights())
    assert not other.head.bias.requires_grad
    other.grow_to(5, seed=0)
    assert not other.head.bias.any()
    assert torch.equal(other.head.weight[:3], model.head.weight)
