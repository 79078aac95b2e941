"""Re-Fed: importance image by image, and the hook that it needs."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fedclass.data.batches import as_input, normalise
from fedclass.errors import FedclassError
from fedclass.experiment.config import Experiment
from fedclass.experiment.launch import run_one
from fedclass.experiment.setup import prepare
from fedclass.federation.store import MemoryStore
from fedclass.wire import Job
from reference.importance import importance

Tiny = Callable[..., Experiment]


def test_the_images_with_the_largest_gradients_on_the_way_are_kept(tiny: Tiny) -> None:
    settings = ("method.share=0.2", "method.steps=3", "method.rate=0.3", "memory.per_client=6")
    setup = prepare(tiny("model.norm=group", *settings, method="refed"))
    model, store = setup.build(), MemoryStore()
    model.grow_to(2, seed=0)
    model.eval()
    update = setup.client(store).run(Job(1, 0, 2, "end_task", model.weights(), None))
    assert update.extras == {}

    new = setup.stream.new_data(1, 0)
    images = as_input(normalise(torch.from_numpy(setup.stream.train.images[new]), *setup.normalisation))
    labels = torch.from_numpy(setup.stream.targets[new])
    want = np.array(importance(model, images, labels, share=0.2, steps=3, rate=0.3))
    for label in (0, 1):
        mine = np.flatnonzero(labels.numpy() == label)
        best = new[mine[np.argsort(-want[mine], kind="stable")[:3]]]
        assert store.load(1).exemplars.of_class[label].tolist() == best.tolist()


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        ("", 'a method that declares select="own" must define `importance`'),
        (
            "def importance(self, client): return torch.zeros(3)",
            r"Mine.importance: must return one number for each of \d+ images; it returned \(3,\)",
        ),
        (
            "def importance(self, client): return torch.cat([b.labels / 0 for b in client.task_data(9)])",
            "Mine.importance: returned values that are NaN or infinite",
        ),
    ],
)
def test_importance_must_be_a_finite_number_for_each_image(
    hook: str, message: str, tiny: Tiny, user_module: Callable[[str, str], str], tmp_path: Path
) -> None:
    lines = ["from dataclasses import dataclass", "import torch", "from fedclass import FedAvg"]
    lines += [
        "from fedclass.methods import Declaration",
        "@dataclass(frozen=True, kw_only=True)",
        "class Mine(FedAvg):",
    ]
    lines += ["    def declare(self): return Declaration(select='own')", f"    {hook}"]
    user_module("choosing", "\n".join(lines))
    with pytest.raises(FedclassError, match=message):
        run_one(tiny(method="choosing:Mine"), tmp_path / "run")
