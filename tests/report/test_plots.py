"""The picture of a partition: a dot for every count, its area in proportion."""

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from fedclass.report import plots
from fedclass.report.plots import partition_picture

COUNTS = np.array([[40, 0, 10, 0], [0, 20, 0, 5], [0, 0, 0, 0]])
CLASSES = ("cat", "dog", "fox", "owl")


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """Draws, and returns the figure and the file."""
    figures = []

    class Kept(plots.Figure):
        def __init__(self, *words, **settings):
            super().__init__(*words, **settings)
            figures.append(self)

    monkeypatch.setattr(plots, "Figure", Kept)

    def draw(counts=COUNTS, classes=CLASSES, sizes=(2, 2), name="plan.png"):
        partition_picture(counts, classes, sizes, tmp_path / name, title="synnum, iid, seed 0")
        return figures[-1], tmp_path / name

    return draw


def test_the_picture_is_a_png_of_plausible_size_that_shows_something(drawn):
    _, path = drawn()
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    with Image.open(path) as image:
        assert image.size == (600, 360)  # 5 x 3 inches, 120 dots each
        pixels = np.asarray(image.convert("RGB"))
    coloured = (np.ptp(pixels.astype(int), axis=2) > 40).mean()
    assert 0.002 < coloured < 0.2  # four dots
    assert (pixels == 255).all(axis=2).mean() > 0.7


def test_every_count_is_a_dot_with_an_area_in_proportion(drawn):
    figure, _ = drawn()
    (dots,) = figure.axes[0].collections
    assert dots.get_offsets().tolist() == [[0, 0], [2, 0], [1, 1], [3, 1]]
    np.testing.assert_allclose(dots.get_sizes() / dots.get_sizes().max(), [1, 0.25, 0.5, 0.125])
    assert figure.get_suptitle() == "synnum, iid, seed 0; largest dot: 40 images"


def test_lines_part_the_tasks_and_classes_have_their_names(drawn):
    figure, _ = drawn(sizes=(1, 2, 1))
    (axes,) = figure.axes
    assert [line.get_xdata()[0] for line in axes.lines] == [0.5, 2.5]
    assert [(text.get_text(), text.get_position()[0]) for text in axes.texts] == [
        ("task 1", 0.0),
        ("task 2", 1.5),
        ("task 3", 3.0),
    ]
    assert [label.get_text() for label in axes.get_xticklabels()] == list(CLASSES)
    assert list(axes.get_yticks()) == [0, 1, 2]
    assert axes.yaxis_inverted()  # client 0 on top, as in the table


@pytest.mark.parametrize(("clients", "classes"), [(1, 1), (100, 10), (20, 100)])
def test_it_grows_with_clients_and_classes_within_reason(drawn, clients, classes):
    figure, path = drawn(np.ones((clients, classes), int), tuple(map(str, range(classes))), (classes,))
    width, height = figure.get_size_inches()
    assert (width, height) == (pytest.approx(max(5, 0.32 * classes + 2)), pytest.approx(max(3, 0.24 * clients + 1.4)))
    assert path.stat().st_size > 5000
    assert len(figure.axes[0].collections[0].get_offsets()) == clients * classes


def test_a_thousand_clients_still_fit_on_a_page(drawn):
    figure, _ = drawn(np.ones((1000, 2), int), ("a", "b"), (1, 1))
    assert figure.get_size_inches()[1] == 40


@pytest.mark.parametrize(("name", "start"), [("plan.svg", b"<?xml"), ("plan.pdf", b"%PDF")])
def test_the_ending_decides_the_format(drawn, name, start):
    _, path = drawn(name=name)
    assert path.read_bytes().startswith(start)


def test_no_screen_is_needed_and_nothing_global_is_touched(tmp_path):
    code = (
        "import sys, numpy, pathlib; from fedclass.report.plots import partition_picture\n"
        "partition_picture(numpy.array([[3, 1]]), ['a', '$b'], [1, 1], pathlib.Path('p.png'), title='t')\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, timeout=60).returncode == 0
    assert (tmp_path / "p.png").exists()
