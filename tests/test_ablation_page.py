"""docs/fedeven.md shows what docs/ablation.json holds, and bench/ablation.py can measure it."""

import json
from pathlib import Path

import ablation
import pytest
import torch

from fedclass.losses import balanced_cross_entropy, log_prior
from fedclass.methods.base import Batch, ClientContext
from fedclass.models.build import build_model

ROOT = Path(__file__).parents[1]


def test_the_table_is_that_of_the_data() -> None:
    text = (ROOT / "docs" / "fedeven.md").read_text(encoding="utf-8")
    cells = json.loads((ROOT / "docs" / "ablation.json").read_bytes())
    assert ablation.page(text, cells) == text
    assert set(ablation.table(cells)) <= set(text.splitlines())
    key = "5/FedEven/0"
    other = {**cells, key: {**cells[key], "accuracy": cells[key]["accuracy"] + 30}}
    assert ablation.page(text, other) != text


def test_a_difference_is_of_the_same_streams_and_seeds() -> None:
    cell = lambda accuracy: {"accuracy": accuracy, "forgetting": 0.0}  # noqa: E731
    cells = {f"2/FedEven/{seed}": cell(50.0 + seed) for seed in range(3)}
    cells |= {f"5/FedEven/{seed}": cell(70.0) for seed in range(3)}
    cells |= {f"2/smoothing 1/{seed}": cell(52.0 + seed) for seed in range(3)}
    cells |= {"5/smoothing 1/0": cell(10.0), "5/smoothing 1/2": cell(20.0)}
    row = next(line for line in ablation.table(cells) if line.startswith("| smoothing 1 |"))
    assert row == "| smoothing 1 | 53.0 / 0.0 | – | 15.0 / 0.0 (2) | – | +2.0 (+2.0 to +2.0) |"


def test_counts_without_exemplars_are_those_of_new_images() -> None:
    torch.manual_seed(0)
    model = build_model("resnet8", norm="batch", image_size=(16, 16), seed=0)
    model.grow_to(5, seed=0)
    client = ClientContext(model.train(), 2, {}, torch.tensor([3, 1, 40, 0, 20]))
    batch = Batch(torch.rand(6, 3, 16, 16), torch.tensor([0, 1, 2, 2, 4, 4]), None)
    with torch.no_grad():
        told = float(ablation.NewCounts().loss(client, batch))
        wanted = float(
            balanced_cross_entropy(model(batch.images), batch.labels, log_prior(torch.tensor([1, 1, 41, 1, 21])))
        )
    assert told == pytest.approx(wanted, rel=1e-5)


@pytest.mark.slow
def test_parts_that_are_no_settings_can_be_measured(tmp_path: Path) -> None:
    tiny = ["data.fraction=0.004", "data.test_fraction=0.01", "train.rounds=1"]
    for part in ("head re-fitted for predictions", "stored logits in place of a teacher"):
        cells = ablation.measured("5", part, [3], data=tiny, out=tmp_path)
        assert set(cells) == {f"5/{part}/3"}
        assert 0 <= cells[f"5/{part}/3"]["accuracy"] <= 100
