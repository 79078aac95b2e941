"""The training loop, against one that is written out."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedclass.experiment.config import Experiment
from fedclass.experiment.setup import Setup, prepare
from fedclass.federation.client import Client
from fedclass.federation.store import MemoryStore
from fedclass.losses import augmented_distillation
from fedclass.rng import generator
from fedclass.wire import Job, Weights

Tiny = Callable[..., Experiment]


def start(setup: Setup, task: int) -> tuple[Weights, Weights | None]:
    """The weights that clients receive as a task begins, and the teacher."""
    model = setup.build()
    model.grow_to(setup.stream.classes_until(0), seed=0)
    teacher = model.weights()
    if task == 0:
        return teacher, None
    model.grow_to(setup.stream.classes_until(1), seed=0)
    return model.weights(), teacher


def literal_training(setup: Setup, job: Job, index: np.ndarray, *, beta: float) -> Weights:
    """FedCLASS's local epochs, step by step, with torch's own optimizer and the teacher asked anew for each batch."""
    e, data = setup.experiment, setup.stream.data
    model, teacher = setup.build(), setup.build()
    model.load(job.weights)
    pixels = torch.from_numpy(data.train.images[index]).float().div(255).sub(0.5).div(0.5).permute(0, 3, 1, 2)
    targets = torch.from_numpy(setup.stream.targets[index])
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=e.optimizer.learning_rate,
        momentum=e.optimizer.momentum,
        weight_decay=e.optimizer.weight_decay,
        foreach=False,
    )
    rng = generator(e.seed, "client", job.client, "task", job.task, "round", job.round)
    model.train()
    for _ in range(e.train.local_epochs):
        order = torch.randperm(len(index), generator=rng)
        for at in range(0, len(index), e.train.batch_size):
            chosen = order[at : at + e.train.batch_size]
            logits = model(pixels[chosen])
            loss = F.cross_entropy(logits, targets[chosen])
            if job.teacher is not None:
                teacher.load(job.teacher)
                with torch.no_grad():
                    previous = teacher.eval()(pixels[chosen])
                loss = loss + beta * augmented_distillation(
                    logits, previous, temperature=4.0, student_temperature=2.0, stop_gradient=True
                )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.weights()


FORM = (
    "method.variant=paper",
    "method.temperature=4.0",
    "method.student_temperature=2.0",
    "method.stop_gradient=true",
    "method.beta=3.0",
)


@pytest.mark.parametrize("task", [0, 1])
def test_a_round_on_a_client_is_the_loop_written_out(task: int, tiny: Tiny) -> None:
    setup = prepare(tiny(*FORM, "train.local_epochs=2", "train.batch_size=5", method="fedclass"))
    weights, teacher = start(setup, task)
    client = setup.client(MemoryStore())
    update = client.run(Job(1, task, 3, "train", weights, teacher))
    new = setup.stream.new_data(1, task)
    index = np.concatenate([new, client.store.load(1).exemplars.index])
    assert update.examples == len(new)
    assert len(new) == 16
    assert len(index) == (24 if task else 16)
    want = literal_training(setup, Job(1, task, 3, "train", weights, teacher), index, beta=3.0)
    for name, tensor in want.items():
        torch.testing.assert_close(update.weights[name], tensor, rtol=1e-3, atol=1e-5, msg=name)


def test_jobs_do_not_depend_on_what_the_client_did_before(tiny: Tiny) -> None:
    """Cached teacher outputs and the resident model leave no trace."""
    setup = prepare(tiny(method="fedclass"))
    weights, teacher = start(setup, 1)
    jobs = [Job(client, 1, round, "train", weights, teacher) for round in range(2) for client in (0, 2)]
    busy = setup.client(MemoryStore())
    together = [busy.run(job) for job in jobs]
    for job, update in zip(reversed(jobs), reversed(together), strict=True):
        alone = setup.client(MemoryStore()).run(job)
        assert all(torch.equal(alone.weights[name], update.weights[name]) for name in update.weights)
        assert alone.metrics == update.metrics


def test_augmented_batches_ask_the_teacher_each_time_and_differ_between_rounds(tiny: Tiny) -> None:
    setup = prepare(tiny("train.augment=crop-flip-cutout", method="fedclass"))
    weights, teacher = start(setup, 1)
    client = setup.client(MemoryStore())
    first, second = (client.run(Job(0, 1, round, "train", weights, teacher)) for round in (0, 1))
    again = setup.client(MemoryStore()).run(Job(0, 1, 0, "train", weights, teacher))
    assert torch.equal(first.weights["head.weight"], again.weights["head.weight"])
    assert not torch.equal(first.weights["head.weight"], second.weights["head.weight"])
    assert client.teacher is not None
    assert not client.teacher._cached


def test_batchnorm_buffers_are_part_of_an_update(tiny: Tiny) -> None:
    setup = prepare(tiny("train.batch_size=4"))
    weights, _ = start(setup, 0)
    update = setup.client(MemoryStore()).run(Job(0, 0, 0, "train", weights, None))
    images = len(setup.stream.new_data(0, 0))
    assert update.weights.keys() == weights.keys()
    assert int(update.weights["backbone.norm.num_batches_tracked"]) == -(-images // 4)
    assert not torch.equal(update.weights["backbone.norm.running_mean"], weights["backbone.norm.running_mean"])


def test_a_client_that_missed_the_end_of_a_task_chooses_the_same_exemplars_later(tiny: Tiny) -> None:
    setup = prepare(tiny(method="fedclass"))
    weights, teacher = start(setup, 1)
    assert teacher is not None
    present, absent = setup.client(MemoryStore()), setup.client(MemoryStore())
    present.run(Job(0, 0, 2, "end_task", teacher, None))
    before = present.store.load(0)
    present.run(Job(0, 0, 2, "end_task", teacher, None))
    assert present.store.load(0) is before, "asked twice, it chooses once"
    present.run(Job(0, 1, 0, "train", weights, teacher))
    absent.run(Job(0, 1, 0, "train", weights, teacher))
    np.testing.assert_array_equal(absent.store.load(0).exemplars.index, before.exemplars.index)
    assert len(before.exemplars) == 8


@pytest.mark.parametrize("select", ["random", "herding", "herding-pycil", "first"])
def test_exemplars_are_the_clients_own_images_of_classes_it_has_met(select: str, tiny: Tiny) -> None:
    setup = prepare(tiny(f"memory.select={select}", "memory.per_class=3"))
    client = setup.client(MemoryStore())
    weights, _ = start(setup, 0)
    client.run(Job(2, 0, 2, "end_task", weights, None))
    exemplars = client.store.load(2).exemplars
    own = setup.stream.new_data(2, 0)
    assert set(exemplars.index) <= set(own)
    for label, images in exemplars.of_class.items():
        assert (setup.stream.targets[images] == label).all()
        held = own[setup.stream.targets[own] == label]
        assert len(images) == min(3, len(held))
        if select == "first":
            np.testing.assert_array_equal(images, held[:3])


@pytest.mark.parametrize("method", ["fedicarl", "ewc"])
def test_no_image_is_in_what_a_client_sends(method: str, tiny: Tiny) -> None:
    """Neither its bytes nor its normalised values, for the methods that send most."""
    setup = prepare(tiny(method=method))
    client: Client = setup.client(MemoryStore())
    weights, _ = start(setup, 0)
    updates = [client.run(Job(0, 0, r, phase, weights, None)) for r, phase in ((0, "train"), (2, "end_task"))]
    sent = b"".join(t.numpy().tobytes() for u in updates for t in (*u.weights.values(), *u.extras.values()))
    images = setup.stream.data.train.images[setup.stream.new_data(0, 0)]
    for image in images:
        assert image.tobytes() not in sent
        values = ((image / np.float32(255) - np.float32(0.5)) / np.float32(0.5)).astype(np.float32)
        assert values[0].tobytes() not in sent
    assert sum(len(u.extras) for u in updates) == 2


def test_received_weights_are_not_changed(tiny: Tiny) -> None:
    setup = prepare(tiny(method="fedclass"))
    weights, teacher = start(setup, 1)
    assert teacher is not None
    before = [{k: v.clone() for k, v in w.items()} for w in (weights, teacher)]
    setup.client(MemoryStore()).run(Job(0, 1, 0, "train", weights, teacher))
    for kept, now in zip(before, (weights, teacher), strict=True):
        assert all(torch.equal(kept[name], now[name]) for name in kept)


def test_the_released_icarl_teacher_is_the_model_received_this_round(tiny: Tiny) -> None:
    setup = prepare(tiny("method.variant=released", method="fedicarl"))
    weights, _ = start(setup, 1)
    client = setup.client(MemoryStore())
    client.run(Job(0, 1, 0, "train", weights, None))
    assert client.teacher is not None
    assert client.teacher.model.classes == 2
    assert torch.equal(client.teacher.model.state_dict()["head.weight"], weights["head.weight"][:2])
    changed = {name: tensor + 0.1 if tensor.is_floating_point() else tensor for name, tensor in weights.items()}
    client.run(replace(Job(0, 1, 1, "train", weights, None), weights=changed))
    assert torch.equal(client.teacher.model.state_dict()["head.weight"], changed["head.weight"][:2])
