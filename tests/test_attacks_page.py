"""docs/attacks.md shows what docs/attacks.json holds, and bench/attacks.py can measure it."""

import json
from pathlib import Path

import attacks
import pytest

ROOT = Path(__file__).parents[1]


def test_the_tables_are_those_of_the_data() -> None:
    text = (ROOT / "docs" / "attacks.md").read_text(encoding="utf-8")
    cells = json.loads((ROOT / "docs" / "attacks.json").read_bytes())
    assert attacks.page(text, cells) == text
    assert "| none |" in text
    key = next(key for key in cells if key.startswith("1of4/none/sites"))
    other = {**cells, key: {"accuracy": cells[key]["accuracy"] + 30}}
    assert attacks.page(text, other) != text


@pytest.mark.slow
def test_an_attack_is_measured_with_and_without_defences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(attacks.LAYOUTS, "1of4", (4, 1, 1, 0.002))
    monkeypatch.setattr(attacks, "RECIPE", [*attacks.RECIPE, "train.local_epochs=1"])
    assert set(attacks.attacked("1of4", "replacement", "sites", 0)) == {"accuracy", "fooled"}
    assert attacks.attacked("1of4", "classes", "mean", 0)["accuracy"] >= 0
