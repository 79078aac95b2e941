"""Which client keeps how many exemplars of which class, so that all clients' exemplars together are balanced."""

from collections import deque

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]


def balanced_quotas(available: Counts, budgets: Counts) -> Counts:
    """(clients, classes): quotas within `available` and, summed over classes, within `budgets`.

    Classes gain one exemplar at a time, the scarcest first, until no class can gain any. What a class gains comes from
    the client that keeps the fewest of it; if all that have more are full, one of them gives up an exemplar of a class
    that another client can keep instead. So the total is as large as budgets and holdings allow, and of all quotas
    with that total none has more of its scarcest class, nor, at that, of its next scarcest, and so on (tests compare
    with all possible quotas).

    available: (clients, classes) images that each client could keep.  budgets: (clients,) exemplars it may keep.
    """
    quotas, spare = np.zeros_like(available), budgets.copy()
    totals = np.zeros(available.shape[1], np.int64)
    growing = np.flatnonzero(available.any(axis=0)).tolist()
    while growing:
        label = min(growing, key=lambda one: (totals[one], one))
        if _gained(label, quotas, available, spare):
            totals[label] += 1
        else:
            growing.remove(label)  # for good: gains of other classes make no room
    return quotas


def _gained(label: int, quotas: Counts, available: Counts, spare: Counts) -> bool:
    """Whether one more exemplar of the class can be kept; if so, update quotas and spare.

    A breadth-first search for the shortest chain of exchanges: a client with room keeps one more of a class, of which
    another gives up one for the class before it in the chain, and so on back to `label`.
    """
    origin: dict[
        int, tuple[int, int]
    ] = {}  # for each class that was reached: the client, and the class it makes room for
    waiting, reached = deque([label]), {label}
    while waiting:
        wanted = waiting.popleft()
        able = np.flatnonzero(quotas[:, wanted] < available[:, wanted])
        roomy = able[spare[able] > 0]
        if len(roomy):
            order = np.lexsort((roomy, -spare[roomy], quotas[roomy, wanted]))  # the last key counts first
            client = int(roomy[order[0]])
            spare[client] -= 1
            quotas[client, wanted] += 1
            while wanted != label:
                client, before = origin[wanted]
                quotas[client, wanted] -= 1
                quotas[client, before] += 1
                wanted = before
            return True
        for client in able.tolist():
            for other in np.flatnonzero(quotas[client]).tolist():
                if other not in reached:
                    reached.add(other)
                    origin[other] = client, wanted
                    waiting.append(other)
    return False
