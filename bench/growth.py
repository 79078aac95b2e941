"""How time and memory grow with clients, classes and tasks. Each point has its own process, to measure its memory."""

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from measure import Row, at_most, noise

from fedclass.engines.processes import Processes
from fedclass.engines.shared import Shared
from fedclass.experiment.runner import run
from fedclass.federation.store import MemoryStore
from fedclass.runs.events import Event, RoundFinished, TaskFinished
from fedclass.runs.layout import create


def memory(pids: Sequence[int | str]) -> dict[str, float]:
    """MB: what these processes hold together (shared pages once), and the most that one of them ever held."""
    held, most = 0.0, 0.0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                held += int(line.split()[1]) / 1e3
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                most = max(most, int(line.split()[1]) / 1e3)
    return {"together": held, "peak": most}


def point(keys: dict[str, Any]) -> dict[str, Any]:
    """A whole run with two workers; the median round, the end of a task, and memory."""
    setup = noise(**keys)
    store, events, held = MemoryStore(), list[Event](), dict[str, float]()
    size = setup.stream.data.train.images.nbytes + setup.stream.data.test.images.nbytes
    shared = Shared(setup)
    setup = shared.open()
    with tempfile.TemporaryDirectory() as folder, Processes(shared, store, workers=2) as engine:

        def listen(event: Event) -> None:
            events.append(event)
            if isinstance(event, TaskFinished):
                pids = ["self", *(worker.process.pid for worker in engine._workers)]
                held.update(memory([pid for pid in pids if pid is not None]))

        run(setup, engine, create(Path(folder) / "run"), listen, store=store)
    rounds = [event for event in events if isinstance(event, RoundFinished)][1:]  # workers start in the first
    ends = [event for event in events if isinstance(event, TaskFinished)]
    return {
        "round": statistics.median(event.seconds for event in rounds),
        "phases": {
            name: statistics.median(event.phases.get(name, 0.0) for event in rounds)
            for name in ("clients", "aggregate", "evaluate", "checkpoint")
        },
        "end of task": statistics.median(sum(event.phases.values()) for event in ends),
        "memory": held,
        "data": size / 1e6,
    }


GROWTH: dict[str, dict[int, dict[str, Any]]] = {
    "clients": {
        n: {"clients": n, "images": 60_000, "tasks": [10], "server__participation": 0.1, "train__rounds": 3}
        for n in (20, 200, 2_000, 10_000)
    },
    "classes": {
        n: {
            "clients": 20,
            "images": 4_000,
            "classes": n,
            "train__rounds": 3,
            "method": "fedclass",
            "memory__per_client": 20,
        }
        for n in (10, 100, 1_000)
    },
    "tasks": {
        n: {
            "clients": 20,
            "images": 200 * n,
            "classes": 2 * n,
            "tasks": [2] * n,
            "train__rounds": 2,
            "method": "fedclass",
            "memory__per_client": 20,
        }
        for n in (2, 10, 50)
    },
}


def in_own_process(keys: dict[str, Any]) -> dict[str, Any]:
    words = [sys.executable, __file__, json.dumps(keys)]
    found: dict[str, Any] = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    return found


def growth(kind: str) -> dict[int, dict[str, Any]]:
    found = {}
    for n, keys in GROWTH[kind].items():
        print(f"  {n} {kind} ...", file=sys.stderr, flush=True)
        found[n] = in_own_process(keys)
    return found


def growth_rows(found: dict[str, dict[int, dict[str, Any]]]) -> Iterator[Row]:
    clients = found["clients"]
    few, many = clients[20], clients[10_000]
    yield at_most(
        "time per round with 10,000 clients against 20, the same data",
        many["round"] / few["round"],
        2.0,
        f"{many['round']:.1f} s against {few['round']:.1f} s; a tenth of the clients takes part",
    )
    extra = many["memory"]["together"] - few["memory"]["together"]
    yield Row(
        "memory with 10,000 clients against 20, all processes together",
        many["memory"]["together"] / few["memory"]["together"],
        "flat",
        None,
        f"{extra:+.0f} MB, {1000 * extra / 9_980:+.1f} kB for each client more",
    )
    for kind, text in (("classes", "1,000 classes against 10"), ("tasks", "50 tasks against 2")):
        points = found[kind]
        first, last = points[min(points)], points[max(points)]
        yield Row(
            f"time per round with {text}",
            last["round"] / first["round"],
            "",
            None,
            f"end of a task: {last['end of task'] / first['end of task']:.1f} times as long",
        )
    yield Row(
        "peak resident set of the largest process against the data set",
        few["memory"]["peak"] / few["data"],
        "",
        None,
        f"{few['memory']['peak']:.0f} MB against {few['data']:.0f} MB; all three processes together hold "
        f"{few['memory']['together']:.0f} MB, Python and PyTorch included",
    )


def shares_of_a_round() -> Iterator[Row]:
    """Checkpoint and evaluation, in the proportions of CIFAR-10: 25,000 training images a task, 5,000 test images."""
    keys = {"clients": 20, "images": 5_000, "tasks": [10], "test": 1_000, "train__rounds": 4}
    keys |= {"evaluation__every": 1, "train__local_epochs": 2, "memory__per_client": 50}
    print("  checkpoint and evaluation ...", file=sys.stderr, flush=True)
    found = in_own_process(keys)
    phases, whole = found["phases"], found["round"]
    detail = "two workers, 20 clients, 5,000 images twice a round, 1,000 test images after each"
    yield Row("an evaluation, as a fraction of a round", phases["evaluate"] / whole, "", None, detail)
    yield Row(
        "a checkpoint, as a fraction of a round",
        phases["checkpoint"] / whole,
        "",
        None,
        f"{1000 * phases['checkpoint']:.0f} ms; averaging the updates takes {phases['aggregate'] / whole:.4f}",
    )


def picture(found: dict[str, dict[int, dict[str, Any]]], path: Path) -> None:
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    for axes, (kind, points) in zip(figure.subplots(1, 3), found.items(), strict=True):
        first = points[min(points)]
        axes.plot(list(points), [p["round"] / first["round"] for p in points.values()], "o-", label="time per round")
        ends = [p["end of task"] / first["end of task"] for p in points.values()]
        axes.plot(list(points), ends, "s--", label="end of a task")
        held = [p["memory"]["together"] / first["memory"]["together"] for p in points.values()]
        axes.plot(list(points), held, "^:", label="memory")
        axes.set_xscale("log")
        axes.set_ylim(0)
        axes.set_xticks(list(points), [f"{n:,}" for n in points], minor=False)
        axes.minorticks_off()
        axes.set_xlabel(kind)
        axes.set_title(f"against {min(points)} {kind}")
        axes.grid(alpha=0.3)
    figure.axes[0].legend()
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    print(json.dumps(point(json.loads(sys.argv[1]))))
