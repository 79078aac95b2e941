"""What a site hands to a client for a job: images, exemplars and state, made of the plan and of what the site holds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedclass.data.image_set import Split
from fedclass.data.memory import Exemplars
from fedclass.data.partition import Index
from fedclass.data.schedule import Schedule
from fedclass.data.stream import without
from fedclass.deploy.holdings import Holdings
from fedclass.deploy.ledger import Entry, KeptState, today
from fedclass.deploy.site_store import FederationFolder
from fedclass.federation.store import ClientState
from fedclass.schema import json_sha256
from fedclass.wire import Job, Plan, Weights, sha256

FEWEST = 2  # what became of one image would be an output for a single sample, and those never leave a site


@dataclass(frozen=True, eq=False, kw_only=True)
class SiteStream(Schedule):
    """A site's images as a client sees them: exemplars first, then what came with each task since they were chosen.

    later: classes that do not count as arrived in the round that is asked for.
    """

    train: Split
    arrived: Mapping[int, Index]
    later: list[int]

    @property
    def offered(self) -> tuple[int, ...]:
        return self.task_sizes

    def new_data(self, client: int, task: int, round: int | None = None) -> Index:  # noqa: ARG002 (one client)
        found = self.arrived.get(task, np.empty(0, np.int64))
        return found if round is None else without(found, self.train.labels, self.later)


class SiteStore:
    """The state of one client, for one job."""

    def __init__(self, state: ClientState, keep: Callable[[ClientState, ClientState], None]) -> None:
        self.state, self.keep = state, keep

    def load(self, client: int) -> ClientState:  # noqa: ARG002
        return self.state

    def save(self, client: int, state: ClientState) -> None:  # noqa: ARG002
        self.keep(self.state, state)
        self.state = state


def identity(plan: Plan, job: Job) -> str:
    """Of a request: all that its result depends on, besides the site's own images."""
    weights: list[Weights | None] = [job.weights, job.teacher, job.broadcast]
    parts = [
        [job.client, job.task, job.round, job.phase, job.frozen, job.quotas],
        plan.recipe,
        [plan.mean, plan.std, plan.image, plan.classes, plan.task_sizes, sorted(plan.spelled.items())],
        [None if part is None else sha256(part) for part in weights],
    ]
    return json_sha256(parts)


def site_stream(
    plan: Plan, job: Job, holdings: Holdings, folder: FederationFolder, state: KeptState | None
) -> tuple[SiteStream, ClientState, list[Entry]]:
    """What the client works on, the state it begins from, and what each of its images is.

    Images that were deleted since their task began are left out, as are exemplars of classes that the plan lacks.
    """
    label_of = {name: label for label, name in enumerate(plan.classes)}
    begun, entries, images = _begun(plan, state, label_of)
    place = {name: at for at, name in enumerate(holdings.names())}
    arrived: dict[int, Index] = {}
    for task in range(min(begun.tasks, job.task), job.task + 1):  # a task that is over may be asked again
        present = [a for a in folder.arrivals(task) or [] if a in place and a[0] in label_of]
        arrived[task] = np.arange(len(entries), len(entries) + len(present))
        entries += [Entry(digest, label, task, today()) for label, digest in present]
        images += [holdings.train.images[[place[a] for a in present]]] if present else []
    labels = np.array([label_of[entry.label] for entry in entries], np.int64)
    train = Split(np.concatenate(images), labels)
    later = [label_of[name] for name in plan.awaited]
    stream = SiteStream(plan.classes, tuple(plan.task_sizes), train=train, arrived=arrived, later=later)
    return stream, begun, entries


def _begun(
    plan: Plan, state: KeptState | None, label_of: Mapping[str, int]
) -> tuple[ClientState, list[Entry], list[NDArray[np.uint8]]]:
    """The exemplars of classes that the plan names, what each of them is, and their images."""
    none = np.empty((0, *plan.image), np.uint8)
    if state is None:
        return ClientState(), [], [none]
    chosen = [at for at, entry in enumerate(state.ledger) if entry.label in label_of]
    entries = [state.ledger[at] for at in chosen]
    kept: dict[int, list[int]] = {label_of[name]: [] for name in state.classes if name in label_of}
    for position, entry in enumerate(entries):
        kept[label_of[entry.label]].append(position)
    exemplars = Exemplars({label: np.array(positions, np.int64) for label, positions in kept.items()})
    rows = replace(state.rows, tensors={name: tensor[chosen] for name, tensor in state.rows.tensors.items()})
    begun = ClientState(tasks=state.tasks, exemplars=exemplars, rows=rows)
    return begun, entries, [none, state.images[chosen]] if chosen else [none]


def tested_images(plan: Plan, holdings: Holdings) -> Split:
    """The images held out, of classes that the plan names; others are of no class."""
    label_of = {name: label for label, name in enumerate(plan.classes)}
    number = np.array([label_of.get(name, -1) for name in holdings.classes], np.int64)
    labels = holdings.held_out.labels
    number[np.bincount(labels, minlength=len(number)) < FEWEST] = -1
    return Split(holdings.held_out.images, number[labels])
