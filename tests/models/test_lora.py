"""Low-rank adapters: against a literal oracle, on convolutions, linear layers and attention."""

import pytest
import torch
from torch import nn

from fedclass.errors import ConfigError
from fedclass.models.incremental import IncrementalModel
from fedclass.models.lora import LowRank, add_lora
from fedclass.models.resnet import ResNet
from reference.lora import adapted


def moved(module):
    """Adapters as training might leave them."""
    for name, parameter in module.named_parameters():
        if name.endswith(".up"):
            nn.init.normal_(parameter)
    return module


@pytest.mark.parametrize("shape", [(5, 7), (4, 3, 2, 2)])
def test_an_adapter_adds_a_product_of_low_rank(shape):
    weight = torch.randn(shape, dtype=torch.float64)
    adapter = LowRank(weight, rank=2, alpha=3.0)
    assert torch.equal(adapter(weight), weight)  # before training
    nn.init.normal_(adapter.up)
    rows = weight.flatten(1)
    want = adapted(rows.tolist(), adapter.up.tolist(), adapter.down.tolist(), alpha=3.0)
    torch.testing.assert_close(adapter(weight).flatten(1), torch.tensor(want, dtype=torch.float64))
    assert torch.linalg.matrix_rank((adapter(weight) - weight).flatten(1)) == 2


def test_only_adapters_and_the_head_are_trained():
    """rank x (outputs + inputs) for each of six convolutions, in place of their products."""
    torch.manual_seed(0)
    plain = ResNet(depth=8)
    torch.manual_seed(0)
    model = IncrementalModel(add_lora(ResNet(depth=8), "blocks.*.conv?.weight", rank=2), 64)
    model.grow_to(4, seed=0)
    sizes = {name.removeprefix("backbone."): tensor.numel() for name, tensor in model.weights().items()}
    want = {"head.weight": 256, "head.bias": 4}
    for name, layer in plain.named_modules():
        if name.rpartition(".")[2] in ("conv1", "conv2"):
            want[f"{name}.parametrizations.weight.0.up"] = 2 * layer.out_channels
            want[f"{name}.parametrizations.weight.0.down"] = 2 * layer.in_channels * 9
    assert sizes == want
    assert len(want) == 2 + 2 * 6
    images = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(model.eval().features(images), plain.eval()(images))
    model.train()(images).square().sum().backward()
    assert all(p.grad.abs().sum() > 0 for n, p in model.named_parameters() if n.endswith(".up"))
    assert all(p.grad is None for n, p in model.named_parameters() if n.endswith((".original", "norm.weight")))


def test_attention_and_its_fast_path_see_the_adapters():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True).eval()
    tokens = torch.randn(2, 5, 16)
    before = layer(tokens).detach()
    add_lora(layer, "self_attn.in_proj_weight", "linear?.weight", rank=2)
    torch.testing.assert_close(layer(tokens), before)
    slow = moved(layer)(tokens)
    with torch.no_grad():
        fast = layer(tokens)
    torch.testing.assert_close(slow, fast)
    assert not torch.allclose(slow, before, atol=0.1)


@pytest.mark.parametrize(
    ("patterns", "rank", "message"),
    [
        (("fc.weight",), 1, r"'fc.weight' matches no weight of ResNet .*; it has conv.weight, .* \.\.\."),
        (("conv.weight", "norm.*"), 1, r"'norm.\*' matches no weight of ResNet with two dimensions or more"),
        ((), 1, "'' matches no weight"),
        (("conv.weight",), 0, "rank = 0; it must be at least 1"),
        (("conv.weight",), 17, "rank = 17; the rank of conv.weight is at most 16"),
    ],
)
def test_adapters_that_make_no_sense_are_refused(patterns, rank, message):
    backbone = ResNet(depth=8)
    with pytest.raises(ConfigError, match=rf"add_lora: {message}"):
        add_lora(backbone, *patterns, rank=rank)
    assert all(parameter.requires_grad for parameter in backbone.parameters())
