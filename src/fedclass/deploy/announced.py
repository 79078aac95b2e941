"""The curriculum that sites announce: the server asks which classes there are, and decides when to learn new ones."""

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedclass.data.image_set import MEAN, STD, ImageSet, Split
from fedclass.data.memory import exemplar_counts
from fedclass.data.schedule import Schedule
from fedclass.deploy.registry import Registry
from fedclass.engines.flower.roster import Roster
from fedclass.errors import RoundError
from fedclass.experiment.config import Experiment
from fedclass.experiment.curriculum import DataFacts, Tell, Tested, Trial
from fedclass.experiment.machine import fingerprint
from fedclass.experiment.setup import exemplars_count
from fedclass.federation.evaluate import Counts
from fedclass.models.incremental import IncrementalModel
from fedclass.runs.events import Event, SitesKnown, Warned
from fedclass.wire import Announcement

ROUNDED = 5  # as many images more than it announces a site may have of a class: counts may be rounded to tens
GLANCE = 0.5  # seconds between two looks for the operator's word
NEXT, FINISH = "next-task", "finish"  # the operator's words: files in the run directory


@dataclass(frozen=True)
class Rules:
    """When tasks begin and when they end.

    next_task: "rounds" (as soon as the last one's rounds are done), "word" (of the operator), or "classes" (when
    `new_classes` have been announced). Whichever it is, a task needs a class that is new, and the first one needs no
    word.  tasks: how many; 0: until the operator says so.  min_sites: without which no task begins.  ask_every: seconds
    between two questions to sites.  wait: seconds to wait for sites without which nothing can be learned or tested.
    """

    next_task: Literal["rounds", "word", "classes"]
    new_classes: int
    tasks: int
    min_sites: int
    ask_every: float
    wait: float
    test_at: Literal["sites", "server", "both"]


class Announced:
    """here: the server's test images, if it tests; of its training images, if it has any, none are used."""

    validation = None

    def __init__(self, experiment: Experiment, here: ImageSet | None, roster: Roster, rules: Rules, root: Path) -> None:
        self.experiment, self.here, self.roster, self.rules, self.root = experiment, here, roster, rules, root
        self.known = Registry()
        self._image: tuple[int, int, int] | None = None
        self._warned: set[str] = set()
        self._early: list[Event] = []
        self._met: Mapping[str, Announcement] | None = None  # what sites said when the server met them

    @property
    def image(self) -> tuple[int, int, int]:
        assert self._image is not None  # sites have been met
        return self._image

    @property
    def normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return self.experiment.data.normalisation or (MEAN, STD)

    def build(self) -> IncrementalModel:
        return self.experiment.build(self.image[:2])

    @property
    def schedule(self) -> Schedule:
        return Schedule(tuple(self.known.classes), tuple(self.known.sizes))

    @property
    def registry(self) -> Mapping[str, Any]:
        return {**self.known.table(), "image": self._image}

    def restore(self, registry: Mapping[str, Any]) -> None:
        if registry:
            table = dict(registry)
            self._image = tuple(table.pop("image"))
            self.known = Registry.read(table)
            self.roster.pins.update(self.known.nodes)

    # Before the run, and between tasks.

    def meet(self) -> None:
        """Wait until enough sites are there; what is to be told of them is told with the first task."""
        until, task = time.monotonic() + self.rules.wait, max(len(self.known.sizes) - 1, 0)
        while len(found := self._announcements(task, self._early.append)) < self.rules.min_sites:
            if time.monotonic() > until:
                raise RoundError(
                    f"after {self.rules.wait:.0f} s there are {len(found)} sites with images, and min-sites = "
                    f"{self.rules.min_sites} are needed" + self.roster.why_silent()
                )
            self._pause(min(self.rules.ask_every, 5.0))
        self._met = found

    def facts(self) -> DataFacts:
        said, here = self._sites_known(), self.here
        name, sha256, official = ("sites", "", None) if here is None else (here.name, here.sha256, here.official)
        return DataFacts(name, sha256, official, said.counts, said.exemplars)

    def begin(self, task: int, tell: Tell) -> bool:
        while self._early:
            tell(self._early.pop(0))
        if task < len(self.known.sizes):  # of a run that goes on
            tell(self._sites_known())
            return True
        if self.rules.tasks and task >= self.rules.tasks:
            return False
        first = task == 0
        while True:
            if (self.root / FINISH).exists():
                return False
            found = self._met if first and self._met is not None else self._announcements(task, tell)
            self._met = None
            new = self.known.unknown(found)
            if len(found) >= self.rules.min_sites and new and self._is_time(new, first=first):
                break
            self._warn(f"task {task + 1} waits for {self._awaited(found, new)}", tell)
            self._pause(self.rules.ask_every)
        (self.root / NEXT).unlink(missing_ok=True)
        self.known.begin(found)
        self.known.admit(found, exemplars_count=exemplars_count(self.experiment))
        tell(self._sites_known())
        return True

    def _is_time(self, new: list[str], *, first: bool) -> bool:
        match self.rules.next_task:
            case "rounds":
                return True
            case "classes":
                return len(new) >= self.rules.new_classes
            case "word":
                return first or (self.root / NEXT).exists()

    def _awaited(self, found: Mapping[str, Announcement], new: list[str]) -> str:
        """What is lacking now; it is told again whenever it changes."""
        if len(found) < self.rules.min_sites:
            return f"sites: {len(found)} with images are there, and min-sites = {self.rules.min_sites} are needed"
        have = f"new there: {', '.join(map(repr, new[:5]))}{' ...' if len(new) > 5 else ''}"
        have = have if new else "no new class is there yet"
        match self.rules.next_task:
            case "rounds":
                return f"a new class ({have})"
            case "classes":
                return f"{self.rules.new_classes} new classes ({have})"
            case "word":
                said = (self.root / NEXT).exists()
                return f"a new class ({have})" if said else f"`fedclass deploy next {self.root}` ({have})"

    # During a task.

    def learners(self, task: int, round: int, tell: Tell) -> list[int]:  # noqa: ARG002
        self.roster.refresh(task)
        others = set(self.roster.connected()) - set(self.known.learners)
        found = self._fitting({site: self.roster.said[site] for site in others}, tell)
        joined = self.known.enter(found)
        self.known.admit(found, exemplars_count=exemplars_count(self.experiment))
        if joined:
            tell(self._sites_known())
        self.known.nodes = dict(self.roster.pins)
        return self.known.numbers(self.known.learners)

    def everyone(self) -> list[int]:
        return list(range(len(self.known.sites)))

    def site(self, client: int) -> str:
        return self.known.sites[client]

    def named(self, client: int) -> str:
        return f"site {self.site(client)}"

    def holds(self, client: int) -> Collection[int]:
        said = self.known.counts.get(self.site(client), {})
        return [number for number, name in enumerate(self.known.classes) if name in said]

    def most_examples(self, client: int) -> int | None:
        """Of the classes that have arrived; a site that withholds a count is not limited."""
        said = self.known.counts.get(self.site(client), {})
        counts = [said[name] for name in self.known.classes if name in said]
        return sum(counts) + ROUNDED * len(counts) if all(counts) else None

    # Testing.

    def test(self, trial: Trial, tell: Tell, *, must: bool) -> Tested:
        """On the server's test images, and beside them on those that sites hold out; or on the sites' alone."""
        at_sites = None
        if self.rules.test_at != "server":
            at_sites = self._tested_at_sites(trial, tell, must=must and self.here is None)
        if self.here is None:
            return Tested(at_sites)
        number = {name: label for label, name in enumerate(self.known.classes)}
        of_label = np.array([number.get(name, -1) for name in self.here.classes], np.int64)
        return Tested(trial.here(Split(self.here.test.images, of_label[self.here.test.labels])), at_sites)

    def _tested_at_sites(self, trial: Trial, tell: Tell, *, must: bool) -> Counts | None:
        """must: wait for sites without which a task could not be tested; otherwise there are no counts then."""
        classes, waiting = self.schedule.classes_until(trial.task), self.everyone()
        total = np.zeros((classes, classes), np.int64)
        until = time.monotonic() + self.rules.wait
        while True:
            for update in trial.at_clients(list(waiting)):
                total += update.extras["confusion"].numpy()
                waiting.remove(update.client)
            if self._every_task_in(total):
                break
            if not must:
                return None
            if not waiting or time.monotonic() > until:
                raise RoundError(
                    f"task {trial.task + 1}: no site that answered holds out images of the classes of one of the "
                    "tasks, and the model cannot be tested; run again once a site has such images (five of a class are "
                    "enough)"
                )
            time.sleep(self.rules.ask_every)
        untested = self.schedule.names(np.flatnonzero(total.sum(axis=1) == 0).tolist())
        if untested:
            names = ", ".join(map(repr, untested[:5])) + (" ..." if len(untested) > 5 else "")
            message = f"task {trial.task + 1}: no site that answered holds out an image of class {names}"
            tell(Warned(message=message))
        return total

    def _every_task_in(self, counts: Counts) -> bool:
        tasks = [self.schedule.new_classes(task) for task in range(len(self.schedule.task_sizes))]
        return all(counts[new.start : new.stop].any() for new in tasks)

    # What sites say.

    def _announcements(self, task: int, tell: Tell) -> Mapping[str, Announcement]:
        found = self._fitting(self.roster.announcements(task), tell)
        self.known.enter(found)
        self.known.nodes = dict(self.roster.pins)
        for node, reason in self.roster.silent.items():
            self._warn(f"node {node} takes no part: {reason}", tell)
        return found

    def _fitting(self, announcements: Mapping[str, Announcement], tell: Tell) -> dict[str, Announcement]:
        """Those whose images have the size of the others'; the first site with images decides."""
        fitting = {}
        for site in sorted(announcements):
            said = announcements[site]
            if said.image is None:
                self._warn(f"site {site} has no images yet", tell)
                continue
            self._image = self._image or said.image
            if said.image != self._image:
                self._warn(f"site {site} takes no part: its images are {said.image}, not {self._image}", tell)
                continue
            here = fingerprint()
            differing = [f"{key} {value}" for key, value in sorted(said.machine.items()) if here.get(key) != value]
            if differing:
                self._warn(f"site {site} differs from the server in {', '.join(differing)}: bits may differ", tell)
            fitting[site] = said
        return fitting

    def _warn(self, message: str, tell: Tell) -> None:
        if message not in self._warned:
            self._warned.add(message)
            tell(Warned(message=message))

    def _sites_known(self) -> SitesKnown:
        rows = self.known.rows()
        counts = np.array(rows, np.int64).reshape(len(rows), len(self.known.classes))
        kept = exemplar_counts(self.experiment.memory, counts, tuple(self.known.sizes)).sum(axis=0)
        return SitesKnown(
            sites=list(self.known.sites),
            classes=list(self.known.classes),
            tasks=list(self.known.sizes),
            counts=rows,
            exemplars=kept.tolist(),
        )

    def _pause(self, seconds: float) -> None:
        """Wait, but not past the operator's word."""
        until, said = time.monotonic() + seconds, self._words()
        while time.monotonic() < until and self._words() == said:
            self.roster.connection.check()
            time.sleep(min(GLANCE, seconds))

    def _words(self) -> list[str]:
        return [word for word in (NEXT, FINISH) if (self.root / word).exists()]
