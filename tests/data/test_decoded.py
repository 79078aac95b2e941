"""Decoded images in a mapped file: made once, whole or not at all, and the same pixels and bits as in memory."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedclass.data import decoded
from fedclass.data.datasets import load
from fedclass.data.image_set import Split
from fedclass.data.source import cache_folder
from fedclass.errors import DataError
from fedclass.experiment.launch import run_one
from fedclass.experiment.setup import prepare


@pytest.fixture
def photos(tmp_path: Path, tiny_file: Path) -> Path:
    """The tiny data set as .png files."""
    arrays = np.load(tiny_file)
    for split in ("train", "test"):
        for at, (pixels, label) in enumerate(zip(arrays[f"x_{split}"], arrays[f"y_{split}"], strict=True)):
            folder = tmp_path / "photos" / split / f"class {label}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(folder / f"{at:03d}.png")
    return tmp_path / "photos"


@pytest.fixture
def mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoded, "MAPPED_FROM", 0)


def kept() -> list[Path]:
    return sorted((cache_folder() / "decoded").glob("*"))


def test_a_mapped_folder_has_the_pixels_of_one_in_memory(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_memory = load("folder", path=photos, measure=True)
    assert not (cache_folder() / "decoded").exists()
    monkeypatch.setattr(decoded, "MAPPED_FROM", 0)
    found = load("folder", path=photos, measure=True)
    assert isinstance(found.train.images, np.memmap)
    assert (found.sha256, found.normalisation) == (in_memory.sha256, in_memory.normalisation)


@pytest.mark.usefixtures("mapped")
def test_files_are_decoded_once_and_again_only_if_they_or_the_size_change(photos: Path) -> None:
    first = load("folder", path=photos)
    files = {file: file.stat().st_mtime_ns for file in kept()}
    assert len(files) == 2, "one for training, one for testing, and no draft is left"
    load("folder", path=photos)
    photos.rename(photos.with_name("moved"))
    load("folder", path=photos.with_name("moved"))
    assert {file: file.stat().st_mtime_ns for file in kept()} == files, "neither time nor place matters"
    changed = photos.with_name("moved") / "test" / "class 0" / "000.png"
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(changed)
    again = load("folder", path=photos.with_name("moved"))
    assert not again.test.images[0].any()
    assert first.test.images[0].any()
    assert len(kept()) == 3
    assert load("folder", path=photos.with_name("moved"), size=(4, 4)).train.images.shape[1:] == (4, 4, 3)


@pytest.mark.usefixtures("mapped")
def test_a_damaged_file_is_replaced_and_a_failure_leaves_none(photos: Path, tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    wanted = load("folder", path=photos).sha256
    for content in (b"", b"\x93NUMPY", kept()[0].read_bytes()[:-100]):
        kept()[0].write_bytes(content)
        assert load("folder", path=photos).sha256 == wanted
    broken = photos / "train" / "class 3" / "023.png"
    whole = broken.read_bytes()
    broken.write_bytes(whole[:100])
    before = kept()
    with pytest.raises(DataError, match=r"cannot be read as an image"):
        load("folder", path=photos)
    assert kept() == before
    broken.write_bytes(whole)
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDCLASS_DATA", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"file/decoded: cannot keep .* GB of decoded images \(.*\); free some space"):
        load("folder", path=photos)


@pytest.mark.usefixtures("mapped")
def test_another_process_maps_the_file_and_a_writer_changes_only_its_own_view(photos: Path) -> None:
    train = load("folder", path=photos).train
    frame = pickle.dumps(train, protocol=5)
    assert len(frame) < train.images.nbytes / 4
    other = pickle.loads(frame)
    assert isinstance(other.images, np.memmap)
    np.testing.assert_array_equal(other.images, train.images)
    other.images[:] = 0
    assert train.images.any()
    part = pickle.loads(pickle.dumps(Split(train.images[:5], train.labels[:5])))
    np.testing.assert_array_equal(part.images, train.images[:5])


@pytest.mark.slow
def test_a_run_on_mapped_images_has_the_bits_of_one_in_memory(photos: Path, tiny, tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """With engines of one and of several processes."""
    experiment = tiny("data.name=folder", f"data.path={photos}", method="fedavg")
    in_memory = run_one(experiment, tmp_path / "memory", engine="inprocess", reuse=False)
    monkeypatch.setattr(decoded, "MAPPED_FROM", 0)
    assert isinstance(prepare(experiment).stream.data.train.images, np.memmap)
    workers = run_one(experiment, tmp_path / "workers", engine="processes", workers=2, reuse=False)
    assert in_memory["weights_sha256"] == workers["weights_sha256"]
