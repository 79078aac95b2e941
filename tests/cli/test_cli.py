"""The commands as a user types them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from commands import called as fedclass
from fedclass.runs.events import RoundFinished, RunStarted, read_events

FEDCLASS = [sys.executable, "-c", "from fedclass.cli import main; main()"]


def process(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The same in a process of its own, and through pipes."""
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    return subprocess.run([*FEDCLASS, *words], cwd=cwd, capture_output=True, text=True, env=environment)


def settings(overrides: list[str]) -> list[str]:
    return [word for override in overrides for word in ("--set", override)]


def failed(result: subprocess.CompletedProcess[str], code: int) -> str:
    """The one line of a user's mistake."""
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


@pytest.mark.slow
def test_compare_runs_methods_side_by_side_and_list_finds_them(tiny_settings: list[str], tmp_path: Path) -> None:
    words = ["--methods", "fedavg,fedwa", "--seeds", "0,1", *settings(tiny_settings), "--out", "runs/both"]
    result = fedclass("compare", *words, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "fedavg (standard)" in result.stdout
    assert "fedwa (wa)" in result.stdout
    assert "±" in result.stdout
    assert "fedavg s1: task 2/2, round 2/2, 3 clients, loss" in result.stdout
    listed = fedclass("list", cwd=tmp_path).stdout
    for name in ("fedavg-s0", "fedavg-s1", "fedwa-s0", "fedwa-s1"):
        assert f"both/{name}" in listed
    assert listed.count("4/4") == 4

    alone = fedclass(
        "run", *settings(tiny_settings), "--method", "fedwa", "--seed", "1", "--out", "alone", cwd=tmp_path
    )
    assert alone.returncode == 0, alone.stderr
    summaries = [json.loads((tmp_path / p / "summary.json").read_text()) for p in ("runs/both/fedwa-s1", "alone")]
    assert summaries[0]["weights_sha256"] == summaries[1]["weights_sha256"], "company changes nothing"


def write_pictures(root: Path, *, images: int, names: tuple[str, ...]) -> None:
    """A folder of one's own: uneven classes, each with a pattern under noise."""
    rng = np.random.default_rng(0)
    patterns = rng.integers(60, 196, size=(len(names), 8, 8))
    for split, count in (("train", images), ("test", 30)):
        for i in range(count):
            label = min(int(rng.exponential(len(names) / 3)), len(names) - 1) if i >= len(names) else i
            folder = root / split / names[label]
            folder.mkdir(parents=True, exist_ok=True)
            pixels = patterns[label] + rng.integers(-50, 50, size=(8, 8))
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i:04d}.png")


@pytest.mark.slow
def test_a_folder_of_ones_own_is_used_whole(tmp_path: Path) -> None:
    """The command of docs/data.md, with three classes: all 943 images, all clients, two tasks."""
    write_pictures(tmp_path / "scans", images=943, names=("ant", "bee", "cat"))
    words = settings(["data.name=folder", f"data.path={tmp_path / 'scans'}"])
    quick = settings(["train.rounds=1", "train.local_epochs=1", "model.name=resnet8"])
    result = fedclass("run", *words, *quick, "--method", "fedavg", "--out", "whole", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "trains on" not in result.stdout
    assert "fedclass compare demo" not in result.stdout
    summary = json.loads((tmp_path / "whole" / "summary.json").read_text())
    assert (summary["images_used"], summary["images_available"], summary["tasks"]) == (943, 943, [2, 1])
    assert (summary["test_images_used"], summary["test_images_available"]) == (30, 30)
    rounds = [e for e in read_events(tmp_path / "whole" / "events.jsonl") if isinstance(e, RoundFinished)]
    started = next(e for e in read_events(tmp_path / "whole" / "events.jsonl") if isinstance(e, RunStarted))
    for event in rounds:
        new = [sum(row[:2] if event.task == 0 else row[2:]) for row in started.counts]
        assert event.clients == [client for client, images in enumerate(new) if images], "every client is asked"

    part = [*words, *quick, *settings(["data.fraction=0.1", "partition.clients=3", "memory.per_client=5"])]
    result = fedclass("run", *part, "--method", "fedavg", "--out", "part", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    used = json.loads((tmp_path / "part" / "summary.json").read_text())["images_used"]
    assert 90 <= used <= 94
    assert f"trains on {used} of 943 images" in result.stdout.splitlines()[0]
    planned = fedclass("plan", *part, cwd=tmp_path)
    assert f"trains on {used} of 943 images" in planned.stdout


def test_whoever_names_neither_recipe_nor_data_is_told_what_is_quick(tmp_path: Path) -> None:
    """Before anything is drawn or trained; a mistake stops it here."""
    result = fedclass("run", "--set", "train.device=abacus", cwd=tmp_path)
    assert result.stdout.splitlines()[0].startswith("no recipe: every key has its default, 60,000 images and 10 rounds")
    assert "For a demonstration within minutes: fedclass compare demo" in " ".join(result.stdout.split())
    failed(result, 2)
    assert "no recipe" not in fedclass("run", "demo", "--set", "train.device=abacus", cwd=tmp_path).stdout


@pytest.mark.slow
def test_a_users_own_method_and_backbone_run_from_the_working_folder(tiny_settings: list[str], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from torch import nn\n"
        "from fedclass.methods import FedAvg\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Twice(FedAvg):\n"
        '    """Twice the loss."""\n'
        "    def loss(self, client, batch):\n"
        "        return 2 * super().loss(client, batch)\n"
        "def backbone():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU())\n"
    )
    words = [*settings([*tiny_settings, "model.name=mine:backbone"]), "--out", "run"]
    result = process("run", "--method", "mine:Twice", *words, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "mine:Twice (standard)" in result.stdout
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["method"] == "mine:Twice"


def test_plan_shows_counts_and_saves_a_partition_that_runs_the_same(tiny_settings: list[str], tmp_path: Path) -> None:
    dirichlet = [*tiny_settings, "partition.kind=dirichlet", "partition.min_size=2"]
    result = fedclass("plan", *settings(dirichlet), "--picture", "p.png", "--save", "p.json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    rows = [line.split() for line in result.stdout.splitlines() if line.strip()[:1].isdigit()]
    assert [row[0] for row in rows] == ["0", "1", "2"]
    assert sum(int(row[5]) for row in rows) == 4 * 24
    assert all(sum(int(n) for n in row[1:5] if n != "·") == int(row[5]) for row in rows)
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    saved = [*tiny_settings, "partition.kind=file", "partition.path=p.json"]
    for name, overrides in (("drawn", dirichlet), ("saved", saved)):
        assert fedclass("run", *settings(overrides), "--out", name, cwd=tmp_path).returncode == 0
    drawn, read = (json.loads((tmp_path / n / "summary.json").read_text()) for n in ("drawn", "saved"))
    assert drawn["weights_sha256"] == read["weights_sha256"]


MISTAKES = {
    "did you mean 'rounds'": (["--set", "train.roundz=3"], 2),
    "did you mean 'fedclass'": (["--method", "fedclas"], 2),
    "make 11 classes, but there are 10": (["--set", "stream.tasks=5,6"], 2),
    "Input should be greater than 0": (["--set", "partition.alpha=0"], 2),
    "fedclass data fetch cifar10": (["cifar10_2task"], 3),
    "did you mean 'mnist'": (["--set", "data.name=mnis"], 2),
    "cannot write there": (["--out", "/proc/fedclass"], 4),
    "is not empty": (["--out", "."], 4),
    "cannot be used here": (["--set", "train.device=abacus"], 2),
    "finite number": (["--set", "optimizer.learning_rate=inf"], 2),
    "should be a number": (["--set", "train.rounds=true"], 2),
    "only 6000 training images": (["--set", "partition.clients=1000000000"], 2),
    "Could not determine home directory": (["--set", "data.path=~nobody-here/x", "--set", "data.name=mnist"], 2),
    "unknown model 'resnet9'": (["--set", "model.name=resnet9"], 2),
    "raise alpha, or lower clients": (["--set", "partition.alpha=0.0001"], 2),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_ends_in_one_line_before_anything_is_written(message: str, tmp_path: Path) -> None:
    (tmp_path / "occupied").touch()
    words, code = MISTAKES[message]
    recipe = [] if words == ["cifar10_2task"] else ["demo"]
    result = fedclass("run", *recipe, *words, cwd=tmp_path, FEDCLASS_DATA=str(tmp_path / "data"))
    assert message in failed(result, code)
    assert not (tmp_path / "runs").exists()


def test_damaged_data_ends_in_one_line(tiny_file: Path, tmp_path: Path) -> None:
    (tmp_path / "cut.npz").write_bytes(tiny_file.read_bytes()[:-200])
    words = settings(["data.name=npz", "data.path=cut.npz", "stream.tasks=2,2"])
    assert "cut.npz" in failed(fedclass("run", *words, cwd=tmp_path), 3)


def test_a_diverging_run_ends_with_its_own_code_and_says_what_to_do(tiny_settings: list[str], tmp_path: Path) -> None:
    result = fedclass("run", *settings([*tiny_settings, "optimizer.learning_rate=1e30"]), "--out", "run", cwd=tmp_path)
    assert result.returncode == 5
    assert "learning_rate is too high" in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout.count("rejected: ") == 3
    assert not (tmp_path / "run" / "summary.json").exists()
    assert "0/4" in fedclass("list", ".", cwd=tmp_path).stdout


@pytest.mark.slow
def test_one_failing_member_does_not_take_the_others_with_it(tiny_settings: list[str], tmp_path: Path) -> None:
    """One diverges, one leaves without a word, one raises an error of ours; the last is in the table."""
    (tmp_path / "mine.py").write_text(
        "import os\n"
        "from dataclasses import dataclass\n"
        "from fedclass import FedAvg, FedclassError\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Diverges(FedAvg):\n"
        "    def loss(self, client, batch):\n"
        "        return super().loss(client, batch) * 1e30\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Leaves(FedAvg):\n"
        "    def loss(self, client, batch):\n"
        "        os._exit(0)\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Raises(FedAvg):\n"
        "    def loss(self, client, batch):\n"
        "        raise FedclassError('not today')\n"
    )
    words = ["--methods", "mine:Diverges,mine:Leaves,mine:Raises,fedavg", *settings(tiny_settings)]
    result = process("compare", *words, "--out", "all", "--workers", "1", cwd=tmp_path)
    assert result.returncode == 5, "the first one's code"
    assert "Traceback" not in result.stderr
    assert "mine:Diverges: task 1, round 1: 0 of 3 updates were usable" in result.stderr
    assert "fedavg (standard)" in result.stdout
    assert "Nothing is compared or chosen until all runs are there" in result.stdout
    assert "fedavg (standard)" in (tmp_path / "all" / "results.md").read_text()
    assert "its process ended early, with code 0" in result.stderr
    assert "mine:Raises: not today" in result.stderr


@pytest.mark.slow
def test_names_are_not_read_as_markup_and_nothing_is_cut_off_in_a_pipe(tmp_path: Path) -> None:
    from conftest import write_tiny

    write_tiny(tmp_path / "t.npz", classes=8)
    words = settings(["data.name=npz", "data.path=t.npz", "stream.tasks=2,2,2,2", "partition.kind=iid"])
    words += settings(["partition.clients=2", "train.rounds=1"])
    words += settings(["memory.per_client=4", "method.variant=paper", "method.temperature=2.5"])
    run = process("run", *words, "--out", "odd[/b]", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "run directory: odd[/b]" in run.stdout
    assert "fedclass (paper, temperature=2.5)" in run.stdout
    assert "…" not in run.stdout
    assert "odd[/b]" in fedclass("list", ".", cwd=tmp_path).stdout


def test_methods_and_help_are_worth_reading(tmp_path: Path) -> None:
    listed = fedclass("methods", cwd=tmp_path).stdout
    for name in ("fedavg", "fedclass", "fedclass-tuned", "glfc", "fedicarl", "fedwa"):
        assert name in listed
    detail = fedclass("methods", "fedclass", cwd=tmp_path).stdout
    for word in ("beta", "5.0", "weight of the distillation", "[method]", "paper-literal"):
        assert word in detail
    assert failed(fedclass("methods", "fedclas", cwd=tmp_path), 2)
    usage = fedclass("--help", cwd=tmp_path).stdout
    assert "Exit codes" in usage
    assert fedclass("run", "--nonsense", cwd=tmp_path).returncode == 2


def test_list_and_help_do_not_wait_for_torch(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv[1:] = ['--help']; from fedclass.cli import main\ntry: main()\nexcept SystemExit: pass\n"
    )
    code += "assert 'torch' not in sys.modules, 'torch was imported'"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert failed(fedclass("list", "nowhere", cwd=tmp_path), 4)


def test_doctor_trains_a_step(tmp_path: Path) -> None:
    result = fedclass("doctor", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "training step  ok" in result.stdout
