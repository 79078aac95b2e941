"""What sites report of tests on images that they hold out: no more than they announced, and beside the others'."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedclass.federation.evaluate import Counts

FEWEST = 10  # images, below which a site's figure says nothing
FAR = 0.25  # share of images by which a site's figure must differ, and
SIGMAS = 3.0  # as many standard deviations


def capped(counts: Counts, limits: Sequence[int | None]) -> tuple[Counts, list[int]]:
    """No row sums to more than its limit; those that did are scaled down, and named.

    counts: (classes, classes), rows are the truth.  limits: by class; None: unknown.
    """
    found, over = counts.copy(), list[int]()
    for label, limit in enumerate(limits):
        total = int(counts[label].sum())
        if limit is not None and total > limit:
            found[label] = [int(count) * limit // total for count in counts[label]]  # Python's integers: no overflow
            over.append(label)
    return found, over


def outliers(reports: Mapping[int, Counts], here: Counts | None = None) -> dict[int, tuple[float, float]]:
    """Sites that are right far more or far less often than is to be expected of their classes.

    Returns their accuracy and the one expected, both in percent. Of a class, the share of right ones that is expected
    is the one on the server's own images or, without any, the median of the sites': less than half of them cannot move
    it far. A site stands out if its own differs by a quarter, and by 3 sqrt(p (1 - p) / n).
    """
    found = {}
    expected = _rates(here) if here is not None else None
    for client, own in reports.items():
        others = [_rates(counts) for other, counts in reports.items() if other != client]
        images = own.sum(axis=1)
        known = np.array([any(np.isfinite(rates[label]) for rates in others) for label in range(len(own))], bool)
        rates = _median([_rates(own), *others]) if expected is None else expected
        both = (images > 0) & (known if expected is None else np.isfinite(expected))
        n = int(images[both].sum())
        if n < FEWEST:
            continue
        right = float(own.diagonal()[both].sum()) / n
        p = float((images[both] * rates[both]).sum()) / n
        if abs(right - p) > max(FAR, SIGMAS * math.sqrt(p * (1 - p) / n)):
            found[client] = (100 * right, 100 * p)
    return found


def _rates(counts: Counts) -> NDArray[np.float64]:
    """By class, the share that is right; NaN without images."""
    images = counts.sum(axis=1)
    return np.where(images > 0, counts.diagonal() / np.maximum(images, 1), np.nan)


def _median(rates: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """By class, over the sites that have images of it; NaN if none has."""
    columns = (column[np.isfinite(column)] for column in np.stack(rates).T)
    return np.array([np.median(column) if len(column) else np.nan for column in columns])
