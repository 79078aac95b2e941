"""Figures drawn by several processes: the same bytes, in order, and nothing is lost if a process is."""

import subprocess
import sys

import matplotlib
import numpy as np
import pytest

from fedclass.report import painters
from fedclass.report.drawing import Curve, curves, heat_map
from fedclass.report.rendering import Wanted, draw
from fedclass.report.style import Style


def wanted(formats=("svg", "pdf", "png")):
    """Lines, and images of which parts are missing."""
    words = {"x_label": "round", "y_label": "accuracy (%)"}
    cells = np.array([[50.0, np.nan], [0.0, 25.0]])
    figures = [
        curves([Curve("fedavg", Style(0), [1, 2, 3], [10.0, 60.0, 40.0])], **words),
        heat_map(cells, ["a", "b"], ["c", "д"], bar_label="share", **words),
        curves([Curve(name, Style(slot), [1, 2], [slot, 4.0]) for slot, name in enumerate("abc")], **words),
        heat_map(cells.T, ["a", "b"], ["c", "$d"], bar_label="share", **words),
    ]
    return [Wanted(figure, f"chart-{number}", "A chart", formats) for number, figure in enumerate(figures)]


@pytest.fixture(scope="module")
def alone():
    return [draw(one) for one in wanted()]


@pytest.fixture
def started(monkeypatch):
    """The further processes, one for every two figures; as if there were eight cores."""
    processes, start = [], painters.Painter.start

    def kept():
        processes.append((painter := start()).process)
        return painter

    monkeypatch.setattr(painters.Painter, "start", kept)
    monkeypatch.setattr(painters, "cores", lambda: 8)
    monkeypatch.setattr(painters, "WORTH", 2)
    return processes


def test_other_processes_give_the_same_bytes_and_end(alone, started, monkeypatch):
    here = []
    monkeypatch.setattr(painters, "draw", lambda one: here.append(one.name) or draw(one))
    assert painters.draw_all(wanted()) == alone
    assert [process.returncode for process in started] == [0, 0]
    assert len(here) < 4, "the others have drawn some"


def test_what_a_lost_process_does_not_draw_is_drawn_here(alone, started, monkeypatch):
    start = painters.Painter.start

    def killed():
        painter = start()
        painter.process.kill()
        painter.process.wait()
        return painter

    monkeypatch.setattr(painters.Painter, "start", killed)
    assert painters.draw_all(wanted()) == alone
    assert len(started) == 2


@pytest.mark.usefixtures("started")
def test_where_no_process_can_be_started_this_one_draws_all(alone, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert painters.draw_all(wanted()) == alone


@pytest.mark.parametrize(
    ("cores", "worth", "formats", "further"),
    [(1, 1, ("svg",), 0), (2, 1, ("svg",), 1), (8, 4, ("svg",), 1), (8, 5, ("svg",), 0), (8, 1, (), 0)],
)
def test_processes_are_started_for_many_files_and_free_cores(monkeypatch, cores, worth, formats, further):
    started = []

    def refused():
        started.append(None)
        raise OSError("no more")

    monkeypatch.setattr(painters, "cores", lambda: cores)
    monkeypatch.setattr(painters, "WORTH", worth)
    monkeypatch.setattr(painters.Painter, "start", refused)
    monkeypatch.setattr(painters, "draw", lambda one: one.name)
    assert painters.draw_all(wanted(formats)) == ["chart-0", "chart-1", "chart-2", "chart-3"]
    assert len(started) == further


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize("said", ["Xformers not found", "Installing hooks", ""])
def test_what_an_environment_prints_as_python_starts_is_not_taken_for_a_figure(alone, monkeypatch, tmp_path, said):
    """X announces a long text to pickle: reading the standard output would wait for it forever."""
    (tmp_path / "sitecustomize.py").write_text(f"print({said!r})\n" + ("" if said else "raise SystemExit('no')\n"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert painters.draw_all(wanted()) == alone


@pytest.mark.usefixtures("started")
def test_the_users_settings_of_matplotlib_hold_in_all_processes(monkeypatch):
    monkeypatch.setitem(matplotlib.rcParams, "font.sans-serif", ["DejaVu Serif"])
    here = [draw(one) for one in wanted()]
    monkeypatch.setattr(painters, "draw", lambda _: None)  # all are drawn elsewhere, or again, below
    elsewhere = [each for each in painters.draw_all(wanted()) if each is not None]
    assert elsewhere
    assert all(each in here for each in elsewhere)


def test_a_script_is_not_imported_by_these_processes(tmp_path):
    """Its own work needs no guard, as it needs none without them."""
    script = tmp_path / "mine.py"
    script.write_text(
        "print('once')\n"
        "from fedclass.report import painters\n"
        "from fedclass.report.drawing import scatter\n"
        "from fedclass.report.rendering import Wanted\n"
        "painters.cores, painters.WORTH = lambda: 2, 1\n"
        "figure = scatter([1], [1], [1], x_label='', y_label='')\n"
        "print(len(painters.draw_all([Wanted(figure, 'a', 'b')] * 2)))\n"
        "import sys; print('matplotlib.pyplot' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("once\n2\nFalse\n", "")
