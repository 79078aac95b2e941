"""The documentation site: it builds without a warning, and its generated pages hold what the code does."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from fedclass import __all__ as public
from fedclass.cli import app
from fedclass.cli.keys import recipe_keys
from fedclass.methods import METHODS
from fedclass.runs.config_file import DEFAULT_METHOD

ROOT = Path(__file__).parents[1]
NEEDED = ("mkdocs", "material", "mkdocstrings")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]


@pytest.mark.release
@pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}; to have it: pip install '.[docs]'")
def test_the_site_builds_without_a_warning_and_says_what_the_code_does(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr

    def text(name: str) -> str:
        return (tmp_path / "site" / "reference" / f"{name}.html").read_text(encoding="utf-8")

    for table, keys in recipe_keys().items():
        for key in keys:
            assert f"<code>{key.name}</code>" in text("configuration"), f"{table}.{key.name}"
    assert f"The parameters of the method <code>{DEFAULT_METHOD}</code>" in text("configuration")
    assert "<td></td>\n<td>" not in text("configuration"), "a key without a default says so"
    for id in METHODS:
        assert f'<h2 id="{id}">' in text("methods")
    command = typer.main.get_command(app)
    for name in command.commands:  # type: ignore[attr-defined]
        assert f'<h2 id="fedclass-{name}">' in text("commands")
    headings = set(re.findall(r'<h[1-6] id="fedclass\.[\w.]*?(\w+)"', text("api")))
    assert set(public) - {"METHODS", "run"} <= headings
    assert "run_one" in headings
    assert "\\&lt;" not in text("api")

    for page in (tmp_path / "site").rglob("*.html"):
        fetched = re.findall(r'(?:src|<link[^>]*href)="(https?:[^"]+)"', page.read_text(encoding="utf-8"))
        assert fetched == [], f"{page.name} fetches from elsewhere"
