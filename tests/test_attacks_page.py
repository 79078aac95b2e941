"""docs/attacks.md shows what docs/attacks.json holds."""

import importlib.util
import json
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_tables_are_those_of_the_data() -> None:
    spec = importlib.util.spec_from_file_location("attacks", ROOT / "bench" / "attacks.py")
    assert spec
    assert spec.loader
    attacks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(attacks)
    text = (ROOT / "docs" / "attacks.md").read_text(encoding="utf-8")
    cells = json.loads((ROOT / "docs" / "attacks.json").read_bytes())
    assert attacks.page(text, cells) == text
    assert "| none |" in text
    key = next(key for key in cells if key.startswith("1of4/none/sites"))
    other = {**cells, key: {"accuracy": cells[key]["accuracy"] + 30}}
    assert attacks.page(text, other) != text
