"""What is trained is what travels: the rest is known by its hash, and stays as it was built."""

import pytest
import torch
from torch import nn

from fedclass.errors import ConfigError
from fedclass.models.build import build_model
from fedclass.models.frozen import freeze, frozen_names
from fedclass.models.incremental import IncrementalModel
from fedclass.models.resnet import ResNet
from fedclass.wire import sha256


def with_head(backbone, features=64, **settings):
    model = IncrementalModel(backbone, features, **settings)
    model.grow_to(3, seed=0)
    return model


def trained(model, steps=3):
    """As a client does it."""
    model.train()
    optimizer = torch.optim.SGD(model.movable, lr=0.1, momentum=0.9, weight_decay=0.01)
    for step in range(steps):
        optimizer.zero_grad(set_to_none=False)
        images = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(step))
        model(images).square().sum().backward()
        optimizer.step()
    return model


def test_a_model_is_its_weights_and_what_is_frozen():
    torch.manual_seed(0)
    frozen, whole = with_head(freeze(ResNet(depth=8))), with_head(ResNet(depth=8))
    assert set(frozen.weights()) == {"head.weight", "head.bias"}
    assert whole.frozen == {}
    assert whole.frozen_sha256 == ""
    assert set(whole.weights()) == set(whole.state_dict())
    for model in (frozen, whole):
        complete = model.complete(model.weights())
        assert sha256(complete) == sha256(model.state_dict())


def test_a_frozen_backbone_stays_as_it_was_built_buffers_included():
    model = with_head(freeze(ResNet(depth=8)))
    before, rows = {n: t.clone() for n, t in model.frozen.items()}, model.head.rows.detach().clone()
    trained(model)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.frozen.items())
    assert not torch.equal(model.head.rows, rows)
    assert [m.training for m in model.backbone.modules()] == [False] * len(list(model.backbone.modules()))
    assert model.head.training


def test_without_freeze_batch_norm_moves_its_buffers_and_they_travel():
    backbone = ResNet(depth=8).requires_grad_(False)
    model = with_head(backbone)
    moved = {f"backbone.{name}" for name, _ in backbone.named_buffers()}
    assert set(model.weights()) == moved | {"head.weight", "head.bias"}
    before = model.weights()
    after = trained(model).weights()
    assert all(not torch.equal(after[name], before[name]) for name in moved)


def test_a_part_can_be_trained_after_all():
    backbone = freeze(ResNet(depth=8))
    backbone.blocks[2].requires_grad_(True)
    model = with_head(backbone)
    names = {f"backbone.blocks.2.{name}" for name, _ in backbone.blocks[2].named_parameters()}
    assert set(model.weights()) == names | {"head.weight", "head.bias"}
    before = model.weights()
    after = trained(model).weights()
    assert all(not torch.equal(after[name], before[name]) for name in names)


def test_a_tensor_that_changes_under_another_name_is_not_frozen():
    first, second = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    second.running_mean = first.running_mean
    freeze(second)
    names = frozen_names(nn.Sequential(first, second))
    assert "1.running_var" in names
    assert not names & {"0.running_mean", "1.running_mean"}


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_load_takes_weights_and_leaves_what_is_frozen(classes):
    source, target = with_head(freeze(ResNet(depth=8))), with_head(freeze(ResNet(depth=8)))
    source.grow_to(classes, seed=4)
    kept = sha256(target.frozen)
    target.load(dict(source.weights()))
    assert target.classes == source.classes
    assert sha256(target.frozen) == kept != sha256(source.frozen)
    assert sha256(target.weights()) == sha256(source.weights())


def test_the_hash_covers_every_bit_and_the_normalisation_and_not_the_weights():
    def built(normalisation=None, bit=False):
        torch.manual_seed(0)
        backbone = freeze(ResNet(depth=8))
        if bit:
            weight = backbone.conv.weight.data.view(-1)
            weight[7] = torch.nextafter(weight[7], torch.tensor(9.0))
        return with_head(backbone, normalisation=normalisation)

    plain = built()
    usual = plain.frozen_sha256
    assert usual == built().frozen_sha256 == trained(built()).frozen_sha256 == sha256(plain.frozen)
    assert usual == built().to(memory_format=torch.channels_last).frozen_sha256
    halves, third = ((0.5,) * 3, (0.5,) * 3), ((0.5,) * 3, (0.3,) * 3)
    assert len({usual, built(bit=True).frozen_sha256, built(halves).frozen_sha256, built(third).frozen_sha256}) == 4
    assert with_head(nn.Flatten(), 192, normalisation=halves).frozen_sha256 != ""


class Counting(nn.Module):
    """Changes a buffer whatever mode it is in."""

    def __init__(self, replace):
        super().__init__()
        self.replace = replace
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, images):
        if self.replace:
            self.seen = self.seen + 1
        else:
            self.seen += 1
        return images.flatten(1)


@pytest.mark.parametrize("replace", [False, True])
def test_whoever_changes_what_is_frozen_is_told(replace):
    model = with_head(freeze(Counting(replace)), 192)
    with model.frozen_kept():
        model.load(model.weights())
    with (
        pytest.raises(ConfigError, match=r"backbone\.seen is frozen, but training changed it"),
        model.frozen_kept(),
    ):
        model(torch.zeros(2, 3, 8, 8))


# The normalisation of a backbone.

OWN = """
from torch import nn

def build(normalisation):
    backbone = nn.Flatten()
    backbone.normalisation = normalisation
    return backbone
"""


def built(user_module, normalisation):
    name = user_module("normalised", OWN)
    return build_model(f"{name}:build", norm="batch", image_size=(4, 4), seed=0, args={"normalisation": normalisation})


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ([[0.5], [0.25]], ((0.5,) * 3, (0.25,) * 3)),
        ([[0.1, 0.2, 0.3], [1]], ((0.1, 0.2, 0.3), (1.0,) * 3)),
        (None, None),
    ],
)
def test_a_backbone_may_bring_its_normalisation(user_module, given, want):
    assert built(user_module, given).normalisation == want


@pytest.mark.parametrize(
    "given", [[[0.5]], [[0.5], [0.0]], [[0.5], [-1]], [[0.5, 0.5], [1, 1]], 0.5, "ab", [[float("nan")], [1]], [[], []]]
)
def test_a_normalisation_that_is_none_is_refused(user_module, given):
    with pytest.raises(ConfigError, match=r"'normalised:build' has the normalisation .* it must be \(mean, std\)"):
        built(user_module, given)
