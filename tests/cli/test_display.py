"""Tables on a screen of any width."""

import io

import pytest
from rich.console import Console

from fedclass.cli import display
from fedclass.report.tables import Table

TASKS = tuple(f"task {task}" for task in range(1, 11))
METHODS = ("fedavg (standard)", "fedicarl (icarl, sigmoids)")
WIDE = Table(
    "drawn digits",
    ("method (variant)", *TASKS, "global", "forgetting"),
    tuple((name, *(f"{task}{row}.0 ± 9.5" for task in range(12))) for row, name in enumerate(METHODS, start=1)),
    ("All in percent.",),
)


@pytest.mark.parametrize("width", [60, 80, 100, 160, 220])
def test_no_table_loses_a_figure_or_the_name_of_its_row(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(display, "console", Console(file=screen, markup=False, width=width))
    display.print_table(WIDE)
    shown = screen.getvalue()
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width
    words = [" ".join(line.split()) for line in shown.splitlines()]
    for number, name in enumerate(METHODS):
        figures = " ".join(line.removeprefix(name).strip() for line in words if line.startswith(name))
        assert sorted(figures.split()) == sorted(" ".join(WIDE.rows[number][1:]).split())
    headings = " ".join(line.removeprefix("method (variant)") for line in words if line.startswith("method"))
    assert sorted(headings.split()) == sorted(" ".join(WIDE.columns[1:]).split())
    if width < 200:  # several blocks: what matters most comes first
        assert headings.split()[:2] == ["global", "forgetting"]
    else:
        assert headings.split()[-2:] == ["global", "forgetting"]
