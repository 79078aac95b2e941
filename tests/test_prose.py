"""Pages that people read: lines of prose have at most 100 characters."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
GENERATED = {"REPRODUCTION.md", "attacks.md", "benchmark-results.md"}  # their commands make them
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
