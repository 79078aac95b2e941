"""What a site refuses, of jobs and of its own settings."""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from deploy.sites import Trial, same
from fedclass.deploy.holdings import read_holdings
from fedclass.deploy.site import JobRefusedError, Site, SiteSettings
from fedclass.errors import ClientError, ConfigError
from fedclass.experiment.config import Experiment
from fedclass.wire import Job, Plan, sha256

Tiny = Callable[..., Experiment]


# What a site refuses.


def with_weights(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Plan, Job], tuple[Plan, Job]]:
    def edit(plan: Plan, job: Job) -> tuple[Plan, Job]:
        weights = {name: tensor.clone() for name, tensor in job.weights.items()}
        change(weights)
        return plan, replace(job, weights=weights)

    return edit


def with_teacher(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Plan, Job], tuple[Plan, Job]]:
    def edit(plan: Plan, job: Job) -> tuple[Plan, Job]:
        assert job.teacher is not None
        teacher = {name: tensor.clone() for name, tensor in job.teacher.items()}
        change(teacher)
        return replace(plan, teacher=sha256(teacher)), replace(job, teacher=teacher)

    return edit


def planned(**changes: Any) -> Callable[[Plan, Job], tuple[Plan, Job]]:
    return lambda plan, job: (replace(plan, **changes), job)


def asked(**changes: Any) -> Callable[[Plan, Job], tuple[Plan, Job]]:
    return lambda plan, job: (plan, replace(job, **changes))


def cooked(**changes: Any) -> Callable[[Plan, Job], tuple[Plan, Job]]:
    return lambda plan, job: (replace(plan, recipe={**plan.recipe, **changes}), job)


REFUSALS: dict[str, tuple[Callable[[Plan, Job], tuple[Plan, Job]], str]] = {
    "federation up": (planned(federation="../elsewhere"), "cannot name a folder"),
    "federation hidden": (planned(federation=".ssh"), "cannot name a folder"),
    "federation long": (planned(federation="x" * 65), "cannot name a folder"),
    "federation number": (planned(federation=7), "cannot name a folder"),
    "recipe list": (planned(recipe=["seed"]), "must be a table"),
    "recipe stream": (
        cooked(stream={}),
        "holds 'stream'; a site takes seed, seeds, data, memory, model, train",
    ),
    "recipe data": (cooked(data={"path": "/etc"}), "of the table data, a site takes transform alone"),
    "transform": (cooked(data={"transform": "os:system"}), "transform 'os:system' is not among those that this site"),
    "transform module": (cooked(data={"transform": "antigravity"}), "transform 'antigravity' is not among those"),
    "transform list": (cooked(data={"transform": ["os"]}), "the data's transform must be text"),
    "recipe value": (cooked(train={"rounds": 0}), r"recipe \[train\]: rounds = 0"),
    "recipe key": (cooked(memory={"per_klass": 1}), "did you mean 'per_class'"),
    "recipe seed": (cooked(seed=-1), "seed must be a whole number"),
    "recipe table": (cooked(model="resnet8"), "must be a table"),
    "unknown model": (cooked(model={"name": "resnet9"}), "unknown model 'resnet9'"),
    "code as model": (
        cooked(model={"name": "os:getcwd"}),
        "model 'os:getcwd' is not among those that this site allows",
    ),
    "code as method": (cooked(method={"name": "evil:Method"}), "method 'evil:Method' is not among"),
    "method list": (cooked(method={"name": ["fedavg"]}), "the method's name must be text"),
    "no classes": (planned(classes=(), task_sizes=()), "0 classes"),
    "class twice": (planned(classes=("0", "1", "2", "2")), "named twice"),
    "class number": (planned(classes=("0", "1", "2", 3)), "'3' is not a class name"),
    "class long": (planned(classes=("0", "1", "2", "x" * 201)), "is not a class name"),
    "too many classes": (planned(classes=tuple(map(str, range(100_001)))), "100001 classes; there must be 1 to 100000"),
    "sizes": (planned(task_sizes=(2, 3)), "task_sizes make 5 classes, but 4 are named"),
    "negative size": (planned(task_sizes=(5, -1)), "whole numbers from 0 on"),
    "tasks": (planned(task_sizes=(1, 1, 2)), "for task 2, but the plan has 3"),
    "awaited": (planned(awaited=("2", "0")), "awaits class '0', which is not new in this task"),
    "awaited number": (planned(awaited=(3,)), "awaits class '3', which is not new in this task"),
    "client": (asked(client=-1), "client = -1"),
    "client text": (asked(client="5"), "client = '5'"),
    "round": (asked(round=3), "round 4 of 2"),
    "phase": (asked(phase="upload"), "unknown phase 'upload'"),
    "counts": (asked(phase="count"), 'the recipe does not say memory.quota = "balanced"'),
    "quotas": (asked(phase="end_task", quotas=(1, 1, 1, 1)), 'the recipe does not say memory.quota = "balanced"'),
    "mean length": (planned(mean=(0.5, 0.5), std=(0.5, 0.5)), "one value, or both three"),
    "mean and std": (planned(mean=(0.5, 0.5, 0.5), std=(0.5,)), "one value, or both three"),
    "mean nan": (planned(mean=(math.nan,)), "finite numbers, got nan"),
    "std text": (planned(std=("1",)), "finite numbers, got '1'"),
    "std zero": (planned(std=(0.0,)), "std must be above 0"),
    "image size": (planned(image=(9, 8, 3)), "wants images of 8x9 pixels, colour, but this site's are 8x8 pixels"),
    "image channels": (planned(image=(8, 8, 1)), "wants images of 8x8 pixels, gray, but this site's are .*colour"),
    "image nonsense": (planned(image=(8, 8)), "height, width and 1 or 3 channels"),
    "image huge": (planned(image=(8, 10**6, 3)), "height, width and 1 or 3 channels"),
    "weights name": (with_weights(lambda w: w.pop("head.bias")), "weights do not fit.*names differ.*head.bias"),
    "weights shape": (with_weights(lambda w: w.update({"head.bias": torch.zeros(3)})), r"\(3,\) instead of \(4,\)"),
    "weights dtype": (with_weights(lambda w: w.update({"head.bias": torch.zeros(4).double()})), "float64 instead of"),
    "weights nan": (with_weights(lambda w: w["head.bias"].fill_(math.inf)), "head.bias holds NaN or infinite"),
    "teacher nan": (with_teacher(lambda w: w["head.bias"].fill_(math.nan)), "teacher does not fit.*NaN"),
    "teacher shape": (with_teacher(lambda w: w.update({"head.bias": torch.zeros(4)})), "teacher does not fit"),
    "teacher other": (planned(teacher="0" * 64), "not the one that the plan names"),
    "teacher name": (planned(teacher="../../x"), "no SHA-256"),
    "teacher unnamed": (planned(teacher=None), "a teacher was sent that the plan does not name"),
    "teacher lacking": (
        lambda plan, job: (replace(plan, teacher=None), replace(job, teacher=None)),
        "fedclass needs a teacher, and the plan names none",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_makes_no_sense_is_refused_before_anything_is_written(case: str, trial: Trial) -> None:
    edit, reason = REFUSALS[case]
    with pytest.raises(JobRefusedError, match=f"^site ward-7.*{reason}"):
        trial.site.run(*edit(*trial.job(1)))
    assert not trial.store.exists()


def test_there_is_no_teacher_in_the_first_task(trial: Trial) -> None:
    plan, job = trial.job(0)
    with pytest.raises(JobRefusedError, match="no teacher in the first task"):
        trial.site.run(replace(plan, teacher=sha256(job.weights)), replace(job, teacher=job.weights))


def test_an_announcement_is_not_made_for_a_federation_that_is_no_name(trial: Trial) -> None:
    with pytest.raises(JobRefusedError, match="cannot name a folder"):
        trial.site.announce("a/b", 0)


def test_exemplars_of_another_shape_are_not_mixed_in(trial: Trial) -> None:
    """They go with the images that they were: those of another size are others."""
    trial.run(0, "end_task")
    for path in trial.data.rglob("*.png"):
        Image.open(path).resize((9, 9)).save(path)
    plan, job = trial.job(1)
    update = trial.site.run(replace(plan, image=(9, 9, 3)), job)
    assert update.metrics["samples"] == 24
    assert trial.folder.state(1).ledger == ()


OWN_METHOD = """
from dataclasses import dataclass
import torch
from fedclass.methods.base import FedAvg

@dataclass(frozen=True, kw_only=True)
class Mine(FedAvg):
    fails: bool = False

    def loss(self, client, batch):
        assert torch.get_num_threads() == 1  # as in a simulation, for the same bits
        if self.fails:
            raise RuntimeError("as wanted")
        return super().loss(client, batch)

    def predict(self, model, images, extras):
        raise RuntimeError("as wanted")
"""


def test_own_code_runs_if_the_owner_allows_it(trial: Trial, user_module: Callable[[str, str], str]) -> None:
    user_module("site_methods", OWN_METHOD)
    plan, job = trial.job(0)
    plan = replace(plan, recipe={**plan.recipe, "method": {"name": "site_methods:Mine"}})
    with pytest.raises(JobRefusedError, match="its owner may add it to allow"):
        trial.site.run(plan, job)
    torch.set_num_threads(2)
    allowing = Site(replace(trial.settings, allow=("site_methods:Mine",)))
    assert allowing.run(plan, job).examples == 12
    failing = replace(plan, recipe={**plan.recipe, "method": {"name": "site_methods:Mine", "fails": True}})
    with pytest.raises(
        ClientError, match=r"client 5, task 1, round 1: Mine.loss: RuntimeError: as wanted \(.*site_methods.py"
    ):
        allowing.run(failing, job)
    testing = Site(replace(allowing.settings, holdout=0.6))
    with pytest.raises(ClientError, match=r"client 5, task 1, evaluation: Mine\.predict: RuntimeError: as wanted"):
        testing.run(plan, replace(job, phase="evaluate"))


FAULTY_METHOD = """
from dataclasses import dataclass
import torch
from fedclass.methods.base import FedAvg, Outcome
from fedclass.methods.declare import Declaration, Spec

@dataclass(frozen=True, kw_only=True)
class Faulty(FedAvg):
    fault: str = ""

    def declare(self):
        kept, tally = {"kept": Spec(("classes",))}, {"tally": Spec(("classes",))}
        return Declaration(client=kept, uploads={"train": tally})

    def loss(self, client, batch):
        if self.fault == "raises":
            raise ValueError("scan of patient 17")
        return super().loss(client, batch)

    def end_round(self, client):
        one = torch.ones(client.model.classes)
        return {
            "shape": lambda: Outcome({"kept": one}, {"tally": one[1:]}),
            "undeclared": lambda: Outcome({"kept": one}, {"tally": one, "loot": one}),
            "state": lambda: Outcome({"kept": print}, {"tally": one}),
            "": lambda: Outcome({"kept": one}, {"tally": one}),
        }[self.fault]()
"""
FAULTS = {
    "shape": r"Faulty\.end_round: tally is \(1,\) torch\.float32 instead of \(2,\) torch\.float32$",
    "undeclared": r"Faulty\.end_round: 'loot' is not declared \(declared: tally\)$",
    "state": r"Faulty\.end_round: kept is a builtin_function_or_method instead of a tensor$",
    "raises": r"Faulty\.loss: ValueError \(\S+site_faults\.py, line 17, in loss\); its own log says more$",
}


def test_a_faulty_method_is_named_to_the_server_and_nothing_of_its_round_is_kept(
    trial: Trial, user_module: Callable[[str, str], str]
) -> None:
    """Words of an exception, which may quote anything, stay in the site's own log."""
    pytest.importorskip("flwr", reason="needs the extra [flower]")
    from fedclass.deploy.request_handler import respond
    from fedclass.engines.flower import codec

    user_module("site_faults", FAULTY_METHOD)
    plan, job = trial.job(0)
    site, said = Site(replace(trial.settings, allow=("site_faults:Faulty",))), list[str]()

    def answer(fault: str) -> Mapping[str, Any]:
        method = {"name": "site_faults:Faulty", "fault": fault}
        asked = replace(plan, recipe={**plan.recipe, "method": method})
        frame = codec.job(asked, job, teacher=False, broadcast=False)
        return respond(frame, lambda: site, said.append).header

    def kept() -> list[str]:
        return sorted(path.name for path in trial.folder.root.iterdir() if path.name.startswith("method-"))

    for fault, reason in FAULTS.items():
        told = answer(fault)["reason"]
        assert re.search(f"^client 5, task 1, round 1: {reason}", told), told
        assert kept() == []
    assert [line.count("scan of patient 17") for line in said] == [1]
    assert answer("")["answer"] == "update"
    assert kept() == ["method-0000-0000.safetensors"]


def test_the_site_chooses_its_device(trial: Trial) -> None:
    plan, job = trial.job(0)
    wanted = trial.site.run(plan, job)
    train = {**plan.recipe["train"], "device": "cuda:99"}
    assert same(trial.site.run(replace(plan, recipe={**plan.recipe, "train": train}), job), wanted)


# Settings.


@pytest.fixture
def node(tmp_path: Path) -> Iterator[dict[str, Any]]:
    (tmp_path / "photos").mkdir()
    return {"name": "ward-7", "data": str(tmp_path / "photos"), "store": str(tmp_path / "store")}


def test_settings_are_read_from_a_nodes_configuration(node: dict[str, Any]) -> None:
    given = {"announce": "names", "holdout": 0, "evaluate": False, "device": "cpu", "allow": "a.b:C, d:E"}
    read = SiteSettings.read({**node, **given})
    assert (read.name, read.data, read.announce, read.holdout) == ("ward-7", Path(node["data"]), "names", 0)
    assert (read.evaluate, read.device, read.allow) == (False, "cpu", ("a.b:C", "d:E"))
    plain = SiteSettings.read(node)
    assert (plain.announce, plain.holdout, plain.evaluate, plain.device, plain.allow) == (
        "rounded",
        0.1,
        True,
        "auto",
        (),
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"anounce": "exact"}, "unknown key 'anounce'; did you mean 'announce'?"),
        ({"partition-id": 3}, "unknown key 'partition_id'"),
        ({"max-exemplars": -1}, "max_exemplars = -1: must be at least 0"),
        ({"min-images": 2.5}, "min_images = 2.5: must be a whole number"),
        ({"name": ""}, "name = '': use 1 to 64 letters"),
        ({"name": "a b"}, "name = 'a b': use 1 to 64 letters"),
        ({"name": "../x"}, "use 1 to 64 letters"),
        ({"name": "x" * 65}, "use 1 to 64 letters"),
        ({"name": 7}, "name = 7: must be text"),
        ({"data": "nowhere"}, "data = nowhere: does not exist"),
        ({"data": __file__}, "is neither a folder nor an .npz file"),
        ({"store": __file__}, "is not a folder"),
        ({"announce": "all"}, "announce = 'all': must be 'names', 'rounded' or 'exact'"),
        ({"holdout": 1.0}, "holdout = 1.0: must be below 1"),
        ({"holdout": "0.1"}, "must be a number"),
        ({"holdout": True}, "must be a number"),
        ({"evaluate": "yes"}, "must be true or false"),
        ({"device": "cuda:99"}, "device: 'cuda:99' cannot be used here"),
        ({"allow": "my_module"}, "allow = 'my_module': write package.module:name"),
    ],
)
def test_a_wrong_setting_is_one_line(change: dict[str, Any], reason: str, node: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as raised:
        SiteSettings.read({**node, **change})
    assert reason in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_store_among_the_classes_is_refused(node: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="lies within data, where folders are classes"):
        SiteSettings.read({**node, "store": f"{node['data']}/store"})


def test_the_lists_name_classes_and_digests_alone(trial: Trial) -> None:
    held = read_holdings(trial.data, holdout=0).names()
    for task, labels in enumerate([("0", "1"), ("2", "3")]):
        trial.run(task)
        content = json.loads((trial.folder.root / f"task-{task:04d}.json").read_text())
        assert sorted(content) == ["arrivals", "sha256", "task"]
        assert content["arrivals"] == [[name, value] for name, value in held if name in labels]


def test_a_sites_file_names_files_and_folders_from_where_it_lies(tmp_path: Path) -> None:
    """A supervisor starts it from another folder than its owner did."""
    pytest.importorskip("flwr", reason="needs the extra [flower]")
    from fedclass.deploy.site_process import NodeSettings

    (tmp_path / "ca.crt").touch()
    file = tmp_path / "north.toml"
    file.write_text(
        'superlink = "localhost:8443"\nca = "ca.crt"\n[site]\nname = "north"\ndata = "images"\nstore = "/srv/store"\n'
    )
    settings = NodeSettings.read(file)
    assert settings.ca == str(tmp_path / "ca.crt")
    assert settings.site == {"name": "north", "data": str(tmp_path / "images"), "store": "/srv/store"}
