"""Data sets of Hugging Face: saved to the disk by `datasets`, and read again."""

import sys

import numpy as np
import pytest
from PIL import Image

from fedclass.data.huggingface import LOADER, load
from fedclass.errors import ConfigError, DataError
from fedclass.experiment.recipe import load as load_recipe
from fedclass.experiment.setup import prepare

NEEDS = "needs `datasets`; to have it: pip install '.[huggingface]'"


def test_the_short_name_stands_for_the_loader():
    e = load_recipe(None, ["data.name=hf:someone/digits", "data.args.size=8"])
    assert e.data.name == LOADER
    assert e.data.args == {"name": "someone/digits", "size": 8}
    assert e.data.title == "someone/digits"


def test_without_the_library_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"pip install .* '\.\[huggingface\]'"):
        load("someone/digits")


@pytest.fixture
def saved(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets", reason=NEEDS)
    features = datasets.Features(
        {"picture": datasets.Image(), "kind": datasets.ClassLabel(names=["cat", "cow", "dog", "owl"])}
    )
    rng = np.random.default_rng(0)
    arrays = {split: rng.integers(0, 256, (count, 8, 8, 3), np.uint8) for split, count in (("train", 24), ("test", 8))}
    splits = {
        split: datasets.Dataset.from_dict(
            {"picture": [Image.fromarray(a) for a in images], "kind": [i % 4 for i in range(len(images))]},
            features=features,
        )
        for split, images in arrays.items()
    }
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "pets"))
    return tmp_path / "pets", arrays


@pytest.mark.release
@pytest.mark.filterwarnings("ignore")  # of the library's own
def test_a_saved_data_set_gives_its_images_and_class_names(saved):
    path, arrays = saved
    small = ["stream.tasks=2,2", "partition.clients=2", "partition.kind=iid", "memory.per_client=4"]
    data = prepare(load_recipe(None, ["data.name=hf:", f"data.path={path}", *small])).stream.data
    assert data.classes == ("cat", "cow", "dog", "owl")
    for split, images in ((data.train, arrays["train"]), (data.test, arrays["test"])):
        np.testing.assert_array_equal(split.images, images)
        np.testing.assert_array_equal(split.labels, np.arange(len(images)) % 4)
    assert load(path=path, size=4)["x_train"].shape == (24, 4, 4, 3)
    with pytest.raises(DataError, match=r"no split 'validation'; there is train, test"):
        load(path=path, test="validation")
    with pytest.raises(DataError, match=r"no column 'pic'; there are picture, kind"):
        load(path=path, image="pic")
    with pytest.raises(DataError, match="cannot be read"):
        load(path=path / "nowhere")
