"""What sites report of tests on images that they hold out: no more than they announced, and beside the others'."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from fedclass.experiment.curriculum import Counts

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
    """Sites that are right far more or far less often than others (and the server) on the same classes.

    Returns their accuracy and the one that others lead one to expect, both in percent. The share of right ones p is
    expected class by class; a site stands out if its own differs by a quarter, and by 3 sqrt(p (1 - p) / n).
    """
    found = {}
    for client, own in reports.items():
        others = [counts for other, counts in reports.items() if other != client]
        told = sum([*others, *([here] if here is not None else [])], np.zeros_like(own))
        images, elsewhere = own.sum(axis=1), told.sum(axis=1)
        both = (images > 0) & (elsewhere > 0)
        n = int(images[both].sum())
        if n < FEWEST:
            continue
        right = float(own.diagonal()[both].sum()) / n
        rates = told.diagonal()[both] / elsewhere[both]
        p = float((images[both] * rates).sum()) / n
        if abs(right - p) > max(FAR, SIGMAS * math.sqrt(p * (1 - p) / n)):
            found[client] = (100 * right, 100 * p)
    return found
