"""A site: does the server's jobs with images and exemplars of its own, which never leave it.

The work itself is `federation.client.Client`'s, as in a simulation. What is particular here is where images and state
come from, and that nothing which the server sends is believed.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedclass.data.batches import find_transform
from fedclass.data.memory import MemorySettings
from fedclass.deploy.check import Accepted, JobRefusedError, accept, check_federation, check_returns
from fedclass.deploy.holdings import Holdings, Signature, read_holdings, signature
from fedclass.deploy.ledger import KeptState, days_ago, today
from fedclass.deploy.log import printable
from fedclass.deploy.settings import SiteSettings, image_of
from fedclass.deploy.site_store import Attachment, FederationFolder
from fedclass.deploy.site_stream import SiteStore, identity, site_stream, tested_images
from fedclass.errors import ClientError
from fedclass.experiment.config import Experiment
from fedclass.experiment.machine import fingerprint
from fedclass.experiment.runner import one_thread
from fedclass.federation.client import Client
from fedclass.federation.evaluate import confusion
from fedclass.federation.hooks import failures_named
from fedclass.federation.store import ClientState
from fedclass.federation.train_settings import chosen_device
from fedclass.rng import seed_streams, streams_restored
from fedclass.wire import Announcement, Job, Plan, Update, Weights

if TYPE_CHECKING:  # needs cryptography
    from fedclass.deploy.sealed import Seal

MOST_NAMED = 20  # files, in a site's log

__all__ = ["JobRefusedError", "MissingAttachmentError", "Site", "SiteSettings"]


class MissingAttachmentError(ClientError):
    """The plan names a teacher or a broadcast that this site has not kept; sent with the job, it would do."""


class Site:
    """Images are in `settings.data`, all state is in `settings.store`; a new Site goes on where another one was."""

    def __init__(self, settings: SiteSettings, say: Callable[[str], None] = lambda _: None) -> None:
        """say: to the site's owner; names of files are for nobody else."""
        self.settings, self.say = settings, say
        self.seal = seal_of(settings)
        self._clean = set[tuple[str, str]]()  # federations, and the day, whose exemplars were looked through
        self._read: tuple[Signature, Holdings] | None = None  # the images, as long as their files do not change

    def announce(self, federation: str, task: int, returns: Sequence[int] = ()) -> Announcement:
        """What this site holds, as far as its owner lets it be told. Forgotten classes are left out."""
        check_federation(federation, self.settings.name)
        check_returns(returns, self.settings.name)
        folder = self._folder(federation)
        if folder.root.exists() and folder.lags(returns):
            with folder.locked():
                self._follow(folder, returns)
        spelled = folder.spelled()
        holdings = _allowed(self._holdings(), folder, spelled)
        had, names = folder.had_before(task), holdings.names()
        return Announcement(
            site=self.settings.name,
            classes=self._told(label for label, _ in names),
            fresh=self._told(name for name, pixels in names if (spelled.get(name, name), pixels) not in had),
            image=holdings.image,
            machine=fingerprint(),
            held_out=self._told(holdings.classes[label] for label in holdings.held_out.labels),
        )

    def run(self, plan: Plan, job: Job) -> Update:
        """Do a job: train, choose exemplars, or test a model on images that are held out.

        It can be asked again, or late: the same images, exemplars, state and generators give the same answer. A test is
        by the method's own rule. Classes with a single image held out are not tested.
        """
        check_federation(plan.federation, self.settings.name)
        folder = self._folder(plan.federation)
        holdings = self._holdings()
        accepted = accept(plan, job, self.settings, holdings.image)
        ordered = {
            name: job.weights[name] for name in accepted.shapes if name in job.weights
        }  # a network keeps no order
        job = replace(job, weights=ordered)
        try:
            with one_thread(), streams_restored():
                held = _allowed(holdings, folder, plan.spelled).renamed(plan.spelled)
                if job.phase == "evaluate" and plan.broadcast is None:  # nothing is read or kept
                    return self._evaluate(plan, job, accepted, held)
                with folder.locked():
                    folder.claim(self.settings.name)
                    self._follow(folder, plan.returns)
                    folder.spell(plan.spelled)
                    job = self._with_attachments(plan, job, accepted, folder)
                    if job.phase != "evaluate":
                        return self._learn(plan, job, accepted, held, folder)
                return self._evaluate(plan, job, accepted, held)
        except OSError as error:
            raise ClientError(f"site {self.settings.name}: cannot use {folder.root} ({error})") from error

    def _follow(self, folder: FederationFolder, returns: Sequence[int]) -> None:
        for task in folder.follow(returns):
            self.say(f"{folder.root.name}: the server has gone back to before task {task + 1}, and so has this site")

    def _folder(self, federation: str) -> FederationFolder:
        return FederationFolder(self.settings.store / federation, self.seal)

    def _holdings(self) -> Holdings:
        files = signature(self.settings.data)
        if self._read is None or self._read[0] != files:
            before = self._read[1].skipped if self._read is not None else ()
            resize = image_of(self.settings.resize)
            self._read = files, read_holdings(self.settings.data, holdout=self.settings.holdout, resize=resize)
            self._clean.clear()
            if (skipped := self._read[1].skipped) and skipped != before:
                self.say("\n".join(skipped_files(skipped, self.settings.data)))
        return self._read[1]

    def _drop_exemplars(self, folder: FederationFolder, holdings: Holdings) -> None:
        """Those whose file is gone, or that are older than the owner wants."""
        if (folder.root.name, today()) in self._clean:
            return
        if not holdings.present and any(folder.state(tasks).ledger for tasks in folder.states()):
            # Perhaps the disk with the images is not mounted: nothing is deleted, and nothing is learned from.
            raise JobRefusedError(
                f"site {self.settings.name}: has exemplars but no images at the moment, and so takes no part"
            )
        self._clean.add((folder.root.name, today()))
        if gone := folder.drop(lambda entry: (entry.label, entry.sha256) in holdings.present):
            self.say(
                f"{folder.root.name}: {gone} exemplars deleted, because their images are gone from {self.settings.data}"
            )
        if self.settings.retention_days:
            first = days_ago(self.settings.retention_days)
            if old := folder.drop(lambda entry: entry.date >= first):
                self.say(f"{folder.root.name}: {old} exemplars deleted, older than {self.settings.retention_days} days")

    def _told(self, labels: Iterable[str]) -> dict[str, int | None]:
        """Sorted by name, so that the order tells nothing either."""
        return {label: self._tell(count) for label, count in sorted(Counter(labels).items())}

    def _tell(self, count: int) -> int | None:
        tell: dict[str, Callable[[int], int | None]] = {
            "names": lambda _: None,
            "rounded": lambda count: max(10, (count + 5) // 10 * 10),
            "exact": lambda count: count,
        }
        return tell[self.settings.announce](count)

    # Training, and the end of a task.

    def _learn(self, plan: Plan, job: Job, accepted: Accepted, holdings: Holdings, folder: FederationFolder) -> Update:
        made = accepted.experiment
        self._drop_exemplars(folder, holdings)
        if folder.arrivals(job.task) is None:
            had, known = folder.had_before(job.task), set(plan.classes)
            folder.fix_arrivals(job.task, [a for a in holdings.names() if a[0] in known and a not in had])
        request = identity(plan, job)
        state = self._state(job, folder, request)
        stream, begun, entries = site_stream(plan, job, holdings, folder, state)
        begun = replace(begun, method=folder.method_state(job.task, job.round))

        def keep(before: ClientState, after: ClientState) -> None:
            if after.method is not before.method:
                folder.save_method_state(job.task, job.round, after.method)
            if after.tasks == before.tasks and after.exemplars is before.exemplars:
                return
            index = after.exemplars.index
            folder.save_state(
                KeptState(
                    tasks=after.tasks,
                    classes=tuple(plan.classes[label] for label in sorted(after.exemplars.of_class)),
                    ledger=tuple(entries[at] for at in index),
                    images=stream.train.images[index],
                    made_with=request,
                    rows=after.rows,
                )
            )

        client = Client(
            stream,
            made.method,
            train=made.train,
            optimizer=made.optimizer,
            weighting=made.server.weighting,
            memory=self._memory(made.memory, len(plan.classes)),
            normalisation=(plan.mean, plan.std),
            build=accepted.build,
            store=SiteStore(begun, keep),
            seed=made.seed_of("training"),
            transform=find_transform(made.data.transform),
        )
        update = client.run(job)
        if job.phase == "count":
            return self._counted(update)
        self._check_size(update, job, made, folder, new=len(stream.new_data(job.client, job.task)))
        if job.phase == "end_task" and made.method.declare().teacher == "previous task":
            folder.attach("teacher", job.weights)
        return update

    def _counted(self, update: Update) -> Update:
        """Class counts as far as the owner lets them be told."""
        counts = update.extras["available"]
        told = [self._tell(count) if count else 0 for count in counts.tolist()]
        if None in told:
            raise JobRefusedError(
                f'site {self.settings.name}: tells names of classes alone (announce = "names"), and no counts'
            )
        counts = torch.tensor([count or 0 for count in told])
        return replace(update, examples=int(counts.sum()), extras={**update.extras, "available": counts})

    def _memory(self, wanted: MemorySettings, classes: int) -> MemorySettings:
        """What the recipe wants to be kept, or as little as the owner lets."""
        most = self.settings.max_exemplars
        if most is None:
            return wanted
        if wanted.per_class is not None:
            return replace(wanted, per_class=min(wanted.per_class, most // classes))
        return replace(wanted, per_client=min(wanted.per_client or 0, most))

    def _check_size(self, update: Update, job: Job, made: Experiment, folder: FederationFolder, *, new: int) -> None:
        """An update from a few images tells a lot about each.  new: images that came with the task."""
        least = self.settings.min_images
        images = int(update.metrics["samples"]) // made.train.local_epochs if job.phase == "train" else least
        if update.extras and job.phase == "end_task":
            counts = Counter(entry.label for entry in folder.state(job.task + 1).ledger)
            images = new if made.method.declare().task_data else min(counts.values(), default=0)
        if images < least:
            raise JobRefusedError(
                f"site {self.settings.name}: has fewer images for this than its owner wants in an update"
            )

    def _with_attachments(self, plan: Plan, job: Job, accepted: Accepted, folder: FederationFolder) -> Job:
        """The job with the teacher and the broadcast that the plan names: as they were sent, or as they were kept."""
        sent: dict[Attachment, Weights | None] = {"teacher": job.teacher, "broadcast": job.broadcast}
        for kind, tensors in sent.items():
            if tensors:
                folder.attach(kind, tensors)
        if job.teacher is None and accepted.wants_teacher(plan, job):
            job = replace(job, teacher=self._kept("teacher", plan.teacher, plan, folder))
        if not job.broadcast and plan.broadcast is not None:
            job = replace(job, broadcast=self._kept("broadcast", plan.broadcast, plan, folder))
        if (fault := accepted.attachment_flaw(plan, job)) is not None:
            raise JobRefusedError(f"site {self.settings.name} refuses a job of {plan.federation}: {fault}")
        return job

    def _kept(self, kind: Attachment, name: str | None, plan: Plan, folder: FederationFolder) -> Weights:
        found = None if name is None else folder.attached(kind, name)
        if found is None:
            raise MissingAttachmentError(
                f"site {self.settings.name}: has not kept the {kind} {str(name)[:12]} of {plan.federation}; "
                "send it with the job"
            )
        return found

    def _state(self, job: Job, folder: FederationFolder, request: str) -> KeptState | None:
        """From which to do this job: the newest of earlier tasks; if the very same was asked before, its result."""
        tasks = folder.states()
        if job.phase == "end_task" and job.task + 1 in tasks:
            done = folder.state(job.task + 1)
            if done.made_with == request:
                return done
        earlier = [number for number in tasks if number <= job.task]
        return folder.state(earlier[-1]) if earlier else None

    # Testing.

    def _evaluate(self, plan: Plan, job: Job, accepted: Accepted, holdings: Holdings) -> Update:
        counts = np.zeros((len(plan.classes), len(plan.classes)), np.int64)
        test = tested_images(plan, holdings)
        if self.settings.evaluate and bool((test.labels >= 0).any()):
            made = accepted.experiment
            with failures_named(job.where, made.method):
                model = accepted.build().to(chosen_device(made.train.device))
                model.load(job.weights)
                seed = made.seed_of("training")
                seed_streams(seed, "user code", "evaluate", "client", job.client, "task", job.task)
                counts = confusion(model, made.method, job.broadcast, test, (plan.mean, plan.std))
        return Update(
            client=job.client,
            task=job.task,
            round=job.round,
            weights={},
            examples=int(counts.sum()),
            metrics={},
            extras={"confusion": torch.from_numpy(counts)},
        )


def seal_of(settings: SiteSettings) -> "Seal | None":
    if settings.store_key is None:
        return None
    from fedclass.deploy.sealed import Seal

    return Seal.read(settings.store_key)


def _allowed(holdings: Holdings, folder: FederationFolder, spelled: Mapping[str, str]) -> Holdings:
    """Without what was forgotten, by the site's name of it or by the server's."""
    forgotten = {entry.label for entry in folder.forgotten()}
    gone = {name for name in holdings.classes if {name, spelled.get(name, name)} & forgotten}
    return holdings.without(gone, set(folder.forgotten_images()))


def skipped_files(skipped: Sequence[str], data: Path) -> list[str]:
    """For the owner: how many, and the first of them."""
    lines = [f"{len(skipped)} files in {data} are not used:", *(printable(line) for line in skipped[:MOST_NAMED])]
    return [*lines, f"... and {len(skipped) - MOST_NAMED} more"] if len(skipped) > MOST_NAMED else lines
