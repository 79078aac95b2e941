"""What `import fedclass` promises, and what the documentation shows."""

import re
from collections.abc import Callable
from pathlib import Path

import fedclass
from fedclass.experiment.config import Experiment

ROOT = Path(__file__).parents[1]


def test_every_public_name_is_there_and_no_other_is_promised() -> None:
    assert sorted(fedclass.__all__) == sorted(fedclass._HOMES)
    for name in fedclass.__all__:
        assert getattr(fedclass, name) is not None
    assert set(fedclass.__all__) <= set(dir(fedclass))


def test_the_python_api_runs_an_experiment(tiny_settings: list[str], tmp_path: Path) -> None:
    experiment = fedclass.load(None, tiny_settings, method="fedavg", seed=1)
    summary = fedclass.run(experiment, tmp_path / "mine")
    assert (summary["method"], summary["seed"]) == ("fedavg", 1)
    assert (tmp_path / "mine" / "model.safetensors").exists()


def test_the_methods_of_the_documentation_work(
    tiny: Callable[..., Experiment], user_module: Callable[[str, str], str], tmp_path: Path
) -> None:
    """FedProx and Mixup from docs/add-a-method.md: with 0 they are FedAvg, to the bit; otherwise not, and repeat. A
    method that only watches is FedAvg too."""
    page = (ROOT / "docs" / "add-a-method.md").read_text()
    sources = re.findall(r"```python\n# (\w+)\.py\n(.*?)```", page, re.DOTALL)
    assert [user_module(name, source) for name, source in sources] == ["my_methods", "my_drift", "my_mixup"]

    def bits(name: str, method: str, *settings: str) -> str:
        return str(fedclass.run(tiny("train.rounds=1", *settings, method=method), tmp_path / name)["weights_sha256"])

    plain = bits("fedavg", "fedavg")
    assert bits("no prox", "my_methods:FedProx", "method.mu=0.0") == plain
    assert bits("prox", "my_methods:FedProx", "method.mu=0.1") != plain
    assert bits("drift", "my_drift:Drift") == plain
    assert bits("no mixup", "my_mixup:Mixup", "method.width=0.0") == plain
    assert bits("mixup", "my_mixup:Mixup") == bits("mixup again", "my_mixup:Mixup") != plain


def test_links_and_files_named_in_the_pages_exist() -> None:
    generated = set(re.findall(r'^        "([\w/]+\.md)": ', (ROOT / "docs" / "generate.py").read_text(), re.MULTILINE))
    assert "reference/commands.md" in generated
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#]+?)\)", page.read_text()):
            if "://" not in target and target not in generated:
                assert (page.parent / target).exists(), f"{page.name} names {target}"


def test_every_module_named_in_math_md_exists() -> None:
    page = (ROOT / "docs" / "math.md").read_text()
    named = set(re.findall(r"`((?:losses|methods|data|models|federation|experiment)\.[\w.]+)`", page))
    assert len(named) >= 9
    for name in named:
        parts = name.split(".")
        for cut in range(len(parts), 0, -1):
            try:
                found: object = __import__("fedclass." + ".".join(parts[:cut]), fromlist=["_"])
            except ImportError:
                continue
            for attribute in parts[cut:]:
                found = getattr(found, attribute)
            break
        else:
            raise AssertionError(name)
