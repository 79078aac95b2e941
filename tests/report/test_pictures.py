"""docs/pictures.py: the display, drawn from what runs have recorded, and the badges."""

import importlib.util
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fedclass.cli import display

SCRIPT = Path(__file__).parents[2] / "docs" / "pictures.py"


@pytest.fixture(scope="module")
def pictures():
    spec = importlib.util.spec_from_file_location("pictures", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_badges_say_what_the_project_declares(pictures):
    for name, drawn in pictures.badges().items():
        assert (SCRIPT.parent / "images" / f"{name}.svg").read_text() == drawn, "run: python docs/pictures.py"


def test_the_live_display_is_drawn_from_recorded_events(pictures, made, told, monkeypatch):
    monkeypatch.setattr(display, "console", display.console)  # drawing takes another one
    recipe = '[data]\nfraction = 0.01\n\n[train]\nrounds = 2\n\n[method]\nname = "{}"\n'
    made("all/fedavg-s0", method="fedavg", config=recipe.format("fedavg"))
    folder = made("all/fedclass-s0", events=told(finished=False), config=recipe.format("fedclass")).parent
    drawn = pictures.live(folder, share=1.0)
    lines = "".join(ElementTree.fromstring(drawn).itertext()).replace("\xa0", " ")
    assert "fedavg" in lines
    assert "finished" in lines
    assert "task 2/2, round 2/2" in lines
    assert "days" not in lines  # times are those of the recording
    assert "@font-face" not in drawn
