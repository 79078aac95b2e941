"""Sites with data of their own do what clients of a simulation do, to the bit."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from deploy.conftest import Sites
from fedclass.deploy.split import split
from fedclass.experiment.compare import run_one
from fedclass.experiment.config import Experiment
from fedclass.experiment.runner import run
from fedclass.experiment.setup import prepare
from fedclass.runs.layout import create

Tiny = Callable[..., Experiment]

UNEVEN = ("partition.kind=dirichlet", "partition.clients=4", "partition.alpha=0.5", "partition.min_size=5")


@pytest.mark.parametrize(
    ("method", "overrides"),
    [
        ("fedavg", ()),
        ("fedclass", ()),
        ("fedclass", ("train.augment=crop-flip-cutout", "train.weighting=with-exemplars")),
        ("fedicarl", ("memory.per_class=3",)),
        ("fedwa", ("memory.select=herding",)),
    ],
)
def test_sites_give_the_bits_of_a_simulation(
    method: str, overrides: tuple[str, ...], tiny: Tiny, tmp_path: Path
) -> None:
    """Through uneven shares, clients that are not asked, head growth, exemplars, a kept teacher and uploads."""
    experiment = tiny(*UNEVEN, "train.participation=0.5", *overrides, method=method)
    alone = run_one(experiment, tmp_path / "alone", engine="inprocess", reuse=False)
    setup = prepare(experiment)
    engine = Sites(setup, split(experiment, tmp_path / "data"), tmp_path / "stores")
    there = run(setup, engine, create(tmp_path / "there"))
    assert there["weights_sha256"] == alone["weights_sha256"]
    assert there["accuracy_matrix"] == alone["accuracy_matrix"]  # FedICARL's class means too
    assert engine.teachers_sent == 0
