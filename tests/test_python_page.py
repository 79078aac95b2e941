"""docs/python.md, typed into Python from the first block to the last."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from commands import called

PAGE = Path(__file__).parents[1] / "docs" / "python.md"


@pytest.mark.release
def test_the_page_can_be_pasted_into_python(tmp_path: Path) -> None:
    """Typed code has no file: its classes reach other processes all the same, and the page compares the bits."""
    page = PAGE.read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 7
    done = subprocess.run([sys.executable, "-"], input="\n".join(blocks), cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (told,) = re.findall(r"```text\n(.*?)\n```", page, re.DOTALL)
    assert done.stdout.splitlines()[-1] == told
    for name in ("results.md", "results.tex", "results.csv", "report.html"):
        assert (tmp_path / "runs" / "both" / name).exists()
    assert 'name = "__main__:Scaled"\nscale = 0.5' in (tmp_path / "runs" / "own" / "config.toml").read_text()
    refused = called("run", "--resume", "runs/own", cwd=tmp_path)
    assert refused.returncode == 2
    assert "'__main__:Scaled' was defined in a script, a notebook or a function" in refused.stderr
    assert "Traceback" not in refused.stderr
    table = called("table", "runs/both", cwd=tmp_path)  # needs neither class
    assert "__main__:Scaled" in table.stdout
