"""What a site tells of its images, and how it tests a model on those that it holds out."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from deploy.sites import Trial, write_folder
from fedclass.deploy.holdings import digest, read_holdings
from fedclass.deploy.site import JobRefusedError, Site, SiteSettings
from fedclass.experiment.config import Experiment
from fedclass.experiment.machine import fingerprint
from fedclass.experiment.setup import Setup, prepare
from fedclass.wire import Update

Tiny = Callable[..., Experiment]


# What a site tells.


def test_a_site_tells_as_much_as_its_owner_lets_it(trial: Trial) -> None:
    trial.add(0, 6, 21)
    trial.remove(2, *range(1, 6))
    expected = {
        "names": {"0": None, "1": None, "2": None, "3": None},
        "rounded": {"0": 20, "1": 10, "2": 10, "3": 10},
        "exact": {"0": 21, "1": 6, "2": 1, "3": 6},
    }
    for how, classes in expected.items():
        told = Site(replace(trial.settings, announce=how)).announce("trial", 0)
        assert told.classes == told.fresh == classes
        assert (told.site, told.image, told.machine) == ("ward-7", (8, 8, 3), fingerprint())
    assert not trial.store.exists()
    trial.run(0)
    told = Site(replace(trial.settings, announce="exact")).announce("trial", 1)
    assert told.classes == expected["exact"]
    assert told.fresh == {"2": 1, "3": 6}
    assert trial.site.announce("trial", 0).fresh == expected["rounded"]  # before the task that had them
    assert trial.site.announce("another", 1).fresh == expected["rounded"]


def test_counts_for_quotas_are_told_as_the_owner_lets_them(tiny: Tiny, tmp_path: Path) -> None:
    trial = Trial(prepare(tiny("memory.quota=balanced", method="fedavg")), tmp_path, max_exemplars=5)
    for label in range(4):
        trial.add(label, 0, 14 if label == 0 else 3 if label < 3 else 0)
    plan, job = trial.job(1, "count")
    job = replace(job, weights={})
    for how, counts in {"exact": [14, 3, 3, 0], "rounded": [10, 10, 10, 0]}.items():
        update = Site(replace(trial.settings, announce=how)).run(plan, job)
        assert update.extras["available"].tolist() == counts
        assert int(update.extras["budget"]) == 5  # of 8 that the recipe would have
        assert (update.weights, update.metrics) == ({}, {})
    with pytest.raises(JobRefusedError, match="names of classes alone"):
        Site(replace(trial.settings, announce="names")).run(plan, job)
    plan, job = trial.job(1, "end_task")
    for quotas, reason in [((1, 1, 1), "one from 0 on"), ((1, 1, 1, -1), "one from 0 on")]:
        with pytest.raises(JobRefusedError, match=reason):
            trial.site.run(plan, replace(job, quotas=quotas))
    trial.site.run(plan, replace(job, quotas=(0, 3, 2, 0)))
    assert {name: len(kept) for name, kept in trial.exemplars(2).items()} == {"0": 0, "1": 3, "2": 2}


def test_one_bad_file_is_left_out_and_not_the_site(trial: Trial) -> None:
    """No image, half of one, another size, a folder, a pipe, a file beside the classes: named to the owner, once."""
    (trial.data / "notes.txt").write_bytes(b"?")
    (trial.data / "1" / "Thumbs.db").write_bytes(b"Windows leaves it behind; it is passed over")
    os.mkfifo(trial.data / "1" / "pipe.png")  # to read it would wait for ever
    (trial.data / "1" / "jane-doe-1970.png").write_text("not an image")
    whole = (trial.data / "0" / "0000.png").read_bytes()
    (trial.data / "0" / "half.png").write_bytes(whole[: len(whole) // 2])
    Image.fromarray(np.zeros((9, 8, 3), np.uint8)).save(trial.data / "0" / "0-other.png")
    (trial.data / "2" / "more").mkdir()
    said: list[str] = []
    site = Site(trial.settings, said.append)
    told = site.announce("trial", 0)
    assert (told.classes, told.image) == ({"0": 10, "1": 10, "2": 10, "3": 10}, (8, 8, 3))
    assert site.run(*trial.job(0)).examples == 12
    (line,) = said
    first, *others = line.splitlines()
    assert first == f"6 files in {trial.data} are not used:"
    for name, reason in (
        ("notes.txt", "lies beside the class folders"),
        ("1/jane-doe-1970.png", "cannot be read as an image"),
        ("0/half.png", "cannot be read as an image"),
        ("0/0-other.png", "is 8x9 pixels, and most are 8x8; set resize"),
        ("2/more", "is a folder, where an image should be"),
        ("1/pipe.png", "is not a regular file, where an image should be"),
    ):
        assert any(f"{trial.data / name}: {reason}" in other for other in others), name
    (trial.data / "notes.txt").unlink()
    site.announce("trial", 0)
    assert said[1].startswith("5 files in")


# Tests at the site.


def counted(update: Update) -> list[list[int]]:
    assert (dict(update.weights), dict(update.metrics), list(update.extras)) == ({}, {}, ["confusion"])
    assert update.extras["confusion"].dtype == torch.int64
    return update.extras["confusion"].tolist()


def test_a_model_is_tested_on_the_test_folder_and_known_classes(setup: Setup, tmp_path: Path) -> None:
    stream = setup.stream
    for split, count in (("train", 3), ("test", 2)):
        index = np.concatenate([np.flatnonzero(stream.targets == label)[:count] for label in range(3)])
        names = [stream.classes[label] for label in stream.targets[index]]
        write_folder(tmp_path / "photos" / split, stream.data.train.images[index], names)
    settings = SiteSettings(name="a", data=tmp_path / "photos", store=tmp_path / "store")
    trial = Trial(setup, tmp_path / "server")
    weights = dict(trial.weights(0))
    weights["head.weight"], weights["head.bias"] = torch.zeros(2, 64), torch.tensor([0.0, 1.0])  # always says 1
    plan, job = trial.job(0, "evaluate")
    update = Site(settings).run(plan, replace(job, weights=weights))
    assert counted(update) == [[0, 2], [0, 2]]
    assert update.examples == 4
    assert (update.client, update.task, update.round) == (5, 0, 2)
    assert not settings.store.exists()
    silent = Site(replace(settings, evaluate=False)).run(plan, replace(job, weights=weights))
    assert (silent.examples, counted(silent)) == (0, [[0, 0], [0, 0]])


def test_what_became_of_a_single_image_is_not_told(setup: Setup, tmp_path: Path) -> None:
    images = setup.stream.data.train.images[:3]
    np.savez(
        tmp_path / "mine.npz", x_train=images, y_train=[0, 1, 1], x_test=images, y_test=[0, 1, 1], classes=["0", "1"]
    )
    settings = SiteSettings(name="a", data=tmp_path / "mine.npz", store=tmp_path / "store")
    update = Site(settings).run(*Trial(setup, tmp_path / "server").job(0, "evaluate"))
    assert update.examples == 2
    assert counted(update)[0] == [0, 0]


def test_held_out_images_stay_held_out_as_others_come_and_are_never_learned_from(trial: Trial) -> None:
    for label in range(4):
        trial.add(label, 6, 24)
    half = read_holdings(trial.data, holdout=0.3)
    assert len(half.held_out) + len(half.train) == 96
    assert 15 < len(half.held_out) < 45
    out = {digest(image) for image in half.held_out.images}
    assert not out & set(half.digests)
    trial.remove(0, *range(0, 24, 2))
    fewer = read_holdings(trial.data, holdout=0.3)
    assert {digest(image) for image in fewer.held_out.images} < out
    site = Site(replace(trial.settings, holdout=0.3))
    known = [name for name in fewer.names() if name[0] in ("0", "1")]
    assert site.run(*trial.job(0)).examples == len(known)
    assert site.run(*trial.job(0, "evaluate")).examples == int((fewer.held_out.labels < 2).sum())
