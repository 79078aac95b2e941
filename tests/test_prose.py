"""Pages that people read: lines of prose have at most 100 characters."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
GENERATED = {"REPRODUCTION.md", "benchmark-results.md"}  # their commands make them
WIDEST = 100


def prose(text: str) -> list[str]:
    """Lines that are no code, table, picture or badge."""
    lines, in_code = [], False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code and not line.lstrip().startswith(("|", "![", "[![", "<")) and not line.startswith("    "):
            lines.append(line)
    return lines


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in GENERATED], ids=lambda page: page.name)
def test_lines_of_prose_fit_a_screen(page: Path) -> None:
    wide = [line for line in prose(page.read_text(encoding="utf-8")) if len(line) > WIDEST and " " in line[:WIDEST]]
    assert wide == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_line_of_a_paragraph_turns_into_a_list(page: Path) -> None:
    """A line that a formula lets begin with a sign would: `become (x` and, on the next line, `- mean) / std`."""
    item = re.compile(r"\s*([-+*]|\d+[.)])\s")
    lines = prose(page.read_text(encoding="utf-8"))
    pairs = [(before, line) for before, line in pairwise(lines) if item.match(line)]
    assert [line for before, line in pairs if before.strip() and not item.match(before) and before[0] not in " #"] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_cell_of_a_table_loses_its_braces(page: Path) -> None:
    """The site takes braces at the end of a cell for attributes, and shows nothing: write \\{5,5\\}."""
    cells = [
        cell
        for line in page.read_text(encoding="utf-8").splitlines()
        if line.startswith("|")
        for cell in line.split("|")
    ]
    assert [cell for cell in cells if re.search(r"[^\\`]\{[^}`]*[^\\`]\}\s*$", cell)] == []
