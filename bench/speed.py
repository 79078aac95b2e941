"""How fast, and how it grows: `make bench`.

    python bench/speed.py [--out DIR]

Every figure is a ratio of two measurements of this very run, taken in turns because machines are noisy: the median over
the turns. Prints a table, and writes bench.json and bench.png. Up to ten minutes on two cores; let nothing else run.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from plain import Images, plain_round
from torch import Tensor, nn

from fedclass.data.image_set import ImageSet, Split
from fedclass.data.stream import Stream
from fedclass.engines.processes import Processes
from fedclass.engines.shared import Shared
from fedclass.engines.starting import keep_freed_memory
from fedclass.experiment.launch import cores
from fedclass.experiment.machine import fingerprint
from fedclass.experiment.recipe import load
from fedclass.experiment.runner import one_thread, run
from fedclass.experiment.setup import Setup
from fedclass.federation.client import Client
from fedclass.federation.store import MemoryStore
from fedclass.models.build import build_model
from fedclass.runs.events import Event, RoundFinished, TaskFinished
from fedclass.runs.layout import create
from fedclass.wire import Job

SIDE = 32
MEAN, STD = 0.5, 0.25


@dataclass(frozen=True)
class Row:
    """wanted: such as "at least 0.5"; met: whether the figure is so."""

    name: str
    figure: float
    wanted: str
    met: bool | None
    detail: str


def at_least(name: str, figure: float, wanted: float, detail: str) -> Row:
    return Row(name, figure, f"at least {wanted}", figure >= wanted, detail)


def at_most(name: str, figure: float, wanted: float, detail: str) -> Row:
    return Row(name, figure, f"at most {wanted}", figure <= wanted, detail)


def noise(
    *,
    clients: int,
    images: int,
    classes: int = 10,
    tasks: Sequence[int] | None = None,
    test: int = 1000,
    **keys: object,
) -> Setup:
    """An experiment on random pixels, equally many for each client: speed does not depend on what they show."""
    rng = np.random.default_rng(0)
    sizes = tuple(tasks or (classes // 2, classes - classes // 2))
    labels = np.arange(images) % classes
    pixels = rng.integers(256, size=(images, SIDE, SIDE, 3), dtype=np.uint8)
    test_labels = np.arange(test) % classes
    data = ImageSet(
        "noise",
        tuple(map(str, range(classes))),
        Split(pixels, labels),
        Split(rng.integers(256, size=(test, SIDE, SIDE, 3), dtype=np.uint8), test_labels),
        official=True,
    )
    order = rng.permutation(images)
    shares = [np.sort(part) for part in np.array_split(order, clients)]
    settings = {
        "train.batch_size": 32,
        "train.local_epochs": 1,
        "optimizer.learning_rate": 0.01,
        "memory.per_client": 0,
        "evaluation.every": 0,
        **{key.replace("__", "."): value for key, value in keys.items()},
    }
    method = str(settings.pop("method", "fedavg"))
    words = [f"{key}={value}" for key, value in settings.items()]
    experiment = load(None, ["data.name=cifar10", "server.participation=1", *words], method=method)
    stream = Stream(
        data.classes, sizes, data=data, targets=labels, test_targets=test_labels, shares=shares, offered=sizes
    )
    return Setup(experiment, stream)


def jobs(setup: Setup, *, task: int = 0, round: int = 0) -> list[Job]:
    model = setup.build()
    teacher = None
    if task:
        model.grow_to(setup.stream.classes_until(task - 1), seed=0)
        teacher = model.weights()
    model.grow_to(setup.stream.classes_until(task), seed=0)
    weights = model.weights()
    sent = teacher if setup.experiment.method.declare().teacher else None
    return [Job(client, task, round, "train", weights, sent) for client in range(setup.stream.clients)]


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def in_turns(works: Sequence[Callable[[], object]], turns: int) -> list[list[float]]:
    """Seconds of each, `turns` times, one after the other; a first turn warms up and is not counted."""
    for work in works:
        work()
    return [list(column) for column in zip(*([seconds(work) for work in works] for _ in range(turns)), strict=True)]


def ratio(slow: Sequence[float], quick: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(slow, quick, strict=True))


def training_flops(setup: Setup) -> float:
    """Of one image: multiply and add of every convolution and of the head; forward, and twice that backward, but for
    the gradient of the pixels, which nobody asks for."""
    model = setup.build()
    model.grow_to(setup.stream.classes_until(0), seed=0)
    counted: list[int] = []

    def count(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:  # noqa: ARG001
        if isinstance(module, nn.Conv2d | nn.Linear):
            counted.append(2 * output.numel() * module.weight[0].numel())

    for module in model.modules():
        module.register_forward_hook(count)
    with torch.no_grad():
        model.eval()(torch.zeros(1, 3, SIDE, SIDE))
    return 3 * sum(counted) - counted[0]


def matrix_product(size: int = 1024) -> Callable[[], None]:
    a, b, c = (torch.rand(size, size) for _ in range(3))

    def work() -> None:
        for _ in range(8):
            torch.mm(a, b, out=c)

    return work


def one_core() -> Iterator[Row]:
    """A client's training on one thread, against matrix products on the same thread."""
    fedavg = noise(clients=1, images=1920, train__rounds=1, tasks=(10,))
    client, job = client_of(fedavg), jobs(fedavg)[0]
    gemm, training = in_turns([matrix_product(), lambda: client.run(job)], 7)
    peak = 8 * 2 * 1024**3 / statistics.median(gemm)
    flops = training_flops(fedavg)
    rate = 1920 / statistics.median(training)
    fraction = ratio([flops * 1920 / 8 / 2 / 1024**3 * g for g in gemm], training)
    detail = f"{rate:.0f} images/s, {flops / 1e6:.1f} MFLOP each; matrix product {peak / 1e9:.0f} GFLOP/s"
    yield at_least(
        "training on one core, fraction of the matrix product's rate (FedAvg, ResNet-8)", fraction, 0.5, detail
    )

    for augment, wanted, name in (("none", 1.1, "cached teacher"), ("crop-flip-cutout", 1.4, "augmented batches")):
        setups = [
            noise(clients=1, images=1280, method=method, train__augment=augment, train__rounds=1)
            for method in ("fedavg", "fedclass")
        ]
        pairs = [(client_of(setup), jobs(setup, task=1)[0]) for setup in setups]
        works = [partial(client.run, job) for client, job in pairs]
        first = seconds(works[1])
        plain, distilled = in_turns(works, 7)
        longer = first / statistics.median(distilled)
        detail = f"the first job of a task, which computes the teacher's scores, took {longer:.2f} times a later one"
        yield at_most(
            f"FedCLASS step against FedAvg step, {name}",
            ratio(distilled, plain),
            wanted,
            detail if augment == "none" else "the teacher sees each augmented batch",
        )


def client_of(setup: Setup) -> Client:
    return setup.client(MemoryStore())


@contextmanager
def pool(setup: Setup, workers: int) -> Iterator[Callable[[], object]]:
    with Processes(Shared(setup), MemoryStore(), workers=workers) as engine:
        todo = jobs(setup)
        yield lambda: [None for _ in engine.run(todo)]


def engines(turns: int = 5) -> Iterator[Row]:
    """Rounds of 20 clients: on one worker, on two, and as a plain loop."""
    setup = noise(clients=20, images=4000, tasks=(10,), train__rounds=1)
    data = setup.stream.data.train
    held = [Images(data.images[share], data.labels[share], MEAN, STD) for share in setup.stream.shares]
    model = build_model("resnet8", norm="batch", image_size=(SIDE, SIDE), seed=0)
    model.grow_to(10, seed=0)
    plain = nn.Sequential(model.backbone, nn.Linear(64, 10)).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    how = {"epochs": 1, "batch_size": 32, "learning_rate": 0.01}
    threads = torch.get_num_threads()

    def as_research_code(count: int) -> None:
        torch.set_num_threads(count)
        plain_round(plain, held, **how)  # type: ignore[arg-type]
        torch.set_num_threads(threads)

    research = [partial(as_research_code, count) for count in (1, cores())]
    with pool(setup, 1) as one, pool(setup, 2) as two:
        times = in_turns([one, two, *research], turns)
    alone, both, on_one_thread, on_all_threads = times
    rate = [4000 / statistics.median(each) for each in times]
    yield at_least(
        "two workers against one, 20 clients", ratio(alone, both), 1.8, f"{rate[1]:.0f} against {rate[0]:.0f} images/s"
    )
    for count, slow, speed in ((1, on_one_thread, rate[2]), (cores(), on_all_threads, rate[3])):
        yield at_least(
            f"two workers against a plain federated loop (bench/plain.py) with {count} thread{'s' * (count > 1)}",
            ratio(slow, both),
            2.5,
            f"{rate[1]:.0f} against {speed:.0f} images/s",
        )


# As work grows: each point in a process of its own, so that its memory can be told.


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
        n: {"clients": n, "images": 60_000, "tasks": [10], "train__participation": 0.1, "train__rounds": 3}
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


def growth(kind: str) -> dict[int, dict[str, Any]]:
    found = {}
    for n, keys in GROWTH[kind].items():
        print(f"  {n} {kind} ...", file=sys.stderr, flush=True)
        words = [sys.executable, __file__, "--point", json.dumps(keys)]
        found[n] = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
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
    words = [sys.executable, __file__, "--point", json.dumps(keys)]
    found = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
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


# What is shown.


def table(rows: Sequence[Row]) -> str:
    lines = ["| | figure | wanted | |", "|---|---:|---|---|"]
    for row in rows:
        verdict = "" if row.met is None else ", met" if row.met else ", NOT met"
        lines.append(f"| {row.name} | {row.figure:.3g} | {row.wanted}{verdict} | {row.detail} |")
    return "\n".join(lines)


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


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    parser.add_argument("--point", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.point:
        print(json.dumps(point(json.loads(options.point))))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    print("one core, then two ...", file=sys.stderr, flush=True)
    keep_freed_memory()  # as workers do
    with one_thread():
        rows = [*one_core(), *engines()]
    print("as work grows ...", file=sys.stderr, flush=True)
    found = {kind: growth(kind) for kind in GROWTH}
    rows += [*growth_rows(found), *shares_of_a_round()]
    machine = {"processor": processor(), "cores": cores(), **fingerprint()}
    when = time.strftime("%Y-%m-%d %H:%M")
    print(f"{when}, {machine}\n\n{table(rows)}")
    content = {"when": when, "machine": machine, "rows": [asdict(row) for row in rows], "growth": found}
    (options.out / "bench.json").write_text(json.dumps(content, indent=1) + "\n")
    picture(found, options.out / "bench.png")
    print(f"\n{options.out / 'bench.json'}, {options.out / 'bench.png'}")


if __name__ == "__main__":
    main()
