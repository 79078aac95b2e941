"""fedclass predict, evaluate and export as a user types them."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fedclass
from commands import called
from fedclass.experiment.config import Experiment


@pytest.fixture(scope="module")
def place(tiny: Callable[..., Experiment], tiny_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with a finished run and some images: a.png as in training, below/b.png larger, with alpha."""
    root = tmp_path_factory.mktemp("place")
    fedclass.run(tiny("optimizer.learning_rate=0.05"), root / "run")
    first, second = np.load(tiny_file)["x_test"][:2]
    (root / "photos" / "below").mkdir(parents=True)
    (root / "photos" / ".cache").mkdir()
    (root / "photos" / ".cache" / "thumb").write_text("hidden: no image, and passed over")
    (root / "photos" / "Thumbs.db").write_text("of Windows: passed over as in training")
    Image.fromarray(first).save(root / "photos" / "a.png")
    Image.fromarray(second).resize((30, 20)).convert("RGBA").save(root / "photos" / "below" / "b.png")
    return root


def told(place: Path, *words: str) -> str:
    done = run(place, *words)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def run(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return called(*words, cwd=place)


def refused(place: Path, *words: str, code: int) -> str:
    """One line, and no prediction before it."""
    done = run(place, *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_predictions_as_a_table_and_as_json(place: Path) -> None:
    files = ["photos/a.png", "photos/below/b.png"]
    predictions = fedclass.load_model(place / "run").predict([place / file for file in files])
    records = [
        json.loads(line) for line in told(place, "predict", "run", "photos", "--json", "--top", "3").splitlines()
    ]
    assert [record["file"] for record in records] == files
    assert [(record["resized_from"], record["converted_from"]) for record in records] == [
        (None, None),
        ([30, 20], "RGBA"),
    ]
    for record, prediction in zip(records, predictions, strict=True):
        assert (record["class"], record["score"]) == (prediction.label, pytest.approx(prediction.score, abs=1e-5))
        assert [entry["class"] for entry in record["top"]] == list(prediction.scores)[:3]
        assert record["top"][0] == {"class": record["class"], "score": record["score"]}

    table = told(place, "predict", "run", *files)
    (first,) = (line for line in table.splitlines() if "photos/a.png" in line)
    (second,) = (line for line in table.splitlines() if "photos/below/b.png" in line)
    names = list(predictions[0].scores)
    assert first.split() == [
        *("photos/a.png", names[0], f"{predictions[0].score:.3f}"),
        *(names[1], f"{predictions[0].scores[names[1]]:.3f}"),
    ]
    assert "resized from 30x20, converted from RGBA" in second
    assert "runner-up" in table
    alone = told(place, "predict", "run", "photos/a.png", "--top", "1")
    assert "runner-up" not in alone
    assert "note" not in alone
    assert told(place, "predict", "run", "photos/a.png", "--top", "99").count("number 4") == 1  # there are four classes


def test_bad_images_are_named_before_anything_is_printed(place: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("a cat")
    said = refused(place, "predict", "run", "photos", str(tmp_path), code=3)
    assert f"{tmp_path / 'notes.txt'}: cannot be read as an image" in said
    whole = (place / "photos" / "below" / "b.png").read_bytes()
    (tmp_path / "notes.txt").write_bytes(whole[: len(whole) // 2])
    said = refused(place, "predict", "run", "photos", str(tmp_path), "--json", code=3)
    assert "notes.txt: cannot be read as an image" in said
    (tmp_path / "notes.txt").unlink()
    assert f"{tmp_path}: no images in this folder" in refused(place, "predict", "run", str(tmp_path), code=3)
    assert "gone.png: does not exist; name an image file" in refused(place, "predict", "run", "gone.png", code=3)


def test_a_run_that_is_none_is_named(place: Path) -> None:
    assert "photos: is not a run directory" in refused(place, "predict", "photos", "photos/a.png", code=4)
    assert "gone: no such run directory" in refused(place, "evaluate", "gone", "synnum", code=4)


def test_a_share_of_none_is_named_as_typed(place: Path) -> None:
    for share in ("0", "nan", "1.5"):
        said = refused(place, "evaluate", "run", "synnum", "--fraction", share, code=2)
        assert f"--fraction {share}: must be a number above 0 and at most 1" in said


def test_evaluation_as_a_table_and_as_json(place: Path, tiny_file: Path, tmp_path: Path) -> None:
    arrays = dict(np.load(tiny_file))
    np.savez(tmp_path / "other.npz", **arrays, classes=np.array([*"012", "zebra"]))
    summary = json.loads((place / "run" / "summary.json").read_text())
    result = json.loads(told(place, "evaluate", "run", "npz", "--path", str(tiny_file), "--json"))
    assert (result["accuracy_micro"], result["accuracy_macro"]) == (
        summary["accuracy_last"],
        summary["accuracy_last_macro"],
    )
    table = told(place, "evaluate", "run", str(tmp_path / "other.npz"))
    assert "npz, 30 test images" in table
    for name in "012":
        assert [name, "10", f"{result['accuracy_per_class'][name]:.1f}"] in [
            line.split() for line in table.splitlines()
        ]
    mean = np.mean([result["accuracy_per_class"][name] for name in "012"])
    assert f"all, per image (micro) 30 {mean:.1f}" in " ".join(table.split())
    assert f"all, per class (macro) {mean:.1f}" in " ".join(table.split())
    assert "left out, unknown to the model: zebra (10 images)" in table
    assert "known to the model, but not in the data: 3" in table


@pytest.mark.slow
def test_export_says_what_it_wrote(place: Path) -> None:
    said = told(place, "export", "run", "--to", "model.onnx")
    assert said.startswith("model.onnx: images (N, 8, 8, 3) uint8 -> scores (N, 4); onnxruntime differs from torch by ")
    assert (place / "model.onnx").stat().st_size > 100_000


def test_a_folder_for_a_model_hub_has_a_card_and_can_be_loaded(place: Path) -> None:
    assert "the model card" in told(place, "export", "run", "--card", "--to", "hub")
    assert sorted(file.name for file in (place / "hub").iterdir()) == ["README.md", "classes.json", "model.safetensors"]
    card = (place / "hub" / "README.md").read_text()
    summary = json.loads((place / "run" / "summary.json").read_text())
    assert f"| accuracy per image, all classes (accuracy_last) | {summary['accuracy_last']:.1f} |" in card
    assert f"- Classes: {', '.join(json.loads((place / 'run' / 'classes.json').read_text()))}" in card
    assert str(place) not in card
    ours, theirs = (fedclass.load_model(place / name).predict([place / "photos/a.png"])[0] for name in ("run", "hub"))
    assert ours.scores == theirs.scores
    assert "not an empty folder" in refused(place, "export", "run", "--card", "--to", "hub", code=2)
