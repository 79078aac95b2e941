"""The pool of processes: the same bits as one process, whoever dies on the way."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import write_tiny
from fedclass.engines.inprocess import InProcess
from fedclass.engines.processes import Processes
from fedclass.engines.shared import Shared
from fedclass.errors import ClientError
from fedclass.experiment.config import Experiment
from fedclass.experiment.launch import run_one
from fedclass.experiment.setup import Setup, prepare
from fedclass.federation.evaluate import confusion, parts
from fedclass.federation.store import MemoryStore
from fedclass.wire import Job, Update, sha256

Tiny = Callable[..., Experiment]

pytestmark = pytest.mark.slow


def jobs(setup: Setup, task: int = 0) -> list[Job]:
    model = setup.build()
    model.grow_to(setup.stream.classes_until(0), seed=0)
    teacher = model.weights()
    if task == 0:
        return [Job(client, 0, 0, "train", teacher, None) for client in range(setup.stream.clients)]
    model.grow_to(setup.stream.classes_until(task), seed=0)
    weights = model.weights()
    return [Job(client, task, 0, "train", weights, teacher) for client in range(setup.stream.clients)]


def same(found: Update, wanted: Update) -> bool:
    return (found.client, found.task, found.round, found.examples, dict(found.metrics)) == (
        wanted.client,
        wanted.task,
        wanted.round,
        wanted.examples,
        dict(wanted.metrics),
    ) and sha256(found.weights) == sha256(wanted.weights)


def all_same(found: Iterable[Update], wanted: Sequence[Update]) -> bool:
    return all(same(*pair) for pair in zip(found, wanted, strict=True))


@pytest.mark.parametrize(("method", "numbers"), [("fedclass", (1, 3)), ("fedicarl", (2,))])
def test_any_number_of_workers_gives_the_bits_of_one_process(
    method: str, numbers: tuple[int, ...], tiny: Tiny, tmp_path: Path
) -> None:
    """Through head growth, exemplars chosen at random or by herding, the teacher's cache, and uploads."""
    experiment = tiny("partition.kind=dirichlet", "partition.clients=5", "partition.alpha=1.0", method=method)
    alone = run_one(experiment, tmp_path / "alone")
    for workers in numbers:
        root = tmp_path / str(workers)
        shared = run_one(experiment, root, engine="processes", workers=workers)
        assert shared["weights_sha256"] == alone["weights_sha256"]
        assert shared["accuracy_matrix"] == alone["accuracy_matrix"]
        assert shared["bytes_up"] == alone["bytes_up"]
        assert (root / "model.safetensors").read_bytes() == (tmp_path / "alone" / "model.safetensors").read_bytes()


def test_one_pool_through_all_that_may_happen_to_it(tiny: Tiny, tmp_path: Path) -> None:
    """Client 1 is by far the slowest."""
    dirichlet = ("partition.clients=4", "partition.kind=dirichlet", "partition.alpha=0.3", "data.validation=0.2")
    file = write_tiny(tmp_path / "many_test_images.npz", test=150)
    setup = prepare(tiny(*dirichlet, f"data.path={file}", method="fedclass"))
    alone, kept = MemoryStore(), MemoryStore()
    first = InProcess(setup.client(alone))
    wanted, later = list(first.run(jobs(setup))), list(first.run(jobs(setup, 1)))
    with Processes(Shared(setup), kept, workers=2) as pool:
        assert all_same(pool.run(jobs(setup)), wanted), "updates come in the order of the jobs"

        pool._workers[0].process.kill()
        pool._workers[0].process.join()
        assert all_same(pool.run(jobs(setup)), wanted), "an idle worker that was killed is replaced"

        next(pool.run([replace(job, round=7) for job in jobs(setup)]))
        assert all_same(pool.run(jobs(setup)), wanted), "updates that nobody waited for do not appear later"

        pool._samples.clear()  # so that jobs are given out in their order
        victims = {worker.process.pid for worker in pool._workers}
        stopped = pool._workers[1].process.pid  # it will not have done its job when the other one has
        assert stopped is not None
        os.kill(stopped, signal.SIGSTOP)
        updates = pool.run(jobs(setup))
        found = [next(updates)]
        assert pool._workers[1].positions
        for worker in pool._workers:
            worker.process.kill()
        found += updates
        assert all_same(found, wanted), "a worker killed at work is replaced, and its job done again"
        assert not victims & {worker.process.pid for worker in pool._workers}
        assert all(worker.process.is_alive() for worker in pool._workers)

        assert all_same(pool.run(jobs(setup, 1)), later), "the next task finds the clients as they were"

        again = jobs(setup, 1)
        list(pool.run(again))
        held = [set(worker.has) for worker in pool._workers]
        for images, split in (("test", setup.stream.test), ("validation", setup.stream.validation)):
            batches = parts(1, images, split, again[0].weights, {}, "")
            assert len(batches) == {"test": 3, "validation": 1}[images]
            model = setup.build()
            model.load(again[0].weights)
            wanted_counts = confusion(model, setup.experiment.method, {}, split, setup.normalisation)
            counts = list(pool.test(batches))
            assert sum(part.sum() for part in counts) == wanted_counts.sum() > 0
            np.testing.assert_array_equal(sum(counts), wanted_counts)
        assert [set(worker.has) for worker in pool._workers] == held, "the teacher stays where it is"
        pool._workers[0].process.kill()
        np.testing.assert_array_equal(sum(pool.test(batches)), wanted_counts)
    for client in range(4):
        assert kept.load(client).tasks == alone.load(client).tasks == 1
        np.testing.assert_array_equal(kept.load(client).exemplars.index, alone.load(client).exemplars.index)


def test_a_worker_killed_with_a_second_job_in_its_hands_loses_neither(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedclass.engines.processes.SHORT", float("inf"))  # however busy this machine is
    setup = prepare(tiny("partition.clients=24", "memory.per_client=2", method="fedclass"))
    wanted = list(InProcess(setup.client(MemoryStore())).run(jobs(setup)))
    found, killed = [], 0
    with Processes(Shared(setup), MemoryStore(), workers=2) as pool:
        assert all_same(pool.run(jobs(setup)), wanted)  # both have started, and their jobs are known to be short
        for update in pool.run(jobs(setup)):
            found.append(update)
            full = [worker for worker in pool._workers if len(worker.positions) == 2]
            if full and not killed:
                full[0].process.kill()
                killed += 1
    assert killed, "no worker had two jobs"
    assert len(found) == 24
    assert all_same(found, wanted)


DYING = """
import os, signal
from dataclasses import dataclass
from fedclass import FedAvg

@dataclass(frozen=True, kw_only=True)
class Dying(FedAvg):
    def loss(self, client, batch):
        os.kill(os.getpid(), signal.SIGKILL)
"""

RAISING = """
from dataclasses import dataclass
from fedclass import FedAvg

@dataclass(frozen=True, kw_only=True)
class Raising(FedAvg):
    def loss(self, client, batch):
        raise ZeroDivisionError("the denominator is nought")
"""


def test_a_job_that_kills_every_worker_ends_the_run_with_a_reason(
    tiny: Tiny, user_module: Callable[[str, str], str], tmp_path: Path
) -> None:
    user_module("dying", DYING)
    with pytest.raises(ClientError, match=r"client 0, task 1, round 1: its worker died 3 times \(signal 9; if memory"):
        run_one(tiny(method="dying:Dying"), tmp_path / "run", engine="processes", workers=1)


@pytest.mark.parametrize("engine", ["inprocess", "processes"])
def test_a_job_that_raises_names_the_client_the_task_and_the_place(
    engine: str, tiny: Tiny, user_module: Callable[[str, str], str], tmp_path: Path
) -> None:
    user_module("raising", RAISING)
    with pytest.raises(ClientError) as caught:
        run_one(
            tiny(method="raising:Raising"),
            tmp_path / "run",
            engine=engine,
            workers=None if engine == "inprocess" else 1,
        )  # type: ignore[arg-type]
    message = str(caught.value)
    where = r"client \d, task 1, round 1: Raising\.loss"
    assert re.match(rf"{where}: ZeroDivisionError: the denominator is nought \(", message)
    assert message.endswith("raising.py, line 8, in loss)")


def test_the_data_are_mapped_and_not_copied(tiny: Tiny) -> None:
    """A change made through one mapping is seen through the other, in this process or in another one."""
    shared = Shared(prepare(tiny()))
    first, second = shared.open(), shared.open()
    images = first.stream.data.train.images
    assert not np.shares_memory(images, second.stream.data.train.images)
    images[3] = 77
    assert (second.stream.data.train.images[3] == 77).all()
    assert torch.from_numpy(second.stream.data.train.images).is_contiguous()


TYPED = """
from dataclasses import dataclass
from pathlib import Path
from fedclass.experiment.parallel import run_all
from fedclass.experiment.launch import run_one
from fedclass.experiment.recipe import load
from fedclass.methods import FedAvg

def tell(*_):
    pass

print(run_one(load(None, SETTINGS, method="fedavg"), "one", engine="processes", workers=2)["weights_sha256"])
print(run_all([(load(None, SETTINGS, method="fedavg"), Path("all"))], listen=tell))

@dataclass(frozen=True, kw_only=True)
class Mine(FedAvg):
    pass

mine = load(None, SETTINGS, method="__main__:Mine")
print(run_one(mine, "mine", engine="processes", workers=2)["weights_sha256"])
print(run_all([(mine, Path("mine-all"))], listen=tell))
"""


def test_what_is_typed_into_python_runs_in_processes(tiny: Tiny, tiny_settings: list[str], tmp_path: Path) -> None:
    """`python -`, which says that its script is in a file called <stdin>; a notebook has no file either.

    A method that is typed there is FedAvg by another name, and goes along to the processes.
    """
    settings = [*tiny_settings, "train.rounds=1"]
    typed = TYPED.replace("SETTINGS", repr(settings))
    done = subprocess.run([sys.executable, "-"], input=typed, cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr == ""
    weights, failures, own_weights, own_failures = done.stdout.splitlines()
    here = run_one(tiny("train.rounds=1", method="fedavg"), tmp_path / "here")["weights_sha256"]
    assert (weights, own_weights) == (here, here)
    assert (failures, own_failures) == ("{}", "{}")
    assert json.loads((tmp_path / "mine-all" / "summary.json").read_text())["weights_sha256"] == here
