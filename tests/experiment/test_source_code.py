"""What a result depends on in code: all of it is found, or there is a doubt and nothing is shared."""

import contextlib
import importlib
import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import fedclass
from commands import called
from fedclass import usercode
from fedclass.errors import ConfigError, RunError
from fedclass.experiment.config import Experiment
from fedclass.experiment.launch import EngineName, run_one
from fedclass.experiment.reuse import key_after, usual_store
from fedclass.experiment.setup import prepare
from fedclass.experiment.source_code import Sources, differences, sources
from fedclass.experiment.trained import load_model
from fedclass.runs.events import Event, TaskReused, Warned
from users import METHOD, Project

Tiny = Callable[..., Experiment]

BACKBONE = """
{imports}
from torch import nn

class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.ReLU())

    def forward(self, images):
        return self.net(images)

def build():
    made = Small()
    {within}
    return made
"""


def known(experiment: Experiment) -> Sources:
    return sources(prepare(experiment))


def key(experiment: Experiment) -> str:
    setup = prepare(experiment)
    return key_after(setup, 1, sources(setup))


def own(code: Sources) -> set[str]:
    return {name for name in code.files if not name.startswith("fedclass/")}


WAYS = {
    "import": ("import helper", "", "helper.FACTOR", {"helper": "FACTOR = {}"}),
    "from": ("from helper import FACTOR", "", "FACTOR", {"helper": "FACTOR = {}"}),
    "star": ("from helper import *", "", "FACTOR", {"helper": "FACTOR = {}"}),
    "chain": (
        "from first import FACTOR",
        "",
        "FACTOR",
        {"first": "from second import FACTOR", "second": "FACTOR = {}"},
    ),
    "within a function": ("", "from helper import FACTOR", "FACTOR", {"helper": "FACTOR = {}"}),
    "a package": ("import parts", "", "parts.FACTOR", {"parts/__init__": "FACTOR = {}"}),
    "a package on the way": ("import parts.a", "", "parts.FACTOR", {"parts/__init__": "FACTOR = {}", "parts/a": ""}),
    "relative": (
        "from parts.a import FACTOR",
        "",
        "FACTOR",
        {"parts/__init__": "", "parts/a": "from .b import FACTOR", "parts/b": "FACTOR = {}"},
    ),
    "relative, the module itself": (
        "from parts.a import b",
        "",
        "b.FACTOR",
        {"parts/__init__": "", "parts/a": "from . import b", "parts/b": "FACTOR = {}"},
    ),
    "a folder without __init__": ("from space.a import FACTOR", "", "FACTOR", {"space/a": "FACTOR = {}"}),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_module_that_a_method_imports_is_in_the_key(way: str, tiny: Tiny, project: Project) -> None:
    imports, within, factor, helpers = WAYS[way]
    project.write(mine=METHOD.format(imports=imports, within=within or "pass", factor=factor))
    keys = []
    for value in ("1.0", "20.0", "1.0"):
        project.write(**{name: source.format(value) for name, source in helpers.items()})
        code = known(tiny(method="mine:Mine"))
        assert code.doubts == ()
        assert len(own(code)) == 1 + len(helpers)
        keys.append(key(tiny(method="mine:Mine")))
    assert keys[0] == keys[2] != keys[1]


DATA = """
import numpy as np
from helper import SHIFT

def load(path):
    with np.load(path) as file:  # what it reads is hashed as images
        return {**file, "x_train": file["x_train"] + SHIFT * 0}
"""


def test_the_code_of_a_users_data_set_is_in_the_key(tiny: Tiny, project: Project) -> None:
    project.write(own_data=DATA, helper="SHIFT = 1")
    own_data = tiny("data.name=own_data:load")
    assert prepare(own_data).stream.data.sha256 == prepare(tiny()).stream.data.sha256
    before, first = known(own_data), key(own_data)
    assert (own(before), before.doubts, dict(before.opened)) == ({"own_data.py", "helper.py"}, (), {})
    project.write(helper="SHIFT = 2")
    assert differences(before, known(own_data)) == ["helper.py changed"]
    assert key(own_data) != first
    project.write(helper="SHIFT = 1")
    assert key(own_data) == first


def test_a_transform_is_code_that_trains(tiny: Tiny, project: Project) -> None:
    project.write(vary="def dim(images, generator):\n    return images // 2\n")
    dimmed = tiny("data.transform=vary:dim")
    code = known(dimmed)
    assert (own(code), code.doubts) == ({"vary.py"}, ())
    assert key(dimmed) != key(tiny())
    project.write(vary="def dim(images, generator):\n    return images // open('factor').read()\n")
    for wrong, said in {
        "vary:dim": r"'vary:dim' cannot take \(2, 8, 8, 3\) uint8 images: FileNotFoundError.*vary\.py, line 2",
        "vary": r"transform = 'vary': write package\.module:function",
        "vary:gone": "cannot import 'vary:gone'",
        "math:pi": "'math:pi' is not callable",
    }.items():
        with pytest.raises(ConfigError, match=said):
            prepare(tiny(f"data.transform={wrong}"))


def test_installed_packages_and_the_standard_library_are_not_followed(tiny: Tiny, project: Project) -> None:
    imports = "import json, numpy.linalg, torch.nn.functional as F\nfrom PIL import Image\nimport not_there_at_all.x"
    imports = imports.replace("\nimport not", "\ntry:\n    import not") + "\nexcept ImportError:\n    pass"
    project.write(mine=METHOD.format(imports=imports, within="pass", factor=1))
    assert own(known(tiny(method="mine:Mine"))) == {"mine.py"}


def test_a_method_of_an_installed_package_is_known_by_the_record_of_its_files(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site-packages"
    project = Project(site)
    monkeypatch.syspath_prepend(site)
    monkeypatch.setattr(usercode, "INSTALLED", (site, *usercode.INSTALLED))
    usercode._is_installed.cache_clear()
    source = METHOD.format(imports="from pack.b import F", within="open('x')", factor="F")
    project.write(**{"pack/__init__": "", "pack/mine": source, "pack/b": "F = 1"})
    assert known(tiny(method="pack.mine:Mine")).doubts == ("pack (installed) has no source that can be read",)
    about = site / "pack-1.0.dist-info"
    about.mkdir()
    project.forget()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: pack\nVersion: 1.0\n")
    (about / "top_level.txt").write_text("pack\n")
    (about / "RECORD").write_text("pack/b.py,sha256=abc,5\npack-1.0.dist-info/RECORD,,\n")
    before = known(tiny(method="pack.mine:Mine"))
    (about / "RECORD").write_text("pack/b.py,sha256=xyz,5\npack-1.0.dist-info/RECORD,,\n")
    project.forget()
    after = known(tiny(method="pack.mine:Mine"))
    project.forget()
    usercode._is_installed.cache_clear()
    assert (own(before), before.doubts) == ({"pack (installed)"}, ())
    assert differences(before, after) == ["pack (installed) changed"]


def test_the_first_task_of_a_users_method_is_shared_with_nobody(tiny: Tiny, project: Project) -> None:
    """What its parent says of the first task does not count, and neither does what it says itself."""
    source = METHOD.format(imports="from fedclass.methods import FedCLASS", within="pass", factor=1)
    project.write(
        mine=source.replace("(FedAvg)", "(FedCLASS)").replace(
            "    def loss", "    begins_like_fedavg = True\n\n    def loss"
        )
    )
    assert key(tiny(method="mine:Mine")) not in (key(tiny(method="fedclass")), key(tiny(method="fedavg")))


# Files that a builder reads.

READERS: dict[str, tuple[str, str, Callable[[Path, float], object]]] = {
    "numpy": (
        "import numpy, torch",
        "made.net[1].weight.data.copy_(torch.from_numpy(numpy.load({path!r})))",
        lambda path, value: np.save(path, np.full((8, 192), value, np.float32)),
    ),
    "torch": (
        "import torch",
        "made.load_state_dict(torch.load({path!r}))",
        lambda path, value: torch.save(
            {"net.1.weight": torch.full((8, 192), value), "net.1.bias": torch.zeros(8)}, path
        ),
    ),
    "safetensors, which does not tell": (
        "from safetensors.torch import load_file",
        "made.load_state_dict(load_file({path!r}))",
        lambda path, value: save_file(
            {"net.1.weight": torch.full((8, 192), value), "net.1.bias": torch.zeros(8)}, path
        ),
    ),
    "a setting that is no weight": (
        "from pathlib import Path",
        "made.net[2] = nn.Threshold(float(Path({path!r}).read_text()), 0.0)",
        lambda path, value: path.write_text(str(value)),
    ),
    "as the module is imported": (
        "from pathlib import Path\nSLOPE = float(Path({path!r}).read_text())",
        "made.net[2] = nn.Threshold(SLOPE, 0.0)",
        lambda path, value: path.write_text(str(value)),
    ),
}


@pytest.mark.parametrize("reader", READERS)
def test_what_a_builder_reads_is_in_the_key_and_is_named(reader: str, tiny: Tiny, project: Project) -> None:
    imports, within, write = READERS[reader]
    path = project.root / "weights.npy"
    text = BACKBONE.format(imports=imports.format(path=str(path)), within=within.format(path=str(path)))
    found = []
    for value in (0.5, -0.25, 0.5):
        write(path, value)
        project.write(net=text)
        code = known(tiny("model.name=net:build"))
        assert code.doubts == ()
        found.append((key(tiny("model.name=net:build")), code))
    assert found[0][0] == found[2][0] != found[1][0]
    assert differences(found[0][1], found[2][1]) == []
    (change,) = differences(found[2][1], found[1][1])[:1]
    assert change == ("the initial weights of the model changed" if "safetensors" in reader else f"{path} changed")


def test_settings_that_a_package_reads_as_it_is_imported_are_its_own(project: Project, tmp_path: Path) -> None:
    """matplotlib reads a file of the user's home: no input of the model."""
    home = tmp_path / "matplotlibrc"
    home.write_text("")
    project.write(net=BACKBONE.format(imports="import matplotlib", within="pass"))
    code = f"""
import os
os.environ["MATPLOTLIBRC"] = {str(home)!r}
from fedclass.models.build import build_model
from fedclass.usercode import opened_by
import sys
build_model("net:build", norm="batch", image_size=(8, 8), seed=0)
assert "matplotlib" in sys.modules
print([path for path in opened_by("net") if not path.endswith("net.py")])
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(project.root), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == "[]\n"


def test_packages_that_the_path_has_from_elsewhere_are_installed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By PYTHONPATH or a .pth file. As the user's own, torch alone would be thousands of files to read."""
    place = tmp_path / "lib" / "site-packages"
    monkeypatch.syspath_prepend(place)
    monkeypatch.syspath_prepend(tmp_path / "mine")
    assert place.resolve() in usercode._installed_folders()
    assert (tmp_path / "mine").resolve() not in usercode._installed_folders()


# Doubts.

DOUBTFUL = {
    "open": ("", "open('x')"),
    "a method of paths": ("from pathlib import Path", "Path('x').read_text()"),
    "np.load": ("import numpy as np", "np.load('x.npy')"),
    "under another name": ("from numpy import fromfile as f", "f('x')"),
    "import_module": ("import importlib", "importlib.import_module('json')"),
    "import_module at the top": ("import importlib\nimportlib.import_module('json')", "pass"),
    "__import__": ("", "__import__('json')"),
    "exec": ("", "exec('1')"),
    "any variable": ("import os", "os.environ[str(client)]"),
    "all variables": ("import os", "dict(os.environ)"),
    "one by name and any other": ("import os", "os.environ['HOME'], os.environ[str(client)]"),
    "compiled code at the top": ("from safetensors.torch import load_file\nif 0: load_file('x')", "pass"),
}


@pytest.mark.parametrize("case", DOUBTFUL)
def test_what_cannot_be_known_is_a_doubt(case: str, tiny: Tiny, project: Project) -> None:
    imports, within = DOUBTFUL[case]
    project.write(mine=METHOD.format(imports=imports, within=within, factor=1))
    (doubt,) = known(tiny(method="mine:Mine")).doubts
    assert doubt.startswith("mine.py, line ")


READ_VARIABLE = {
    "as the module is imported": ("import os\nF = float(os.environ.get('MY_FACTOR', 1))", "pass"),
    "in training": ("import os", "F = float(os.environ['MY_FACTOR'])"),
    "twice": ("import os\nF = os.getenv('MY_FACTOR')\nG = os.getenv('MY_FACTOR')", "pass"),
    "by its other name": ("from os import getenv\nF = getenv('MY_FACTOR')", "pass"),
}


@pytest.mark.parametrize("case", READ_VARIABLE)
def test_an_environment_variable_that_is_read_by_name_counts_and_its_value_is_not_written_down(
    case: str, tiny: Tiny, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    imports, within = READ_VARIABLE[case]
    project.write(mine=METHOD.format(imports=imports, within=within, factor=1))
    found = []
    for value in ("12345", "12345", "67890"):
        monkeypatch.setenv("MY_FACTOR", value)
        project.forget()
        found.append(known(tiny(method="mine:Mine")))
    assert found[0].doubts == ()
    assert found[0].digests == found[1].digests != found[2].digests
    assert differences(found[0], found[1]) == []
    assert differences(found[0], found[2]) == ["the environment variable MY_FACTOR changed"]
    assert "12345" not in str(found[0])


def test_another_file_that_is_opened_instead_is_named(
    tiny: Tiny, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same code, started in another folder."""
    imports = "from pathlib import Path\nF = float(Path('factor.txt').read_text())"
    project.write(mine=METHOD.format(imports=imports, within="pass", factor="F"))
    found = {}
    for name, factor in (("a", "1"), ("b", "9"), ("c", "1")):
        (project.root / name).mkdir()
        (project.root / name / "factor.txt").write_text(factor)
        monkeypatch.chdir(project.root / name)
        project.forget()
        found[name] = known(tiny(method="mine:Mine"))
    (other,) = differences(found["a"], found["b"])
    assert other == f"{project.root / 'b' / 'factor.txt'} is opened now, and was not then"
    assert differences(found["a"], found["c"]) == [], "the same content elsewhere"


def test_a_model_whose_code_was_edited_is_used_with_a_warning(tiny: Tiny, project: Project) -> None:
    source = "from torch import nn\ndef net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.{}())\n"
    project.write(mynet=source.format("ReLU"))
    run_one(tiny("train.rounds=1", "model.name=mynet:net", method="fedavg"), project.root / "run")
    load_model(project.root / "run")  # without one: warnings are errors here
    project.write(mynet=source.format("Tanh"))
    with pytest.warns(UserWarning, match=r"its code has changed since: mynet\.py changed"):
        load_model(project.root / "run")
    Image.new("RGB", (8, 8)).save(project.root / "a.png")
    said = called("predict", "run", "a.png", cwd=project.root)
    assert (said.returncode, said.stderr.count("\n")) == (0, 1)
    assert said.stderr.startswith("warning: run/model.safetensors: its code has changed since: mynet.py changed")


def test_what_looks_similar_is_no_doubt(tiny: Tiny, project: Project) -> None:
    (project.root / "factor.txt").write_text("2")
    path = str(project.root / "factor.txt")
    imports = f"import re\nfrom pathlib import Path\nFACTOR = float(Path({path!r}).read_text())\nX = re.compile('x')"
    project.write(
        mine=METHOD.format(imports=imports, within="client.model.eval(), client.model.train()", factor="FACTOR")
    )
    code = known(tiny(method="mine:Mine"))
    assert code.doubts == ()
    assert [Path(path).name for path in code.opened] == ["factor.txt"]


def test_a_module_that_others_imported_before_may_have_read_anything(tiny: Tiny, project: Project) -> None:
    (project.root / "factor.txt").write_text("2")
    imports = f"from pathlib import Path\nFACTOR = float(Path({str(project.root / 'factor.txt')!r}).read_text())"
    project.write(mine=METHOD.format(imports=imports, within="pass", factor="FACTOR"))
    importlib.import_module("mine")
    doubts = known(tiny(method="mine:Mine")).doubts
    assert any("read_text may read files that cannot be traced" in doubt for doubt in doubts)


def test_code_edited_after_it_was_imported_is_not_what_runs(tiny: Tiny, project: Project) -> None:
    project.write(mine=METHOD.format(imports="import helper", within="pass", factor="helper.F"), helper="F = 1")
    before = known(tiny(method="mine:Mine"))
    (project.root / "helper.py").write_text("F = 200")  # and nobody imports it again
    after = known(tiny(method="mine:Mine"))
    assert before.doubts == ()
    assert after.doubts == ("helper.py was edited after it was imported; restart Python",)
    assert differences(before, after) == ["helper.py has no file to show whether it changed"]


def test_a_class_that_a_function_made_depends_on_more_than_its_module_says(tiny: Tiny, project: Project) -> None:
    body = METHOD.format(imports="", within="pass", factor="factor").replace("\n", "\n    ")
    project.write(maker=f"def make(factor):{body}\n    return Mine\n")
    with usercode.watching():
        made = importlib.import_module("maker").make(30)
    code = known(replace(tiny(), method_name="maker:Mine", method=made()))
    assert code.doubts == ("make.<locals>.Mine is not in its module under this name",)


TYPED = """
import sys
from dataclasses import dataclass
from fedclass.methods import FedAvg
from fedclass.errors import ConfigError
from fedclass.experiment.launch import run_one
from fedclass.experiment.recipe import load

root, *settings = sys.argv[1:]
for factor in (1.0, 30.0):
    @dataclass(frozen=True, kw_only=True)
    class Mine(FedAvg):
        def loss(self, client, batch):
            return factor * FedAvg.loss(self, client, batch)

    print(run_one(load(None, settings, method="__main__:Mine"), f"{root}/{factor}", reuse=True)["weights_sha256"])
assert "torch._dynamo" not in sys.modules, "a second of every process that trains"
"""


def test_a_class_typed_into_python_c_is_never_shared(tiny_settings: list[str], tmp_path: Path) -> None:
    words = [sys.executable, "-c", TYPED, str(tmp_path), *tiny_settings, "train.rounds=1"]
    first, second = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    assert first != second
    for factor in ("1.0", "30.0"):
        events = (tmp_path / factor / "events.jsonl").read_text()
        warnings = [line for line in events.splitlines() if '"Warned"' in line]
        (warning,) = [json.loads(line)["message"] for line in warnings]
        assert warning == (
            "no task is taken from the cache or added to it: __main__ is a script or notebook; put the class into a "
            "module of its own"
        )
    assert list(usual_store().entries()) == []


def test_a_run_is_not_served_what_an_imported_module_gave_before(tiny: Tiny, project: Project, tmp_path: Path) -> None:
    """The whole way, with real runs: equal code is taken over, changed code is not."""
    project.write(mine=METHOD.format(imports="import helper", within="pass", factor="helper.F"))

    def run(name: str, factor: str) -> tuple[str, list[Event]]:
        project.write(helper=f"F = {factor}")
        heard: list[Event] = []
        summary = run_one(tiny(method="mine:Mine"), tmp_path / name, heard.append, reuse=True)
        assert not [event for event in heard if isinstance(event, Warned)]
        return summary["weights_sha256"], [event for event in heard if isinstance(event, TaskReused)]

    first, _ = run("a", "1.0")
    same, reused = run("b", "1.0")
    assert (same, len(reused)) == (first, 2)
    other, reused = run("c", "30.0")
    assert other != first
    assert reused == []


# Files that are read in training, by functions whose names say nothing.

UNNAMED = {
    "a file": ("import numpy", "float(numpy.loadtxt({path!r}))", "{path} was read in training"),
    "another program": (
        "import subprocess",
        "float(subprocess.check_output(['cat', {path!r}]))",
        "mine.py uses another program, which may read anything",
    ),
}


@pytest.mark.parametrize("engine", ["inprocess", pytest.param("processes", marks=pytest.mark.slow)])
@pytest.mark.parametrize("who", UNNAMED)
def test_what_training_reads_keeps_its_tasks_from_others_and_belongs_to_the_run(
    who: str, engine: EngineName, tiny: Tiny, project: Project, tmp_path: Path
) -> None:
    imports, factor, reason = UNNAMED[who]
    path = project.root / "factor.txt"
    project.write(mine=METHOD.format(imports=imports, within="pass", factor=factor.format(path=str(path))))
    weights, experiment = [], tiny("train.rounds=1", method="mine:Mine")
    for value in ("1.0", "30.0"):
        path.write_text(value)
        heard: list[Event] = []
        with unnoticed():
            summary = run_one(experiment, tmp_path / value, heard.append, engine=engine, workers=2, reuse=True)
        weights.append(summary["weights_sha256"])
        (warning,) = [event.message for event in heard if isinstance(event, Warned)]
        assert warning == f"no further task is added to the cache: {reason.format(path=path)}"
    assert weights[0] != weights[1]
    assert list(usual_store().entries()) == []
    if who == "a file":
        with unnoticed(), pytest.raises(RunError, match=r"factor\.txt changed"):
            run_one(experiment, tmp_path / "1.0", go_on=True)


@contextlib.contextmanager
def unnoticed() -> Iterator[None]:
    """As in a new process, which knows nothing of what the code has read in others."""
    with (
        mock.patch.object(usercode, "_opened", defaultdict(set)),
        mock.patch.object(usercode, "_beyond", defaultdict(set)),
    ):
        yield


# Our own code.

PRINT_KEYS = """
import os, pathlib, sys
os.utime(pathlib.Path(os.environ["PYTHONPATH"], "fedclass", "rng.py"))  # installed just now, as by %pip in a notebook
import torch  # once for all processes


def print_key(settings):
    from fedclass.experiment.recipe import load
    from fedclass.experiment.reuse import key_after
    from fedclass.experiment.setup import prepare
    from fedclass.experiment.source_code import sources
    setup = prepare(load(None, settings))
    code = sources(setup)
    assert not code.doubts, code.doubts
    print(key_after(setup, 1, code), flush=True)


first, second, *settings = sys.argv[1:]
for edited in (None, first, second):
    if edited:
        with open(edited, "a") as file:
            file.write("# edited\\n")
    child = os.fork()
    if child == 0:
        print_key(settings)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


def test_editing_fedclass_itself_changes_the_key_and_editing_what_only_shows_results_does_not(
    tiny_settings: list[str], tmp_path: Path
) -> None:
    copy = tmp_path / "fedclass"
    shutil.copytree(Path(fedclass.__file__).parent, copy)  # compiled modules, too: they belong to their sources

    edited = [str(copy / name) for name in ("cli/run.py", "losses/augmented.py")]
    words = [sys.executable, "-c", PRINT_KEYS, *edited, *tiny_settings]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    keys = subprocess.run(words, capture_output=True, text=True, check=True, env=environment).stdout.split()
    assert len(keys) == 3
    assert keys[0] == keys[1] != keys[2]
