"""Python on README, docs/data.md and docs/watch.md, carried out; other pages have tests of their own."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import fedclass
from fedclass.experiment.config import Experiment
from fedclass.experiment.launch import run_one
from users import Project

ROOT = Path(__file__).parents[1]
OTHERS = {"add-a-method.md", "own-backbone.md", "python.md", "use-the-model.md"}


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def test_no_page_with_python_is_left_out() -> None:
    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
    with_python = {page.name for page in pages if "```python" in page.read_text(encoding="utf-8")}
    assert with_python == OTHERS | {"README.md", "data.md", "watch.md"}


def test_data_and_transform_of_one_s_own(project: Project, tiny_settings: list[str], tmp_path: Path) -> None:
    loading, varying = blocks("docs/data.md")
    project.write(cats=loading, vary=varying)
    keys = ["data.name=cats:load", "data.transform=vary:dim", "stream.tasks=1,1", "train.rounds=1"]
    own = [setting for setting in tiny_settings if not setting.startswith("data.")]
    runs = {
        year: run_one(fedclass.load(None, [*own, *keys, *args]), tmp_path / year)
        for year, args in {"2024": [], "2023": ["data.args.year=2023"]}.items()
    }
    assert runs["2024"]["dataset_sha256"] != runs["2023"]["dataset_sha256"]


@pytest.mark.slow
def test_events_go_where_the_page_sends_them(
    tiny: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fedclass, "load", lambda name: {"demo": tiny("train.rounds=1")}[name], raising=False)
    (block,) = blocks("docs/watch.md")
    exec(block, {})
    assert list(Path("runs/mine").rglob("events.out.tfevents.*"))


@pytest.mark.slow
def test_what_the_readme_types_into_python(
    tiny: Callable[..., Experiment], tiny_settings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On other images than the demonstration's, to save time."""
    import numpy as np
    from PIL import Image

    from fedclass import studies

    compare, asked = studies.compare, list[object]()

    def small(recipe: str, methods: list[object], *, seeds: range) -> object:
        asked.extend([recipe, seeds])
        return compare(
            None,
            methods,
            overrides=[*tiny_settings, "train.rounds=1"],
            seeds=seeds,
            out="runs/rows",
            workers=1,
            progress=False,
        )

    def loaded(recipe: str, keys: dict[str, int], *, method: str, seed: int) -> Experiment:
        assert recipe == "demo"
        return tiny(*(f"{key}={value}" for key, value in keys.items()), method=method, seed=seed)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fedclass, "load", loaded, raising=False)
    monkeypatch.setattr(fedclass, "compare", small, raising=False)
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save("cat.png")
    (block,) = blocks("README.md")
    given = {"MyMethod": fedclass.METHODS["fedclass"]}
    exec(block, given)
    assert asked == ["demo", range(3)]
    assert len(given["rows"]) == 6  # type: ignore[arg-type]
