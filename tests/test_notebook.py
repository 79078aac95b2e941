"""docs/notebooks, executed from the first cell to the last as Jupyter does, with fewer images."""

import json
import os
import sys
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[1] / "docs" / "notebooks" / "quickstart.ipynb"
TINY = """
settings = {"data.fraction": 0.004, "data.test_fraction": 0.01, "train.rounds": 1, "partition.clients": 3}
settings["evaluation.every"] = 1
seeds = [0]
"""


@pytest.mark.release
def test_the_notebook_runs_and_is_stored_without_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat", reason="needs Jupyter: pip install nbclient ipykernel")
    nbclient = pytest.importorskip("nbclient", reason="needs Jupyter: pip install nbclient ipykernel")
    pytest.importorskip("ipykernel", reason="needs Jupyter: pip install nbclient ipykernel")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    code = {cell["id"]: cell for cell in notebook.cells if cell.cell_type == "code"}
    assert not any(cell.outputs or cell.execution_count for cell in code.values())
    code["settings"].source = TINY

    kernel = tmp_path / "share" / "jupyter" / "kernels" / "python3"
    kernel.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "share" / "jupyter"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": os.fspath(tmp_path)}}).execute()

    printed = {name: "".join(out.get("text", "") for out in cell.outputs) for name, cell in code.items()}
    assert "fedavg (standard)" in printed["compare"]
    assert "fedeven (standard)" in printed["compare"]
    assert printed["sweep"].count("strength=0.5  ") == 1
    assert printed["report"].strip().endswith("report.html")
    assert "predicted: " in printed["predict"]
    assert any("image/png" in out.get("data", {}) for out in code["plot"].outputs)
    assert (tmp_path / "runs" / "notebook" / "fedeven-s0" / "summary.json").exists()
