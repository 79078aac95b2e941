"""The operator's page in a browser, by mouse and keyboard, while the federation that it is about runs."""

import threading
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra [flower]")

from clicking import CHROMIUM, Tab, browser
from deploy.test_sites import Federation
from deploy.test_web import served
from fedclass.deploy.decisions import read_offers
from fedclass.deploy.processes import free_port
from fedclass.deploy.web import Page
from fedclass.deploy.words import FINISH
from fedclass.runs import audit
from fedclass.runs.events import SitesKnown, TaskStarted
from waiting import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs a browser; to have it: apt-get install chromium"),
]


def names_shown(tab: Tab) -> list[str]:
    """Those that wait for approval, on the page."""
    rows = "[...document.querySelectorAll('td[data-is=class]')].filter(cell => cell.parentNode.querySelector('button'))"
    return tab.value(f"document.readyState == 'complete' ? {rows}.map(cell => cell.textContent) : []") or []


def of_name(name: str, what: str) -> str:
    row = f"[...document.querySelectorAll('tr')].find(row => row.cells[0].textContent == '{name}')"
    return f"{row}?.querySelector('{what}')"


def button(text: str) -> str:
    return f"[...document.querySelectorAll('button')].find(button => button.textContent == '{text}')"


def test_clicks_approve_reject_merge_and_begin_the_next_task(tmp_path: Path) -> None:
    """What is clicked is what the federation does. Names that are announced later come without a reload."""
    federation, run = Federation(tmp_path), tmp_path / "run"
    federation.site("north", {"ant": 20, "bee": 20})
    federation.site("south", {"ant": 20, "dog": 20})
    config = {"tasks": 1, "classes_admit": "approve", "next_task": "manual", "deadline_seconds": 60.0}
    learning = threading.Thread(target=federation.run, kwargs=config, daemon=True)
    learning.start()
    port = free_port()
    try:
        wait_until(lambda: (run / "announced.json").exists() or not learning.is_alive(), "names to decide about")
        page = Page(run, "secret", (f"127.0.0.1:{port}",))
        with served(page, port), browser(tmp_path) as tab:
            tab.open(f"http://127.0.0.1:{port}/?token=secret")
            wait_until(lambda: names_shown(tab) == ["ant", "bee", "dog"], "three names")
            tab.click(of_name("dog", "button[value=reject]"))
            wait_until(lambda: names_shown(tab) == ["ant", "bee"], "a name less")
            federation.hold("south", {"Ant": 20, "dog": 20}, {"Ant": "ant"})
            wait_until(lambda: names_shown(tab) == ["Ant", "ant", "bee"], "a name more, by the page's own script")
            tab.click(of_name("Ant", "input[list]"))
            tab.write("ant")
            tab.click(of_name("Ant", "button[value=merge]"))
            wait_until(lambda: names_shown(tab) == ["ant", "bee"], "a name less")
            federation.hold("north", {"ant": 20, "bee": 20, "cat": 20})
            tab.click(of_name("ant", "button[value=approve]"))
            wait_until(lambda: names_shown(tab) == ["bee", "cat"], "a name less")
            tab.click(button("Approve all that are shown"))
            wait_until(lambda: tab.value("document.body.innerText.includes('approval (0)')") is True, "no name")
            assert not federation.events(TaskStarted), "approved is not begun"
            tab.click(button("Next task"))
            wait_until(lambda: not learning.is_alive(), "the end of the task")
            assert tab.complaints == []
    finally:
        if learning.is_alive():
            (run / FINISH).touch()
    (known,) = federation.events(SitesKnown)[-1:]
    assert known.classes == ["ant", "bee", "cat"]
    held = known.counts[known.sites.index("south")]
    assert [count > 0 for count in held] == [True, False, False], "south's Ant is ant; its dog is nothing"
    assert {offer.name: offer.state for offer in read_offers(run)}["dog"] == "rejected"
    said = [(entry["said"], entry.get("names")) for entry in audit.entries(run) if entry["kind"] == "operator"]
    wanted = [("reject", ["dog"]), ("merge", ["Ant", "ant"]), ("approve", ["ant"])]
    assert said == [*wanted, ("approve", ["bee", "cat"]), ("next", None)]
