"""All randomness of a run. It depends on what it is for, never on what was drawn before."""

import hashlib

import numpy as np
import torch


def _derive(seed: int, scope: tuple[object, ...]) -> int:
    plain = tuple(part.item() if isinstance(part, np.generic) else part for part in (seed, *scope))
    digest = hashlib.sha256(repr(plain).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(seed: int, *scope: object) -> torch.Generator:
    """`generator(7, "client", 3, "task", 1, "round", 4)` is the same in one process, in eight, or over Flower."""
    return torch.Generator().manual_seed(_derive(seed, scope))


def array_generator(seed: int, *scope: object) -> np.random.Generator:
    """The same for NumPy, whose Dirichlet and permutation draws need no tensors."""
    return np.random.Generator(np.random.PCG64(_derive(seed, scope)))
