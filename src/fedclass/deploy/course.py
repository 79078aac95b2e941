"""Tasks as sites bring them: the server asks which classes there are, and decides when it is time to learn new ones."""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedclass.data.images import ImageSet, Split
from fedclass.data.memory import planned
from fedclass.data.stream import Stream
from fedclass.deploy.registry import Registry
from fedclass.engines.flower.roster import Roster
from fedclass.errors import RoundError
from fedclass.experiment.config import Experiment
from fedclass.experiment.machine import fingerprint
from fedclass.experiment.setup import Setup
from fedclass.runs.events import Event, SitesKnown, Warned
from fedclass.wire import Announcement

Tell = Callable[[Event], None]
ROUNDED = 5  # as many images more than it announces a site may have of a class: counts may be rounded to tens
GLANCE = 0.5  # seconds between two looks for the operator's word
NEXT, FINISH = "next-task", "finish"  # the operator's words: files in the run directory


@dataclass(frozen=True)
class Rules:
    """When tasks begin and when they end.

    next_task: "rounds" (as soon as the last one's rounds are done), "word" (of the operator), or "classes" (when
    `new_classes` have been announced). Whichever it is, a task needs a class that is new, and the first one needs no
    word.  tasks: how many; 0: until the operator says so.  min_sites: without which no task begins.
    """

    next_task: Literal["rounds", "word", "classes"]
    new_classes: int
    tasks: int
    min_sites: int
    ask_every: float
    wait: float
    test_at: Literal["sites", "server", "both"]


class SitesCourse:
    def __init__(self, experiment: Experiment, test: ImageSet | None, roster: Roster, rules: Rules, root: Path) -> None:
        self.experiment, self.test, self.roster, self.rules, self.root = experiment, test, roster, rules, root
        self.known = Registry()
        self.image: tuple[int, int, int] | None = None
        self.at_server, self.at_sites = rules.test_at != "sites", rules.test_at != "server"
        self.patience, self.ask_every = rules.wait, rules.ask_every
        self._warned: set[str] = set()
        self._early: list[Event] = []
        self._met: Mapping[str, Announcement] | None = None  # what sites said when the server met them

    @property
    def registry(self) -> Mapping[str, Any]:
        return {**self.known.table(), "image": self.image}

    def restore(self, registry: Mapping[str, Any]) -> None:
        if registry:
            table = dict(registry)
            self.image = tuple(table.pop("image"))
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

    def setup(self) -> Setup:
        """The experiment with all that is known so far."""
        assert self.image is not None
        known, classes = self.known, tuple(self.known.classes)
        none = Split(np.empty((0, *self.image), np.uint8), np.empty(0, np.int64))
        data = ImageSet("sites", (), none, none, official=None)
        test_targets = np.empty(0, np.int64)
        if self.test is not None:
            data = replace(self.test, train=none)
            number = {name: i for i, name in enumerate(classes)}
            of_label = np.array([number.get(name, -1) for name in self.test.classes], np.int64)
            test_targets = of_label[self.test.test.labels]
        shares = [np.empty(0, np.int64) for _ in known.sites]
        sizes = tuple(known.sizes)
        stream = Stream(data, classes, sizes, none.labels, test_targets, shares, offered=sizes)
        return Setup(self.experiment, stream)

    def begin(self, task: int, tell: Tell) -> Setup | None:
        while self._early:
            tell(self._early.pop(0))
        if task < len(self.known.sizes):  # of a run that goes on
            tell(self._facts())
            return self.setup()
        if self.rules.tasks and task >= self.rules.tasks:
            return None
        first = task == 0
        while True:
            if (self.root / FINISH).exists():
                return None
            found = self._met if first and self._met is not None else self._announcements(task, tell)
            self._met = None
            new = self.known.unknown(found)
            if len(found) >= self.rules.min_sites and new and self._is_time(new, first=first):
                break
            self._warn(f"task {task + 1} waits for {self._awaited(found, new)}", tell)
            self._pause(self.rules.ask_every)
        (self.root / NEXT).unlink(missing_ok=True)
        self.known.begin(found)
        self.known.admit(found, exemplars_count=self._exemplars_count())
        tell(self._facts())
        return self.setup()

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

    def learners(self, task: int, tell: Tell) -> list[int]:
        self.roster.refresh(task)
        others = set(self.roster.connected()) - set(self.known.learners)
        found = self._fitting({site: self.roster.said[site] for site in others}, tell)
        joined = self.known.enter(found)
        self.known.admit(found, exemplars_count=self._exemplars_count())
        if joined:
            tell(self._facts())
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

    def _exemplars_count(self) -> bool:
        return self.experiment.server.weighting == "with-exemplars" and self.experiment.memory.keeps

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
            self.image = self.image or said.image
            if said.image != self.image:
                self._warn(f"site {site} takes no part: its images are {said.image}, not {self.image}", tell)
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

    def _facts(self) -> SitesKnown:
        rows = self.known.rows()
        counts = np.array(rows, np.int64).reshape(len(rows), len(self.known.classes))
        kept = planned(self.experiment.memory, counts, tuple(self.known.sizes)).sum(axis=0)
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
            self.roster.line.check()
            time.sleep(min(GLANCE, seconds))

    def _words(self) -> list[str]:
        return [word for word in (NEXT, FINISH) if (self.root / word).exists()]
