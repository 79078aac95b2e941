"""fedclass site show and forget, fedclass deploy split's function."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pytest
import tomli_w
import typer
from PIL import Image
from typer.testing import CliRunner

from deploy.sites import plan_of, write_folder
from fedclass.cli import app
from fedclass.cli.split import split
from fedclass.deploy.holdings import digest
from fedclass.deploy.keys import make_keys
from fedclass.deploy.ledger import today
from fedclass.deploy.site import Site, SiteSettings
from fedclass.deploy.site_store import FederationFolder
from fedclass.errors import ClientError, ConfigError, DataError
from fedclass.experiment.config import Experiment
from fedclass.experiment.setup import Setup, prepare
from fedclass.wire import Job, Phase, sha256

Tiny = Callable[..., Experiment]


def call(*arguments: object, typed: str = "") -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=typed)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return f"{result.exit_code} {result.output}"


@pytest.fixture(scope="module")
def setup(tiny: Tiny) -> Setup:
    return prepare(tiny(method="fedclass"))


def run(site: Site, setup: Setup, task: int, phase: Phase, federation: str = "trial") -> int:
    model = setup.build()
    teacher = None
    if task and phase == "train":
        model.grow_to(setup.stream.classes_until(task - 1), seed=0)
        teacher = model.weights()
    model.grow_to(setup.stream.classes_until(task), seed=0)
    plan = plan_of(setup, task, federation=federation, teacher=None if teacher is None else sha256(teacher))
    return site.run(plan, Job(0, task, 0, phase, model.weights(), teacher)).examples


@pytest.fixture
def site(setup: Setup, tmp_path: Path) -> Site:
    """After the first task of two federations, with six images of each of four classes."""
    stream = setup.stream
    index = np.concatenate([np.flatnonzero(stream.targets == label)[:6] for label in range(4)])
    data = write_folder(tmp_path / "photos", stream.data.train.images[index], [str(n) for n in stream.targets[index]])
    made = Site(SiteSettings(name="ward-7", data=data, store=tmp_path / "store", holdout=0.0, announce="exact"))
    for federation in ("trial", "other"):
        run(made, setup, 0, "train", federation)
        run(made, setup, 0, "end_task", federation)
    return made


def test_show_says_what_is_kept_since_when(site: Site) -> None:
    store = site.settings.store
    other, trial = json.loads(call("site", "show", "--store", store, "--json").removeprefix("0 "))
    assert (other["federation"], trial["federation"], trial["site"]) == ("other", "trial", "ward-7")
    assert trial["tasks"] == [{"task": 0, "images": 12}]
    assert trial["exemplars"] == [
        {"class": "0", "count": 4, "task": 0, "date": today()},
        {"class": "1", "count": 4, "task": 0, "date": today()},
    ]
    assert len(trial["teachers"]) == 1
    assert trial["forgotten"] == []
    shown = call("site", "show", "--store", store)
    assert "federation trial, site ward-7" in shown
    assert "images that came with each task: task 1: 12" in shown
    assert "2 federations in" in shown.replace("\n", " ")


def test_names_of_classes_are_shown_as_they_are(site: Site) -> None:
    folder = FederationFolder(site.settings.store / "trial")
    kept = folder.state(1)
    odd = "[red]mole [b] \\"
    ledger = tuple(replace(entry, label=odd) if entry.label == "0" else entry for entry in kept.ledger)
    folder.save_state(replace(kept, classes=(odd, "1"), ledger=ledger))
    assert f"  {odd}  " in call("site", "show", "--store", site.settings.store)


def test_what_is_forgotten_is_gone_and_stays_away(site: Site, setup: Setup) -> None:
    """From all states and lists; and images that are still in the folder are not taken again."""
    store = site.settings.store
    run(site, setup, 1, "end_task")
    folder = FederationFolder(store / "trial")
    gone = {entry.sha256 for entry in folder.state(1).ledger if entry.label == "0"}
    pixels = [
        image.tobytes()
        for image, e in zip(folder.state(1).images, folder.state(1).ledger, strict=True)
        if e.label == "0"
    ]
    left = folder.root / "state-0001.safetensors.part"
    left.write_bytes(b"what a crash has left")
    said = call("site", "forget", "0", "--store", store, "--federation", "trial", typed="y\n")
    assert "trial: deleted class '0', 4 exemplars" in said
    assert not left.exists()
    for path in folder.root.iterdir():
        content = path.read_bytes()
        assert not any(image in content for image in pixels)
        assert not any(name.encode() in content for name in gone)
    assert folder.states() == [1, 2]
    assert [folder.state(tasks).classes for tasks in (1, 2)] == [("1",), ("1", "2", "3")]
    assert site.announce("trial", 2).classes == {"1": 6, "2": 6, "3": 6}
    for path in folder.root.glob("state-*"):
        path.unlink()  # a site that must choose all of its exemplars anew
    assert run(site, setup, 1, "train") == 12
    run(site, setup, 1, "end_task")
    assert {entry.label for entry in folder.state(2).ledger} == {"1", "2", "3"}
    assert run(site, setup, 0, "train") == 6
    _, trial = json.loads(call("site", "show", "--store", store, "--json").removeprefix("0 "))
    assert trial["forgotten"] == [{"class": "0", "count": 4, "date": today()}]
    assert "0 (4 exemplars); it stays out" in call("site", "show", "--store", store)
    assert "0" in FederationFolder(store / "other").classes()


def test_one_image_is_forgotten_and_stays_away_although_its_file_is_there(site: Site, setup: Setup) -> None:
    """Also by a copy elsewhere; no state and no list names it any more."""
    store = site.settings.store
    folder = FederationFolder(store / "trial")
    gone = folder.state(1).ledger[0].sha256
    files = {digest(np.asarray(Image.open(path))): path for path in sorted(site.settings.data.rglob("*.png"))}
    copy = files[gone].rename(store.parent / "copy.png")
    files[gone].write_bytes(copy.read_bytes())
    assert "trial: deleted 1 image, 1 exemplar" in call("site", "forget", "--image", copy, "--store", store, "--yes")
    for path in folder.root.glob("*.*"):
        assert path.name == "forgotten.json" or gone.encode() not in path.read_bytes()
    assert site.announce("trial", 2).classes == {"0": 5, "1": 6, "2": 6, "3": 6}
    assert run(site, setup, 0, "train") == 11
    run(site, setup, 0, "end_task")
    assert gone not in {entry.sha256 for entry in folder.state(1).ledger}
    assert "forgotten images, no longer used: 1" in call("site", "show", "--store", store)
    with pytest.raises(DataError, match=r"nowhere.png: cannot be read as an image"):
        call("site", "forget", "--image", "nowhere.png", "--store", store, "--yes")


def test_old_exemplars_are_deleted(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    store = site.settings.store
    words = ("site", "forget", "--older-than", "30", "--store", store, "--yes")
    assert "trial: deleted exemplars older than 30 days, 0 exemplars" in call(*words)
    later = (date.fromisoformat(today()) + timedelta(days=31)).isoformat()
    monkeypatch.setattr("fedclass.deploy.ledger.today", lambda: later)
    assert "trial: deleted exemplars older than 30 days, 8 exemplars" in call(*words)
    assert FederationFolder(store / "trial").state(1).ledger == ()


def test_check_tries_everything_before_a_site_goes_online(site: Site, tmp_path: Path) -> None:
    """One line for each thing; what is wrong has a line that says what to do, and the exit code is 2."""
    pytest.importorskip("flwr", reason="needs the extra [flower]")
    keys = make_keys(tmp_path / "keys", hosts=["fl.example.org"], sites=["ward-7"])
    file, table = tmp_path / "ward-7.toml", {"name": "ward-7", "data": "photos", "store": "store"}
    given = {"superlink": "127.0.0.1:1", "ca": "keys/ca.crt", "key": "keys/sites/ward-7", "site": table}
    file.write_text(tomli_w.dumps(given))
    (site.settings.data / "notes.txt").write_bytes(b"?")
    site.settings.store.chmod(0o755)
    said = call("site", "check", file)
    assert said.startswith("0 ")
    for line in (
        "ok       images: 8x8 pixels, colour",
        "warning  1 files in",
        f"warning  {site.settings.data / 'notes.txt'}: lies beside the class folders",
        "others have access, which `site run` takes from them",
        "store: 2 federations, not encrypted",
        "ward-7: can be used, and is private",
    ):
        assert line in said.replace("\n         ", " "), said
    keys.private("ward-7").chmod(0o644)
    (site.settings.store / "trial" / "site.json").write_text("{")
    said = call("site", "check", file, "--online")
    assert said.startswith("2 ")
    assert said.count("FAULT") == 3
    for line in ("chmod 600", "site.json: damaged", "127.0.0.1:1: cannot be reached"):
        assert line in said
    file.write_text(tomli_w.dumps(given | {"ca": "keys/sites/ward-7.pub"}))
    assert "is not a PEM certificate" in call("site", "check", file, "--online")


def test_check_lists_all_faults_at_once(tmp_path: Path) -> None:
    """In the order of the file's keys and then of [site]'s; what does not depend on a faulty setting is tried, too."""
    pytest.importorskip("flwr", reason="needs the extra [flower]")
    table = {"name": "a b", "data": "nowhere", "store": "store", "holdout": 2.0, "max-exemplars": -1, "anounce": "all"}
    file = tmp_path / "north.toml"
    file.write_text(tomli_w.dumps({"superlnk": "127.0.0.1:1", "ca": "ca.crt", "site": table}))
    said = call("site", "check", file)
    assert said.startswith("2 ")
    faults = [
        "unknown key 'superlnk'; did you mean 'superlink'?",
        "superlink is missing; docs/deploy.md shows such a file",
        "ca.crt: there is no such file",
        "[site]: unknown key 'anounce'; did you mean 'announce'?",
        "[site]: holdout = 2.0: must be below 1",
        "[site]: max_exemplars = -1: must be at least 0",
        "[site]: name = 'a b': use 1 to 64 letters",
        f"[site]: data = {tmp_path / 'nowhere'}: does not exist; name the folder",
        "key is missing; `fedclass deploy keys` makes it on the server",
    ]
    assert said.count("FAULT") == len(faults), said
    for fault in faults:
        assert fault in said, said
    assert f"store = {tmp_path / 'store'}: can be written, and is private" in said


def test_all_is_forgotten_everywhere(site: Site, setup: Setup) -> None:
    store = site.settings.store
    said = call("site", "forget", "--all", "--store", store, "--yes")
    assert "trial: deleted everything, 8 exemplars" in said
    for name in ("trial", "other"):
        assert sorted(path.name for path in (store / name).iterdir()) == [".lock", "forgotten.json", "site.json"]
    assert run(site, setup, 0, "train") == 0
    assert run(site, setup, 1, "train") == 12  # classes that it had not had before


def test_everything_is_deleted_also_what_is_damaged(site: Site) -> None:
    store = site.settings.store
    (store / "trial" / "state-0000.safetensors").write_bytes(b"half of it")
    (store / "other" / "task-0000.json").write_bytes(b"{")
    (store / "other" / "state-0001.safetensors.part").write_bytes(b"what a crash has left")
    call("site", "forget", "--all", "--store", store, "--yes")
    for name in ("trial", "other"):
        assert sorted(path.name for path in (store / name).iterdir()) == [".lock", "forgotten.json", "site.json"]


def test_nothing_is_deleted_without_a_yes_or_on_a_wrong_name(site: Site) -> None:
    store = site.settings.store
    before = {path: path.read_bytes() for path in store.rglob("*.*")}
    assert call("site", "forget", "0", "--store", store, typed="n\n").startswith("1 ")
    for arguments, reason in (
        (("forget", "9", "--store", store), "nothing is kept of class '9'; classes are 0, 1"),
        (("forget", "--store", store), "give the name of a class, --image, --older-than, or --all"),
        (("forget", "0", "--all", "--store", store), "give the name of a class, --image, --older-than, or --all"),
        (("forget", "0", "--federation", "x", "--store", store), "--federation x: not in"),
        (("show", "--store", store / "x"), "no such folder"),
    ):
        with pytest.raises(ConfigError, match=reason):
            call("site", *arguments)
    assert {path: path.read_bytes() for path in store.rglob("*.*")} == before


def test_a_damaged_list_of_what_was_forgotten_lets_nothing_through(site: Site, setup: Setup) -> None:
    call("site", "forget", "0", "--store", site.settings.store, "--yes")
    path = site.settings.store / "trial" / "forgotten.json"
    path.write_text(path.read_text().replace('"0"', '"1"'))
    for ask in (lambda: site.announce("trial", 1), lambda: run(site, setup, 0, "evaluate")):
        with pytest.raises(ClientError, match=r"forgotten.json: damaged .*the classes it names may then come back"):
            ask()


def test_split_is_a_command(tiny_settings: list[str], tmp_path: Path) -> None:
    command = typer.Typer()
    command.command()(split)
    sets = [part for setting in tiny_settings for part in ("--set", setting)]
    result = CliRunner().invoke(command, ["--out", str(tmp_path / "out"), *sets])
    assert result.exit_code == 0, result.output
    assert "3 sites" in result.output
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "site-000.npz",
        "site-001.npz",
        "site-002.npz",
    ]
