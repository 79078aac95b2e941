"""Validation images: a share of each client's training images that is not trained on."""

from dataclasses import replace

import numpy as np

from fedclass.data.partition import Index
from fedclass.data.stream import Stream
from fedclass.errors import ConfigError
from fedclass.rng import array_generator


def hold_out(stream: Stream, part: float, *, seed: int) -> Stream:
    """Move `part` of each client's images of each class to `held_out`."""
    if part == 0:
        return stream
    kept, held_out = [], []
    for client, share in enumerate(stream.shares):
        held = np.concatenate(
            [np.empty(0, np.int64)]
            + [
                _drawn(share[stream.targets[share] == label], part, seed, client, label)
                for label in np.unique(stream.targets[share]).tolist()
            ]
        )
        held_out.append(np.sort(held))
        kept.append(share[~np.isin(share, held)])
    made = replace(stream, shares=kept, held_out=held_out)
    drawn = np.bincount(stream.targets[np.concatenate(held_out)], minlength=len(stream.classes))
    if not drawn.all():
        raise ConfigError(
            f"[data] validation = {part:g} holds out no image of class {stream.classes[int(drawn.argmin())]!r}; "
            "raise it, or lower partition.clients: a client with one image of a class trains on it"
        )
    return made


def _drawn(images: Index, part: float, seed: int, client: int, label: int) -> Index:
    """floor(part * n + u) of n images, u uniform in [0, 1): `part` on average, even for small n; one remains."""
    rng = array_generator(seed, "validation", client, label)
    count = min(int(part * len(images) + rng.random()), len(images) - 1)
    return rng.permutation(images)[:count]
