"""How fast this machine currently trains a recipe, measured by a few seconds of training. Nothing is stored."""

import time
from dataclasses import dataclass, replace

from fedclass.experiment.runner import one_thread
from fedclass.experiment.setup import Setup
from fedclass.federation.faults import FaultSettings
from fedclass.federation.store import MemoryStore
from fedclass.methods.base import FedAvg
from fedclass.rng import streams_restored
from fedclass.wire import Job

IMAGES = 512  # of a client, at most
SECONDS = 2.0


@dataclass(frozen=True)
class Rate:
    """Images per second of one core. alone: by processor time, as if nothing else ran.  now: by the clock."""

    alone: float
    now: float


def images_per_second(setup: Setup) -> Rate:
    """Images per second on one core: FedAvg on the first task, with the recipe's model and batch size."""
    e, stream = setup.experiment, setup.stream
    client = int(stream.counts()[:, : stream.classes_until(0)].sum(axis=1).argmax())
    share = stream.new_data(client, 0)[:IMAGES]
    alone = replace(stream, shares=[share], held_out=[], delays=None)
    once = replace(e, method=FedAvg(), train=replace(e.train, local_epochs=1), faults=FaultSettings())
    small = Setup(once, alone)
    model = small.build()
    model.grow_to(stream.classes_until(0), seed=0)
    job = Job(0, 0, 0, "train", model.weights(), None, frozen=model.frozen_sha256)
    with one_thread(), streams_restored():
        worker = small.client(MemoryStore())
        worker.run(job)  # warm-up: the first job takes longer
        began, worked, seen = time.perf_counter(), time.process_time(), 0
        while time.process_time() - worked < SECONDS:
            worker.run(job)
            seen += len(share)
        return Rate(seen / (time.process_time() - worked), seen / (time.perf_counter() - began))


def like(setup: Setup) -> str:
    """What the rate depends on. Recipes that agree in this need only one measurement."""
    e = setup.experiment
    train = replace(e.train, rounds=1, local_epochs=1)
    return repr((e.model, train, e.data.transform, setup.image))
