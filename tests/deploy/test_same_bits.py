"""Sites with data of their own do what clients of a simulation do, to the bit."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from deploy.sites import Sites, write_folder
from fedclass.deploy.split import split
from fedclass.errors import RunError
from fedclass.experiment.config import Experiment
from fedclass.experiment.launch import run_one
from fedclass.experiment.runner import run
from fedclass.experiment.setup import prepare
from fedclass.runs.layout import create

Tiny = Callable[..., Experiment]

UNEVEN = ("partition.kind=dirichlet", "partition.clients=4", "partition.alpha=0.5", "partition.min_size=5")

ONCE = "train.rounds=1"  # where no round leaves anything to the next but the model
GIVEN = ("data.mean=[0.4]", "data.std=[0.3]", "seeds.training=7")
TRANSFORM = """
import torch

def dim(images, generator):
    by = torch.rand(len(images), 1, 1, 1, generator=generator)
    return images * (1 - by / 2) + torch.rand(())  # floats; and a number from the global stream
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "overrides"),
    [
        ("finetune", ()),
        ("fedclass", ()),
        ("fedclass", (ONCE, "train.augment=crop-flip-cutout", "server.weighting=with-exemplars")),
        ("fedclass", (ONCE, "train.augment=crop-flip", "data.transform=own_transform:dim", *GIVEN)),
        ("fedicarl", (ONCE, "memory.per_class=3")),
        ("fedwa", (ONCE, "memory.select=herding")),
        ("scaffold", ("optimizer.momentum=0",)),  # state at the server and at clients, broadcast, uploads
        ("derpp", ("memory.per_client=9",)),  # rows with exemplars
        ("fedgkd", ("train.rounds=3", "method.models=3")),  # a broadcast that changes in every round
        ("ewc", (ONCE, "train.balanced=true")),  # the task's images at its end
        ("refed", (ONCE, "memory.per_client=5")),
        ("target", (ONCE, "method.synthetic=4", "method.made_at_once=4", "method.steps=2", "method.synthetic_batch=2")),
        ("fedavg", (ONCE, "memory.quota=balanced")),  # counts, and quotas that come back
        ("fedavg", ("server.optimizer=adam", "server.learning_rate=0.01", "optimizer.name=adamw")),
        ("fedavg", (ONCE, "aggregation.rule=geometric-median", "aggregation.clip_norm=1", "optimizer.head_rate=2")),
        ("fedavg", ("aggregation.screen=true", "aggregation.clip_norm=2", "server.participation=1")),  # as at sites
    ],
)
def test_sites_give_the_bits_of_a_simulation(
    method: str, overrides: tuple[str, ...], tiny: Tiny, tmp_path: Path, user_module: Callable[[str, str], str]
) -> None:
    """Through uneven shares, clients that are not asked, head growth, exemplars, a kept teacher and uploads."""
    user_module("own_transform", TRANSFORM)
    experiment = tiny(*UNEVEN, "server.participation=0.5", "evaluation.every=0", *overrides, method=method)
    alone = run_one(experiment, tmp_path / "alone", engine="inprocess", reuse=False)
    setup = prepare(experiment)
    engine = Sites(setup, split(experiment, tmp_path / "data"), tmp_path / "stores", ("own_transform:dim",))
    there = run(setup, engine, create(tmp_path / "there"))
    assert there["weights_sha256"] == alone["weights_sha256"]
    assert there["accuracy_matrix"] == alone["accuracy_matrix"]  # FedICARL's class means too
    assert engine.teachers_sent == 0


def test_sites_with_folders_of_png_files_give_the_same_bits(tiny: Tiny, tiny_file: Path, tmp_path: Path) -> None:
    """Folders are read class by class; of a file in that order, a simulation makes the same."""
    with np.load(tiny_file) as arrays:
        ordered = dict(arrays)
    order = np.argsort(ordered["y_train"], kind="stable")
    ordered |= {"x_train": ordered["x_train"][order], "y_train": ordered["y_train"][order]}
    np.savez(tmp_path / "ordered.npz", **ordered)
    experiment = tiny(f"data.path={tmp_path / 'ordered.npz'}", method="fedicarl")
    alone = run_one(experiment, tmp_path / "alone", engine="inprocess", reuse=False)
    setup = prepare(experiment)
    stream, folders = setup.stream, []
    for client, share in enumerate(stream.shares):
        names = [stream.classes[label] for label in stream.targets[share]]
        folders.append(write_folder(tmp_path / f"photos-{client}", stream.data.train.images[share], names))
    there = run(setup, Sites(setup, folders, tmp_path / "stores"), create(tmp_path / "there"))
    assert there["weights_sha256"] == alone["weights_sha256"]


def test_split_writes_every_image_of_the_stream_once_in_the_order_of_the_shares(tiny: Tiny, tmp_path: Path) -> None:
    experiment = tiny("stream.class_order=[2,0,3,1]")
    stream = prepare(experiment).stream
    paths = split(experiment, tmp_path / "out")
    assert [path.name for path in paths] == ["site-000.npz", "site-001.npz", "site-002.npz"]
    for path, share in zip(paths, stream.shares, strict=True):
        with np.load(path) as arrays:
            assert sorted(arrays.files) == ["classes", "x_train", "y_train"]
            assert arrays["classes"].tolist() == ["2", "0", "3", "1"]
            assert np.array_equal(arrays["x_train"], stream.data.train.images[share])
            assert np.array_equal(arrays["y_train"], stream.targets[share])
    with pytest.raises(RunError, match="is not empty"):
        split(experiment, tmp_path / "out")
