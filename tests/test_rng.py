"""Randomness depends on purpose, not on history; and not on the version of this code either."""

from itertools import combinations

import numpy as np
import pytest
import torch

from fedclass.rng import array_generator, generator

SCOPE = ("client", 3, "task", 1, "round", 4)

OTHERS = [
    (8, *SCOPE),
    (7, "server", 3, "task", 1, "round", 4),
    (7, "client", 4, "task", 1, "round", 4),
    (7, "client", 3, "task", 2, "round", 4),
    (7, "client", 3, "task", 1, "round", 5),
    (7, *SCOPE[:-1]),
    (7, *SCOPE, 0),
    (7, "client", 1, "task", 3, "round", 4),
    (7, "client", "3", "task", 1, "round", 4),
    (7,),
]


def draws(source):
    if isinstance(source, torch.Generator):
        return torch.randint(2**31, (4,), generator=source).tolist()
    return source.integers(2**31, size=4).tolist()


def test_known_first_values_of_tensors():
    """If this fails, every published number changes: say so in the CHANGELOG, under Numbers."""
    source = generator(7, *SCOPE)
    assert source.initial_seed() == 8803843408314388016
    assert torch.randint(1000, (5,), generator=source).tolist() == [81, 641, 499, 90, 118]
    assert torch.randperm(6, generator=source).tolist() == [2, 5, 4, 3, 1, 0]


def test_known_first_values_of_arrays():
    source = array_generator(7, *SCOPE)
    assert source.integers(1000, size=5).tolist() == [950, 295, 988, 698, 512]
    assert source.permutation(6).tolist() == [2, 1, 0, 4, 5, 3]
    drawn = array_generator(0, "partition", 0).dirichlet(np.full(3, 0.5))
    np.testing.assert_allclose(drawn, [0.01207354, 0.39781808, 0.59010838], atol=1e-8)


@pytest.mark.parametrize("make", [generator, array_generator])
def test_equal_scopes_give_equal_streams_whatever_was_drawn_before(make):
    first = make(7, *SCOPE)
    want = draws(first)
    draws(first)
    torch.rand(3)
    assert draws(make(7, *SCOPE)) == want


@pytest.mark.parametrize("make", [generator, array_generator])
def test_the_seed_and_each_part_of_the_scope_matter(make):
    streams = [draws(make(*scope)) for scope in [(7, *SCOPE), *OTHERS]]
    assert all(a != b for a, b in combinations(streams, 2))


@pytest.mark.parametrize("make", [generator, array_generator])
def test_neighbouring_seeds_have_nothing_in_common(make):
    """A thousand seeds, first draws: a uniform sample. Mean 1/2 and deviation 1/sqrt(12), no correlation."""
    firsts = np.array([draws(make(seed, "x"))[0] for seed in range(1000)]) / 2**31
    assert abs(firsts.mean() - 0.5) < 4 * 0.2887 / 1000**0.5
    assert firsts.std() == pytest.approx(0.2887, rel=0.08)
    assert abs(np.corrcoef(firsts[1:], firsts[:-1])[0, 1]) < 4 / 1000**0.5


def test_global_streams_are_left_alone():
    tensors = torch.random.get_rng_state()
    arrays = np.random.get_state()[1].tolist()  # noqa: NPY002
    draws(generator(1, "a"))
    draws(array_generator(1, "a"))
    assert torch.equal(torch.random.get_rng_state(), tensors)
    assert np.random.get_state()[1].tolist() == arrays  # noqa: NPY002


def test_a_number_is_the_same_number_from_numpy():
    """Client numbers often come out of an array; over a wire they come back as Python's."""
    assert draws(generator(7, "client", np.int64(3))) == draws(generator(7, "client", 3))
