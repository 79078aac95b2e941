"""Batches for property tests: student logits, teacher logits, labels."""

from typing import NamedTuple

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

# The form of the authors' release, for augmented_distillation.
RELEASED = {
    "temperature": 5.0,
    "student_temperature": 3.0,
    "mass_temperature": 3.0,
    "stop_gradient": False,
    "clip_ratio": True,
}

checked = settings(max_examples=25, deadline=None, derandomize=True)


class Batch(NamedTuple):
    current: Tensor  # (B, g+h) student logits
    previous: Tensor  # (B, g) teacher logits
    labels: Tensor  # (B,) in 0..g+h-1

    @property
    def g(self) -> int:
        return self.previous.shape[1]


@st.composite
def batches(
    draw: st.DrawFn,
    *,
    logits: st.SearchStrategy[float] = st.floats(-8, 8),  # noqa: B008
    dtype: type[np.floating] = np.float64,
    min_new: int = 1,
) -> Batch:
    size, g, h = draw(st.integers(1, 5)), draw(st.integers(1, 4)), draw(st.integers(min_new, 4))
    drawn = torch.from_numpy(draw(arrays(dtype, (size, g + h + g), elements=logits)))
    labels = draw(st.lists(st.integers(0, g + h - 1), min_size=size, max_size=size))
    return Batch(drawn[:, : g + h].clone(), drawn[:, g + h :].clone(), torch.tensor(labels))


def random_batch(size: int = 64, g: int = 5, h: int = 4, *, scale: float = 3.0, seed: int = 0) -> Batch:
    """Gaussian logits, as spread as those of a trained network, in float64."""
    source = torch.Generator().manual_seed(seed)
    return Batch(
        scale * torch.randn(size, g + h, generator=source, dtype=torch.float64),
        scale * torch.randn(size, g, generator=source, dtype=torch.float64),
        torch.randint(g + h, (size,), generator=source),
    )
