"""docs/own-backbone.md, carried out from the first block to the last."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from commands import called
from fedclass.runs.events import RoundFinished, read_events
from fedclass.runs.layout import RunDirectory
from test_use_the_model import PAGE as PHOTOS
from test_use_the_model import write_photos

PAGE = PHOTOS.parent / "own-backbone.md"
MODULES = ("my_backbones", "my_pretrained", "my_adapters")


@pytest.fixture
def _modules_forgotten():
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.mark.release
@pytest.mark.usefixtures("_modules_forgotten")
def test_every_block_of_the_page_works(tmp_path: Path) -> None:
    write_photos(tmp_path)
    recipe = re.search(r"```toml\n(.*?)```", PHOTOS.read_text(), re.DOTALL)
    assert recipe is not None
    (tmp_path / "photos.toml").write_text(recipe[1])
    page, said, written = PAGE.read_text(), list[str](), list[str]()
    for language, block in re.findall(r"```(\w*)\n(.*?)```", page, re.DOTALL):
        if language == "toml":
            stored = tomllib.loads(RunDirectory(tmp_path / "runs" / "small").config.read_text())["model"]
            assert tomllib.loads(block)["model"].items() <= stored.items()
        elif named := re.match(r"# (\w+)\.py\n", block):
            (tmp_path / f"{named[1]}.py").write_text(block)
            written.append(named[1])
        elif language == "python":
            subprocess.run([sys.executable, "-c", block], cwd=tmp_path, check=True)
        else:
            for line in block.replace("\\\n", " ").splitlines():
                program, *words = shlex.split(line)
                assert program == "fedclass"
                done = called(*words, cwd=tmp_path)
                assert done.returncode == 0, f"{line}\n{done.stderr}"
                said.append(done.stdout)
    assert tuple(written) == MODULES

    def bytes_each_way(run: str) -> int:
        """Of a client, in the last round, when there are four classes."""
        events = list(read_events(tmp_path / "runs" / run / "events.jsonl"))
        last = [event for event in events if isinstance(event, RoundFinished)][-1]
        assert last.bytes_up == last.bytes_down
        return last.bytes_up // len(last.clients)

    table = re.findall(r"\| (.+?) \| ([\d,]+) \|", page)
    measured = [bytes_each_way(run) for run in ("whole", "adapted", "frozen")]
    assert [int(figure.replace(",", "")) for _, figure in table] == measured
    shown = said[-2]  # by `fedclass methods`
    assert re.search(r"weights +server and clients, both ways in each round +1,040 *\n", shown)
    assert re.search(r"frozen weights +server and clients; never sent +312,328 *\n", shown)
    predicted = called("predict", "runs/adapted", "photos/test/cat", cwd=tmp_path)
    assert predicted.stdout.count("photos/test/cat/") == 6
    exported = called("export", "runs/adapted", "--to", "model.onnx", cwd=tmp_path)
    assert exported.returncode == 0, exported.stderr
