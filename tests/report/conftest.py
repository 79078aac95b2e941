from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from fedclass.runs.results import Result


@pytest.fixture
def result(tmp_path: Path) -> Callable[..., Result]:
    """result("fedavg", 1, overall=60.0, config={"train": {"rounds": 2}}): a finished run, with its stored recipe."""
    made = []

    def make(
        method: str = "fedclass",
        seed: int = 0,
        *,
        last: tuple[float, ...] = (40.0, 80.0),
        overall: float = 60.0,
        forgetting: float | None = 20.0,
        config: dict[str, dict[str, object]] | None = None,
        **other: Any,
    ) -> Result:
        summary = {
            "method": method,
            "variant": "paper",
            "dataset": "synnum",
            "official_data": True,
            "tasks": [5] * len(last),
            "seed": seed,
            "accuracy_matrix": [
                list(last)[: t + 1] if t == len(last) - 1 else [90.0] * (t + 1) for t in range(len(last))
            ],
            "accuracy_last": overall,
            "forgetting_fedclass": forgetting,
        }
        made.append(method)
        path = tmp_path / f"{method.replace(':', '.')}-{len(made)}"
        path.mkdir()
        tables = {"seed": seed, "train": {"rounds": 2}} | (config or {})
        tables["method"] = {"name": method} | tables.get("method", {})
        (path / "config.toml").write_text(tomli_w.dumps(tables))
        return Result(path, summary | other)

    return make
