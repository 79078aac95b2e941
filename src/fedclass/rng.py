"""All randomness of a run. It depends on its purpose, never on what was drawn before.

torch is imported by the functions that need it, so that other code does not wait for it.
"""

import contextlib
import hashlib
import random
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.random import mtrand
from numpy.typing import NDArray

from fedclass.errors import FedclassError

if TYPE_CHECKING:
    import torch

WORDS = 624  # of 32 bits: the state of the Mersenne Twister, which is torch's generator on a CPU
FIRST = 3  # where torch keeps them, in units of 8 bytes; the seed comes first of all
BYTES = 5056  # of torch's whole state


def bits(seed: int, *scope: object) -> int:
    """128 bits that belong to this purpose alone. NumPy numbers count as Python numbers."""
    return int.from_bytes(_digest(seed, scope)[:16], "big")


def array_generator(seed: int, *scope: object) -> np.random.Generator:
    """`array_generator(7, "client", 3, "task", 1)` is the same in one process, in eight, or over Flower."""
    return np.random.Generator(np.random.PCG64(bits(seed, *scope)))


def generator(seed: int, *scope: object) -> "torch.Generator":
    """The same for torch, whose own seeding would use only 32 bits of a seed: here the hash fills the whole state."""
    import torch

    source = torch.Generator()
    source.set_state(_state(_digest(seed, scope)))
    return source


def seed_streams(seed: int, *scope: object) -> None:
    """Seed the global streams of torch (CPU and current GPU), NumPy and `random`, which user code may draw from.

    Call it before each piece of user code, so that nothing depends on earlier draws. See `streams_restored`.
    """
    import torch

    digest = _digest(seed, scope)
    torch.set_rng_state(_state(digest))
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(_whole(digest))
    np.random.seed(np.frombuffer(digest, "<u4"))  # noqa: NPY002
    random.seed(digest)


@contextlib.contextmanager
def streams_restored() -> Iterator[None]:
    """Restore the caller's global streams afterwards, whatever is seeded or drawn within.

    Within, NumPy's stream is a Mersenne Twister, the only one that can be seeded; callers may have installed another.
    """
    import torch

    arrays, numbers = mtrand.get_bit_generator(), random.getstate()
    state = np.random.get_state(legacy=False)  # noqa: NPY002
    gpus = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=gpus):
        mtrand.set_bit_generator(np.random.MT19937(0))
        try:
            yield
        finally:
            mtrand.set_bit_generator(arrays)
            np.random.set_state(state)  # noqa: NPY002
            random.setstate(numbers)


def _digest(seed: int, scope: tuple[object, ...]) -> bytes:
    plain = [part.item() if isinstance(part, np.generic) else part for part in (seed, *scope)]
    return hashlib.sha256(repr(tuple(plain)).encode()).digest()


def _whole(digest: bytes) -> int:
    """A seed of 63 bits."""
    return int.from_bytes(digest[:8], "big") >> 1


def _state(digest: bytes) -> "torch.Tensor":
    """A state of torch's generator in which every word is drawn from the hash."""
    import torch

    state = _template().copy()
    state[0] = _whole(digest)  # what initial_seed() returns
    state[FIRST : FIRST + WORDS] = np.frombuffer(hashlib.shake_256(digest).digest(4 * WORDS), "<u4")
    return torch.from_numpy(state).view(torch.uint8)


@cache
def _template() -> NDArray[np.int64]:
    """A state as seeded by torch, verified to have the expected layout: its words follow Knuth's recurrence."""
    import torch

    first = 0x9E3779B9
    state = torch.Generator().manual_seed(2**32 + first).get_state()
    second = (1812433253 * (first ^ first >> 30) + 1) % 2**32
    if state.numel() == BYTES:
        found: NDArray[np.int64] = state.numpy().view(np.int64)
        if found[[0, FIRST, FIRST + 1]].tolist() == [2**32 + first, first, second]:
            return found.copy()
    raise FedclassError(
        f"torch {torch.__version__} keeps the state of its generator in a form that this version of fedclass does not "
        "know; install another version of torch, or of fedclass"
    )
