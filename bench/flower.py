"""What a deployment costs beyond training, on this machine. `make bench-flower`; nothing else should run meanwhile.

Each figure is measured in this run: rounds of a federation of 1, 2 and 4 sites over Flower with TLS, and, if Ray is
there, Flower's own simulation beside fedclass's process engine.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fedclass.deploy.app import write_app
from fedclass.deploy.commands import QUIET
from fedclass.deploy.loopback import Loopback
from fedclass.deploy.split import split
from fedclass.deploy.wiretap import Wiretap
from fedclass.experiment.config import Experiment
from fedclass.experiment.launch import run_one
from fedclass.experiment.recipe import load
from fedclass.experiment.setup import prepare
from fedclass.runs.events import Event, RoundFinished
from fedclass.runs.layout import RunDirectory
from fedclass.runs.summary import Result
from fedclass.wire import Weights, nbytes

ROUNDS = 5  # of which the first is left out: caches fill
IMAGES = 60  # per site: little to train, so that the rest shows
NODES = (1, 2, 4)
SIMULATED = 20
ASKED = re.compile(r"^(\S+) .*: training, task \d+, round (\d+); .* ([\d.]+) s$", re.MULTILINE)  # of a site's log


@dataclass(frozen=True)
class Deployed:
    """Medians over rounds, in seconds.

    before: from the server's question until the last site begins to work.  work: until the last one has done so.
    after: until the server has the next model.  up, down: bytes per round and site, as multiples of the weights.
    """

    nodes: int
    round: float
    before: float
    work: float
    after: float
    up: float
    down: float


def recipe(clients: int, *, rounds: int) -> Experiment:
    return load(
        None,
        [
            f"data.fraction={clients * IMAGES / 60_000}",
            "data.test_fraction=0.02",
            "stream.tasks=10",
            "partition.kind=iid",
            f"partition.clients={clients}",
            "memory.per_client=0",
            f"train.rounds={rounds}",
            "train.local_epochs=1",
            "train.batch_size=8",
            "optimizer.learning_rate=0.03",
            "evaluation.every=0",
        ],
    )


def rounds_of(out: Path) -> list[dict[str, Any]]:
    lines = RunDirectory(out).events.read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == "RoundFinished"]


def federation_of(root: Path, nodes: int, tap: Wiretap) -> tuple[Loopback, Path]:
    """Sites with shares of a recipe, and an app that learns it."""
    experiment = recipe(nodes, rounds=ROUNDS)
    sites = {
        path.stem: {"data": str(path), "store": str(root / "stores" / path.stem), "holdout": 0.0}
        for path in split(experiment, root / "data")
    }
    (root / "recipe.toml").write_text(experiment.to_toml())
    config = {"recipe": str(root / "recipe.toml"), "out": str(root / "run"), "classes-from": "recipe"}
    write_app(root / "app", {**config, "min-sites": nodes})
    federation = Loopback(root / "flower", sites, door=tap.port)
    tap.target = federation.port
    return federation, root / "app"


def deployed(root: Path, nodes: int) -> Deployed:
    """A federation of sites whose logs say when they worked."""
    root.mkdir()
    marks = list[tuple[int, int]]()  # bytes up and down at each event

    def mark(event: Event) -> None:
        if isinstance(event, RoundFinished):
            marks.append((tap.up, tap.down))

    with Wiretap() as tap:
        federation, app = federation_of(root, nodes, tap)
        with federation:
            federation.follow(federation.submit(app), root / "run", mark)
    work: dict[int, list[tuple[float, float]]] = {}
    for site in federation.sites:
        for began, number, seconds in ASKED.findall(federation.log(site).read_text()):
            start = datetime.fromisoformat(began).timestamp()
            work.setdefault(int(number) - 1, []).append((start, start + float(seconds)))
    parts = []
    for event in rounds_of(root / "run")[1:]:
        begin, end, jobs = event["time"] - event["seconds"], event["time"], work[event["round"]]
        started, ended = max(start for start, _ in jobs), max(stop for _, stop in jobs)
        parts.append((end - begin, started - begin, ended - started, end - ended))
    size = nodes * nbytes(weights_of(recipe(nodes, rounds=1)))
    up, down = (statistics.median(b[i] - a[i] for a, b in pairwise(marks)) / size for i in (0, 1))
    whole, before, working, after = (statistics.median(column) for column in zip(*parts, strict=True))
    return Deployed(nodes, whole, before, working, after, up, down)


def weights_of(experiment: Experiment) -> Weights:
    model = prepare(experiment).build()
    model.grow_to(10, seed=0)
    return model.weights()


def simulated(root: Path) -> dict[str, float]:
    """The same clients in Flower's simulation (Ray) and in fedclass's process engine: seconds per round, and in all."""
    root.mkdir()
    experiment = recipe(SIMULATED, rounds=ROUNDS)
    split(experiment, root / "data")
    (root / "recipe.toml").write_text(experiment.to_toml())
    config = {"recipe": str(root / "recipe.toml"), "out": str(root / "ray"), "classes-from": "recipe"}
    write_app(root / "app", {**config, "min-sites": SIMULATED, "wait-seconds": 300.0, "pin-nodes": False})
    environment = {
        **os.environ,
        **QUIET,
        "FLWR_HOME": str(root / "flwr"),
        "FEDCLASS_SITES": str(root / "data"),
        "RAY_USAGE_STATS_ENABLED": "0",
        "UV_OFFLINE": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    nodes = f"num-supernodes={SIMULATED} client-resources-num-cpus=1"
    began = time.perf_counter()
    words = ["flwr", "run", str(root / "app"), "local", "--federation-config", nodes, "--stream"]
    try:
        subprocess.run(words, env=environment, check=True, cwd=root, timeout=1200)
    finally:  # the SuperLink of a simulation stays; it is the only one with this folder
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if str(root / "flwr").encode() in (process / "environ").read_bytes():
                    os.kill(int(process.name), signal.SIGKILL)
    ray_total = time.perf_counter() - began
    began = time.perf_counter()
    run_one(experiment, root / "processes", engine="processes", reuse=False)
    ours_total = time.perf_counter() - began
    ray, ours = (statistics.median(e["seconds"] for e in rounds_of(root / name)[1:]) for name in ("ray", "processes"))
    shas = [Result.read(root / name).summary["weights_sha256"] for name in ("ray", "processes")]
    assert shas[0] == shas[1], shas
    return {"ray_round": ray, "processes_round": ours, "ray_total": ray_total, "processes_total": ours_total}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    chosen = parser.parse_args()
    console = Console(width=150)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        rounds = [deployed(root / f"nodes-{nodes}", nodes) for nodes in NODES]
        ray = simulated(root / "simulated") if find_spec("ray") else None
    table = Table("sites", "round", "until all work", "work", "after", "overhead", "bytes up", "bytes down")
    for r in rounds:
        seconds = [f"{value:.1f} s" for value in (r.round, r.before, r.work, r.after, r.round - r.work)]
        table.add_row(str(r.nodes), *seconds, f"{r.up:.3f}", f"{r.down:.3f}")
    console.print(table)
    console.print("Medians of rounds. Bytes per round and site, as multiples of the weights (TLS and HTTP included).")
    if ray is None:
        console.print("Flower's simulation was left out: Ray is not installed")
    else:
        console.print(
            f"{SIMULATED} clients, the same weights: a round takes {ray['ray_round']:.2f} s in Flower's simulation, "
            f"{ray['processes_round']:.2f} s with --engine processes: "
            f"{ray['ray_round'] / ray['processes_round']:.1f} to 1; "
            f"{ROUNDS} rounds with start-up {ray['ray_total']:.0f} s and {ray['processes_total']:.0f} s"
        )
    figures = {"rounds": [asdict(r) for r in rounds], "simulation": ray}
    chosen.out.mkdir(parents=True, exist_ok=True)
    (chosen.out / "flower.json").write_text(json.dumps(figures, indent=1) + "\n")
    console.print(f"{chosen.out / 'flower.json'}")


if __name__ == "__main__":
    main()
