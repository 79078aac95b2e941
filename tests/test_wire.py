"""What may cross the network, field by field, and the identity of weights."""

import hashlib
from collections.abc import Mapping
from dataclasses import FrozenInstanceError
from typing import Any, Literal, get_type_hints

import pytest
import torch
from torch import Tensor

from fedclass.models.build import build_model
from fedclass.wire import Announcement, Job, Plan, Update, nbytes, sha256

WEIGHTS = {"b": torch.tensor([[1.0, 2.0]]), "a": torch.tensor(3)}


def test_a_job_holds_these_fields_and_no_others():
    """Add one here only after asking what it tells about somebody's images."""
    assert list(get_type_hints(Job).items()) == [
        ("client", int),
        ("task", int),
        ("round", int),
        ("phase", Literal["train", "count", "end_task", "evaluate"]),
        ("weights", Mapping[str, Tensor]),
        ("teacher", Mapping[str, Tensor] | None),
        ("broadcast", Mapping[str, Tensor]),
        ("frozen", str),
        ("quotas", tuple[int, ...] | None),
    ]


def test_an_update_holds_these_fields_and_no_others():
    """No image, no exemplar, no output for a single sample. Add one here only after asking what it gives away."""
    assert list(get_type_hints(Update).items()) == [
        ("client", int),
        ("task", int),
        ("round", int),
        ("weights", Mapping[str, Tensor]),
        ("examples", int),
        ("metrics", Mapping[str, float]),
        ("extras", Mapping[str, Tensor]),
    ]


def test_a_plan_holds_these_fields_and_no_others():
    assert list(get_type_hints(Plan).items()) == [
        ("federation", str),
        ("recipe", Mapping[str, Any]),
        ("mean", tuple[float, ...]),
        ("std", tuple[float, ...]),
        ("image", tuple[int, int, int]),
        ("classes", tuple[str, ...]),
        ("task_sizes", tuple[int, ...]),
        ("teacher", str | None),
        ("broadcast", str | None),
        ("awaited", tuple[str, ...]),
        ("spelled", Mapping[str, str]),
        ("returns", tuple[int, ...]),
    ]


def test_an_announcement_holds_these_fields_and_no_others():
    """The names of classes and, if the site tells them, how many images of each. Nothing about a single image."""
    assert list(get_type_hints(Announcement).items()) == [
        ("site", str),
        ("classes", Mapping[str, int | None]),
        ("fresh", Mapping[str, int | None]),
        ("image", tuple[int, int, int] | None),
        ("machine", Mapping[str, str]),
        ("held_out", Mapping[str, int | None]),
    ]


def test_a_client_sends_no_extras_unless_it_says_so():
    first, second = (Update(client=0, task=0, round=0, weights={}, examples=1, metrics={}) for _ in range(2))
    assert first.extras == {}
    assert first.extras is not second.extras


def test_what_crosses_cannot_be_changed():
    job = Job(0, 0, 0, "train", WEIGHTS, None)
    with pytest.raises(FrozenInstanceError):
        job.client = 1
    update = Update(0, 0, 0, WEIGHTS, 1, {})
    with pytest.raises(FrozenInstanceError):
        update.examples = 10**6


def test_bytes_are_those_of_the_tensors():
    assert nbytes({}) == 0
    assert nbytes(WEIGHTS) == 2 * 4 + 8
    assert nbytes({"half": torch.zeros(3, 5, dtype=torch.float16)}) == 30


def test_a_resnet8_with_ten_classes_weighs_315_kilobytes():
    """78,042 parameters, 2 x 336 running means and variances in float32, nine counters of eight bytes."""
    model = build_model("resnet8", norm="batch", image_size=(8, 8), seed=0)
    model.grow_to(10, seed=0)
    assert nbytes(model.state_dict()) == 4 * (78_042 + 2 * 336) + 9 * 8 == 314_928


def test_the_sha256_written_out():
    three, one, two = b"\x03" + bytes(7), b"\x00\x00\x80\x3f", b"\x00\x00\x00\x40"
    written_out = b"a torch.int64 ();" + three + b"b torch.float32 (1, 2);" + one + two
    assert sha256(WEIGHTS) == hashlib.sha256(written_out).hexdigest()


@pytest.mark.parametrize(
    "other",
    [
        {"b": WEIGHTS["b"], "c": WEIGHTS["a"]},
        {"b": WEIGHTS["a"], "a": WEIGHTS["b"]},
        {"b": WEIGHTS["b"]},
        WEIGHTS | {"c": torch.empty(0)},
        WEIGHTS | {"b": WEIGHTS["b"].reshape(2, 1)},
        WEIGHTS | {"b": WEIGHTS["b"].reshape(2)},
        WEIGHTS | {"b": WEIGHTS["b"].view(torch.int32)},
        WEIGHTS | {"a": torch.tensor(3, dtype=torch.int32)},
        WEIGHTS | {"b": torch.nextafter(WEIGHTS["b"], torch.tensor(9.0))},
        WEIGHTS | {"b": WEIGHTS["b"].flip(1)},
    ],
    ids=["name", "swapped", "missing", "empty one more", "shape", "rank", "dtype", "width", "last bit", "order"],
)
def test_the_sha256_depends_on_names_shapes_dtypes_and_bits(other):
    assert sha256(other) != sha256(WEIGHTS)


def test_zero_and_minus_zero_are_equal_but_not_the_same_bits():
    assert sha256({"w": torch.tensor(0.0)}) != sha256({"w": torch.tensor(-0.0)})


def test_the_sha256_does_not_depend_on_order_layout_or_gradients():
    tensor = torch.arange(24.0).reshape(1, 2, 3, 4)
    want = sha256({"a": tensor, "b": torch.ones(2)})
    assert sha256({"b": torch.ones(2), "a": tensor}) == want
    assert sha256({"a": tensor.to(memory_format=torch.channels_last), "b": torch.ones(2)}) == want
    assert sha256({"a": tensor.mT.contiguous().mT, "b": torch.ones(2)}) == want
    assert sha256({"a": tensor.clone().requires_grad_(), "b": torch.ones(2)}) == want


def test_weights_in_bfloat16_have_an_identity_too():
    one, two = (sha256({"w": torch.full((2,), value, dtype=torch.bfloat16)}) for value in (1.0, 2.0))
    assert one != two
