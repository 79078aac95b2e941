"""The server of a federation: the same runner as everywhere, with sites over Flower in place of simulated clients."""

import contextlib
import json
import os
import shlex
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from flwr.serverapp import Grid
from pydantic import Field

from fedclass.data import datasets
from fedclass.data.image_set import ImageSet, Split
from fedclass.deploy.admission import Admission, AdmissionRules, read_vocabulary
from fedclass.deploy.announced import Announced, Rules
from fedclass.deploy.audited import Audited, note
from fedclass.deploy.back import FEDERATION
from fedclass.deploy.check import check_replay
from fedclass.deploy.presence import Presence
from fedclass.deploy.registered import registered_nodes
from fedclass.deploy.settings import image_of
from fedclass.deploy.withdrawal import withdrawn
from fedclass.engines.flower.engine import Flower
from fedclass.engines.flower.exchange import Connection
from fedclass.engines.flower.roster import Roster
from fedclass.errors import ConfigError, FedclassError, RunError
from fedclass.experiment.checkpoint import Checkpoints
from fedclass.experiment.config import MEASURED, DataSettings, Experiment
from fedclass.experiment.curriculum import Curriculum
from fedclass.experiment.recipe import load
from fedclass.experiment.runner import run
from fedclass.experiment.setup import prepare
from fedclass.federation.faults import FaultSettings
from fedclass.federation.server import answer_bytes
from fedclass.runs.events import Event
from fedclass.runs.layout import RunDirectory, Writing, write_atomically
from fedclass.schema import read_table
from fedclass.wire import Job, Plan

ANNOUNCING = 300.0  # seconds for a site to say what it holds: one that hangs must not keep the others waiting
# Tables of a recipe that sites are told whole.
SENT = ("seed", "memory", "model", "train", "optimizer", "server", "method")


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """The configuration of an app: [tool.flwr.app.config] in its pyproject.toml, where underscores are hyphens."""

    recipe: Annotated[str, Field(description="as for `fedclass run`; a file is on the server's machine")] = ""
    set: Annotated[str, Field(description="overrides, as for --set, separated by spaces")] = ""
    out: Annotated[
        str, Field(description="run directory on the server's machine; an unfinished run there is resumed")
    ] = ""
    classes_from: Annotated[
        Literal["sites", "recipe"],
        Field(description='"sites": what they announce; "recipe": its tasks, at sites made by `fedclass deploy split`'),
    ] = "sites"
    next_task: Annotated[
        Literal["rounds", "manual", "classes"],
        Field(description="a task begins after the rounds of the last, on the operator's word, or with enough classes"),
    ] = "rounds"
    new_classes: Annotated[int, Field(ge=1, description='for "classes": so many new ones')] = 1
    classes_admit: Annotated[
        Literal["approve", "all"],
        Field(description="names that become classes: those the operator approves, or all that sites announce"),
    ] = "approve"
    vocabulary: Annotated[str, Field(description="a file with the names that may be classes, one in each line")] = ""
    class_case: Annotated[
        Literal["keep", "ignore"], Field(description="whether names that differ in case alone are two classes")
    ] = "keep"
    max_classes_per_site: Annotated[int, Field(ge=1, description="new names that a site may announce at a time")] = 200
    min_class_images: Annotated[
        int, Field(ge=0, description="training images of a new class, over all sites that tell, before it is learned")
    ] = 20
    image_size: Annotated[str, Field(description="HEIGHTxWIDTHxCHANNELS; empty: the size that most sites have")] = ""
    tasks: Annotated[int, Field(ge=0, description="the run ends after so many; 0: on the operator's word")] = 0
    min_sites: Annotated[int, Field(ge=1, description="sites without which no task and no round begins")] = 2
    ask_every_seconds: Annotated[float, Field(gt=0, description="how often sites are asked for news")] = 30.0
    wait_seconds: Annotated[float, Field(ge=0, description="how long to wait for min-sites at the start")] = 600.0
    deadline_seconds: Annotated[float, Field(ge=1, description="how long to wait for a site's answer")] = 3600.0
    poll_seconds: Annotated[float, Field(gt=0, description="between two looks for answers")] = 0.25
    test_at: Annotated[
        Literal["sites", "server", "both"], Field(description="whose test images say how good the model is")
    ] = "sites"
    test_data: Annotated[str, Field(description="the server's: a folder as for data.name=folder, or an .npz file")] = ""
    changed_code: Annotated[bool, Field(description="resume a run although code has changed since")] = False
    pin_nodes: Annotated[
        bool, Field(description="a site's name belongs to the node that used it first; needs nodes with keys")
    ] = True

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "ServerSettings":
        where = "the app's configuration"
        table = {key.replace("-", "_"): value for key, value in config.items()}
        settings: ServerSettings = read_table(cls, table, where, hyphens=True)
        if not settings.out or not Path(settings.out).expanduser().is_absolute():
            raise ConfigError(f"{where}: out = {settings.out!r}: give the whole path of a run directory, on the server")
        if settings.test_at != "sites" and settings.classes_from == "sites" and not settings.test_data:
            raise ConfigError(f"{where}: test-at = {settings.test_at!r} needs test-data, a folder with test images")
        image_of(settings.image_size)
        return settings

    def experiment(self) -> Experiment:
        made = load(self.recipe or None, shlex.split(self.set))
        if made.data.validation and self.classes_from == "sites":
            raise ConfigError(
                "data.validation: sites hold out images of their own (holdout in a site's file); leave it out"
            )
        if made.faults != FaultSettings():
            raise ConfigError("[faults]: is for simulations; sites have faults of their own; leave it out")
        if self.classes_from == "sites":
            made = replace(made, aggregation=made.aggregation.among_strangers())
        if made.data.mean == MEASURED and self.classes_from == "sites":
            raise ConfigError("data.mean: nobody sees the images of all sites; give numbers for data.mean and data.std")
        check_replay(made)
        if made.stream.arrival != "together" and self.classes_from == "sites":
            raise ConfigError(
                "stream.arrival: at sites a class arrives when its images are there; leave it out, or use "
                "classes-from = recipe"
            )
        return made

    def check_here(self) -> None:
        """Check that a server on this machine has all that it needs; ConfigError or RunError if not."""
        made = self.experiment()
        made.build((image_of(self.image_size) or (64, 64, 3))[:2])
        if self.admission.vocabulary is not None:
            read_vocabulary(self.admission.vocabulary)
        if self.test_data:
            _test_images(_tested_with(self.test_data, made.data))
        out = Path(self.out).expanduser()
        place = next(path for path in (out, *out.parents) if path.exists())
        if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
            raise ConfigError(f"out = {out}: {place} is no folder that this user can write to; choose another one")

    @property
    def rules(self) -> Rules:
        return Rules(
            next_task=self.next_task,
            new_classes=self.new_classes,
            tasks=self.tasks,
            min_sites=self.min_sites,
            ask_every=self.ask_every_seconds,
            wait=self.wait_seconds,
            test_at=self.test_at,
            image=image_of(self.image_size),
        )

    @property
    def admission(self) -> AdmissionRules:
        return AdmissionRules(
            admit=self.classes_admit,
            vocabulary=Path(self.vocabulary).expanduser() if self.vocabulary else None,
            case=self.class_case,
            most_names=self.max_classes_per_site,
            fewest_images=self.min_class_images,
        )


def serve(grid: Grid, config: Mapping[str, Any], listen: Callable[[Event], None] = lambda _: None) -> dict[str, Any]:
    """Carry out, or resume, the run that an app's configuration describes; returns its summary."""
    settings = ServerSettings.read(config)
    experiment = settings.experiment()
    directory = RunDirectory(Path(settings.out).expanduser())
    if directory.finished:
        raise RunError(
            f"{directory.root}: this run is finished; `fedclass deploy next {directory.root}` lets it go on, or choose "
            "another out"
        )
    try:
        directory.root.mkdir(parents=True, exist_ok=True)
        directory.root.chmod(0o700)  # names of sites and classes, and the model, are the operator's
    except OSError as error:
        raise RunError(f"{directory.root}: cannot be made ({error.strerror}); choose another out") from error
    holder = uuid.uuid4().hex
    with directory.leased(holder) as writing:
        federation, returns = _federation(directory, writing)
        presence = Presence(directory.root)

        def check() -> None:
            directory.check_holder(holder)
            presence.beat()

        connection = Connection(grid, settings.poll_seconds, check)
        seconds = min(settings.deadline_seconds, ANNOUNCING)
        roster = presence.roster = Roster(
            connection,
            federation,
            seconds=seconds,
            pin=settings.pin_nodes,
            returns=returns,
            registered=registered_nodes,
            withdrawn=lambda: withdrawn(directory.root),
        )
        curriculum, site = _curriculum(settings, experiment, roster, directory.root)
        announced = curriculum if isinstance(curriculum, Announced) else None

        def plan(job: Job, teacher: str | None, broadcast: str | None) -> Plan:
            made = _plan(curriculum, federation, job, teacher, broadcast)
            return replace(made, spelled=announced.spelled(job.client) if announced else {}, returns=returns)

        engine = Flower(
            connection,
            roster,
            plan=plan,
            site=site,
            seconds=settings.deadline_seconds,
            expected=lambda job: answer_bytes(job, experiment.method, image=curriculum.image),
            least=settings.min_sites,
            pause=settings.ask_every_seconds,
            waits=announced.waits if announced else lambda _: None,
        )

        try:
            return run(
                curriculum,
                Audited(engine, directory.root, roster, site, presence.heard),
                directory,
                listen,
                writing=writing,
                changed_code=settings.changed_code,
                note=lambda event: note(directory.root, site, event),
            )
        except FedclassError as error:
            with contextlib.suppress(RunError, OSError), writing():  # another server has taken over; a full disk
                presence.failed(error)
            raise


def _federation(directory: RunDirectory, writing: Writing) -> tuple[str, tuple[int, ...]]:
    """The name under which sites keep their state for this run, and to which tasks it has gone back."""
    path = directory.root / FEDERATION
    try:
        if not path.exists():
            with writing():
                write_atomically(path, json.dumps({"id": f"federation-{uuid.uuid4().hex[:16]}"}) + "\n")
        table = json.loads(path.read_bytes())
        return str(table["id"]), tuple(int(task) for task in table.get("returns", []))
    except (OSError, ValueError, KeyError) as error:
        raise RunError(f"{path}: cannot be used ({error})") from error


def _curriculum(
    settings: ServerSettings, experiment: Experiment, roster: Roster, root: Path
) -> tuple[Curriculum, Callable[[int], str]]:
    """What is learned, and the names of clients' sites."""
    if settings.classes_from == "recipe":
        setup = prepare(experiment)
        roster.wait_for(settings.min_sites, seconds=settings.wait_seconds)
        return setup, "site-{:03d}".format
    given = experiment.data
    data = DataSettings(name="folder", mean=given.mean, std=given.std, transform=given.transform)
    wanted = settings.test_at != "sites"
    here = _test_images(_tested_with(settings.test_data, data)) if wanted and settings.test_data else None
    admission = Admission(settings.admission, root)
    announced = Announced(replace(experiment, data=data), here, roster, settings.rules, admission, root)
    announced.restore(_found_out(root))
    announced.meet()
    return announced, announced.site


def _found_out(root: Path) -> Mapping[str, Any]:
    """What a resumed run knows of its sites: to whom names belong, and how large images are."""
    known = Checkpoints(RunDirectory(root).checkpoints)
    for number in reversed(known.numbers()):
        with contextlib.suppress(RunError):  # of a damaged one the run itself will tell
            return known.load(number).state.registry
    return {}


def _tested_with(place: str, data: DataSettings) -> DataSettings:
    """place: a folder, or an .npz file."""
    path = Path(place).expanduser()
    return replace(data, name="npz" if path.suffix == ".npz" else "folder", path=str(path))


def _test_images(data: DataSettings) -> ImageSet:
    """Of classes known by name; the folder's own training images, if it has any, are not used."""
    found = datasets.load(data.name, path=Path(data.path), fraction=1.0, test_fraction=1.0)
    return replace(found, train=Split(found.train.images[:0], found.train.labels[:0]))


def told(experiment: Experiment) -> dict[str, Any]:
    """The part of a recipe that sites need to do what clients of a simulation would do."""
    tables, transform = experiment.to_tables(), experiment.data.transform
    sent = {name: tables[name] for name in SENT}
    sent |= {"seeds": tables["seeds"]} if "seeds" in tables else {}
    return sent | ({"data": {"transform": transform}} if transform else {})


def _plan(curriculum: Curriculum, federation: str, job: Job, teacher: str | None, broadcast: str | None) -> Plan:
    schedule = curriculum.schedule
    mean, std = curriculum.normalisation
    return Plan(
        federation=federation,
        recipe=told(curriculum.experiment),
        mean=tuple(mean),
        std=tuple(std),
        image=curriculum.image,
        classes=schedule.classes[: schedule.classes_until(job.task)],
        task_sizes=schedule.task_sizes[: job.task + 1],
        teacher=teacher,
        broadcast=broadcast,
        awaited=tuple(schedule.names(schedule.awaited(job.client, job.task, job.round))),
    )
