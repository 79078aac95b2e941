"""What the server uses and what it rejects: each guard against a poisoned update, in each phase, by its reason."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedclass.federation.server import MOST_EXAMPLES, answer_bytes, rejection, usable
from fedclass.methods import SCAFFOLD, FedAvg, FedICARL, Method
from fedclass.methods.declare import Sizes
from fedclass.models.weights import MOST, Packed, weighted_mean
from fedclass.wire import Job, Phase, Update, nbytes

CLASSES, WIDTH = 3, 4
PHASES: tuple[Phase, ...] = ("train", "end_task", "evaluate")
METHOD = FedICARL()  # with uploads at the end of a task
SIZES = Sizes(classes=CLASSES, features=WIDTH, parameters=32)


def weights(value: float = 0.5) -> dict[str, Tensor]:
    return {
        "body.weight": torch.full((WIDTH, 2), value),
        "body.steps": torch.tensor(7),
        "head.weight": torch.full((CLASSES, WIDTH), value),
        "head.bias": torch.full((CLASSES,), value),
    }


def job(phase: Phase, client: int = 2) -> Job:
    return Job(client, 1, 5, phase, weights(), None)


def honest(phase: Phase, client: int = 2) -> Update:
    match phase:
        case "train":
            return Update(client, 1, 5, weights(0.6), 20, {"loss": 0.7, "samples": 40.0})
        case "end_task":
            extras = {"class_means": torch.rand(CLASSES, WIDTH), "class_counts": torch.tensor([2, 0, 3])}
            return Update(client, 1, 5, {}, 20, {"exemplars": 5.0}, extras)
        case "evaluate":
            return Update(client, 1, 5, {}, 20, {}, {"confusion": torch.tensor([[9, 1, 0], [0, 6, 0], [2, 0, 2]])})


def reason(phase: Phase, method: Method = METHOD, **changes: Any) -> str | None:
    return rejection(replace(honest(phase), **changes), job(phase), method, SIZES)


@pytest.mark.parametrize("phase", PHASES)
def test_the_size_of_an_honest_answer_is_known_before_it_comes(phase: Phase) -> None:
    answer = honest(phase)
    assert answer_bytes(job(phase), METHOD, image=(8, 8, 3)) == nbytes(answer.weights) + nbytes(answer.extras)


def test_uploads_of_the_size_of_the_model_are_expected_with_it() -> None:
    asked, numbers = job("train"), sum(tensor.numel() for tensor in weights().values())
    assert answer_bytes(asked, SCAFFOLD(), image=(8, 8, 3)) == nbytes(asked.weights) + 4 * numbers
    assert answer_bytes(replace(asked, phase="end_task", weights={}), FedAvg(), image=(8, 8, 3)) == 0


def extras(phase: Phase, **changes: Tensor) -> Mapping[str, Tensor]:
    return {**honest(phase).extras, **changes}


@pytest.mark.parametrize("phase", PHASES)
def test_an_honest_update_is_used(phase: Phase) -> None:
    assert reason(phase) is None
    assert reason(phase, weights=Packed.of(honest(phase).weights)) is None


def test_a_method_without_uploads_wants_none() -> None:
    assert reason("end_task", FedAvg(), extras={}) is None
    said = "uploads differ from what FedAvg declares: 'class_counts' is not declared (declared: nothing)"
    assert reason("end_task", FedAvg()) == said


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"client": 3}, "answers for client 3, task 1, round 5"),
        ({"task": 0}, "answers for client 2, task 0, round 5"),
        ({"round": 4}, "answers for client 2, task 1, round 4"),
        ({"examples": -1}, "claims -1 examples"),
        ({"examples": MOST_EXAMPLES + 1}, f"claims {MOST_EXAMPLES + 1} examples"),
        ({"examples": 20.0}, "claims 20.0 examples"),
        ({"examples": math.nan}, "claims nan examples"),
        ({"examples": True}, "claims True examples"),
    ],
)
def test_in_every_phase(phase: Phase, changes: dict[str, Any], said: str) -> None:
    assert reason(phase, **changes) == said


def test_only_who_trains_must_have_an_image() -> None:
    assert reason("train", examples=0) == "claims 0 examples"
    assert reason("train", examples=1) is None
    assert reason("train", examples=MOST_EXAMPLES) is None
    assert reason("end_task", examples=0) is None
    assert (
        reason("evaluate", examples=0, extras={"confusion": torch.zeros(CLASSES, CLASSES, dtype=torch.int64)}) is None
    )


@pytest.mark.parametrize("phase", PHASES)
def test_metrics_are_those_of_the_phase_and_no_others(phase: Phase) -> None:
    good = dict(honest(phase).metrics)
    wrong = [{**good, "secret": 1.0}, *({**good, name: value} for name in good for value in (math.nan, math.inf))]
    wrong += [{other: value for other, value in good.items() if other != name} for name in good]
    for metrics in wrong:
        said = f"reports {metrics}"
        if not math.isfinite(metrics.get("loss", 0.0)):
            said = f"FedICARL.loss: its mean over the round is {metrics['loss']}, not a finite number"
        assert reason(phase, metrics=metrics) == said


def test_samples_are_not_negative() -> None:
    assert reason("train", metrics={"loss": 0.7, "samples": -1.0}) == "reports {'loss': 0.7, 'samples': -1.0}"
    assert reason("train", metrics={"loss": -0.7, "samples": 0.0}) is None  # a loss of a user's own may be


@pytest.mark.parametrize("phase", PHASES)
def test_extras_are_those_declared_and_no_others(phase: Phase) -> None:
    found = str(reason(phase, extras=extras(phase, images=torch.ones(1))))
    assert "images" in found
    assert found.startswith(("uploads differ from what FedICARL declares: 'images' is not", "sends confusion, images"))
    for name in honest(phase).extras:
        fewer = {other: tensor for other, tensor in honest(phase).extras.items() if other != name}
        found = str(reason(phase, extras=fewer))
        assert found.endswith((f"{name!r} is declared and missing", "sends nothing instead of confusion"))


CONTROL = torch.zeros(32)


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (CONTROL, None),
        (CONTROL[:-1], "uploads differ from what SCAFFOLD declares: control_change is (31,) torch.float32 instead"),
        (CONTROL.double(), "uploads differ from what SCAFFOLD declares: control_change is (32,) torch.float64 instead"),
        (CONTROL.log() - CONTROL.log(), "control_change holds NaN or infinite values"),
    ],
)
def test_uploads_of_a_round_are_as_declared(sent: Tensor, said: str | None) -> None:
    found = reason("train", SCAFFOLD(), extras={"control_change": sent})
    assert found is None if said is None else str(found).startswith(said)
    assert "'control_change' is declared and missing" in str(reason("train", SCAFFOLD()))


# Training.


def changed(name: str, change: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    sent = weights(0.6)
    return {**sent, name: change(sent[name])}


def with_one(value: float) -> Callable[[Tensor], Tensor]:
    def change(tensor: Tensor) -> Tensor:
        tensor = tensor.clone()
        tensor.view(-1)[-1] = value
        return tensor

    return change


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ({}, "names differ from the model's: body.steps, body.weight, head.bias"),
        ({**weights(), "images": torch.ones(1)}, "names differ from the model's: images"),
        (changed("head.weight", lambda t: t[:2]), f"head.weight has shape (2, {WIDTH}) instead of (3, {WIDTH})"),
        (changed("head.bias", lambda t: t[None]), "head.bias has shape (1, 3) instead of (3,)"),
        (changed("head.bias", Tensor.double), "head.bias is torch.float64 instead of torch.float32"),
        (changed("body.steps", Tensor.float), "body.steps is torch.float32 instead of torch.int64"),
        (changed("body.weight", with_one(math.nan)), "body.weight holds NaN or infinite values"),
        (changed("body.weight", with_one(-math.inf)), "body.weight holds NaN or infinite values"),
        (changed("body.weight", with_one(-2 * MOST)), "body.weight holds values beyond 1e+08"),
        (changed("head.bias", with_one(2 * MOST)), "head.bias holds values beyond 1e+08"),
    ],
)
def test_weights_must_be_able_to_stand_in_for_the_models(sent: dict[str, Tensor], said: str) -> None:
    assert reason("train", weights=sent) == said
    packed = replace(honest("train"), weights=Packed.of(sent))
    asked = replace(job("train"), weights=Packed.of(weights()))
    assert rejection(packed, asked, METHOD, SIZES) == said


def test_the_largest_weight_that_is_used_cannot_drown_the_others() -> None:
    """A mean in float64 of one extreme client and an honest one with a millionth of its images keeps both apart."""
    extreme = changed("head.bias", lambda t: torch.full_like(t, MOST))
    assert reason("train", weights=extreme) is None
    mean = weighted_mean([(extreme, 1), (weights(0.0), 10**6)])
    torch.testing.assert_close(mean["head.bias"], torch.full((CLASSES,), MOST / (10**6 + 1)))


# The end of a task.


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_extras_hold_numbers(value: float) -> None:
    means = with_one(value)(torch.rand(CLASSES, WIDTH))
    assert (
        reason("end_task", extras=extras("end_task", class_means=means)) == "class_means holds NaN or infinite values"
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"class_means": torch.rand(CLASSES + 1, WIDTH)}, "class_means is (4, 4) torch.float32 instead of (3, 4)"),
        ({"class_means": torch.rand(CLASSES, WIDTH + 1)}, "class_means is (3, 5) torch.float32 instead of (3, 4)"),
        ({"class_counts": torch.ones(CLASSES + 1).long()}, "class_counts is (4,) torch.int64 instead of (3,)"),
        ({"class_counts": torch.ones(CLASSES)}, "class_counts is (3,) torch.float32 instead of (3,) torch.int64"),
        ({"class_counts": torch.tensor([1, -1, 1])}, "class counts below 0"),
    ],
)
def test_a_method_looks_at_its_own_extras(changes: dict[str, Tensor], said: str) -> None:
    assert said in str(reason("end_task", extras=extras("end_task", **changes)))


# Tests of the model at sites.


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        (torch.zeros(CLASSES, CLASSES + 1).long(), "confusion is (3, 4) torch.int64 instead of (3, 3) torch.int64"),
        (torch.zeros(CLASSES).long(), "confusion is (3,) torch.int64 instead of (3, 3) torch.int64"),
        (torch.zeros(CLASSES, CLASSES), "confusion is (3, 3) torch.float32 instead of (3, 3) torch.int64"),
        (torch.zeros(CLASSES, CLASSES).int(), "confusion is (3, 3) torch.int32 instead of (3, 3) torch.int64"),
        (torch.eye(CLASSES).long(), "confusion counts do not add up to 20 examples"),
        (torch.tensor([[21, -1, 0], [0, 0, 0], [0, 0, 0]]), "confusion counts do not add up to 20 examples"),
        (torch.tensor([[30, -10, 0], [0, 0, 0], [0, 0, 0]]), "confusion counts do not add up to 20 examples"),
        # adds up to 20 in 64 bits, which wrap around
        (
            torch.tensor([[2**62, 2**62, 20], [2**62, 2**62, 0], [0, 0, 0]]),
            "confusion counts do not add up to 20 examples",
        ),
    ],
)
def test_counts_must_be_counts_of_the_images_that_were_tested(counts: Tensor, said: str) -> None:
    assert reason("evaluate", extras={"confusion": counts}) == said


# All answers of a round.


@pytest.mark.parametrize("phase", PHASES)
def test_each_client_counts_once_if_it_was_asked_at_all(phase: Phase) -> None:
    told: list[tuple[int, str]] = []
    bad = replace(honest(phase, client=1), round=9)
    answers = [honest(phase, client=c) for c in (3, 2, 7, 2)] + [bad, honest(phase, client=1)]
    jobs = [job(phase, client=c) for c in (1, 2, 3)]
    used = list(usable(answers, jobs, METHOD, SIZES, lambda client, why: told.append((client, why))))
    assert [update.client for update in used] == [3, 2]
    again = "was not asked, or has already answered"
    assert told == [(7, again), (2, again), (1, "answers for client 1, task 1, round 9"), (1, again)]


def test_updates_are_looked_at_one_at_a_time() -> None:
    """The next one is not taken before this one has been used: that many need not fit into memory."""
    taken: list[int] = []

    def answers():
        for client in (1, 2, 3):
            taken.append(client)
            yield honest("train", client)

    jobs = [job("train", client=c) for c in (1, 2, 3)]
    assert next(usable(answers(), jobs, METHOD, SIZES, lambda *_: None)).client == 1
    assert taken == [1]
