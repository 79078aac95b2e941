from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedclass.deploy.server import told
from fedclass.deploy.site import MissingAttachmentError, Site, SiteSettings
from fedclass.deploy.site_store import FederationFolder
from fedclass.experiment.setup import Setup
from fedclass.wire import Job, Plan, Update, Weights, sha256


def plan_of(
    setup: Setup,
    task: int,
    *,
    federation: str = "trial",
    teacher: str | None = None,
    broadcast: str | None = None,
    awaited: Sequence[int] = (),
) -> Plan:
    """What the server of this recipe sends with its jobs."""
    stream = setup.stream
    mean, std = setup.normalisation
    height, width, channels = stream.data.train.images.shape[1:]
    return Plan(
        federation=federation,
        recipe=told(setup.experiment),
        mean=mean,
        std=std,
        image=(height, width, channels),
        classes=stream.classes[: stream.classes_until(task)],
        task_sizes=stream.task_sizes[: task + 1],
        teacher=teacher,
        broadcast=broadcast,
        awaited=tuple(stream.names(awaited)),
    )


class Sites:
    """An engine of sites on this disk, each of which forgets everything but its store between two jobs.

    Teacher and broadcast are first named, and sent only to a site that has not kept them.
    """

    name = "sites"

    def __init__(self, setup: Setup, data: Sequence[Path], store: Path, allow: tuple[str, ...] = ()) -> None:
        self.setup, self.teachers_sent = setup, 0
        self.settings = [
            SiteSettings(name=f"site-{i}", data=path, store=store / str(i), holdout=0.0, allow=allow, announce="exact")
            for i, path in enumerate(data)
        ]

    def run(self, jobs: Sequence[Job]) -> Iterator[Update]:
        for job in jobs:
            plan = plan_of(
                self.setup,
                job.task,
                teacher=sha256(job.teacher) if job.teacher is not None else None,
                broadcast=sha256(job.broadcast) if job.broadcast else None,
                awaited=self.setup.stream.awaited(job.client, job.task, job.round),
            )
            settings = self.settings[job.client]
            named = replace(job, teacher=None, broadcast={})
            try:
                yield Site(settings).run(plan, named)
            except MissingAttachmentError:
                self.teachers_sent += job.teacher is not None
                yield Site(settings).run(plan, job)


def write_folder(root: Path, images: np.ndarray, names: Sequence[str]) -> Path:
    """PNG files in a folder per class, numbered in order."""
    for at, (pixels, name) in enumerate(zip(images, names, strict=True)):
        (root / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.squeeze()).save(root / name / f"{at:04d}.png")
    return root


class Trial:
    """One site with images of classes 0 to 3, and a server that teaches 0 and 1 first, then 2 and 3."""

    def __init__(self, setup: Setup, root: Path, **settings: Any) -> None:
        self.setup, self.data, self.store = setup, root / "photos", root / "store"
        self.data.mkdir(parents=True)
        self.settings = SiteSettings(
            **{"name": "ward-7", "data": self.data, "store": self.store, "holdout": 0.0, **settings}
        )
        self.folder = FederationFolder(self.store / "trial")

    @property
    def site(self) -> Site:
        return Site(self.settings)  # a new one each time: all it knows is on the disk

    def add(self, label: int, first: int, after: int) -> None:
        """Put the data set's images first .. after-1 of a class into the site's folder."""
        stream = self.setup.stream
        index = np.flatnonzero(stream.targets == label)[first:after]
        for at, image in zip(range(first, after), stream.data.train.images[index], strict=True):
            write_folder(self.data / "new", image[None], [str(label)])
            (self.data / str(label)).mkdir(exist_ok=True)
            (self.data / "new" / str(label) / "0000.png").rename(self.data / str(label) / f"{at:04d}.png")
            (self.data / "new" / str(label)).rmdir()
            (self.data / "new").rmdir()

    def remove(self, label: int, *numbers: int) -> None:
        for at in numbers:
            (self.data / str(label) / f"{at:04d}.png").unlink()

    def weights(self, task: int, seed: int = 0) -> Weights:
        model = self.setup.build()
        model.grow_to(self.setup.stream.classes_until(task), seed=seed)
        return model.weights()

    def job(self, task: int, phase: Any = "train", *, round: int = 0, seed: int = 0) -> tuple[Plan, Job]:
        teacher = self.weights(task - 1) if task and phase == "train" else None
        plan = plan_of(self.setup, task, teacher=None if teacher is None else sha256(teacher))
        return plan, Job(5, task, round if phase == "train" else 2, phase, self.weights(task, seed), teacher)

    def run(self, task: int, phase: Any = "train", *, round: int = 0, seed: int = 0) -> Update:
        return self.site.run(*self.job(task, phase, round=round, seed=seed))

    def exemplars(self, tasks: int) -> dict[str, list[str]]:
        """Class -> digests of what is kept of it."""
        state = self.folder.state(tasks)
        kept: dict[str, list[str]] = {name: [] for name in state.classes}
        for entry in state.ledger:
            kept[entry.label].append(entry.sha256)
        return kept


def same(found: Update, wanted: Update) -> bool:
    return (found.examples, dict(found.metrics), sha256(found.weights)) == (
        wanted.examples,
        dict(wanted.metrics),
        sha256(wanted.weights),
    )
