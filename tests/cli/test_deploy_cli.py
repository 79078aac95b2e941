"""fedclass deploy and fedclass site run: what they write, and what they say to mistakes, before anything starts."""

import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="needs the extra [flower]")

from fedclass.cli import app
from fedclass.deploy.server import ServerSettings
from fedclass.errors import FedclassError

INIT = ("deploy", "init", "app", "--out", "run")


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def said(*words: str) -> str:
    """What a command that succeeds prints."""
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def refused(*words: str) -> str:
    """The one line of a command that fails."""
    with pytest.raises(FedclassError) as error:
        CliRunner().invoke(app, words, catch_exceptions=False)
    message = str(error.value)
    assert "\n" not in message
    return message


def test_an_app_folder_holds_only_a_configuration_that_flower_takes() -> None:
    assert "flwr run app fedclass" in said(
        *INIT, "--set", "train.rounds=3", "--config", "next-task=manual", "--insecure"
    )
    assert [path.name for path in Path("app").iterdir()] == ["pyproject.toml"]
    content = tomllib.loads(Path("app/pyproject.toml").read_text())
    assert content["project"]["dependencies"] == []  # Flower would install them on the server
    flwr = content["tool"]["flwr"]["app"]
    assert flwr["components"] == {
        "serverapp": "fedclass.deploy.server_app:app",
        "clientapp": "fedclass.deploy.client_app:app",
    }
    assert all("_" not in key for key in flwr["config"])
    settings = ServerSettings.read(flwr["config"])
    assert (settings.set, settings.next_task, settings.pin_nodes) == ("train.rounds=3", "manual", False)
    assert settings.out == str(Path("run").absolute())
    assert (settings.recipe, settings.classes_admit) == ("federation", "approve")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*INIT, "--config", "nextask=manual"), "unknown key 'nextask'; did you mean 'next-task'?"),
        ((*INIT, "--config", "next-task=never"), "next-task = 'never'"),
        ((*INIT, "--config", "min-sites=0"), "min-sites = 0: must be at least 1"),
        ((*INIT, "--config", "tasks"), "write it as key=value"),
        ((*INIT, "--config", "test-at=server"), "needs test-data"),
        ((*INIT, "--config", "vocabulary=nowhere"), "vocabulary = nowhere: cannot be read"),
        ((*INIT, "--config", "image-size=64x64"), "write HEIGHTxWIDTHxCHANNELS, such as 64x64x3"),
        ((*INIT, "--config", "test-at=both", "--config", "test-data=nowhere"), "nowhere/train: no such folder"),
        ((*INIT, "--set", "model.name=nowhere:build"), "nowhere"),
        ((*INIT, "--set", "train.ronds=3"), "did you mean 'rounds'?"),
        ((*INIT, "--set", "data.validation=0.1"), "sites hold out images of their own"),
        ((*INIT, "--set", "data.mean=measured", "--set", "data.std=measured"), "nobody sees the images of all sites"),
        ((*INIT, "--set", "faults.dropout=0.1"), "is for simulations; sites have faults of their own"),
        ((*INIT, "--recipe", "default"), "the demonstration's recipe is now called demo"),
        ((*INIT, "--recipe", "nowhere.toml"), "cannot read the recipe"),
        (("deploy", "next", "nowhere"), "is not the run directory of a federation"),
        (("deploy", "finish", "."), "is not the run directory of a federation"),
    ],
)
def test_mistakes_end_in_one_line(words: tuple[str, ...], message: str) -> None:
    assert message in refused(*words)
    assert not Path("app").exists()


def test_an_app_folder_is_not_overwritten() -> None:
    said(*INIT)
    before = Path("app/pyproject.toml").read_bytes()
    assert "exists already" in refused(*INIT, "--set", "train.rounds=9")
    assert Path("app/pyproject.toml").read_bytes() == before


def test_the_operators_words_are_files_of_the_run() -> None:
    Path("run").mkdir()
    Path("run/lease.json").write_text("{}")
    said("deploy", "next", "run")
    assert Path("run/next-task").exists()
    said("deploy", "finish", "run")
    assert Path("run/finish").exists()
    Path("run/summary.json").write_text("{}")
    assert "this run is finished" in refused("deploy", "finish", "run")
    assert "start it again" in said("deploy", "next", "run")
    assert not Path("run/summary.json").exists()
    assert not Path("run/finish").exists()


SITE = """
superlink = "127.0.0.1:1"
{more}
[site]
name = "north"
data = "images"
store = "store"
{site}
"""


@pytest.mark.parametrize(
    ("more", "site", "message"),
    [
        ("", "", "needs ca and key in its file"),
        ('ca = "ca.crt"\nkey = "north"', "", "ca.crt: there is no such file"),
        ('port = "x"', "", "unknown key 'port'"),
        ("superlnk = 1", "", "did you mean 'superlink'?"),
        ('ca = "images/ok"\nkey = "images/ok"', 'annonce = "names"', "did you mean 'announce'?"),
        ('ca = "images/ok"\nkey = "images/ok"', "holdout = 2.0", "holdout = 2.0: must be below 1"),
    ],
)
def test_a_site_with_a_wrong_file_does_not_start(more: str, site: str, message: str) -> None:
    Path("images").mkdir()
    Path("images/ok").touch()
    Path("north.toml").write_text(SITE.format(more=more, site=site))
    assert message in refused("site", "run", "north.toml")
    assert not Path("store").exists()


def test_a_site_without_a_file_does_not_start() -> None:
    assert "cannot be read" in refused("site", "run", "nowhere.toml")
    Path("bad.toml").write_text("superlink =")
    assert "not a TOML file" in refused("site", "run", "bad.toml")
    Path("empty.toml").write_text("")
    assert "superlink is missing" in refused("site", "run", "empty.toml")
