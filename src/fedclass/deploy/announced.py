"""The curriculum that sites announce: the server asks which classes there are, and decides when to learn new ones."""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedclass.data.image_set import MEAN, STD, ImageSet, Split
from fedclass.data.memory import exemplar_counts
from fedclass.data.schedule import Schedule
from fedclass.deploy.admission import Admission
from fedclass.deploy.decisions import APPROVALS
from fedclass.deploy.registry import Registry
from fedclass.deploy.site_tests import capped, outliers
from fedclass.deploy.words import FINISH, NEXT
from fedclass.engines.flower.roster import Roster
from fedclass.errors import RoundError
from fedclass.experiment.config import Experiment
from fedclass.experiment.curriculum import DataFacts, Tell, Tested, Trial
from fedclass.experiment.machine import fingerprint
from fedclass.experiment.setup import exemplars_count
from fedclass.federation.evaluate import Counts
from fedclass.models.incremental import IncrementalModel
from fedclass.runs.events import Event, SiteChanged, SitesKnown, SiteTested, Warned
from fedclass.wire import Announcement, Update

ROUNDED = 5  # as many images more than it announces a site may have of a class: counts may be rounded to tens
GLANCE = 0.5  # seconds between two looks for the operator's word


@dataclass(frozen=True)
class Rules:
    """When tasks begin and when they end.

    next_task: "rounds" (as soon as the last one's rounds are done), "manual" (when the operator says so), or "classes"
    (when `new_classes` may be admitted). Whichever it is, a task needs a class that is new, unless the operator
    asks for one with new images of known classes alone; the first one need not be asked for.  tasks: how many, unless
    the operator wants another; 0: until the operator says so.  min_sites: without which no task and no round begins.
    ask_every: seconds between two questions to sites.  wait: seconds to wait for sites without which nothing can be
    learned or tested.  image: (H, W, C); none: what most sites have.
    """

    next_task: Literal["rounds", "manual", "classes"]
    new_classes: int
    tasks: int
    min_sites: int
    ask_every: float
    wait: float
    test_at: Literal["sites", "server", "both"]
    image: tuple[int, int, int] | None


class Announced:
    """here: the server's test images, if it tests; of its training images, if it has any, none are used."""

    validation = None

    def __init__(
        self,
        experiment: Experiment,
        here: ImageSet | None,
        roster: Roster,
        rules: Rules,
        admission: Admission,
        root: Path,
    ) -> None:
        self.experiment, self.here, self.roster, self.rules, self.root = experiment, here, roster, rules, root
        self.admission = admission
        self._built = cache(experiment.build)
        self.known = Registry()
        self._tell: Tell = lambda _: None
        self._seen: dict[str, bool] = {}  # whether a site was connected at the last look
        self._image: tuple[int, int, int] | None = None
        self._warned: set[str] = set()
        self._returns = 0  # how often the operator has gone back, as far as it was told
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
    def initial(self) -> IncrementalModel:
        return self._built(self.image[:2])

    @property
    def schedule(self) -> Schedule:
        return Schedule(tuple(self.known.classes), tuple(self.known.sizes))

    @property
    def registry(self) -> Mapping[str, Any]:
        spelled = dict(self.admission.spelled)
        return {**self.known.table(), "image": self._image, "spelled": spelled, "returns": self._returns}

    def restore(self, registry: Mapping[str, Any]) -> None:
        table, returns = dict(registry), self.roster.returns
        if len(returns) > max(table.pop("returns", 0), self._returns):
            message = f"the operator has gone back to before task {returns[-1] + 1}, and sites follow"
            self._early.append(Warned(message=message))
        self._returns = len(returns)
        if table:
            self._image = tuple(table.pop("image"))
            self.admission.spelled = dict(table.pop("spelled", {}))
            self.known = Registry.read(table)
            self.roster.recall(self.known.nodes)

    # Before the run, and between tasks.

    def meet(self) -> None:
        """Wait until enough sites are there; what is to be told of them is told with the first task."""
        until, task = time.monotonic() + self.rules.wait, max(len(self.known.sizes) - 1, 0)
        fixed, self._image = self._image, self._image or self.rules.image
        while len(found := self._announcements(task, self._early.append)) < self.rules.min_sites:
            self._image = fixed or self.rules.image  # others may come, and most of them have another size
            if time.monotonic() > until:
                raise RoundError(
                    f"after {self.rules.wait:.0f} s there are {len(found)} sites with images, and min-sites = "
                    f"{self.rules.min_sites} are needed" + self.roster.why_silent()
                )
            self._pause(min(self.rules.ask_every, 5.0))
        self._met = found
        self._enter(found)

    def facts(self) -> DataFacts:
        said, here = self._sites_known(), self.here
        name, sha256, official = ("sites", "", None) if here is None else (here.name, here.sha256, here.official)
        return DataFacts(name, sha256, official, said.counts, said.exemplars, fixed=False)

    def begin(self, task: int, tell: Tell) -> bool:
        self._tell = tell
        while self._early:
            tell(self._early.pop(0))
        if task < len(self.known.sizes):  # of a resumed run
            tell(self._sites_known())
            return True
        if self.rules.tasks and task >= self.rules.tasks and not (self.root / NEXT).exists():
            return False
        while True:
            if (self.root / FINISH).exists():
                return False
            found = self._met if task == 0 and self._met is not None else self._announcements(task, tell)
            self._met = None
            self._enter(found)
            new = self.admission.admitted(self.known.unknown(found), found, self.known.classes)
            if len(found) >= self.rules.min_sites and self._is_time(new, found):
                break
            self._warn(f"task {task + 1} waits for {self._awaited(found, new)}", tell)
            self._pause(self.rules.ask_every)
        (self.root / NEXT).unlink(missing_ok=True)
        self.known.begin(new)
        self.admission.admitted(self.known.unknown(found), found, self.known.classes)  # these are no longer offered
        self.known.admit(found, exemplars_count=exemplars_count(self.experiment))
        tell(self._sites_known())
        return True

    def _is_time(self, new: list[str], found: Mapping[str, Announcement]) -> bool:
        if (self.root / NEXT).exists() and (new or self.known.more(found)):
            return True
        if not new:
            return False
        match self.rules.next_task:
            case "rounds":
                return True
            case "classes":
                return len(new) >= self.rules.new_classes
            case "manual":
                return not self._needs_a_word

    @property
    def _needs_a_word(self) -> bool:
        """With next-task = "manual": only where nothing is approved, the first task begins by itself."""
        return bool(self.known.sizes) or self.admission.rules.admit == "approve"

    def _awaited(self, found: Mapping[str, Announcement], new: list[str]) -> str:
        """What is lacking now; it is told again whenever it changes."""
        if len(found) < self.rules.min_sites:
            return f"sites: {len(found)} with images are there, and min-sites = {self.rules.min_sites} are needed"
        have = f"new there: {listed(new)}" if new else "no new class is there yet"
        if more := self.known.more(found):
            have += f"; new images of {listed(more)}"
        if kept_out := self.admission.waiting():
            have += f"; {kept_out}"
        match self.rules.next_task:
            case "rounds":
                return f"a new class ({have})"
            case "classes":
                return f"{self.rules.new_classes} new classes ({have})"
            case "manual":
                said = (self.root / NEXT).exists() or not self._needs_a_word
                return f"a new class ({have})" if said else f"`fedclass deploy next {self.root}` ({have})"

    # During a task.

    def learners(self, task: int, round: int, tell: Tell) -> list[int]:  # noqa: ARG002
        self._tell = tell
        self.roster.refresh(task)
        self._tell_changes(tell)
        others = set(self.roster.connected()) - set(self.known.learners)
        found = self._fitting({site: self.roster.said[site] for site in others}, tell)
        joined = self._enter(found)
        self.known.admit(found, exemplars_count=exemplars_count(self.experiment))
        if joined:
            tell(self._sites_known())
        return self.known.numbers([site for site in self.known.learners if site not in self.roster.removed])

    def everyone(self) -> list[int]:
        return self.known.numbers([site for site in self.known.sites if site not in self.roster.removed])

    def spelled(self, client: int) -> Mapping[str, str]:
        """Of the names that the client's site uses, those of classes that are called otherwise here."""
        said = self.admission.spelled.get(self.site(client), {})
        return {name: into for name, into in said.items() if into in self.known.classes}

    def waits(self, sites: Sequence[str]) -> None:
        """A round waits for these to return."""
        away = f"{listed(sites)} {'is' if len(sites) == 1 else 'are'} away"
        self._warn(f"a round waits: {self.rules.min_sites} sites are needed (min-sites), and {away}")

    def site(self, client: int) -> str:
        return self.known.sites[client]

    def named(self, client: int) -> str:
        return f"site {self.site(client)}"

    def holds(self, client: int, task: int, round: int) -> Collection[int]:  # noqa: ARG002
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
        at_sites, reports = None, dict[int, Counts]()
        if self.rules.test_at != "server":
            at_sites, reports = self._tested_at_sites(trial, tell, must=must and self.here is None)
        here = None if self.watched is None else trial.here(self.watched)
        for client, (own, expected) in sorted(outliers(reports, here).items()):
            message = (
                f"task {trial.task + 1}: {self.named(client)} reports that {own:.0f} % of its held-out images are "
                f"right, and the other results suggest {expected:.0f} %"
            )
            tell(Warned(message=message))
        return Tested(at_sites) if here is None else Tested(here, at_sites)

    @property
    def watched(self) -> Split | None:
        """The server's test images; -1: of classes that have not arrived."""
        if self.here is None:
            return None
        number = {name: label for label, name in enumerate(self.known.classes)}
        of_label = np.array([number.get(name, -1) for name in self.here.classes], np.int64)
        return Split(self.here.test.images, of_label[self.here.test.labels])

    def _tested_at_sites(self, trial: Trial, tell: Tell, *, must: bool) -> tuple[Counts | None, dict[int, Counts]]:
        """In all, and by site. must: wait for sites without which a task could not be tested; otherwise there are no
        counts then.
        """
        classes, waiting = self.schedule.classes_until(trial.task), self.everyone()
        total, reports = np.zeros((classes, classes), np.int64), dict[int, Counts]()
        until = time.monotonic() + self.rules.wait
        while True:
            for update in trial.at_clients(list(waiting)):
                total += self._report(update, trial.task, reports, tell)
                waiting.remove(update.client)
            if self._every_task_in(total):
                break
            if not must:
                return None, reports
            if not waiting or time.monotonic() > until:
                break  # what cannot be tested has no figure
            time.sleep(self.rules.ask_every)
        untested = self.schedule.names(np.flatnonzero(total.sum(axis=1) == 0).tolist())
        if untested:
            message = f"task {trial.task + 1}: no site that answered holds out an image of class {listed(untested)}"
            tell(Warned(message=message))
        return total, reports

    def _report(self, update: Update, task: int, reports: dict[int, Counts], tell: Tell) -> Counts:
        """A site's counts, which are told: of no class more than it has announced."""
        site, names = self.site(update.client), self.known.classes
        limits = [self.known.most_held_out(site, name, ROUNDED) for name in names[: len(update.extras["confusion"])]]
        counts, over = capped(update.extras["confusion"].numpy(), limits)
        correct, tested = counts.diagonal().tolist(), counts.sum(axis=1).tolist()
        tell(SiteTested(task=task, client=update.client, correct=correct, tested=tested, capped=over))
        if over:
            said = f"site {site} counts more held-out images than it has announced, of {listed(names_of(names, over))}"
            self._warn(f"task {task + 1}: {said}; they count as many as announced", tell)
        reports[update.client] = counts
        return counts

    def _every_task_in(self, counts: Counts) -> bool:
        tasks = [self.schedule.new_classes(task) for task in range(len(self.schedule.task_sizes))]
        return all(counts[new.start : new.stop].any() for new in tasks if new)

    # What sites say.

    def _announcements(self, task: int, tell: Tell) -> Mapping[str, Announcement]:
        found = self._fitting(self.roster.announcements(task), tell)
        self._tell_changes(tell)
        for node, reason in self.roster.silent.items():
            self._warn(f"{self.roster.called(node)} takes no part: {reason}", tell)
        return found

    def _enter(self, found: Mapping[str, Announcement]) -> list[str]:
        self.known.nodes = dict(self.roster.pins)
        return self.known.enter(found)

    def _tell_changes(self, tell: Tell) -> None:
        """Which sites have gone, and which have come back, since the last look."""
        now = {site: site in self.roster.connected() for site in {*self._seen, *self.roster.connected()}}
        for site in sorted(site for site, there in self._seen.items() if now[site] != there):
            tell(SiteChanged(site=site, connected=now[site]))
        self._seen = now

    def _fitting(self, announcements: Mapping[str, Announcement], tell: Tell) -> dict[str, Announcement]:
        """Those whose images have the right size, in the names of classes."""
        self.admission.look()
        self._image = self._image or most_common([said.image for said in announcements.values()])
        fitting = {}
        for site in sorted(announcements):
            said = announcements[site]
            if said.image is None:
                self._warn(f"site {site} has no images yet", tell)
                continue
            if said.image != self._image:
                self._warn(
                    f"site {site} takes no part: its images are {said.image}, not {self._image}; its owner may set "
                    "resize",
                    tell,
                )
                continue
            here = fingerprint()
            differing = [f"{key} {value}" for key, value in sorted(said.machine.items()) if here.get(key) != value]
            if differing:
                self._warn(f"site {site} differs from the server in {', '.join(differing)}: bits may differ", tell)
            fitting[site] = self.admission.read(said, self.known.classes, lambda text: self._warn(text, tell))
        return fitting

    def _warn(self, message: str, tell: Tell | None = None) -> None:
        if message not in self._warned:
            self._warned.add(message)
            (tell or self._tell)(Warned(message=message))

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

    def _words(self) -> list[tuple[str, int]]:
        files = [self.root / word for word in (NEXT, FINISH, APPROVALS)]
        return [(file.name, file.stat().st_mtime_ns) for file in files if file.exists()]


def most_common(images: Iterable[tuple[int, int, int] | None]) -> tuple[int, int, int] | None:
    """The size that most sites have; of several, the largest."""
    sizes = Counter(image for image in images if image is not None)
    return max(sizes, key=lambda size: (sizes[size], size), default=None)


def names_of(names: Sequence[str], labels: Iterable[int]) -> list[str]:
    return [names[label] for label in labels]


def listed(names: Sequence[str]) -> str:
    """The first of them."""
    return ", ".join(map(repr, names[:5])) + (" ..." if len(names) > 5 else "")
