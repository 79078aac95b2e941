"""The weighted mean against NumPy in float64, and every flaw by its name."""

import math
import pickle
import weakref

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import nn

from fedclass.models.weights import Packed, flaw, weighted_mean
from fedclass.wire import nbytes

checked = settings(max_examples=40, deadline=None, derandomize=True)


def network(seed):
    """With parameters, running means, and an integer counter; as trained on batches that only it has seen."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    for _ in range(seed + 1):
        model(torch.randn(8, 4) + seed)
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def mean_by_numpy(updates):
    """sum_k n_k W^k / sum_k n_k, one number at a time; counters are maxima."""
    total = sum(examples for _, examples in updates)
    result = {}
    for name, tensor in updates[0][0].items():
        flat = [weights[name].numpy().ravel() for weights, _ in updates]
        if tensor.dtype == torch.int64:
            values = [max(int(f[i]) for f in flat) for i in range(tensor.numel())]
        else:
            values = [
                math.fsum(float(f[i]) * examples for f, (_, examples) in zip(flat, updates, strict=True)) / total
                for i in range(tensor.numel())
            ]
        result[name] = np.array(values, tensor.numpy().dtype).reshape(tensor.shape)
    return result


# The mean.


@checked
@given(examples=st.lists(st.integers(0, 50_000), min_size=1, max_size=6).filter(any))
def test_the_mean_is_that_of_numpy(examples):
    updates = [(network(k), n) for k, n in enumerate(examples)]
    want = mean_by_numpy(updates)
    found = weighted_mean(iter(updates))
    assert found.keys() == want.keys()
    for name, tensor in found.items():
        assert tensor.dtype == updates[0][0][name].dtype
        np.testing.assert_allclose(tensor.numpy(), want[name], rtol=1.2e-7, atol=1e-30)  # the last bit of float32


def test_a_mean_by_hand():
    updates = [({"w": torch.tensor([1.0, -2.0])}, 30), ({"w": torch.tensor([5.0, 2.0])}, 10)]
    assert weighted_mean(updates)["w"].tolist() == [2.0, -1.0]


def test_running_means_and_variances_are_averaged_and_counters_take_the_maximum():
    first, second = network(0), network(4)
    mean = weighted_mean([(second, 1), (first, 3)])
    for name in ("1.running_mean", "1.running_var"):
        assert not torch.equal(first[name], second[name])
        torch.testing.assert_close(mean[name], 0.75 * first[name] + 0.25 * second[name])
    assert (int(first["1.num_batches_tracked"]), int(second["1.num_batches_tracked"])) == (1, 5)
    assert mean["1.num_batches_tracked"].dtype == torch.int64
    assert int(mean["1.num_batches_tracked"]) == 5


@pytest.mark.parametrize("examples", [1, 3, 7, 49_999])
def test_the_mean_of_one_update_is_itself_bit_for_bit(examples):
    weights = network(2) | {"odd": torch.tensor([-0.0, 1e-45, 3.4e38, math.pi])}
    mean = weighted_mean([(weights, examples)])
    for name, tensor in weights.items():
        assert mean[name].numpy().tobytes() == tensor.numpy().tobytes()


def test_the_mean_of_equal_updates_is_the_same_bit_for_bit():
    """Client drift is the only reason for weights to move."""
    weights = network(3)
    mean = weighted_mean([(weights, n) for n in (7, 11, 13)])
    assert all(torch.equal(mean[name], tensor) for name, tensor in weights.items())


def test_scaling_all_counts_changes_nothing():
    updates = [(network(k), n) for k, n in enumerate((3, 5, 9))]
    once, many = weighted_mean(updates), weighted_mean((weights, 64 * n) for weights, n in updates)
    assert all(torch.equal(once[name], many[name]) for name in once)


def test_the_order_matters_no_more_than_float64_rounds():
    """The result is the exact mean, rounded to float32 once: half a unit in the last place, 2^-24, at most."""
    tensors = [torch.randn(2000, generator=torch.Generator().manual_seed(k)) * 10 ** (k % 4) for k in range(20)]
    updates = [({"w": tensor}, 17 * k + 1) for k, tensor in enumerate(tensors)]
    forward, backward = weighted_mean(updates)["w"], weighted_mean(updates[::-1])["w"]
    exact = sum(w["w"].numpy().astype(np.longdouble) * n for w, n in updates) / sum(n for _, n in updates)
    for mean in (forward, backward):
        np.testing.assert_allclose(mean.numpy().astype(np.longdouble), exact, rtol=1.0001 * 2**-24, atol=1e-12)


def test_an_update_without_examples_does_not_count():
    mean = weighted_mean([(network(0), 5), (network(1), 0)])
    assert torch.equal(mean["0.weight"], network(0)["0.weight"])


@pytest.mark.parametrize("updates", [[], [({"w": torch.ones(2)}, 0)], [({"w": torch.ones(2)}, 0)] * 3])
def test_a_total_of_zero_is_refused(updates):
    with pytest.raises(ValueError, match="positive total weight"):
        weighted_mean(updates)


@pytest.mark.parametrize("count", [1, 2])
def test_what_comes_in_is_not_changed(count):
    updates = [(network(k) | {"double": torch.ones(2, dtype=torch.float64)}, 2) for k in range(count)]
    before = [{name: tensor.clone() for name, tensor in weights.items()} for weights, _ in updates]
    mean = weighted_mean(updates)
    for tensor in mean.values():
        tensor.add_(1)
    for (weights, _), kept in zip(updates, before, strict=True):
        assert all(torch.equal(weights[name], kept[name]) for name in kept)


def test_updates_are_let_go_as_they_are_added():
    """A round of a thousand clients must fit where one does: when the next update comes, all but the last are gone."""
    born: list[weakref.ref[torch.Tensor]] = []
    alive = []

    def updates():
        for k in range(6):
            tensor = torch.full((3,), float(k))
            born.append(weakref.ref(tensor))
            alive.append(sum(ref() is not None for ref in born))
            yield {"w": tensor}, 1

    assert weighted_mean(updates())["w"].tolist() == [2.5, 2.5, 2.5]
    assert max(alive) <= 2


# In one piece.


def mixed():
    tied = torch.randn(5)
    return {
        "filters": torch.randn(4, 3, 2, 2),
        "a.weight": tied,
        "b.weight": tied,
        "steps": torch.tensor(7),
        "none": torch.empty(0, 3),
        "double": torch.randn(2, 2, dtype=torch.float64),
        "learned": torch.randn(3, 3, requires_grad=True),
    }


def test_packed_weights_are_the_same_by_name():
    weights = mixed()
    packed = Packed.of(weights)
    assert list(packed) == list(weights)
    for name, tensor in weights.items():
        assert torch.equal(packed[name], tensor)
        assert packed[name].dtype == tensor.dtype
    assert packed["filters"].is_contiguous(memory_format=torch.channels_last)
    assert not any(tensor.requires_grad for tensor in packed.values())


def test_packed_weights_share_memory_with_their_sections_and_with_nothing_else():
    weights = mixed()
    packed = Packed.of(weights)
    packed["filters"].fill_(5)
    packed["a.weight"].fill_(6)
    assert float(packed["b.weight"][0]) == 6  # tied
    assert sum(int((section == 5).sum()) for section in packed.sections) == 48
    assert not (weights["filters"] == 5).any()
    copied = packed.clone()
    copied["filters"].fill_(8)
    assert float(packed["filters"].max()) == 5


def test_what_is_learned_lies_apart_from_what_is_not():
    """An optimizer that moves whole sections must not move running means, frozen weights or counters."""
    packed = Packed.of(mixed())
    moved = {packed.layout.slots[name].section for name in ("learned",)}
    assert moved == {i for i, (_, _, learned) in enumerate(packed.layout.sections) if learned}
    assert all(packed.layout.slots[name].section not in moved for name in packed if name != "learned")


def test_every_tensor_begins_at_a_multiple_of_sixteen_elements():
    assert {slot.start % 16 for slot in Packed.of(mixed()).layout.slots.values()} == {0}


def test_packed_weights_know_how_many_bytes_they_are():
    assert Packed.of(mixed()).nbytes == nbytes(Packed.of(mixed())) == nbytes(mixed())


def test_packed_weights_travel_as_plain_bytes():
    packed = Packed.of(mixed())
    arrived = pickle.loads(pickle.dumps(packed))
    assert arrived.layout == packed.layout
    assert all(torch.equal(arrived[name], tensor) for name, tensor in packed.items())


def test_the_same_layout_is_not_packed_again_and_another_one_is():
    packed = Packed.of(network(0))
    assert Packed.of(packed) is packed
    assert Packed.of(packed, Packed.of(network(1)).layout) is packed
    backwards = Packed.of(dict(reversed(network(0).items())))
    assert backwards.layout != packed.layout
    again = Packed.of(backwards, packed.layout)
    assert again.layout == packed.layout
    assert all(torch.equal(again[name], tensor) for name, tensor in packed.items())


def test_the_mean_does_not_depend_on_the_layout():
    updates = [(network(k), n) for k, n in enumerate((3, 5, 9))]
    packed = [(Packed.of(dict(reversed(w.items())) if n == 5 else w), n) for w, n in updates]
    plain, found = weighted_mean(updates), weighted_mean(packed)
    assert all(torch.equal(found[name], tensor) for name, tensor in plain.items())


# Flaws.

STEPS = "1.num_batches_tracked"


def damaged(name, change):
    weights = network(0)
    weights[name] = change(weights[name].clone())
    return weights


def with_value(value, at=(0, 1)):
    def change(tensor):
        tensor[at] = value
        return tensor

    return change


def test_weights_of_the_same_model_have_no_flaw():
    assert flaw(network(3), network(0)) is None


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        ({k: v for k, v in network(0).items() if k != "0.bias"}, "names differ from the model's: 0.bias"),
        (network(0) | {"extra": torch.ones(1)}, "names differ from the model's: extra"),
        ({}, "names differ from the model's: 0.bias, 0.weight, 1.bias"),
        (damaged("0.weight", lambda t: t.T), "0.weight has shape (4, 3) instead of (3, 4)"),
        (damaged("0.bias", lambda t: t[None]), "0.bias has shape (1, 3) instead of (3,)"),
        (damaged("0.weight", torch.Tensor.double), "0.weight is torch.float64 instead of torch.float32"),
        (damaged(STEPS, torch.Tensor.float), "1.num_batches_tracked is torch.float32 instead of torch.int64"),
        (damaged("0.weight", with_value(math.nan)), "0.weight holds NaN or infinite values"),
        (damaged("0.weight", with_value(math.inf)), "0.weight holds NaN or infinite values"),
        (damaged("1.running_var", with_value(-math.inf, at=2)), "1.running_var holds NaN or infinite values"),
    ],
)
def test_each_flaw_is_named(weights, reason):
    assert flaw(weights, network(0)) == reason
    assert flaw(Packed.of(weights), Packed.of(network(0))) == reason
