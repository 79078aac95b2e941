"""Randomness depends on purpose, not on history; and not on the version of this code either."""

import contextlib
import random
from itertools import combinations

import numpy as np
import pytest
import torch

from fedclass import rng
from fedclass.errors import FedclassError
from fedclass.rng import array_generator, bits, generator, seed_streams, streams_restored

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
    assert torch.randint(1000, (5,), generator=source).tolist() == [242, 706, 264, 632, 720]
    assert torch.randperm(6, generator=source).tolist() == [3, 0, 5, 2, 1, 4]


def test_known_first_values_of_arrays():
    source = array_generator(7, *SCOPE)
    assert source.integers(1000, size=5).tolist() == [358, 215, 242, 596, 900]
    assert source.permutation(6).tolist() == [3, 4, 0, 2, 5, 1]
    drawn = array_generator(0, "partition", 0).dirichlet(np.full(3, 0.5))
    np.testing.assert_allclose(drawn, [0.29749245, 0.50942188, 0.19308567], atol=1e-8)


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


# Every bit counts.


@pytest.mark.slow
def test_a_million_purposes_have_a_million_streams():
    """200 clients, 10 tasks, 500 rounds. A hundred pairs agree in the 32 bits that torch would take from a seed: they
    get other streams from torch all the same.
    """
    scopes = [("client", c, "task", t, "round", r) for c in range(200) for t in range(10) for r in range(500)]
    halves = np.frombuffer(b"".join(bits(0, *scope).to_bytes(16, "big") for scope in scopes), ">u8").reshape(-1, 2)
    assert [len(np.unique(half)) for half in halves.T] == [10**6, 10**6]
    seeds = (halves[:, 0] >> 1) % 2**32
    order = np.argsort(seeds, kind="stable")
    pairs = np.flatnonzero(np.diff(seeds[order]) == 0)
    expected = 10**12 / 2 / 2**32
    assert abs(len(pairs) - expected) < 5 * expected**0.5
    for at in pairs:
        assert draws(generator(0, *scopes[order[at]])) != draws(generator(0, *scopes[order[at + 1]]))


def test_two_purposes_that_torch_s_own_seeding_cannot_tell_apart():
    """Their hashes agree in the 32 bits that torch.Generator().manual_seed looks at."""
    scopes = [("client", c, "task", t, "round", r) for c, t, r in ((83, 0, 6), (119, 2, 18))]
    alike = [torch.Generator().manual_seed(generator(0, *scope).initial_seed()) for scope in scopes]
    assert alike[0].initial_seed() != alike[1].initial_seed()
    assert torch.equal(*(torch.randperm(50, generator=source) for source in alike))
    assert not torch.equal(*(torch.randperm(50, generator=generator(0, *scope)) for scope in scopes))


def test_all_words_of_a_torch_generator_s_state_come_from_the_hash():
    """624 words of 32 random bits: no two alike but by chance (one pair in 22,000 states), half of all bits set."""
    words = np.array([generator(seed, "x").get_state().numpy().view(np.int64)[3:627] for seed in range(50)])
    assert words.min() >= 0
    assert words.max() < 2**32
    assert len(np.unique(words)) >= words.size - 2
    ones = np.unpackbits(words.astype(np.uint32).view(np.uint8)).reshape(50 * 624, 32).mean(axis=0)
    np.testing.assert_allclose(ones, 0.5, atol=5 * 0.5 / words.size**0.5)


def test_a_torch_generator_draws_as_the_mersenne_twister_with_these_words_does():
    """NumPy has one too: the words are where torch looks for them, all of them, and nothing else is in play."""
    source = generator(7, *SCOPE)
    words = source.get_state().numpy().view(np.int64)[3:627].astype(np.uint32)
    twister = np.random.MT19937()
    twister.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": 624}}
    want = twister.random_raw(2000) % 1000
    np.testing.assert_array_equal(torch.randint(1000, (2000,), generator=source).numpy(), want)


@pytest.mark.parametrize("change", [{"BYTES": 5048}, {"FIRST": 4}])
def test_another_layout_of_torch_s_state_is_not_written_to(change, monkeypatch):
    for name, value in change.items():
        monkeypatch.setattr(rng, name, value)
    rng._template.cache_clear()
    with pytest.raises(FedclassError, match=f"torch {torch.__version__.split('+')[0]}.*install another version"):
        generator(0)
    rng._template.cache_clear()


# Global streams.


def from_globals():
    """Three numbers from each."""
    return [torch.rand(3).tolist(), np.random.rand(3).tolist(), [random.random() for _ in range(3)]]  # noqa: NPY002


def test_seeded_global_streams_depend_on_their_purpose_alone():
    with streams_restored():
        seed_streams(7, *SCOPE)
        first = from_globals()
        assert len({number for numbers in first for number in numbers}) == 9
        from_globals()
        seed_streams(7, *SCOPE)
        assert from_globals() == first
        for other in OTHERS:
            seed_streams(*other)
            assert all(ours != theirs for ours, theirs in zip(first, from_globals(), strict=True))


def test_known_first_values_of_global_streams():
    with streams_restored():
        seed_streams(7, *SCOPE)
        tensors, arrays, numbers = from_globals()
    np.testing.assert_allclose(tensors, [0.94991410, 0.48589766, 0.42559624], atol=1e-7)
    np.testing.assert_allclose(arrays, [0.15955225, 0.12193723, 0.07026005], atol=1e-8)
    np.testing.assert_allclose(numbers, [0.77409464, 0.99266672, 0.69416688], atol=1e-8)


@pytest.mark.parametrize("error", [None, KeyError])
def test_the_caller_s_streams_go_on_where_they_were(error):
    """Also with half of a pair of normal numbers in hand, which NumPy and Python keep for the next call."""
    np.random.seed(3)  # noqa: NPY002
    random.seed(3)
    torch.manual_seed(3)

    def normal():
        return [torch.randn(()).item(), np.random.standard_normal(), random.gauss()]  # noqa: NPY002

    normal()
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    want = [normal(), normal()]
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    random.setstate(states[2])
    with pytest.raises(KeyError) if error else contextlib.nullcontext(), streams_restored():
        seed_streams(0)
        from_globals()
        if error:
            raise error
    assert [normal(), normal()] == want


def test_a_caller_may_have_another_bit_generator_in_numpy():
    """Which cannot be seeded as a Mersenne Twister can."""
    usual, theirs = np.random.get_bit_generator(), np.random.PCG64(5)
    np.random.set_bit_generator(theirs)
    try:
        with streams_restored():
            seed_streams(0)
            np.random.rand(3)  # noqa: NPY002
        assert np.random.get_bit_generator() is theirs
        assert np.random.rand() == np.random.Generator(np.random.PCG64(5)).random()  # noqa: NPY002
    finally:
        np.random.set_bit_generator(usual)
