"""Models read back from real, tiny runs."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

import fedclass
from fedclass.data.batches import as_input, normalise
from fedclass.data.folder import read_folder
from fedclass.errors import ConfigError, DataError, RunError
from fedclass.experiment.config import Experiment
from fedclass.experiment.trained import KEY, TrainedModel, load_model

Tiny = Callable[..., Experiment]


@pytest.fixture(scope="module")
def runs(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished run of each method."""
    folder = tmp_path_factory.mktemp("runs")
    settings = ["optimizer.learning_rate=0.05", "memory.per_client=12"]
    for method in ("fedclass", "fedicarl", "fedwa"):
        fedclass.run(tiny(*settings, method=method), folder / method)
    return {path.name: path for path in folder.iterdir()}


@pytest.fixture
def copied(runs: dict[str, Path], tmp_path: Path) -> Path:
    """A run to be damaged."""
    return Path(shutil.copytree(runs["fedclass"], tmp_path / "run"))


@pytest.fixture(scope="module")
def arrays(tiny_file: Path) -> dict[str, np.ndarray]:
    return dict(np.load(tiny_file))


# --- what is read back ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedclass", "fedicarl", "fedwa"])
def test_a_model_read_back_has_the_accuracy_of_its_run(method: str, runs: dict[str, Path], tiny_file: Path) -> None:
    summary = json.loads((runs[method] / "summary.json").read_text())
    result = load_model(runs[method]).evaluate(str(tiny_file))
    assert result.accuracy_micro == summary["accuracy_last"]
    assert result.accuracy_macro == summary["accuracy_last_macro"]
    assert summary["accuracy_last"] > 50
    assert (result.images, result.images_per_class) == (40, dict.fromkeys("0123", 10))
    assert (result.unknown, result.missing, result.official_data) == ({}, [], None)


def test_the_file_describes_itself(runs: dict[str, Path], tiny: Tiny, tmp_path: Path) -> None:
    with safe_open(runs["fedclass"] / "model.safetensors", framework="pt") as file:
        stored = json.loads(file.metadata()[KEY])
    assert stored["image"] == [8, 8, 3]
    assert (stored["mean"], stored["std"]) == ([0.5], [0.5])
    assert stored["model"] == {"name": "resnet8", "norm": "batch", "head_init": "linear", "args": {}}
    assert (stored["method"]["name"], stored["method"]["variant"]) == ("fedclass", "paper")
    assert (stored["version"], stored["dataset"]) == (fedclass.__version__, "npz")
    fedclass.run(tiny("optimizer.learning_rate=0.05", "memory.per_client=12", method="fedwa"), tmp_path / "again")
    first, again = ((root / "model.safetensors").read_bytes() for root in (runs["fedwa"], tmp_path / "again"))
    assert first == again


def test_size_and_statistics_of_the_data_go_with_the_model(tiny: Tiny, tmp_path: Path) -> None:
    """Pictures of any size, 16 bits among them: trained on, tested on and predicted as the same pixels."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 12), ("test", 4)):
        for label in range(4):
            (tmp_path / "photos" / split / f"class {label}").mkdir(parents=True)
            for i in range(count):
                side = int(rng.integers(6, 20))
                gray = np.uint16(14_000 * label + 1000) + rng.integers(0, 9000, (side, side + 3), np.uint16)
                pixels = gray if i % 2 else (gray // 257).astype(np.uint8)
                Image.fromarray(pixels).save(tmp_path / "photos" / split / f"class {label}" / f"{i}.png")
    photos = ["data.name=folder", f"data.path={tmp_path / 'photos'}", "data.size=[8, 10]", "memory.per_client=4"]
    measured = tiny(*photos, "data.mean=measured", "data.std=measured")
    summary = fedclass.run(measured, tmp_path / "run")
    model = load_model(tmp_path / "run")
    assert model.description.image == (8, 10, 1)
    _, train, test = read_folder(tmp_path / "photos", size=(8, 10))
    assert model.description.mean == pytest.approx([train.images.mean() / 255])
    assert model.description.std == pytest.approx([train.images.std() / 255])
    result = model.evaluate(tmp_path / "photos")
    assert (result.accuracy_micro, result.images) == (summary["accuracy_last"], 16)
    with Image.open(tmp_path / "photos" / "test" / "class 0" / "0.png") as first:
        assert result.resized_from == first.size
    files = sorted((tmp_path / "photos" / "test").rglob("*.png"))
    assert np.array_equal(model.scores(files), model.scores(test.images))
    given = ["data.mean=[0.25]", "data.std=[0.125]"]
    fedclass.run(tiny(*photos, *given), tmp_path / "given")
    description = load_model(tmp_path / "given").description
    assert (description.mean, description.std) == ((0.25,), (0.125,))


def test_a_model_that_learned_from_raw_images_takes_upright_ones(
    runs: dict[str, Path], arrays: dict[str, np.ndarray], copied: Path
) -> None:
    """Everybody's pictures are upright; EMNIST's files are not, and a recipe may ask for them as they are."""
    path = copied / "model.safetensors"
    with safe_open(path, framework="pt") as file:
        stored = json.loads(file.metadata()[KEY])
    assert stored["transposed"] is False
    save_file(load_file(path), path, {KEY: json.dumps(stored | {"transposed": True})})
    turned = arrays["x_test"].transpose(0, 2, 1, 3)
    np.testing.assert_array_equal(
        load_model(copied).scores(turned), load_model(runs["fedclass"]).scores(arrays["x_test"])
    )
    assert not np.array_equal(load_model(copied).scores(arrays["x_test"]), load_model(copied).scores(turned))


def test_two_files_are_enough(runs: dict[str, Path], arrays: dict[str, np.ndarray], tmp_path: Path) -> None:
    for name in ("model.safetensors", "classes.json"):
        shutil.copy(runs["fedicarl"] / name, tmp_path)
    moved, original = load_model(str(tmp_path)), load_model(runs["fedicarl"])
    np.testing.assert_array_equal(moved.scores(arrays["x_test"]), original.scores(arrays["x_test"]))


def test_fedicarl_predicts_with_its_class_means(runs: dict[str, Path], arrays: dict[str, np.ndarray]) -> None:
    model = load_model(runs["fedicarl"])
    images = as_input(normalise(torch.from_numpy(arrays["x_test"]), (0.5,), (0.5,)))
    means = load_file(runs["fedicarl"] / "model.safetensors")["extras.class_means"]
    with torch.no_grad():
        features = F.normalize(model.network.model.features(images))
        logits = model.network.model(images).numpy()
    expected = [[-float(torch.dist(f, F.normalize(m, dim=0))) for m in means] for f in features]
    scores = model.scores(arrays["x_test"])
    np.testing.assert_allclose(scores, expected, atol=1e-6)
    assert abs(scores - logits).max() > 0.1


def test_a_users_own_method_and_backbone_predict(
    tiny: Tiny, user_module: Callable[[str, str], str], arrays: dict[str, np.ndarray], tmp_path: Path
) -> None:
    user_module(
        "own_model",
        "from dataclasses import dataclass\n"
        "from torch import nn\n"
        "from fedclass.methods import FedAvg\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Shifted(FedAvg):\n"
        '    """Scores are shifted."""\n'
        "    by: float = 0.0\n"
        "    def predict(self, model, images, extras):\n"
        "        return super().predict(model, images, extras) + self.by\n"
        "def backbone():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU())\n",
    )
    own = tiny("model.name=own_model:backbone", "method.by=1000", method="own_model:Shifted")
    fedclass.run(own, tmp_path / "run")
    scores = load_model(tmp_path / "run").scores(arrays["x_test"])
    assert scores.min() > 900


# --- images -----------------------------------------------------------------------------------------------------------


def write_photos(root: Path, arrays: dict[str, np.ndarray], mode: str) -> None:
    for split in ("train", "test"):
        for i, (pixels, label) in enumerate(zip(arrays[f"x_{split}"], arrays[f"y_{split}"], strict=True)):
            folder = root / split / f"class {label}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).convert(mode).save(folder / f"{i:03d}.png")


@pytest.mark.parametrize(("mode", "channels"), [("RGB", 3), ("L", 1), ("P", 3)])
def test_a_training_image_scores_the_same_bits_by_file_and_by_array(
    mode: str, channels: int, tiny: Tiny, arrays: dict[str, np.ndarray], tmp_path: Path
) -> None:
    write_photos(tmp_path / "photos", arrays, mode)
    own = ["data.name=folder", f"data.path={tmp_path / 'photos'}", "train.rounds=1"]
    fedclass.run(tiny(*own), tmp_path / "run")
    model = load_model(tmp_path / "run")
    assert model.classes == ("class 0", "class 1", "class 2", "class 3")
    assert model.description.image == (8, 8, channels)
    files = sorted((tmp_path / "photos" / "train").glob("*/*.png"))
    _, train, _ = read_folder(tmp_path / "photos")
    assert train.images.shape == (96, 8, 8, channels)
    by_file, by_array = model.scores(files), model.scores(train.images)
    assert by_file.tobytes() == by_array.tobytes()
    assert len(np.unique(by_file[:, 0])) > 50  # they do depend on the image
    opened = [Image.open(file) for file in files]
    assert model.scores(opened).tobytes() == by_array.tobytes()
    assert {p.resized_from for p in model.predict(files)} == {None}


def test_a_prediction_names_classes_best_first(runs: dict[str, Path], arrays: dict[str, np.ndarray]) -> None:
    model = load_model(runs["fedclass"])
    scores = model.scores(arrays["x_test"])
    predictions = model.predict(arrays["x_test"])
    assert len(predictions) == 40
    for prediction, row in zip(predictions, scores, strict=True):
        assert dict(prediction.scores) == {name: float(row[int(name)]) for name in "0123"}
        assert list(prediction.scores.values()) == sorted(row.tolist(), reverse=True)
        assert (prediction.label, prediction.score) == (str(row.argmax()), float(row.max()))
    assert model.predict([]) == []
    assert model.scores([]).shape == (0, 4)


def test_other_sizes_and_modes_are_converted_and_noted(runs: dict[str, Path], tmp_path: Path) -> None:
    model = load_model(runs["fedclass"])
    red = Image.new("RGBA", (30, 20), (250, 10, 10, 128))
    red.save(tmp_path / "red.png")
    small = np.tile(np.array([250, 10, 10], np.uint8), (8, 8, 1))
    one, two, three = model.predict([tmp_path / "red.png", np.array(red.convert("RGB")), small])
    assert (one.resized_from, one.converted_from) == ((30, 20), "RGBA")
    assert (two.resized_from, two.converted_from) == ((30, 20), None)
    assert (three.resized_from, three.converted_from) == (None, None)
    assert one.scores == two.scores == three.scores  # one colour stays that colour
    assert model.predict(str(tmp_path / "red.png"))[0].scores == pytest.approx(dict(one.scores), abs=1e-5)


def test_a_turned_picture_is_the_same_by_file_and_by_pillow(
    runs: dict[str, Path], arrays: dict[str, np.ndarray], tmp_path: Path
) -> None:
    model, exif = load_model(runs["fedclass"]), Image.Exif()
    exif[0x0112] = 3  # upside down
    Image.fromarray(arrays["x_test"][0]).save(tmp_path / "turned.png", exif=exif)
    with Image.open(tmp_path / "turned.png") as opened:
        file, picture, plain, turned = model.scores(
            [tmp_path / "turned.png", opened, arrays["x_test"][0], arrays["x_test"][0, ::-1, ::-1]]
        )
    assert file.tobytes() == picture.tobytes() == turned.tobytes() != plain.tobytes()


def test_images_that_are_none_are_refused(runs: dict[str, Path]) -> None:
    model = load_model(runs["fedclass"])
    with pytest.raises(DataError, match=r"images: an array must be \(N, H, W, C\), got \(8, 8, 3\); write \[image\]"):
        model.predict(np.zeros((8, 8, 3), np.uint8))
    with pytest.raises(DataError, match=r"image 1: must be \(H, W, 1 or 3\) uint8, is \(8, 8, 3\) float64"):
        model.predict([np.zeros((8, 8, 3), np.uint8), np.zeros((8, 8, 3))])
    with pytest.raises(DataError, match="image 0: must be a path, a Pillow image or a uint8 array, got int"):
        model.predict([7])  # type: ignore[list-item]
    with pytest.raises(DataError, match=r"gone\.png: cannot be read as an image \(No such file"):
        model.predict("gone.png")


# --- evaluating -------------------------------------------------------------------------------------------------------


def test_classes_are_matched_by_name_not_by_label(
    runs: dict[str, Path], arrays: dict[str, np.ndarray], tmp_path: Path
) -> None:
    """The same images, their labels turned round, class 3 renamed, and one class in it that nobody knows."""
    model, whole = load_model(runs["fedclass"]), dict(arrays)
    expected = {
        name: np.mean(model.scores(whole["x_test"][whole["y_test"] == int(name)]).argmax(1) == int(name))
        for name in "012"
    }
    other = {
        **whole,
        "y_train": 3 - whole["y_train"],
        "y_test": 3 - whole["y_test"],
        "classes": np.array(["x", *"210"]),
    }
    np.savez(tmp_path / "turned.npz", **other)
    result = model.evaluate("npz", path=tmp_path / "turned.npz")
    assert result.accuracy_per_class == pytest.approx({name: 100 * share for name, share in expected.items()})
    assert list(result.accuracy_per_class) == ["0", "1", "2"]
    assert (result.unknown, result.missing, result.images) == ({"x": 10}, ["3"], 30)
    assert result.accuracy_macro == pytest.approx(100 * np.mean(list(expected.values())))
    half = model.evaluate(str(tmp_path / "turned.npz"), fraction=0.5)
    assert (half.images, half.unknown) == (15, {"x": 5})


def test_data_without_a_class_in_common_is_refused(
    runs: dict[str, Path], arrays: dict[str, np.ndarray], tmp_path: Path
) -> None:
    np.savez(tmp_path / "other.npz", **arrays, classes=np.array(list("abcd")))
    with pytest.raises(
        DataError, match=r"other\.npz: has no class of this model; it has a, b, c, d, the model knows 0, 1"
    ):
        load_model(runs["fedclass"]).evaluate(str(tmp_path / "other.npz"))


def test_data_of_another_size_is_converted_and_noted(
    runs: dict[str, Path], arrays: dict[str, np.ndarray], tmp_path: Path
) -> None:
    model = load_model(runs["fedclass"])
    large = {
        **arrays,
        "x_test": arrays["x_test"].repeat(4, 1).repeat(4, 2),
        "x_train": np.zeros((96, 32, 32, 3), np.uint8),
    }
    np.savez(tmp_path / "large.npz", **large)
    result = model.evaluate(str(tmp_path / "large.npz"))
    assert (result.resized_from, result.converted_from) == ((32, 32), None)
    gray = {**arrays, "x_test": arrays["x_test"][..., 0], "x_train": arrays["x_train"][..., 0]}
    np.savez(tmp_path / "gray.npz", **gray)
    result = model.evaluate(str(tmp_path / "gray.npz"))
    assert (result.resized_from, result.converted_from) == (None, "L")


def test_an_unknown_data_set_is_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    model = load_model(runs["fedclass"])
    said = r": neither a known data set \(synnum, .*\) nor, without --path, a folder or \.npz file"
    with pytest.raises(ConfigError, match="mnits" + said):
        model.evaluate("mnits")
    with pytest.raises(ConfigError, match=str(tmp_path) + said):
        model.evaluate(tmp_path, path=tmp_path)  # a name is wanted beside a path


# --- what is no model -------------------------------------------------------------------------------------------------


def refused(run: Path) -> str:
    with pytest.raises(RunError) as caught:
        load_model(run)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_not_a_run_directory_is_named(copied: Path, tmp_path: Path) -> None:
    assert refused(tmp_path / "gone").startswith(f"{tmp_path / 'gone'}: no such run directory; `fedclass list`")
    assert "no such run directory" in refused(copied / "model.safetensors")
    (tmp_path / "empty").mkdir()
    assert "empty: is not a run directory" in refused(tmp_path / "empty")
    (copied / "model.safetensors").unlink()
    assert "run: this run has not finished" in refused(copied)


@pytest.mark.parametrize("length", [0, 5, 100, -1])
def test_a_truncated_model_is_named(copied: Path, length: int) -> None:
    path = copied / "model.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    assert refused(copied).startswith(f"{path}: is damaged (")


def test_a_single_flipped_bit_is_found(copied: Path) -> None:
    path = copied / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1000] ^= 1
    path.write_bytes(content)
    assert refused(copied) == f"{path}: is damaged (the SHA-256 of its tensors has changed)"


def rewritten(run: Path, **changes: Any) -> None:
    path = run / "model.safetensors"
    with safe_open(path, framework="pt") as file:
        stored = json.loads(file.metadata()[KEY])
    save_file(load_file(path), path, metadata={KEY: json.dumps({**stored, **changes})})


def test_a_description_that_is_missing_or_wrong_is_named(copied: Path) -> None:
    rewritten(copied, image=[8, "many", 3])
    assert "its metadata is damaged (image.1: must be a whole number" in refused(copied)
    path = copied / "model.safetensors"
    save_file(load_file(path), path)
    assert "does not describe its images, because an older version wrote it; run it again" in refused(copied)


def test_a_model_that_does_not_fit_is_named(copied: Path) -> None:
    rewritten(copied, model={"name": "resnet20", "norm": "batch"})
    assert "does not fit resnet20 with 4 classes: names differ" in refused(copied)
    rewritten(copied, model={"name": "gone:backbone", "norm": "batch"})
    with pytest.raises(ConfigError, match="cannot import 'gone:backbone'"):
        load_model(copied)


def test_class_names_that_are_missing_or_wrong_are_named(copied: Path) -> None:
    names = copied / "classes.json"
    names.write_text('["a", "b"]')
    assert "does not fit resnet8 with 2 classes: head.bias has shape (4,)" in refused(copied)
    for damage in ('["a", 3]', "[", '{"a": 1}'):
        names.write_text(damage)
        assert refused(copied) == f"{names}: is damaged; it must be a JSON list of class names"
    names.unlink()
    assert "classes.json: cannot be read (No such file or directory)" in refused(copied)


def test_the_type_is_public(runs: dict[str, Path]) -> None:
    model = fedclass.load_model(runs["fedclass"])
    assert isinstance(model, TrainedModel)
    assert isinstance(model.predict(np.zeros((1, 8, 8, 3), np.uint8))[0], fedclass.Prediction)
