"""The small ResNets: their sizes by formula, their arithmetic against one written out from the paper."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedclass.models.incremental import IncrementalModel
from fedclass.models.resnet import BACKBONES, ResNet


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def stages(depth):
    """Blocks in each stage, and their widths: section 4.2 of the paper, and table 1 for 18."""
    return (2, [64, 128, 256, 512]) if depth == 18 else ((depth - 2) // 6, [16, 32, 64])


def by_formula(depth, classes):
    """3x3 convolutions without bias, two numbers per normalised channel, projections where the width changes."""
    blocks, widths = stages(depth)
    total = 3 * widths[0] * 9 + 2 * widths[0]
    for inputs, width in pairwise([widths[0], *widths]):
        convolutions = inputs * width * 9 + (2 * blocks - 1) * width * width * 9
        total += convolutions + 2 * blocks * 2 * width
        if inputs != width:
            total += inputs * width + 2 * width
    return total + widths[-1] * classes + classes


def scrambled(norm, depth=8):
    """A model whose normalisation is not the identity that it starts as."""
    torch.manual_seed(0)
    model = ResNet(depth=depth, norm=norm).eval()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if "norm" in name or "shortcut.1" in name:
                tensor.copy_(torch.rand(tensor.shape) + 0.5)
    return model


def written_out(weights, norm, depth, x):
    """He et al. (2016), section 4.2 (for 18: the stages of table 1), from a dictionary of weights."""

    def normalised(y, name):
        gain, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
        if norm == "group":
            return F.group_norm(y, 8, gain, bias)
        mean, variance = weights[f"{name}.running_mean"], weights[f"{name}.running_var"]
        shape = (1, -1, 1, 1)
        y = (y - mean.view(shape)) / (variance.view(shape) + 1e-5).sqrt()
        return y * gain.view(shape) + bias.view(shape)

    blocks, widths = stages(depth)
    x = normalised(F.conv2d(x, weights["conv.weight"], padding=1), "norm").relu()
    for i in range(len(widths) * blocks):
        name, first = f"blocks.{i}", i % blocks == 0 and i > 0
        stride = 2 if first else 1
        y = F.conv2d(x, weights[f"{name}.conv1.weight"], stride=stride, padding=1)
        y = F.conv2d(normalised(y, f"{name}.norm1").relu(), weights[f"{name}.conv2.weight"], padding=1)
        y = normalised(y, f"{name}.norm2")
        if first:
            x = normalised(F.conv2d(x, weights[f"{name}.shortcut.0.weight"], stride=2), f"{name}.shortcut.1")
        x = (x + y).relu()
    return x.mean(dim=3).mean(dim=2)


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize(("depth", "known"), [(8, 78_042), (18, 11_173_962), (20, 272_474), (32, 466_906)])
def test_numbers_of_parameters(depth, known, norm):
    model = IncrementalModel(BACKBONES[f"resnet{depth}"](norm), stages(depth)[1][-1])
    model.grow_to(10, seed=0)
    assert parameters(model) == by_formula(depth, 10) == known
    assert bool(list(model.buffers())) == (norm == "batch")


@pytest.mark.parametrize("depth", [8, 18, 20, 32])
def test_depth_counts_the_layers_on_the_main_path(depth):
    """3x3 convolutions, and the classifier that the backbone leaves to the head; projections do not count."""
    convolutions = [m for m in ResNet(depth=depth).modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)]
    assert len(convolutions) + 1 == depth


@pytest.mark.parametrize("depth", [-4, 0, 2, 7, 9, 16, 34])
def test_other_depths_do_not_exist(depth):
    with pytest.raises(ValueError, match=rf"6n \+ 2 layers \(8, 14, 20, ...\) or 18, got {depth}"):
        ResNet(depth=depth)


def test_the_names_of_recipes():
    assert set(BACKBONES) == {"resnet8", "resnet18", "resnet20", "resnet32"}


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("depth", [8, 14, 18])
@torch.no_grad()
def test_forward_is_the_network_of_the_paper(depth, norm):
    model = scrambled(norm, depth)
    images = torch.randn(3, 3, 12, 10)
    want = written_out(model.state_dict(), norm, depth, images)
    assert want.std() > 0.01
    torch.testing.assert_close(model(images), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [(32, 32), (28, 28), (5, 9), (1, 1)])
@torch.no_grad()
def test_images_of_any_size_become_64_features(size):
    assert ResNet(depth=8).eval()(torch.zeros(2, 3, *size)).shape == (2, 64)


@torch.no_grad()
def test_memory_layout_does_not_matter():
    model, images = scrambled("batch"), torch.randn(4, 3, 16, 16)
    want = model(images)
    channels_last = model.to(memory_format=torch.channels_last)
    torch.testing.assert_close(channels_last(images.to(memory_format=torch.channels_last)), want, rtol=1e-4, atol=1e-5)


def test_batch_norm_has_buffers_and_group_norm_none():
    """A mean over clients can only harm buffers that do not exist."""
    batch, group = ResNet(depth=8, norm="batch"), ResNet(depth=8, norm="group")
    assert len(list(batch.buffers())) == 3 * 9  # mean, variance and counter: 7 convolutions and 2 projections
    assert list(group.buffers()) == []
    assert not any(isinstance(module, nn.BatchNorm2d) for module in group.modules())
    assert {m.num_groups for m in group.modules() if isinstance(m, nn.GroupNorm)} == {8}


@torch.no_grad()
def test_with_group_norm_an_image_does_not_see_its_batch():
    images = torch.randn(4, 3, 8, 8)
    group, batch = scrambled("group").train(), scrambled("batch").train()
    torch.testing.assert_close(group(images)[:1], group(images[:1]), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(batch(images)[:1], batch(images[:1]), rtol=1e-2)


def test_convolutions_start_as_he_et_al_have_it():
    """Normal, with deviation sqrt(2 / fan out)."""
    torch.manual_seed(0)
    for module in ResNet(depth=20).modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 9000:
            want = math.sqrt(2 / (module.out_channels * math.prod(module.kernel_size)))
            drawn = module.weight.detach()
            assert float(drawn.std()) == pytest.approx(want, rel=0.03)
            assert abs(float(drawn.mean())) < 0.04 * want
