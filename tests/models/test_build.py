"""From a name in a recipe to a model: seeded, without side effects, and with errors that say what to type."""

import sys

import pytest
import torch

from fedclass.errors import ConfigError
from fedclass.models.build import build_model
from fedclass.models.resnet import BACKBONES
from fedclass.usercode import imported
from fedclass.wire import sha256

YOURS = """
import torch
from torch import nn

answer = 42
calls = []

def small():
    calls.append("small")
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())

def sized():
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 5))

def lazy():
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(5))

def evaluating():
    return small().eval()

def maps():
    return nn.Conv2d(3, 6, 3)

def pair():
    class Pair(nn.Module):
        def forward(self, x):
            return x.mean((2, 3)), x
    return Pair()

def doubled():
    class Doubled(nn.Module):
        def forward(self, x):
            return x.mean((2, 3)).double()
    return Doubled()

def merged():
    class Merged(nn.Module):
        def forward(self, x):
            return x.reshape(1, -1)
    return Merged()

def ordered():
    return nn.BatchNorm1d(3)

def wants(width):
    return small()

def number():
    return 7
"""


@pytest.fixture
def yours(tmp_path, monkeypatch):
    """A user's own module, importable as `yours`."""
    (tmp_path / "yours.py").write_text(YOURS)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("yours", None)


def built(name="resnet8", *, norm="batch", size=(8, 8), seed=0):
    return build_model(name, norm=norm, image_size=size, seed=seed)


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("name", BACKBONES)
def test_equal_seeds_build_equal_models_whatever_was_drawn_before(name, norm):
    first = built(name, norm=norm, seed=5)
    torch.rand(100)
    again, other = built(name, norm=norm, seed=5), built(name, norm=norm, seed=6)
    assert sha256(first.state_dict()) == sha256(again.state_dict()) != sha256(other.state_dict())
    assert first.classes == 0
    assert first.head.in_features == (512 if name == "resnet18" else 64)
    assert bool(list(first.buffers())) == (norm == "batch")


def test_the_image_size_does_not_change_the_weights():
    assert sha256(built(size=(8, 8)).state_dict()) == sha256(built(size=(28, 28)).state_dict())


@pytest.mark.parametrize("name", ["resnet8", "yours:small", "yours:sized"])
@pytest.mark.usefixtures("yours")
def test_building_leaves_torch_s_global_stream_alone(name):
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    built(name)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_weights_are_laid_out_for_channels_last_images():
    weight = built().backbone.blocks[0].conv1.weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()


def test_a_new_model_is_ready_to_train_with_untouched_running_means():
    """The blank image that finds the number of features leaves no trace."""
    model = built()
    assert all(module.training for module in model.modules())
    assert int(model.backbone.norm.num_batches_tracked) == 0
    assert torch.equal(model.backbone.norm.running_mean, torch.zeros(16))


@pytest.mark.usefixtures("yours")
class TestYourOwnBackbone:
    @pytest.mark.parametrize(("name", "features"), [("yours:small", 6), ("yours:sized", 5)])
    def test_its_features_are_found_by_looking(self, name, features):
        model = built(name)
        model.grow_to(3, seed=0)
        assert model.head.weight.shape == (3, features)
        assert model(torch.zeros(2, 3, 8, 8)).shape == (2, 3)

    def test_it_is_seeded_too(self):
        first, again, other = (sha256(built("yours:small", seed=seed).state_dict()) for seed in (1, 1, 2))
        assert first == again != other

    def test_it_is_built_once(self):
        built("yours:small")
        import yours

        assert yours.calls == ["small"]

    def test_its_mode_is_kept(self):
        assert built("yours:small").backbone.training
        assert not built("yours:evaluating").backbone.training

    @pytest.mark.filterwarnings("ignore:Lazy modules:UserWarning")
    def test_lazy_layers_are_seeded_too(self):
        torch.manual_seed(1)
        first = built("yours:lazy")
        torch.manual_seed(2)
        state = torch.random.get_rng_state()
        again = built("yours:lazy")
        assert torch.equal(torch.random.get_rng_state(), state)
        assert sha256(first.state_dict()) == sha256(again.state_dict())

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("yours:answer", "'yours:answer' is not callable; it must build an nn.Module"),
            ("yours:number", "'yours:number' built a int instead of an nn.Module"),
            ("yours:maps", r"'yours:maps' must map \(B, 3, H, W\) to features \(B, D\)"),
            ("yours:pair", r"'yours:pair' must map \(B, 3, H, W\) to features \(B, D\)"),
            ("yours:doubled", r"'yours:doubled' returns features as torch.float64; return them as torch.float32"),
            ("yours:nothing", "cannot import 'yours:nothing' .*has no attribute 'nothing'"),
            ("yours:", "cannot import 'yours:'"),
            ("nowhere.models:build", r"cannot import .*No module named 'nowhere'.*package\.module:name, importable"),
        ],
    )
    def test_what_is_wrong_with_it_is_said(self, name, message):
        with pytest.raises(ConfigError, match=rf"^\[model\] name: .*{message}"):
            built(name)

    def test_images_that_it_cannot_take_are_named(self):
        with pytest.raises(
            ConfigError, match=r"'yours:sized' cannot take images of 3x9x8: RuntimeError: mat1 and mat2"
        ):
            built("yours:sized", size=(9, 8))

    @pytest.mark.parametrize("name", ["yours:wants", "yours:ordered", ":build", ".yours:small"])
    def test_no_name_ends_in_a_traceback(self, name):
        """One needs an argument, one raises ValueError on images, one names no module, one is relative."""
        with pytest.raises(ConfigError):
            built(name)

    def test_a_backbone_that_merges_its_batch_is_refused(self):
        with pytest.raises(ConfigError, match="must map"):
            built("yours:merged")


def test_a_misspelt_name_gets_a_suggestion():
    with pytest.raises(ConfigError) as error:
        built("resnet-20")
    assert str(error.value) == (
        "[model] name: unknown model 'resnet-20'; known: resnet8, resnet18, resnet20, resnet32; did you "
        "mean 'resnet20'?"
    )


def test_a_name_like_no_other_gets_the_way_out():
    with pytest.raises(ConfigError, match=r"unknown model 'vgg'; known: .*; or package\.module:build for your own"):
        built("vgg")


def test_imported_says_where_the_name_stood():
    assert imported("math:pi", where="here") == pytest.approx(3.14159265)
    with pytest.raises(ConfigError, match=r"^method: cannot import 'math:tau2'"):
        imported("math:tau2", where="method")
