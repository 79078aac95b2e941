"""Pictures: a partition's dots, the look of methods, and charts that can live side by side in one page."""

import io
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from PIL import Image

from fedclass.methods import METHODS
from fedclass.report import drawing, style
from fedclass.report.drawing import Curve, curves, heat_map
from fedclass.report.known_methods import about_method
from fedclass.report.rendering import Wanted, draw, inline_svg, partition_picture
from fedclass.report.style import Style, plain, styles

COUNTS = np.array([[40, 0, 10, 0], [0, 20, 0, 5], [0, 0, 0, 0]])
CLASSES = ("cat", "dog", "fox", "owl")


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """Draws, and returns the figure and the file."""
    figures = []

    class Kept(drawing.Figure):
        def __init__(self, *words, **settings):
            super().__init__(*words, **settings)
            figures.append(self)

    monkeypatch.setattr(drawing, "Figure", Kept)

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
        "import sys, numpy, pathlib; from fedclass.report.rendering import partition_picture\n"
        "partition_picture(numpy.array([[3, 1]]), ['a', '$b'], [1, 1], pathlib.Path('p.png'), title='t')\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path).returncode == 0
    assert (tmp_path / "p.png").exists()


# The look of methods.


def test_known_methods_keep_their_colour_and_no_two_look_the_same():
    assert [style.slot for style in styles(["fedwa", "fedavg"])] == [4, 0]
    many = styles(["mine", "fedclass", "fedclass", "fedclass", "yours", *map(str, range(20))])
    assert many[1].slot == 1
    looks = [(style.colour, style.dash, style.marker) for style in many]
    assert len(set(looks)) == len(looks) == 25
    assert len({style.colour for style in many[:7]}) == 7


def test_the_usual_variant_has_the_methods_colour_wherever_it_stands():
    assert [style.slot for style in styles(["fedclass", "fedclass", "fedwa"], [False, True, False])] == [6, 1, 4]
    assert [style.slot for style in styles(["fedclass", "fedclass"], [False, False])] == [1, 6]
    assert {name: method().variant_name for name, method in METHODS.items()} == {
        name: about_method(name).usual for name in METHODS
    }


def test_dashes_and_markers_alone_tell_lines_apart():
    """For a print in grey."""
    shapes = {(style.dash, style.marker) for style in map(Style, range(28))}
    assert len(shapes) == 28


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("cat", "cat"),
        ("$x$", r"\$x\$"),
        ("a\x00b\ud800", "a?b?"),
        ("a very long name of a class", "a very long… class"),
        ("exactly 18 letters", "exactly 18 letters"),
    ],
)
def test_names_are_shown_as_they_are_but_not_too_long(name, shown):
    assert plain(name) == shown


# Charts.

LINES = [
    Curve("fedavg", Style(0), [1, 2, 3], [10.0, 60.0, 40.0], [5.0, 50.0, 30.0], [15.0, 70.0, 50.0]),
    Curve("_hidden $", Style(1), [1, 2], [20.0, -4.0]),
]


def test_curves_show_every_point_with_room_around_them():
    (axes,) = curves(LINES, x_label="round", y_label="accuracy (%)", edges=[2.5]).axes
    first, second = axes.lines[-2:]
    assert (list(first.get_xdata()), list(first.get_ydata())) == ([1, 2, 3], [10.0, 60.0, 40.0])
    assert (second.get_color(), second.get_linestyle(), second.get_marker()) == (Style(1).colour, "--", "s")
    assert axes.lines[0].get_xdata() == [2.5, 2.5]
    low, high = axes.get_ylim()
    assert low < -4 < 70 < high
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("round", "accuracy (%)")
    (legend,) = axes.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["fedavg", r"_hidden \$"]


def test_one_line_needs_no_legend():
    figure = curves(LINES[:1], x_label="", y_label="")
    assert figure.legends == []
    assert figure.axes[0].get_ylim()[0] == 0


def test_a_heat_map_writes_numbers_only_where_they_can_be_read():
    words = {"x_label": "", "y_label": "", "bar_label": ""}
    values = np.array([[50.0, np.nan], [0.0, 25.0]])
    small = heat_map(values, ["a", "b"], ["c", "d"], **words)
    assert [text.get_text() for text in small.axes[0].texts] == ["50.0", "0.0", "25.0"]
    assert [t.get_text() for t in heat_map(values, ["a", "b"], ["c", "d"], zeros=False, **words).axes[0].texts] == [
        "50.0",
        "25.0",
    ]
    names = [f"a class with a long name {c}" for c in range(100)]
    large = heat_map(np.zeros((100, 100)), names, names, **words)
    assert list(large.axes[0].texts) == []
    assert len(large.axes[0].get_xticklabels()) <= 13


def test_two_charts_in_one_page_share_no_id_and_follow_its_colours():
    texts = [inline_svg(curves(LINES, x_label="", y_label=""), name, label='<"both">') for name in ("first", "second")]
    ids = [re.findall(r'\bid="([^"]+)"', text) for text in texts]
    assert all(name.startswith("first-") for name in ids[0])
    assert not set(ids[0]) & set(ids[1])
    for text, own in zip(texts, ids, strict=True):
        root = ElementTree.fromstring(text)
        assert root.get("aria-label") == '<"both">'
        assert root.get("width") is None
        used = re.findall(r'(?:href="#|url\(#)([^")]+)', text)
        assert used
        assert set(used) <= set(own)
        assert "currentColor" in text
        assert "var(--c0)" in text
        assert not set(style.PALETTE) & set(re.findall(r"#[0-9a-f]{6}", text))
        assert "<style" not in text


def chart():
    return Wanted(curves(LINES, x_label="round", y_label="accuracy"), "chart", "Accuracy")


def test_figures_for_papers_are_the_same_bytes_each_time_with_letters_as_outlines():
    files = draw(chart()).files
    assert files == draw(chart()).files
    assert b"<text" not in files["svg"]
    with Image.open(io.BytesIO(files["png"])) as image:
        assert image.width == 920
        assert image.convert("RGB").getpixel((2, 2)) == (255, 255, 255)
    assert b"/Type0" in files["pdf"], "its letters are embedded as TrueType"


def test_a_figure_is_laid_out_once_and_drawn_once_in_each_form(monkeypatch):
    """Either takes a tenth of a second: a report of fifteen runs has forty figures."""
    told = []

    def count(kind, name):
        usual = getattr(kind, name)

        def counted(self, *words, **settings):
            told.append(name)
            return usual(self, *words, **settings)

        monkeypatch.setattr(kind, name, counted)

    for kind, name in ((Figure, "savefig"), (ConstrainedLayoutEngine, "execute"), (Figure, "draw")):
        count(kind, name)
    draw(chart())
    assert told == ["execute", *["savefig", "draw"] * 4]
