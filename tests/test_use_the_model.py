"""docs/use-the-model.md, carried out from the first block to the last."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from commands import called

PAGE = Path(__file__).parents[1] / "docs" / "use-the-model.md"


def write_photos(root: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("ant", "bee", "cat", "dog"):
        pattern = rng.integers(40, 216, (8, 8, 3))
        for split, count in (("train", 24), ("test", 6)):
            folder = root / "photos" / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = pattern + rng.integers(-30, 30, pattern.shape)
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i}.png")
    Image.open(root / "photos" / "test" / "cat" / "0.png").resize((64, 48)).save(root / "cat.jpg")
    Image.fromarray(rng.integers(0, 65536, (20, 20)).astype(np.uint16)).save(root / "scan.tif")


@pytest.mark.release
def test_every_block_of_the_page_works(tmp_path: Path) -> None:
    write_photos(tmp_path)
    blocks = re.findall(r"```(\w*)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert [language for language, _ in blocks] == ["toml", "python", "python", "", "python", "", "", "", "python"]
    said = []
    for language, block in blocks:
        if language == "toml":
            (tmp_path / "photos.toml").write_text(block)
            continue
        lines = [shlex.split(line) for line in block.splitlines()] if not language else []
        assert all(words[0] == "fedclass" for words in lines)
        python = [sys.executable, "-c", block]
        for done in (
            [called(*words[1:], cwd=tmp_path) for words in lines]
            if lines
            else [subprocess.run(python, cwd=tmp_path, capture_output=True, text=True)]
        ):
            assert done.returncode == 0, f"{block}\n{done.stderr}"
            said.append(done.stdout)
    _, table, one, two, many, python, own, half, _, export, onnx = said
    assert "accuracy_last" in table
    assert "round_in_run" in table
    assert one.count("photos/test/cat/") == 6
    assert "resized from 20x20, converted from I;16" in two
    assert many.count('"file": ') == 24
    assert len(python.splitlines()) == 2
    assert "24 test images" in own
    assert json.loads(half)["images"] == 12
    assert (tmp_path / "my-model" / "README.md").exists()
    assert "model.onnx: images (N, 8, 8, 3)" in export
    assert onnx.split() == [python.split()[0]]  # the graph says what the model says
