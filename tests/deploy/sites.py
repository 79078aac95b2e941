from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from fedclass.deploy.server import told
from fedclass.deploy.site import MissingAttachmentError, Site, SiteSettings
from fedclass.experiment.setup import Setup
from fedclass.wire import Job, Plan, Update, sha256


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
