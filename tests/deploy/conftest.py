from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.sites import Trial
from fedclass.experiment.config import Experiment
from fedclass.experiment.setup import Setup, prepare

Tiny = Callable[..., Experiment]


@pytest.fixture(scope="module")
def setup(tiny: Tiny) -> Setup:
    return prepare(tiny(method="fedclass"))


@pytest.fixture
def trial(setup: Setup, tmp_path: Path) -> Trial:
    made = Trial(setup, tmp_path)
    for label in range(4):
        made.add(label, 0, 6)
    return made
