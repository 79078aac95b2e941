"""A federation at a glance: what its events, its server and its operator's decisions say together."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedclass.deploy.decisions import Offer, read_offers
from fedclass.deploy.presence import STALE, read_presence
from fedclass.deploy.withdrawal import withdrawn
from fedclass.errors import RunError
from fedclass.runs.events import (
    Event,
    RoundFinished,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
    SetAside,
    SitesKnown,
    SiteTested,
    TaskFinished,
    TaskStarted,
    UpdateMissing,
    UpdateRejected,
    Warned,
    read_events,
)
from fedclass.runs.layout import RunDirectory

LAST_WARNINGS = 10


@dataclass
class SiteStatus:
    """online: None if no server says.  heard: when it last answered, in seconds since 1970.  accuracy: percent of its
    held-out images, by its own account.  left_out: why it takes no part, or took none in the last round.
    """

    name: str
    online: bool | None = None
    heard: float | None = None
    images: dict[str, int] = field(default_factory=dict)
    accuracy: float | None = None
    left_out: str = ""


@dataclass
class Status:
    """state: "waiting", "learning", "finished", "failed", or "stopped" (no server writes).  task, round: the last that
    was begun or done, from 1.  seen: when the server last wrote.  accuracies: by class, percent of test images.
    """

    run: str
    state: str = "waiting"
    method: str = ""
    task: int = 0
    round: int = 0
    rounds: int = 0
    seen: float | None = None
    failure: str = ""
    accuracy: float | None = None
    accuracies: dict[str, float | None] = field(default_factory=dict)
    sites: list[SiteStatus] = field(default_factory=list)
    silent: dict[str, str] = field(default_factory=dict)
    offers: list[Offer] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    undone: int = 0

    @property
    def waiting(self) -> list[Offer]:
        return [offer for offer in self.offers if offer.state == "waiting"]


def read_status(root: Path, *, now: float | None = None) -> Status:
    directory = RunDirectory(root)
    if not directory.lease.is_file():
        raise RunError(f"{root}: is not the run directory of a federation; it is the app's `out`")
    status, sites, classes = Status(str(root)), dict[str, SiteStatus](), list[str]()
    if directory.events.exists():
        for event in read_events(directory.events):
            _take_in(event, status, sites, classes)
    _add_presence(status, sites, read_presence(root), time.time() if now is None else now)
    for name, word in withdrawn(root).items():
        sites.setdefault(name, SiteStatus(name)).left_out = f"withdrawn, by {word.get('by', '?')}"
    status.sites = [sites[name] for name in sorted(sites)]
    status.offers = read_offers(root)
    status.warnings = status.warnings[-LAST_WARNINGS:]
    return status


def _take_in(event: Event, status: Status, sites: dict[str, SiteStatus], classes: list[str]) -> None:
    _take_in_of_sites(event, sites, classes)
    match event:
        case RunStarted():
            status.method, status.rounds, status.state = event.method, event.rounds, "waiting"
        case RunResumed():
            status.task, status.round, status.state, status.failure = event.task + 1, event.round, "learning", ""
        case TaskStarted():
            status.task, status.round, status.state = event.task + 1, 0, "learning"
        case RoundFinished():
            status.task, status.round = event.task + 1, event.round + 1
            status.undone += event.rolled_back
        case TaskFinished():
            status.state, status.accuracy = "waiting", event.accuracy if any(map(sum, event.confusion)) else None
            rows = zip(classes, event.confusion, strict=False)
            status.accuracies = {
                label: 100 * row[at] / sum(row) if sum(row) else None for at, (label, row) in enumerate(rows)
            }
        case RunFinished():
            status.state = "finished"
        case RunFailed():
            status.state, status.failure = "failed", event.reason
        case Warned():
            status.warnings.append(event.message)
        case _:
            pass


def _take_in_of_sites(event: Event, sites: dict[str, SiteStatus], classes: list[str]) -> None:
    names = list(sites)  # in the order of clients' numbers
    match event:
        case SitesKnown():
            classes[:] = event.classes
            for name, row in zip(event.sites, event.counts, strict=True):
                site = sites.setdefault(name, SiteStatus(name))
                site.images = {label: count for label, count in zip(event.classes, row, strict=True) if count}
        case UpdateRejected() | UpdateMissing():
            said = "rejected" if isinstance(event, UpdateRejected) else "no answer"
            _site(sites, names, event.client).left_out = f"round {event.round + 1}: {said}: {event.reason}"
        case RoundFinished():
            screened = f"round {event.round + 1}: screened (size or direction of its update)"
            for client in event.clients:
                _site(sites, names, client).left_out = screened if client in event.screened else ""
        case SetAside():
            where = f"from round {event.round + 1} on, for {event.rounds} rounds"
            _site(sites, names, event.client).left_out = f"set aside {where}: {event.reason}"
        case SiteTested():
            tested = sum(event.tested)
            _site(sites, names, event.client).accuracy = 100 * sum(event.correct) / tested if tested else None
        case _:
            pass


def _site(sites: dict[str, SiteStatus], names: list[str], client: int) -> SiteStatus:
    """The site of a client's number; with the tasks of a recipe, sites have no other name."""
    name = names[client] if client < len(names) else f"client {client}"
    return sites.setdefault(name, SiteStatus(name))


def _add_presence(status: Status, sites: dict[str, SiteStatus], presence: Mapping[str, Any], now: float) -> None:
    status.seen = presence.get("time")
    alive = status.seen is not None and now - status.seen <= STALE
    for name, there in presence.get("sites", {}).items():
        site = sites.setdefault(name, SiteStatus(name))
        site.online, site.heard = (there["online"] if alive else None), there["heard"]
    status.silent = dict(presence.get("silent", {})) if alive else {}
    if status.state in ("waiting", "learning"):
        if failure := presence.get("failure"):
            status.state, status.failure = "failed", failure
        elif not alive:
            status.state = "stopped"


def ago(when: float | None) -> str:
    """For people.  when: in seconds since 1970."""
    if when is None:
        return "never"
    seconds = max(0.0, time.time() - when)
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def metrics(status: Status) -> str:
    """For Prometheus, as text."""
    lines = [
        *_gauge("fedclass_up", "1 while the server of the run writes", [("", status.state in ("waiting", "learning"))]),
        *_gauge("fedclass_failed", "1 if the run has failed", [("", status.state == "failed")]),
        *_gauge("fedclass_task", "the task that is under way, from 1", [("", status.task)]),
        *_gauge("fedclass_round", "rounds done of the task", [("", status.round)]),
        *_gauge("fedclass_rounds_undone", "rounds that were undone", [("", status.undone)]),
        *_gauge("fedclass_classes_waiting", "names that wait for approval", [("", len(status.waiting))]),
    ]
    each = [(f'{{site="{_label(site.name)}"}}', site) for site in status.sites]
    lines += _gauge("fedclass_site_online", "1 if connected", [(label, bool(site.online)) for label, site in each])
    heard = [(label, site.heard) for label, site in each if site.heard is not None]
    lines += _gauge("fedclass_site_last_answer_seconds", "when it last answered, since 1970", heard)
    left_out = [(label, bool(site.left_out)) for label, site in each]
    lines += _gauge("fedclass_site_left_out", "1 if it took no part in the last round", left_out)
    of_sites = [(label, site.accuracy) for label, site in each if site.accuracy is not None]
    lines += _gauge("fedclass_site_accuracy_percent", "on its held-out images, by its own account", of_sites)
    of_classes = [(f'{{class="{_label(n)}"}}', a) for n, a in status.accuracies.items() if a is not None]
    lines += _gauge("fedclass_class_accuracy_percent", "on test images", of_classes)
    return "\n".join(lines) + "\n"


def _gauge(name: str, about: str, values: list[tuple[str, Any]]) -> list[str]:
    return [f"# HELP {name} {about}", f"# TYPE {name} gauge"] + [
        f"{name}{label} {float(v):.10g}" for label, v in values
    ]


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
