"""Is a difference more than chance? Runs with the same seed share data, partition and first weights, and form pairs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Difference:
    """The difference of two settings over their common seeds.  interval: None with fewer than two seeds."""

    mean: float
    interval: tuple[float, float] | None

    @property
    def verdict(self) -> str:
        if self.interval is None:
            return "one seed: no interval"
        low, high = self.interval
        if low <= 0 <= high:
            return "not distinguishable"
        return "higher" if low > 0 else "lower"


def paired(values: Sequence[float], reference: Sequence[float]) -> Difference:
    """d_i = values[i] - reference[i], i a seed; the interval is mean(d) ± t * s(d) / sqrt(n), t of n - 1 degrees."""
    gaps = [value - other for value, other in zip(values, reference, strict=True)]
    centre = mean(gaps)
    if len(gaps) < 2:
        return Difference(centre, None)
    from scipy.special import stdtrit  # takes half a second to import

    reach = float(stdtrit(len(gaps) - 1, (1 + CONFIDENCE) / 2)) * stdev(gaps) / math.sqrt(len(gaps))
    return Difference(centre, (centre - reach, centre + reach))
