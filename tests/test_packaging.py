"""What is published: sdist and wheel are built, checked, and installed where nothing of the checkout can be found."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from fedclass import __version__

ROOT = Path(__file__).parents[1]
MISSING = [name for name in ("build", "hatchling", "twine") if importlib.util.find_spec(name) is None]


def test_the_version_is_the_same_wherever_it_is_written() -> None:
    citation = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    changes = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert citation
    assert changes
    assert citation[1] == changes[1] == __version__


def test_workflows_and_hooks_call_what_make_calls() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    called = set()
    for workflow in (ROOT / ".github" / "workflows").glob("*.yml"):
        for job in yaml.safe_load(workflow.read_text())["jobs"].values():
            words = [step["run"].split() for step in job["steps"] if step.get("run", "").startswith("make ")]
            called |= {target for _, *rest in words for target in rest}
    assert called == {"check", "test", "test-release", "docs", "wheel"} <= targets
    check = re.findall(r"^\t\$\(BIN\)/([\w-]+)", makefile.partition("\ncheck:")[2].partition("\n\n")[0], re.MULTILINE)
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [hook["entry"].split()[0] for hook in local["hooks"]] == [f".venv/bin/{tool}" for tool in check]


def carried_out(*words: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {"FEDCLASS_DATA": str(cwd / "data"), "COLUMNS": "160"}
    result = subprocess.run(list(map(str, words)), cwd=cwd, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.release
@pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}; to have it: pip install '.[release]'")
def test_wheel_and_sdist_work_in_an_environment_of_their_own(tmp_path: Path) -> None:
    """The wheel is built from the sdist. Its dependencies are this environment's: a .pth file makes them visible, but
    not the checkout that is installed here, because what stands in a folder's own .pth files is not followed."""
    dist = tmp_path / "dist"
    carried_out(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, ROOT, cwd=tmp_path)
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    assert wheel.name == f"fedclass-{__version__}-py3-none-any.whl"
    assert "PASSED" in carried_out(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist, cwd=tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {"fedclass/py.typed", "fedclass/recipes/demo.toml", "fedclass/report/report.html.j2"} <= set(names)
    assert [name for name in names if not name.startswith(("fedclass/", f"fedclass-{__version__}.dist-info/"))] == []
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "Makefile", "tests/commands.py", "docs/index.md", "mkdocs.yml"} <= inside

    home = tmp_path / "home"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    own = Path(
        carried_out(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip()
    )
    folders = [entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]
    (own / "dependencies.pth").write_text("\n".join(folders) + "\n")
    install = ["install", "--no-deps", "--no-index", "--quiet", "--target", own, wheel]
    carried_out(sys.executable, "-m", "pip", *install, cwd=tmp_path)
    assert carried_out(python, "-c", "import fedclass; print(fedclass.__file__)", cwd=tmp_path).startswith(str(own))

    fedclass = [python, "-c", "from fedclass.cli import main; main()"]  # what the wheel's script `fedclass` does
    assert carried_out(*fedclass, "--version", cwd=tmp_path).startswith(f"fedclass {__version__}, torch")
    small = ["data.fraction=0.02", "data.test_fraction=0.02", "partition.clients=3", "train.rounds=1"]
    overrides = [word for setting in small for word in ("--set", setting)]
    words = ["compare", "demo", "--methods", "fedavg,fedclass", *overrides, "--out", "both"]
    assert "fedclass (paper)" in carried_out(*fedclass, *words, cwd=tmp_path)
    carried_out(*fedclass, "report", "both", cwd=tmp_path)
    assert json.loads((tmp_path / "both" / "fedclass-s0" / "summary.json").read_text())["dataset"] == "synnum"

    about = next(iter(metadata.distributions(name="fedclass", path=[str(own)])))
    assert ("fedclass", "fedclass.cli:main") in [(entry.name, entry.value) for entry in about.entry_points]
    for text in about.requires or []:
        need = Requirement(text)
        if need.marker is None:
            assert need.specifier.contains(metadata.version(need.name)), f"these tests ran with another {need.name}"
