"""Simulated faults: some clients do not answer in a round, some do less work than asked."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from fedclass.rng import array_generator


@dataclass(frozen=True, kw_only=True)
class FaultSettings:
    """Table [faults], for simulations."""

    dropout: Annotated[
        float | None, Field(ge=0, lt=1, description="share of the clients asked that do not answer in a round")
    ] = None
    stragglers: Annotated[
        float | None, Field(ge=0, le=1, description="share of the clients asked that do fewer epochs")
    ] = None


def dropped_out(settings: FaultSettings, asked: Sequence[int], *, seed: int, task: int, round: int) -> list[int]:
    """floor(dropout * n + u) of the n clients asked, u uniform in [0, 1): the share on average. One always answers."""
    if not settings.dropout:
        return []
    rng = array_generator(seed, "dropout", "task", task, "round", round)
    count = min(int(settings.dropout * len(asked) + rng.random()), len(asked) - 1)
    return sorted(asked[i] for i in rng.choice(len(asked), count, replace=False))


def epochs_done(settings: FaultSettings, epochs: int, *, seed: int, client: int, task: int, round: int) -> int:
    """All epochs, or for a straggler 1 to epochs - 1 of them, drawn uniformly."""
    if not settings.stragglers:
        return epochs
    rng = array_generator(seed, "straggler", "client", client, "task", task, "round", round)
    return int(rng.integers(1, epochs)) if rng.random() < settings.stragglers else epochs
