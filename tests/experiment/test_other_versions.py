"""What another version of fedclass has written is gone on with, or refused by the name of that version."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import fedclass
from fedclass.deploy import site_store
from fedclass.deploy.ledger import KeptState
from fedclass.deploy.site_store import FederationFolder
from fedclass.errors import ClientError, RunError
from fedclass.experiment.config import Experiment
from fedclass.experiment.launch import run_one
from fedclass.experiment.resume import check_config
from fedclass.runs.events import Warned
from fedclass.runs.layout import RunDirectory
from fedclass.schema import json_sha256
from stopping import Stop, stop_after

Tiny = Callable[..., Experiment]


def of_another_version(path: Path, change: Callable[[dict[str, object]], None]) -> None:
    """A checkpoint that is whole, with its hash, as another version would have written it."""
    content = json.loads(path.read_bytes())
    del content["sha256"]
    content["made_with"]["version"] = "0.9.0"
    change(content)
    path.write_text(json.dumps({"sha256": json_sha256(content), **content}))


def test_a_run_is_gone_on_with_or_refused_by_version(tiny: Tiny, tmp_path: Path) -> None:
    """What can be read is gone on with, and a warning says so; what cannot names the version; nothing is changed."""
    experiment, root = tiny(method="fedavg"), tmp_path / "run"
    with pytest.raises(Stop):
        run_one(experiment, root, stop_after(3))
    newest = max((root / "checkpoints").glob("*.json"))

    source = (root / "source.json").read_text()
    made_by = json.loads(source)
    made_by["parts"][0]["version"] = "0.9.0"
    made_by["parts"][0]["files"]["fedclass/federation/server.py"] = "0" * 64
    (root / "source.json").write_text(json.dumps(made_by))
    with pytest.raises(
        RunError, match=r"its code has changed: fedclass was 0\.9\.0 and is .*\. Use fedclass 0\.9\.0, or"
    ):
        run_one(experiment, root, go_on=True)
    (root / "source.json").write_text(source)

    begun = (root / "events.jsonl").read_text()
    assert f'"version": "{fedclass.__version__}"' in begun
    config = (root / "config.toml").read_text()
    (root / "config.toml").write_text(config + "[quantum]\nbits = 3\n")
    (root / "events.jsonl").write_text(begun.replace(f'"version": "{fedclass.__version__}"', '"version": "0.9.0"', 1))
    with pytest.raises(
        RunError, match=r"can be resumed with fedclass .*, because fedclass 0\.9\.0 began it: .*'quantum'"
    ):
        run_one(experiment, root, go_on=True)
    (root / "config.toml").write_text(config)
    other = {**experiment.to_tables(), "seed": 99}
    with pytest.raises(RunError, match=r"another configuration and fedclass 0\.9\.0; it differs in seed \("):
        check_config(RunDirectory(root), other)

    whole = newest.read_bytes()
    of_another_version(newest, lambda content: content.update(met=content.pop("reached")))
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file() and path.name != ".lock"}
    with pytest.raises(RunError, match=r"was written by fedclass 0\.9\.0, and fedclass .* cannot read it \(reached: "):
        run_one(experiment, root, go_on=True)
    assert {path: path.read_bytes() for path in before} == before

    newest.write_bytes(whole)
    of_another_version(newest, lambda content: content.update(novelty=1))
    heard: list[object] = []
    run_one(experiment, root, heard.append, go_on=True)
    assert any(isinstance(event, Warned) and "fedclass was 0.9.0 and is" in event.message for event in heard)


@dataclass(frozen=True)
class Earlier:
    """A state that lacks what this version needs."""

    tasks: int
    classes: tuple[str, ...]
    version: str


def test_a_sites_store_is_read_or_refused_by_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = FederationFolder(tmp_path / "store")
    state = KeptState(1, ("ant",), (), np.zeros((0, 4, 4, 3), np.uint8), "request")
    with folder.locked():
        folder.save_state(state)
        assert folder.state(1).classes == ("ant",)
        closed = site_store.closed
        with monkeypatch.context() as other:
            other.setattr(fedclass, "__version__", "0.9.0")
            other.setattr(
                site_store,
                "closed",
                lambda about, tensors: closed(Earlier(about.tasks, about.classes, about.version), tensors),
            )
            folder.save_state(state)
        with pytest.raises(ClientError, match=r"was written by fedclass 0\.9\.0, and fedclass .* or remove it"):
            folder.state(1)
