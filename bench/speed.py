"""How fast, and how it grows: `make bench`.

    python bench/speed.py [--out DIR]

Every figure is a ratio of two measurements from the same run. They are taken in turns, because machines are noisy, and
the median over the turns counts. Prints a table, and writes bench.json and bench.png. It takes up to ten minutes on two
cores; nothing else should run meanwhile.
"""

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from growth import GROWTH, growth, growth_rows, picture, shares_of_a_round
from measure import SIDE, Row, at_least, at_most, client_of, in_turns, jobs, noise, ratio, seconds
from plain import Images, plain_round
from torch import Tensor, nn

from fedclass.engines.processes import Processes
from fedclass.engines.shared import Shared
from fedclass.engines.starting import cores, keep_freed_memory
from fedclass.experiment.machine import fingerprint
from fedclass.experiment.runner import one_thread
from fedclass.experiment.setup import Setup
from fedclass.federation.store import MemoryStore
from fedclass.models.build import build_model

MEAN, STD = 0.5, 0.25


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


def table(rows: Sequence[Row]) -> str:
    lines = ["| | figure | wanted | |", "|---|---:|---|---|"]
    for row in rows:
        verdict = "" if row.met is None else ", met" if row.met else ", NOT met"
        lines.append(f"| {row.name} | {row.figure:.3g} | {row.wanted}{verdict} | {row.detail} |")
    return "\n".join(lines)


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    options = parser.parse_args()
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
