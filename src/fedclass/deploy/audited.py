"""What the server of a federation writes down for good: each answer with its hash, and what became of it."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from fedclass.engines.base import Engine
from fedclass.engines.flower.roster import Roster
from fedclass.federation.server import Missing
from fedclass.runs import audit
from fedclass.runs.events import (
    Event,
    RoundFinished,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
    SetAside,
    TaskFinished,
    TaskStarted,
    UpdateRejected,
)
from fedclass.wire import Job, Update, sha256


class Audited:
    """An engine whose answers are written down as they come, before anything is made of them."""

    def __init__(
        self,
        engine: Engine,
        root: Path,
        roster: Roster,
        site: Callable[[int], str],
        heard: Callable[[str], None] = lambda _: None,
    ) -> None:
        """site: the name of a client's.  heard: is told who has answered."""
        self.engine, self.root, self.roster, self.site, self.heard = engine, root, roster, site, heard
        self.name = engine.name

    def run(self, jobs: Sequence[Job]) -> Iterator[Update | Missing]:
        phases = {job.client: job.phase for job in jobs}
        for answer in self.engine.run(jobs):
            site = self.site(answer.client)
            where = {"task": jobs[0].task + 1, "round": jobs[0].round + 1, "phase": phases[answer.client]}
            who = {"site": site, "node": self.roster.node(site)}
            if isinstance(answer, Missing):
                audit.append(self.root, "no answer", **where, **who, reason=answer.reason)
            else:
                self.heard(site)
                sent = {"weights": sha256(answer.weights), "extras": sha256(answer.extras)}
                hashes = {f"{name}_sha256": digest for name, digest in sent.items() if getattr(answer, name)}
                audit.append(self.root, "answer", **where, **who, examples=answer.examples, **hashes)
            yield answer


def note(root: Path, site: Callable[[int], str], event: Event) -> None:
    """Events that say what became of answers."""
    match event:
        case RunStarted() | RunResumed():
            audit.append(root, "started" if isinstance(event, RunStarted) else "resumed")
        case TaskStarted():
            audit.append(root, "task", task=event.task + 1, new_classes=event.new_classes)
        case UpdateRejected():
            where = {"task": event.task + 1, "round": event.round + 1}
            audit.append(root, "rejected", **where, site=site(event.client), reason=event.reason)
        case SetAside():
            where = {"task": event.task + 1, "round": event.round + 1}
            audit.append(root, "set aside", **where, site=site(event.client), rounds=event.rounds, reason=event.reason)
        case RoundFinished():
            _note_round(root, site, event)
        case TaskFinished():
            audit.append(root, "task finished", task=event.task + 1)
        case RunFinished():
            audit.append(root, "finished", weights_sha256=event.summary["weights_sha256"])
        case RunFailed():
            audit.append(root, "failed", reason=event.reason)
        case _:
            pass


def _note_round(root: Path, site: Callable[[int], str], event: RoundFinished) -> None:
    left_out = [] if event.rolled_back else event.screened
    accepted = [] if event.rolled_back else [site(c) for c in event.clients if c not in left_out]
    audit.append(
        root,
        "round",
        task=event.task + 1,
        round=event.round + 1,
        accepted=accepted,
        left_out=[site(client) for client in left_out],
        shortened=[site(client) for client in event.clipped],
        undone=event.rolled_back,
    )
