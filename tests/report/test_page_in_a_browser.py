"""The page in a real browser: no error, every figure drawn, nothing wider than a phone, light and dark.

Skipped where there is no Chromium.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedclass.report.history import read_history
from fedclass.report.html import build
from fedclass.runs.find import find_all

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs a browser; to have it: apt-get install chromium"),
]

QUIET = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
]
PHONE = 390  # CSS pixels

# Runs within the page, and tells the page around it what it sees: no window is as narrow as a phone, but a frame is.
MEASURE = """<script>
addEventListener("load", () => {
  const boxes = [...document.querySelectorAll("figure svg")].map(svg => svg.getBoundingClientRect());
  const texts = [...document.querySelectorAll("figure svg text")].map(text =>
    parseFloat(getComputedStyle(text).fontSize) * Math.hypot(text.getScreenCTM().a, text.getScreenCTM().b));
  const ids = [...document.querySelectorAll("[id]")].map(element => element.id);
  const body = getComputedStyle(document.body);
  document.querySelectorAll("details").forEach(details => details.open = true);
  parent.postMessage(JSON.stringify({
    drawn: boxes.filter(box => box.width > 250 && box.height > 80).length,
    figures: document.querySelectorAll("figure").length,
    smallest: Math.min(...texts), repeated: ids.length - new Set(ids).size,
    width: document.documentElement.scrollWidth, room: document.documentElement.clientWidth,
    paper: body.backgroundColor, ink: body.color,
    text_ink: getComputedStyle(document.querySelector("figure svg text")).fill,
  }), "*");
});
</script></body>"""
FRAME = """<!DOCTYPE html><body style="margin:0"><pre id="seen"></pre>
<script>addEventListener("message", said => document.getElementById("seen").textContent = said.data)</script>
<iframe src="{name}" style="width:{width}px;height:8000px;border:0"></iframe></body>"""


def browse(page: Path, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    profile = folder / f"profile-{len(list(folder.glob('profile-*')))}"
    words = [f"--user-data-dir={profile}", "--enable-logging=stderr", "--virtual-time-budget=5000", *options]
    return subprocess.run([str(CHROMIUM), *QUIET, *words, page.as_uri()], capture_output=True, text=True, check=True)


def complaints(browsed: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in browsed.stderr.splitlines() if "CONSOLE" in line]


def measured(page: Path, folder: Path, *options: str, width: int) -> dict[str, object]:
    """What the page says of itself in a frame of this width."""
    copy, frame = folder / "measured.html", folder / "frame.html"
    copy.write_text(page.read_text(encoding="utf-8").replace("</body>", MEASURE), encoding="utf-8")
    frame.write_text(FRAME.format(name=copy.name, width=width))
    browsed = browse(frame, folder, "--window-size=1400,900", "--dump-dom", *options)
    assert complaints(browsed) == []
    found = re.search(r'<pre id="seen">(\{.*?\})</pre>', browsed.stdout)
    assert found, browsed.stdout[:500]
    return dict(json.loads(found[1]))


@contextmanager
def picture_of_failure(page: Path, folder: Path) -> Iterator[None]:
    """Keeps a screenshot beside the page, and says where, if what is checked does not hold."""
    try:
        yield
    except AssertionError as error:
        picture = folder / "failure.png"
        browse(page, folder, "--window-size=1280,6000", f"--screenshot={picture}")
        error.add_note(f"screenshot: {picture}")
        raise


@pytest.fixture(scope="module")
def pages(told, written, tmp_path_factory) -> dict[str, tuple[Path, int]]:
    """A page of one run and one of several, with the number of their figures."""
    folder = tmp_path_factory.mktemp("pages")
    names = ("<i>", "$a$", "a class with quite a long name", "四", "e", "f")
    written(folder / "one", told(tasks=(2, 2, 2), names=names, clients=30))
    for method in ("fedavg", "fedclass", "my_own_package.methods:AVeryLongMethodName"):
        for seed in (0, 1):
            written(folder / "many" / f"{method.replace(':', '.')}-{seed}", told(method=method, seed=seed))
    made = {}
    for name in ("one", "many"):
        report = build([read_history(run) for run in find_all([folder / name])])
        page = folder / f"{name}.html"
        page.write_text(report.page, encoding="utf-8")
        made[name] = page, len(report.charts)
    return made


@pytest.mark.parametrize("name", ["one", "many"])
def test_on_a_phone_every_figure_is_drawn_and_nothing_sticks_out(pages, tmp_path, name):
    page, figures = pages[name]
    with picture_of_failure(page, tmp_path):
        seen = measured(page, tmp_path, width=PHONE)
        assert seen["drawn"] == seen["figures"] == figures >= 12
        assert seen["repeated"] == 0
        assert seen["room"] == PHONE
        assert seen["width"] <= PHONE
        assert seen["smallest"] >= 6.5  # CSS pixels
        assert seen["paper"] == "rgb(255, 255, 255)"


def test_in_the_dark_paper_is_dark_and_ink_is_light_in_figures_too(pages, tmp_path):
    page, _ = pages["one"]
    with picture_of_failure(page, tmp_path):
        seen = measured(page, tmp_path, "--blink-settings=preferredColorScheme=0", width=1200)
        paper, ink, text = (max(map(int, re.findall(r"\d+", str(seen[k])))) for k in ("paper", "ink", "text_ink"))
        assert paper < 60
        assert ink > 200
        assert text > 200
        assert seen["width"] == seen["room"] == 1200


def test_it_prints(pages, tmp_path):
    page, _ = pages["many"]
    browse(page, tmp_path, f"--print-to-pdf={tmp_path / 'page.pdf'}")
    printed = (tmp_path / "page.pdf").read_bytes()
    assert printed.startswith(b"%PDF")
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 16


def test_an_error_on_a_page_would_be_noticed_and_pictured(tmp_path):
    page = tmp_path / "wrong.html"
    page.write_text("<!DOCTYPE html><body><script>nothing_of_this_name()</script></body>")
    with pytest.raises(AssertionError) as caught, picture_of_failure(page, tmp_path):
        assert complaints(browse(page, tmp_path, "--dump-dom")) == []
    assert "nothing_of_this_name" in str(caught.value)
    assert (tmp_path / "failure.png").read_bytes().startswith(b"\x89PNG")
