"""What a site accepts from the server. Everything is looked at before anything is used, imported or written."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import torch

from fedclass.deploy.settings import FILE_NAME, SiteSettings
from fedclass.errors import ClientError, ConfigError
from fedclass.experiment.config import Experiment
from fedclass.experiment.recipe import experiment
from fedclass.federation.job_checks import frozen_flaw
from fedclass.methods.declare import Sizes, misfit
from fedclass.models.head import with_shapes_for
from fedclass.models.incremental import IncrementalModel
from fedclass.models.weights import flaw
from fedclass.wire import Job, Phase, Plan, Weights, sha256

TABLES = ("seed", "seeds", "data", "memory", "model", "train", "optimizer", "server", "method")
CODE = {"model": "name", "method": "name", "data": "transform"}  # keys that may name code to be imported
MOST_CLASSES = 100_000
MOST_TASKS = 10_000
LONGEST_NAME = 200
LARGEST_SIDE = 4096  # pixels


class JobRefusedError(ClientError):
    """The server asked for something that this site does not do, or that makes no sense."""


@dataclass(frozen=True)
class Accepted:
    """A request that has passed all checks, except for a teacher that the site must find itself."""

    experiment: Experiment
    build: Callable[[], IncrementalModel]
    shapes: Weights  # of a model with all classes; without content

    def wants_teacher(self, plan: Plan, job: Job) -> bool:
        """Whether the job needs the teacher that the plan names."""
        named = plan.teacher is not None and job.phase == "train"
        return named and self.experiment.method.declare().teacher == "previous task"

    def attachment_flaw(self, plan: Plan, job: Job) -> str | None:
        """Why teacher or broadcast do not fit the model, or are not what the plan names."""
        if job.teacher is not None:
            fault = flaw(job.teacher, with_shapes_for(self.shapes, sum(plan.task_sizes[:-1])))
            if fault is not None:
                return f"the teacher does not fit the model: {fault}"
            if sha256(job.teacher) != plan.teacher:
                return "the teacher that was sent is not the one that the plan names"
        if not job.broadcast:
            return None
        declared = self.experiment.method.declare()
        names = declared.broadcast if job.phase == "train" else declared.predicts_with
        specs = {name: declared.server[name] for name in names}
        sizes = Sizes.of(self.build(), len(plan.classes))
        if (fault := misfit(job.broadcast, specs, sizes)) is not None:
            return f"the broadcast is not what {self.experiment.method_name} declares: {fault}"
        if not all(bool(torch.isfinite(tensor).all()) for tensor in job.broadcast.values()):
            return "the broadcast holds NaN or infinite values"
        if sha256(job.broadcast) != plan.broadcast:
            return "the broadcast that was sent is not the one that the plan names"
        return None


def check_federation(federation: object, site: str) -> None:
    if not isinstance(federation, str) or not FILE_NAME.fullmatch(federation):
        raise JobRefusedError(
            f"site {site}: federation {str(federation)[:80]!r} cannot name a folder; use 1 to 64 letters, digits, "
            "'.', '_' or '-'"
        )


def check_returns(returns: Sequence[int], site: str) -> None:
    if len(returns) > MOST_TASKS or any(type(task) is not int or not 0 <= task < MOST_TASKS for task in returns):
        raise JobRefusedError(f"site {site}: cannot go back to tasks that do not exist")


def accept(plan: Plan, job: Job, settings: SiteSettings, image: tuple[int, int, int] | None) -> Accepted:
    """The request in usable form, or JobRefusedError. image: (H, W, C) of the site's own, if it has any."""
    check_federation(plan.federation, settings.name)
    check_returns(plan.returns, settings.name)
    try:
        _check_job(plan, job)
        _check_pixels(plan, image)
        made = _experiment(plan.recipe, settings)
        if job.round > made.train.rounds:
            raise ConfigError(f"round {job.round + 1} of {made.train.rounds}")
        _check_quotas(plan, job, made)
        built = _builder(made, plan.image)
        model = built()
        if (fault := frozen_flaw(job, model)) is not None:
            raise ConfigError(fault)
        shapes = with_shapes_for(model.weights(), len(plan.classes))
        if (fault := flaw(job.weights, shapes if job.phase != "count" else {})) is not None:
            raise ConfigError(f"the weights do not fit the model: {fault}")
        accepted = Accepted(made, built, shapes)
        _check_attachments(plan, job, accepted)
    except ConfigError as fault:
        raise JobRefusedError(f"site {settings.name} refuses a job of {plan.federation}: {fault}") from fault
    return accepted


def _check_job(plan: Plan, job: Job) -> None:
    if job.phase not in get_args(Phase):
        raise ConfigError(f"unknown phase {job.phase!r}")
    for name, value in (("client", job.client), ("task", job.task), ("round", job.round)):
        if type(value) is not int or value < 0:
            raise ConfigError(f"{name} = {value!r} is not a whole number from 0 on")
    _check_schedule(plan)
    if job.task != len(plan.task_sizes) - 1:
        raise ConfigError(f"it is for task {job.task + 1}, but the plan has {len(plan.task_sizes)}")


def _check_quotas(plan: Plan, job: Job, made: Experiment) -> None:
    """Class counts leave a site only for the quotas that its recipe names."""
    if (job.phase == "count" or job.quotas is not None) and not made.memory.asks_counts:
        raise ConfigError('it is about quotas, and the recipe does not say memory.quota = "balanced"')
    if job.quotas is None:
        return
    if job.phase != "end_task" or len(job.quotas) != len(plan.classes) or min(job.quotas) < 0:
        raise ConfigError(
            f"quotas must come with the end of a task, one from 0 on for each of {len(plan.classes)} classes"
        )


def _check_schedule(plan: Plan) -> None:
    names, sizes = plan.classes, plan.task_sizes
    if not 0 < len(names) <= MOST_CLASSES:
        raise ConfigError(f"{len(names)} classes; there must be 1 to {MOST_CLASSES}")
    for name in names:
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
            raise ConfigError(f"{str(name)[:40]!r} is not a class name: use 1 to {LONGEST_NAME} characters")
    if len(set(names)) != len(names):
        raise ConfigError("a class is named twice")
    if len(sizes) > MOST_TASKS or any(type(size) is not int or size < 0 for size in sizes):
        raise ConfigError(f"task_sizes must be at most {MOST_TASKS} whole numbers from 0 on")
    if sum(sizes) != len(names):
        raise ConfigError(f"task_sizes make {sum(sizes)} classes, but {len(names)} are named")
    if odd := [into for into in plan.spelled.values() if not isinstance(into, str) or len(into) > LONGEST_NAME]:
        raise ConfigError(f"{str(odd[0])[:40]!r} is not a class name")
    if strange := set(plan.awaited) - set(names[len(names) - sizes[-1] :]):
        raise ConfigError(f"awaits class {min(map(str, strange))[:40]!r}, which is not new in this task")


def _check_pixels(plan: Plan, image: tuple[int, int, int] | None) -> None:
    shape = tuple(plan.image)
    whole = len(shape) == 3 and all(type(size) is int and 0 < size <= LARGEST_SIDE for size in shape)
    if not whole or shape[2] not in (1, 3):
        raise ConfigError(f"images of {shape}; it must be height, width and 1 or 3 channels")
    if image is not None and image != shape:
        raise ConfigError(f"it wants images of {_size(shape)}, but this site's are {_size(image)}; convert them")
    if len(plan.mean) != len(plan.std) or len(plan.mean) not in (1, 3):
        raise ConfigError("mean and std must both have one value, or both three")
    for value in (*plan.mean, *plan.std):
        if type(value) not in (int, float) or not math.isfinite(value):
            raise ConfigError(f"mean and std must be finite numbers, got {value!r}")
    if min(plan.std) <= 0:
        raise ConfigError(f"std must be above 0, got {min(plan.std)}")


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[1]}x{shape[0]} pixels, {'gray' if shape[2] == 1 else 'colour'}"


def _experiment(recipe: Mapping[str, Any], settings: SiteSettings) -> Experiment:
    """The recipe, checked. A name of code that is not ours is looked up in the site's list before it is imported."""
    if not isinstance(recipe, Mapping):
        raise ConfigError("the recipe must be a table")
    odd = [str(key)[:40] for key in recipe if key not in TABLES]
    if odd:
        raise ConfigError(f"the recipe holds {odd[0]!r}; a site takes {', '.join(TABLES)} alone")
    if isinstance(recipe.get("data"), Mapping) and set(recipe["data"]) - {CODE["data"]}:
        raise ConfigError("of the table data, a site takes transform alone")
    for table, key in CODE.items():
        name = recipe[table].get(key, "") if isinstance(recipe.get(table), Mapping) else ""
        if not isinstance(name, str):
            raise ConfigError(f"the {table}'s {key} must be text")
        what = table if key == "name" else key
        is_code = ":" in name or (name and what == "transform")
        if is_code and name not in settings.allow:
            raise ConfigError(
                f"{what} {name[:80]!r} is not among those that this site allows; its owner may add it to allow"
            )
    made = experiment(dict(recipe), where="recipe")
    check_replay(made)
    return replace(made, train=replace(made.train, device=settings.device))


def check_replay(made: Experiment) -> None:
    """Sites learn from what is new, and from exemplars within their budget; never from all that they have had. Nothing
    that is made of a single image leaves them.
    """
    if told := made.method.declare().discloses:
        raise ConfigError(f"method {made.method_name!r} sends {told}; run it in a simulation: fedclass run")
    if made.method.declare().replay == "all":
        raise ConfigError(
            f"method {made.method_name!r} trains on all images of earlier tasks, which sites do not keep for it; "
            "run it in a simulation: fedclass run"
        )


def _builder(made: Experiment, image: tuple[int, int, int]) -> Callable[[], IncrementalModel]:
    def build() -> IncrementalModel:
        return made.build(image[:2])

    return build


def _check_attachments(plan: Plan, job: Job, accepted: Accepted) -> None:
    for what, name, sent in (
        ("teacher", plan.teacher, job.teacher is not None),
        ("broadcast", plan.broadcast, bool(job.broadcast)),
    ):
        if name is None and sent:
            raise ConfigError(f"a {what} was sent that the plan does not name")
        if name is not None and (not isinstance(name, str) or not re.fullmatch("[0-9a-f]{64}", name)):
            raise ConfigError(f"the {what}'s name is no SHA-256")
    needs = accepted.experiment.method.declare().teacher == "previous task"
    if plan.teacher is None and job.phase == "train" and job.task > 0 and needs:
        raise ConfigError(f"{accepted.experiment.method_name} needs a teacher, and the plan names none")
    if plan.teacher is not None and job.task == 0:
        raise ConfigError("there is no teacher in the first task")
    if (fault := accepted.attachment_flaw(plan, job)) is not None:
        raise ConfigError(fault)
