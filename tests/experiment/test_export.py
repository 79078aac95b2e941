"""ONNX files of real, tiny models, run by the real onnxruntime."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import fedclass
from fedclass.data.batches import as_input, normalise
from fedclass.errors import ConfigError, FedclassError
from fedclass.experiment.config import Experiment
from fedclass.experiment.trained import load_model

Tiny = Callable[..., Experiment]

OWN = """
import torch
from torch import nn

class Noisy(nn.Module):
    def forward(self, images):
        return images.flatten(1) + torch.randn_like(images.flatten(1))

class Branching(nn.Module):
    def forward(self, images):
        return images.flatten(1) * (2.0 if images.sum().item() > 0 else 1.0)
"""


def session_of(path: Path) -> Any:
    import onnxruntime  # slow to import, and every test worker imports every module of tests

    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "settings"),
    [("fedclass", []), ("fedicarl", ["memory.per_client=12", "model.norm=group"])],
    ids=["logits", "class means and group norm"],
)
def test_onnxruntime_agrees_with_torch(
    method: str, settings: list[str], tiny: Tiny, tiny_file: Path, tmp_path: Path
) -> None:
    fedclass.run(tiny("train.rounds=1", *settings, method=method), tmp_path / "run")
    model = load_model(tmp_path / "run")
    assert bool(model.network.extras) == (method == "fedicarl")
    difference = model.export(tmp_path / "model.onnx")
    assert 0 <= difference < 1e-5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "run"]

    session = session_of(tmp_path / "model.onnx")
    (images,), (scores,) = session.get_inputs(), session.get_outputs()
    assert (images.name, images.type, images.shape[1:]) == ("images", "tensor(uint8)", [8, 8, 3])
    assert (scores.name, scores.type, scores.shape[1:]) == ("scores", "tensor(float)", [4])
    pictures = np.load(tiny_file)["x_test"]
    for count in (1, 3, 40):  # whatever the batch
        (got,) = session.run(None, {"images": pictures[:count]})
        np.testing.assert_allclose(got, model.scores(pictures[:count]), rtol=0, atol=1e-4)
    assert len(set(got.argmax(axis=1))) > 1

    about = {name: json.loads(value) for name, value in session.get_modelmeta().custom_metadata_map.items()}
    assert about["classes"] == ["0", "1", "2", "3"]
    assert (about["image"], about["mean"], about["std"]) == ([8, 8, 3], [0.5], [0.5])
    assert about["method"]["name"] == method


@pytest.mark.slow
def test_fedicarl_agrees_at_a_class_mean_too(tiny: Tiny, tmp_path: Path) -> None:
    """There the distance is 0, and formulas that subtract squares lose half of their digits."""
    fedclass.run(tiny("train.rounds=1", "memory.per_client=12", method="fedicarl"), tmp_path / "run")
    model = load_model(tmp_path / "run")
    images = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), np.uint8)
    with torch.no_grad():
        inputs = as_input(normalise(torch.from_numpy(images), (0.5,), (0.5,)))
        model.network.extras["class_means"].copy_(F.normalize(model.network.model.features(inputs)))
    assert abs(model.scores(images).diagonal()).max() < 1e-6
    model.export(tmp_path / "model.onnx")
    session = session_of(tmp_path / "model.onnx")
    (got,) = session.run(None, {"images": images})
    np.testing.assert_allclose(got, model.scores(images), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("backbone", "said"),
    [
        ("Noisy", r"export: onnxruntime's scores differ from torch's by [\d.]+; nothing was written"),
        ("Branching", r"export: this model cannot be converted to an ONNX graph \(.+\)"),
    ],
)
def test_a_graph_that_is_not_the_model_replaces_nothing(
    backbone: str, said: str, tiny: Tiny, user_module: Callable[[str, str], str], tmp_path: Path
) -> None:
    user_module("odd_models", OWN)
    fedclass.run(tiny(f"model.name=odd_models:{backbone}", "train.rounds=1", method="fedavg"), tmp_path / "run")
    (tmp_path / "model.onnx").write_text("the one before")
    with pytest.raises(FedclassError, match=said) as caught:
        load_model(tmp_path / "run").export(tmp_path / "model.onnx")
    assert "\n" not in str(caught.value)
    assert (tmp_path / "model.onnx").read_text() == "the one before"
    assert not list(tmp_path.glob("*.part"))


@pytest.fixture(scope="module")
def run(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs") / "run"
    fedclass.run(tiny("train.rounds=1"), root)
    return root


@pytest.mark.parametrize("package", ["onnx", "onnxruntime", "onnxscript"])
def test_a_missing_package_is_named(package: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # what `import` takes for "not installed"
    with pytest.raises(ConfigError, match=rf"export needs {package}, which is not installed; .* '\.\[onnx\]'"):
        load_model(run).export(tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_named(run: Path, tmp_path: Path) -> None:
    model = load_model(run)
    gone, long = tmp_path / "gone", tmp_path / ("x" * 252)  # with .part, the name is too long
    for place, said in {
        gone / "model.onnx": f"there is no folder {gone}; name a file in a folder that exists",
        tmp_path: "is a folder; name a file in a folder that exists",
        long: r"cannot be written \(File name too long\); choose another name",
    }.items():
        with pytest.raises(ConfigError, match=f"--to {place}: {said}"):
            model.export(place)
    assert not list(tmp_path.iterdir())
