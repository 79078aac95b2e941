"""A federation over Flower's real ServerApp and ClientApp, on a Grid in memory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra [flower]")

from flwr.app import Context, Message, RecordDict

from deploy.memory_grid import MemoryGrid
from deploy.test_sites import Federation
from fedclass.deploy.client_app import app as client_app
from fedclass.deploy.server_app import app as server_app
from fedclass.deploy.split import split
from fedclass.engines.flower.exchange import Connection
from fedclass.engines.flower.roster import Roster
from fedclass.experiment.config import Experiment
from fedclass.experiment.launch import run_one
from fedclass.runs.summary import Result

Tiny = Callable[..., Experiment]

UNEVEN = ("partition.kind=dirichlet", "partition.clients=4", "partition.alpha=0.5", "partition.min_size=5")


def sites_of(experiment: Experiment, folder: Path) -> dict[int, dict[str, Any]]:
    """Nodes with numbers as Flower gives them: large, and in no order."""
    return {
        10**12 - 7919 * i: {
            "name": f"site-{i:03d}",
            "data": str(path),
            "store": str(folder / "stores" / str(i)),
            "holdout": 0.0,
        }
        for i, path in enumerate(split(experiment, folder / "data"))
    }


def serve(grid: MemoryGrid, **config: Any) -> None:
    given = {key.replace("_", "-"): value for key, value in config.items()}
    server_app(grid, Context(1, 1, {}, RecordDict(), {"poll-seconds": 0.01, **given}))


LATE = ("stream.arrival=own-order", "stream.arrival_delay=1", "server.weighting=with-exemplars")


@pytest.mark.parametrize(
    ("method", "settings"),
    [("fedavg", ()), ("fedclass", ()), ("fedicarl", ()), ("fedwa", ()), ("fedclass", LATE)],
)
def test_a_recipe_gives_the_bits_of_a_simulation(
    method: str, settings: tuple[str, ...], tiny: Tiny, tmp_path: Path
) -> None:
    experiment = tiny(*UNEVEN, "server.participation=0.5", *settings, method=method)
    alone = run_one(experiment, tmp_path / "alone", engine="inprocess", reuse=False)
    grid = MemoryGrid(client_app, sites_of(experiment, tmp_path))
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(experiment.to_toml())
    serve(grid, recipe=str(recipe), out=str(tmp_path / "there"), classes_from="recipe", min_sites=4)
    there = Result.read(tmp_path / "there").summary
    assert there["weights_sha256"] == alone["weights_sha256"]
    assert there["accuracy_matrix"] == alone["accuracy_matrix"]
    assert there["engine"] == "flower"


def test_sites_that_are_asked_again_are_not_away_meanwhile(tmp_path: Path) -> None:
    """`deploy status`, its page and its metrics look at any moment."""
    federation, seen = Federation(tmp_path), list[list[str]]()
    for name in ("north", "south"):
        federation.site(name, {"ant": 1})
    roster = Roster(Connection(federation.grid, poll=0.01), "trial", seconds=60.0, pin=False)

    def tamper(_: Message, reply: Message) -> Message:
        seen.append(roster.connected())
        return reply

    federation.grid.tamper = tamper
    for _ in range(2):
        assert sorted(roster.announcements(0)) == ["north", "south"]
    assert seen == [[], [], ["north", "south"], ["north", "south"]]
