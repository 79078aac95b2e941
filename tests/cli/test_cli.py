"""The commands as a user types them."""

import json
import os
import re
import subprocess
import sys
from importlib import metadata, resources
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from commands import called as fedclass
from conftest import write_tiny
from fedclass import __version__
from fedclass.cli.catalogue import FILE, renew
from fedclass.cli.version import commit
from fedclass.experiment.config import Experiment
from fedclass.runs.config_file import flat
from fedclass.runs.events import EventLog, RoundFinished, RunFailed, RunStarted, read_events
from users import Project

KEPT_RUN = Path(__file__).parents[2] / "results/benchmark/digits_5task-reduced-v1/fedavg-s0"
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
    again = fedclass("compare", *words, cwd=tmp_path)
    assert again.stdout.count("already finished") == 4
    assert "round" not in again.stdout, "nobody waits for rounds that are over"

    alone = fedclass(
        "run", *settings(tiny_settings), "--method", "fedwa:wa", "--seed", "1", "--out", "alone", cwd=tmp_path
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
def test_a_users_own_method_and_backbone_run_from_the_working_folder(tmp_path: Path) -> None:
    """In a process of its own, in whose output names are not read as markup and nothing is cut off."""
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from torch import nn\n"
        "from fedclass.methods import FedCLASS\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Twice(FedCLASS):\n"
        '    """Twice the loss."""\n'
        "    def loss(self, client, batch):\n"
        "        return 2 * super().loss(client, batch)\n"
        "def backbone():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU())\n"
    )
    write_tiny(tmp_path / "t.npz", classes=8)
    words = settings(["data.name=npz", "data.path=t.npz", "stream.tasks=2,2,2,2", "partition.kind=iid"])
    words += settings(["partition.clients=2", "train.rounds=1", "memory.per_client=4"])
    words += settings(["method.variant=paper", "method.temperature=2.5", "model.name=mine:backbone"])
    result = process("run", "--method", "mine:Twice", *words, "--out", "odd[/b]", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "run directory: odd[/b]" in result.stdout
    assert "mine:Twice (paper, temperature=2.5)" in result.stdout
    assert "…" not in result.stdout
    assert json.loads((tmp_path / "odd[/b]" / "summary.json").read_text())["method"] == "mine:Twice"
    assert "odd[/b]" in fedclass("list", ".", cwd=tmp_path).stdout


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
    "one run has one method; fedclass compare takes several": (["--method", "fedavg,fedclass"], 2),
    "make 11 classes, but there are 10": (["--set", "stream.tasks=5,6"], 2),
    "must be above 0": (["--set", "partition.alpha=0"], 2),
    "fedclass data fetch cifar10": (["cifar10_2task"], 3),
    "did you mean 'mnist'": (["--set", "data.name=mnis"], 2),
    "cannot write there": (["--out", "/proc/fedclass"], 4),
    "is not empty": (["--out", "."], 4),
    "cannot be used here": (["--set", "train.device=abacus"], 2),
    "finite number": (["--set", "optimizer.learning_rate=inf"], 2),
    "data.fraction=nan: must be a finite number": (["--set", "data.fraction=nan"], 2),
    "must be a number": (["--set", "train.rounds=true"], 2),
    "must be at most 2147483647": (["--set", "train.rounds=1e12"], 2),
    "only 6000 training images": (["--set", "partition.clients=1000000000"], 2),
    "Could not determine home directory": (["--set", "data.path=~nobody-here/x", "--set", "data.name=mnist"], 2),
    "unknown model 'resnet9'": (["--set", "model.name=resnet9"], 2),
    "raise alpha, or lower clients": (["--set", "partition.alpha=0.0001"], 2),
}


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where those of the recipe `demo` are kept once they are drawn."""
    return str(tmp_path_factory.mktemp("digits"))


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_ends_in_one_line_before_anything_is_written(message: str, digits: str, tmp_path: Path) -> None:
    (tmp_path / "occupied").touch()
    words, code = MISTAKES[message]
    recipe = [] if words == ["cifar10_2task"] else ["demo"]
    result = fedclass("run", *recipe, *words, cwd=tmp_path, FEDCLASS_DATA=digits)
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
def test_one_failing_member_does_not_take_the_others_with_it(tiny_settings: list[str], project: Project) -> None:
    """One diverges, one leaves without a word, one raises an error of ours; the last is in the table."""
    project.write(
        mine="import os\n"
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
    result = fedclass("compare", *words, "--out", "all", "--workers", "1", cwd=project.root)
    assert result.returncode == 5, "the first one's code"
    assert "Traceback" not in result.stderr
    assert "mine:Diverges: all/mine-Diverges-s0: task 1, round 1: 0 of 3 updates were usable" in result.stderr
    assert "fedavg (standard)" in result.stdout
    assert "Nothing is compared or chosen until all runs are finished" in result.stdout
    assert "fedavg (standard)" in (project.root / "all" / "results.md").read_text()
    assert "its process ended early, with code 0" in result.stderr
    assert "mine:Raises: not today" in result.stderr


def test_a_file_instead_of_a_module_is_told_how_to_name_the_method(tmp_path: Path) -> None:
    for words in (("run", "--method", "mine.py:Mine"), ("compare", "--methods", "fedavg,mine.py:Mine")):
        told = failed(fedclass(*words, cwd=tmp_path), 2)
        assert told.endswith("name the module, not the file: mine:Mine, in the folder of mine.py\n")


def test_a_folder_without_runs_is_told_what_makes_one(tmp_path: Path) -> None:
    told = failed(fedclass("list", cwd=tmp_path), 4)
    assert told == "error: runs: no such folder; name a folder that holds runs, or make a run with `fedclass run`\n"


def test_methods_and_help_are_worth_reading(tmp_path: Path) -> None:
    listed = fedclass("methods", cwd=tmp_path).stdout
    for name in ("fedavg", "fedclass", "fedclass-tuned", "glfc", "fedicarl", "fedwa"):
        assert name in listed
    detail = fedclass("methods", "fedclass", cwd=tmp_path).stdout
    for word in ("beta", "5.0", "weight of the distillation", "[method]", "paper-literal"):
        assert word in detail
    assert failed(fedclass("methods", "fedclas", cwd=tmp_path), 2)
    assert "are for one method" in failed(fedclass("methods", "--recipe", "demo", cwd=tmp_path), 2)
    gone = fedclass("methods", "fedclass", "--recipe", "gone.toml", cwd=tmp_path)
    assert "gone.toml: cannot read the recipe" in failed(gone, 2)
    assert gone.stdout == ""
    usage = fedclass("--help", cwd=tmp_path).stdout
    assert "Exit codes" in usage
    assert fedclass("run", "--nonsense", cwd=tmp_path).returncode == 2


def test_bytes_are_those_of_the_recipes_images_or_said_to_be_assumed(tiny_file: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "own.toml"
    recipe.write_text(f"[data]\nname = 'npz'\npath = '{tiny_file}'\n")
    read = fedclass("methods", "fedavg", "--recipe", "own.toml", cwd=tmp_path).stdout
    assert "4 classes" in read
    assert "assumed" not in read
    recipe.write_text("[data]\nname = 'npz'\npath = 'gone.npz'\n")
    assumed = fedclass("methods", "fedavg", "--recipe", "own.toml", cwd=tmp_path).stdout
    assert "assumed: 10 classes, 32x32x3" in assumed


def test_commands_that_train_nothing_do_not_wait_for_torch(tmp_path: Path) -> None:
    """Each in one process after the other, where nothing else could have imported it."""
    (tmp_path / "runs").mkdir()
    commands = ["--help", "--version", "run --help", "data list", "methods", "list", "cache show", "reproduce"]
    commands += ["keys", "keys train.rounds", "keys method --method fedwa", "cache prune --older-than 9999"]
    commands += ["methods scaffold", "benchmark list", "benchmark show digits_5task-reduced"]
    commands += [f"{words} {KEPT_RUN}" for words in ("list", "table", "watch --once")]
    code = (
        "import sys\nfrom fedclass.cli import main\n"
        f"for words in {commands!r}:\n"
        "    sys.argv[1:] = words.split()\n"
        "    try: main()\n"
        "    except SystemExit as ended: assert not ended.code, (words, ended.code)\n"
        "    assert 'torch' not in sys.modules, f'torch was imported by {words}'\n"
        "import fedclass.deploy.status\n"  # of `deploy status`, which needs a federation
        "assert 'torch' not in sys.modules, 'torch was imported by deploy status'\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr


def test_the_stored_descriptions_are_those_of_settings_methods_and_protocols(tmp_path: Path) -> None:
    renew(tmp_path / FILE)
    stored = resources.files("fedclass.cli") / FILE
    advice = "something described has changed; run: python -c 'from fedclass.cli.catalogue import renew; renew()'"
    assert json.loads((tmp_path / FILE).read_text()) == json.loads(stored.read_text()), advice


def test_keys_lists_all_that_a_recipe_may_hold(tmp_path: Path) -> None:
    """As many as a stored recipe has, with its defaults, and each with a meaning."""
    listed = json.loads(fedclass("keys", "--json", cwd=tmp_path).stdout)
    tables = Experiment().to_tables()
    found = {f"{table}.{key['name']}" if table else key["name"]: key for table in listed for key in listed[table]}
    assert set(flat(tables)) <= set(found)
    for key, value in flat(tables).items():
        assert found[key]["default"] == (json.dumps(value) if isinstance(value, str | bool) else str(value)), key
    assert [key for key, about in found.items() if not about["meaning"]] == []
    assert found["server.participation"]["allowed"] == "number > 0 and ≤ 1"
    assert found["memory.select"]["allowed"] == '"random", "herding", "herding-pycil", "first"'
    assert found["memory.per_class"] == {**found["memory.per_class"], "default": None, "allowed": "whole number ≥ 0"}
    shown = fedclass("keys", "method", "--method", "fedwa", cwd=tmp_path).stdout
    assert "[method] of fedwa" in shown
    assert '"wa", "pycil", "released"' in shown
    assert "there is no table 'trian'" in failed(fedclass("keys", "trian", cwd=tmp_path), 2)
    (one,) = json.loads(fedclass("keys", "train.rounds", "--json", cwd=tmp_path).stdout)["train"]
    assert one == found["train.rounds"]
    assert "did you mean 'rounds'?" in failed(fedclass("keys", "train.round", cwd=tmp_path), 2)


def test_the_comment_beside_a_users_parameter_is_its_meaning(tmp_path: Path) -> None:
    (tmp_path / "pulled.py").write_text(
        "from dataclasses import dataclass\n"
        "from fedclass.methods import FedAvg\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Pulled(FedAvg):\n"
        '    """FedAvg and a pull."""\n'
        "    mu: float = 0.01  # how hard it pulls\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Further(Pulled):\n"
        "    far: int = 3\n"
    )
    shown = fedclass("methods", "pulled:Further", cwd=tmp_path).stdout
    assert [line.split() for line in shown.splitlines() if line.strip().startswith(("mu", "far"))] == [
        ["mu", "0.01", "number", "how", "hard", "it", "pulls"],
        ["far", "3", "whole", "number"],
    ]


def test_version_names_commit_and_torch(tmp_path: Path) -> None:
    said = fedclass("--version", cwd=tmp_path).stdout
    assert said.startswith(f"fedclass {__version__}")
    assert f"torch {metadata.version('torch')}" in said
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "--quiet"], ["commit", "--quiet", "--allow-empty", "--message", "first"]):
        subprocess.run([*git, *words], cwd=tmp_path, check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=tmp_path, capture_output=True, text=True).stdout
    known = commit(tmp_path)
    assert known
    assert head.startswith(known)
    assert commit(tmp_path / "elsewhere") is None


def test_list_tells_runs_apart(tiny_settings: list[str], tmp_path: Path) -> None:
    for name, method in (("mild", "fedclass:beta=1"), ("strong", "fedclass:beta=8")):
        words = ["--method", method, *settings(tiny_settings)]
        result = fedclass("run", *words, "--out", f"runs/{name}", cwd=tmp_path)
        assert result.returncode == 0, result.stderr
    (tmp_path / "runs" / "strong" / "summary.json").unlink()
    rows = {line.split()[0]: line for line in fedclass("list", cwd=tmp_path).stdout.splitlines()}
    assert "finished" in rows["mild"]
    assert "beta=1" in rows["mild"]
    assert re.search(r"unfinished, \d+ (s|min) ago", rows["strong"])
    assert "beta=8" in rows["strong"]

    def listed(*conditions: str) -> list[str]:
        words = [word for condition in conditions for word in ("--where", condition)]
        lines = fedclass("list", "--json", *words, cwd=tmp_path).stdout.splitlines()
        return [json.loads(line)["run"] for line in lines]

    assert listed() == ["mild", "strong"]
    assert listed("method.beta=8", "method=fedclass") == ["strong"]
    assert listed("status=finished", "seed=0") == ["mild"]
    assert listed("status=finished", "seed=1") == []
    assert "no run has a key 'beta'" in failed(fedclass("list", "--where", "beta=8", cwd=tmp_path), 2)
    assert "write it as KEY=VALUE" in failed(fedclass("list", "--where", "beta", cwd=tmp_path), 2)
    with EventLog(tmp_path / "runs" / "strong" / "events.jsonl") as log:
        log.write(RunFailed(reason="OSError: no space left"))
    (record,) = map(
        json.loads, fedclass("list", "--json", "--where", "status=failed", cwd=tmp_path).stdout.splitlines()
    )
    assert (record["run"], record["failure"]) == ("strong", "OSError: no space left")

    summary = tmp_path / "runs" / "mild" / "summary.json"
    whole = summary.read_bytes()
    summary.write_bytes(whole[:-9])
    told = failed(fedclass("report", "runs/mild", cwd=tmp_path), 4)
    assert "runs/mild/summary.json: is damaged (" in told
    summary.unlink()
    advised = told.rpartition("`fedclass ")[2].partition("`")[0].split()
    assert fedclass(*advised, cwd=tmp_path).returncode == 0
    assert summary.read_bytes() == whole, "what the message advises helps"


def test_the_cache_is_pruned(tiny_settings: list[str], tmp_path: Path) -> None:
    home = {"FEDCLASS_DATA": str(tmp_path / "data")}
    assert "give --older-than DAYS" in failed(fedclass("cache", "prune", cwd=tmp_path, **home), 2)
    assert fedclass("run", *settings(tiny_settings), "--out", "run", cwd=tmp_path, **home).returncode == 0
    assert fedclass("cache", "show", "--limit", "1", cwd=tmp_path, **home).stdout.count("fedeven (standard)") == 1
    assert "0 entries removed" in fedclass("cache", "prune", "--older-than", "1", cwd=tmp_path, **home).stdout
    pruned = fedclass("cache", "prune", "--keep-gb", "0", cwd=tmp_path, **home).stdout
    assert pruned.startswith("2 entries removed")
    assert "0 left" in pruned


def test_help_keeps_what_stands_in_brackets(tmp_path: Path) -> None:
    assert "'.[onnx]'" in fedclass("export", "--help", cwd=tmp_path).stdout


@pytest.mark.slow
def test_a_script_without_guard_is_told_at_once(tiny_settings: list[str], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import fedclass\n"
        "try:\n"
        f"    fedclass.run(fedclass.load(None, {tiny_settings!r}), 'run', engine='processes', workers=2)\n"
        "except fedclass.FedclassError as error:\n"
        "    print(error)\n"
        f"fedclass.compare(None, 'fedavg', overrides={tiny_settings!r}, out='runs')\n"
    )
    result = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr.count("Traceback") == 1, "none of the new processes'"
    for told in (result.stdout, result.stderr):
        assert 'put its own work below `if __name__ == "__main__":`' in told


def test_doctor_trains_a_step(tmp_path: Path) -> None:
    result = fedclass("doctor", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "training step  ok" in result.stdout
