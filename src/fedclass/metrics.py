"""Accuracy and forgetting, derived from stored confusion counts; the definition is in the name.

confusion[i][j]: how many test images of class i were predicted as j. Classes are numbered in order of
arrival, so after task t the matrix covers classes 0..sum(task_sizes[:t+1])-1 and no others.

acc[t][i]: accuracy on the classes of task i after task t, 0-based, so row t has t+1 entries.

Everything is in percent. A metric without a value (accuracy without test images, forgetting without a second task)
raises ValueError; it is never NaN or a silent 0. In a matrix and in a summary it is None: sites may have no test image
of a task, and a task may bring only new images of known classes.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from statistics import fmean, pstdev
from typing import TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "Summary",
    "accuracy_average_incremental",
    "accuracy_macro",
    "accuracy_micro",
    "accuracy_micro_or_none",
    "accuracy_per_client",
    "accuracy_row",
    "bwt",
    "class_accuracy",
    "forgetting_after",
    "forgetting_chaudhry",
    "forgetting_fedclass",
    "forgetting_first_task",
    "forgetting_per_task",
    "known",
    "lost",
    "mean_of_known",
    "summarise",
    "summarise_clients",
    "summarise_validation",
]


Row = list[float | None]
Matrix = Sequence[Sequence[float | None]]


class Summary(TypedDict):
    """The metrics of a run as plain floats and lists; None (or []) where there is no value."""

    accuracy_matrix: list[Row]
    accuracy_last: float | None
    accuracy_last_macro: float | None
    accuracy_average_incremental: float | None
    forgetting_fedclass: float | None
    forgetting_per_task: Row
    forgetting_chaudhry: float | None
    forgetting_first_task: float | None
    bwt: float | None


def class_accuracy(confusion: ArrayLike, classes: Sequence[int] | None = None) -> list[float]:
    """100 * confusion[i][i] / sum_j confusion[i][j] for each class i of `classes` (default: all)."""
    counts = _counts(confusion)
    chosen = list(range(len(counts)) if classes is None else classes)
    if unknown := [i for i in chosen if not 0 <= i < len(counts)]:
        raise ValueError(f"classes {unknown} are not among the {len(counts)} of the confusion matrix")
    images = counts.sum(axis=1)
    if empty := [i for i in chosen if images[i] == 0]:
        raise ValueError(f"no test images of classes {empty}: their accuracy is undefined; leave them out")
    return [100 * int(counts[i, i]) / int(images[i]) for i in chosen]


def accuracy_micro(confusion: ArrayLike) -> float:
    """100 * sum_i confusion[i][i] / sum_ij confusion[i][j]: every image counts the same."""
    counts = _counts(confusion)
    images = int(counts.sum())
    if images == 0:
        raise ValueError("no test images: accuracy is undefined")
    return 100 * int(counts.trace()) / images


def accuracy_macro(confusion: ArrayLike, classes: Sequence[int] | None = None) -> float:
    """Mean of class_accuracy over those of `classes` (default: all) that have test images: each counts the same.

    Predictions of any class count; only the truth is restricted to `classes`. Sites may have no image of a rare class
    to hold out; a run then says so.
    """
    images = _counts(confusion).sum(axis=1)
    chosen = range(len(images)) if classes is None else classes
    per_class = class_accuracy(confusion, [i for i in chosen if not 0 <= i < len(images) or images[i]])
    if not per_class:
        raise ValueError("no classes with test images: accuracy is undefined")
    return fmean(per_class)


def accuracy_per_client(confusion: ArrayLike, counts: Sequence[Sequence[int]]) -> list[float | None]:
    """For each client k: sum_c n_kc * class_accuracy_c / sum_c n_kc, over the classes c that have test images.

    n_kc = counts[k][c]: the client's training images of class c, in order of arrival; classes that have not arrived yet
    do not count. It is the global model's accuracy on test images, weighted by the client's own class shares. All
    classes compete, including those that the client has never seen. None: a client without images of such classes.
    """
    images = _counts(confusion).sum(axis=1)
    tested = [i for i in range(len(images)) if images[i]]
    right = dict(zip(tested, class_accuracy(confusion, tested), strict=True))
    found: list[float | None] = []
    for held in counts:
        own = {i: held[i] for i in tested if i < len(held) and held[i]}
        total = sum(own.values())
        found.append(sum(number * right[i] for i, number in own.items()) / total if total else None)
    return found


def accuracy_row(confusion: ArrayLike, task_sizes: Sequence[int]) -> Row:
    """acc[t]: accuracy_macro on the classes of each task seen so far.

    t follows from the matrix, which must cover the classes of the first t+1 tasks exactly. None for a task without test
    images, or without new classes.
    """
    edges, images = _task_edges(task_sizes), _counts(confusion).sum(axis=1)
    if len(images) not in edges[1:]:
        raise ValueError(f"a confusion matrix of {len(images)} classes ends within a task; tasks end at {edges[1:]}")
    tasks = [range(first, end) for first, end in pairwise(edge for edge in edges if edge <= len(images))]
    return [accuracy_macro(confusion, task) if images[task.start : task.stop].any() else None for task in tasks]


def accuracy_micro_or_none(confusion: ArrayLike) -> float | None:
    """accuracy_micro; None without test images."""
    return accuracy_micro(confusion) if _counts(confusion).any() else None


def known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """None if there is no value at all."""
    return fmean(found) if (found := known(values)) else None


def accuracy_average_incremental(values: Sequence[float]) -> float:
    """Mean over tasks t of values[t], the micro accuracy over all classes seen so far, after task t."""
    if len(values) == 0:
        raise ValueError("average incremental accuracy needs at least one task, got none")
    _check_percent(values, "values")
    return fmean(values)


def forgetting_after(acc: Matrix, t: int) -> float | None:
    """F_t = 1/t * sum_{i<t} (acc[i][i] - acc[t][i]), t 0-based: the paper's F_2 is t = 1.

    Here and below, a mean is over the tasks that were tested both times; None if there is none.
    """
    _check_matrix(acc)
    if not 0 < t < len(acc):
        raise ValueError(f"forgetting needs 0 < t < {len(acc)} (tasks seen), got t={t}")
    return mean_of_known(lost(acc[i][i], acc[t][i]) for i in range(t))


def lost(before: float | None, now: float | None) -> float | None:
    return None if before is None or now is None else before - now


def forgetting_per_task(acc: Matrix) -> Row:
    """[F_1, ..., F_{T-1}], 0-based: one value for each task but the first."""
    _check_two_tasks(acc)
    return [forgetting_after(acc, t) for t in range(1, len(acc))]


def forgetting_fedclass(acc: Matrix) -> float | None:
    """Mean of F_1..F_{T-1}: the "average forgetting" of the FedCLASS paper, recovered from its tables."""
    return mean_of_known(forgetting_per_task(acc))


def forgetting_chaudhry(acc: Matrix) -> float | None:
    """Mean over i < T-1 of max_{i<=t<T-1} acc[t][i] - acc[T-1][i] (Chaudhry et al. 2018).

    Against forgetting_fedclass: the best accuracy ever reached instead of the one right after learning, and
    the end of the run only.
    """
    _check_two_tasks(acc)
    *earlier, last = acc
    best = [max(known(row[i] for row in earlier[i:]), default=None) for i in range(len(earlier))]
    return mean_of_known(lost(best[i], last[i]) for i in range(len(earlier)))


def forgetting_first_task(acc: Matrix) -> float | None:
    """acc[0][0] - acc[T-1][0]: the accuracy lost on the first task."""
    _check_two_tasks(acc)
    return lost(acc[0][0], acc[-1][0])


def bwt(acc: Matrix) -> float | None:
    """Backward transfer: mean over i < T-1 of acc[T-1][i] - acc[i][i] (Lopez-Paz and Ranzato 2017).

    Equal to -F_{T-1}.
    """
    _check_two_tasks(acc)
    last = len(acc) - 1
    return mean_of_known(lost(acc[last][i], acc[i][i]) for i in range(last))


def summarise(confusions: Sequence[ArrayLike], task_sizes: Sequence[int]) -> Summary:
    """Every metric of a run, JSON-serialisable.

    confusions[t]: the confusion matrix after task t over all classes seen so far. A run that stopped early
    has fewer matrices than tasks.
    """
    edges = _task_edges(task_sizes)
    if not 0 < len(confusions) < len(edges):
        raise ValueError(f"need 1 to {len(task_sizes)} confusion matrices (tasks), got {len(confusions)}")
    for t, (confusion, seen) in enumerate(zip(confusions, edges[1:], strict=False)):
        if len(_counts(confusion)) != seen:
            raise ValueError(
                f"the confusion matrix after task {t} has {len(_counts(confusion))} classes; tasks of "
                f"{list(task_sizes[: t + 1])} classes make {seen}"
            )
    acc = [accuracy_row(confusion, task_sizes[: t + 1]) for t, confusion in enumerate(confusions)]
    comparable = len(acc) > 1
    micro = [accuracy_micro_or_none(confusion) for confusion in confusions]
    return Summary(
        accuracy_matrix=acc,
        accuracy_last=micro[-1],
        accuracy_last_macro=None if micro[-1] is None else accuracy_macro(confusions[-1]),
        accuracy_average_incremental=accuracy_average_incremental(known(micro)) if known(micro) else None,
        forgetting_fedclass=forgetting_fedclass(acc) if comparable else None,
        forgetting_per_task=forgetting_per_task(acc) if comparable else [],
        forgetting_chaudhry=forgetting_chaudhry(acc) if comparable else None,
        forgetting_first_task=forgetting_first_task(acc) if comparable else None,
        bwt=bwt(acc) if comparable else None,
    )


def summarise_clients(confusion: ArrayLike, counts: Sequence[Sequence[int]]) -> dict[str, object]:
    """accuracy_per_client, and over clients that have one: the lowest, its client, and the (population) deviation."""
    each = accuracy_per_client(confusion, counts)
    known = [accuracy for accuracy in each if accuracy is not None]
    return {
        "accuracy_per_client": each,
        "accuracy_worst_client": min(known, default=None),
        "worst_client": each.index(min(known)) if known else None,
        "accuracy_deviation_over_clients": pstdev(known) if known else None,
    }


def summarise_validation(confusions: Sequence[ArrayLike], task_sizes: Sequence[int]) -> dict[str, object]:
    """The same metrics on validation images, each with validation_ before its name; {} without any."""
    if not confusions:
        return {}
    return {f"validation_{name}": value for name, value in summarise(confusions, task_sizes).items()}


def _counts(confusion: ArrayLike) -> NDArray[np.int64]:
    try:
        counts = np.asarray(confusion)
    except ValueError as error:  # rows of different lengths
        raise ValueError(f"a confusion matrix is square; its rows differ in length ({error})") from error
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1] or counts.size == 0:
        raise ValueError(f"a confusion matrix is square and not empty, got shape {counts.shape}")
    if not np.issubdtype(counts.dtype, np.integer):
        raise ValueError(f"a confusion matrix holds whole counts of images, got {counts.dtype} entries")
    if (counts < 0).any():
        raise ValueError(f"a confusion matrix holds counts of images, got {counts.min()}")
    return counts.astype(np.int64)


def _task_edges(task_sizes: Sequence[int]) -> list[int]:
    """[0, s_0, s_0 + s_1, ...]: task i has the classes edges[i]..edges[i+1]-1."""
    if not task_sizes or min(task_sizes) < 0 or not task_sizes[0]:
        raise ValueError(f"task sizes are numbers of classes, that of the first above 0, got {list(task_sizes)}")
    return list(accumulate(task_sizes, initial=0))


def _check_matrix(acc: Matrix) -> None:
    for t, row in enumerate(acc):
        if len(row) != t + 1:
            raise ValueError(f"acc[{t}] has {len(row)} entries; after task {t} there are {t + 1} tasks to test")
        _check_percent(known(row), f"acc[{t}]")


def _check_percent(values: Sequence[float], where: str) -> None:
    if wrong := [value for value in values if not 0 <= value <= 100]:  # NaN fails the comparison too
        raise ValueError(f"{where}: accuracies are percentages, got {wrong}")


def _check_two_tasks(acc: Matrix) -> None:
    _check_matrix(acc)
    if len(acc) < 2:
        raise ValueError(f"forgetting compares tasks and needs at least two, got {len(acc)}")
