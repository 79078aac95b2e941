"""A site and its disk: what it keeps, what it tells, what it refuses."""

import json
import math
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from filelock import FileLock
from PIL import Image

from deploy.sites import plan_of, write_folder
from fedclass.deploy.holdings import digest, read_holdings
from fedclass.deploy.ledger import today
from fedclass.deploy.sealed import Seal
from fedclass.deploy.site import JobRefusedError, MissingAttachmentError, Site, SiteSettings
from fedclass.deploy.site_store import FederationFolder
from fedclass.errors import ClientError, ConfigError
from fedclass.experiment.config import Experiment
from fedclass.experiment.machine import fingerprint
from fedclass.experiment.setup import Setup, prepare
from fedclass.wire import Job, Plan, Update, Weights, sha256
from waiting import PATIENCE

Tiny = Callable[..., Experiment]


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


@pytest.fixture(scope="module")
def setup(tiny: Tiny) -> Setup:
    return prepare(tiny(method="fedclass"))


@pytest.fixture
def trial(setup: Setup, tmp_path: Path) -> Trial:
    made = Trial(setup, tmp_path)
    for label in range(4):
        made.add(label, 0, 6)
    return made


def same(found: Update, wanted: Update) -> bool:
    return (found.examples, dict(found.metrics), sha256(found.weights)) == (
        wanted.examples,
        dict(wanted.metrics),
        sha256(wanted.weights),
    )


# Again, late, interrupted.


def test_a_job_that_comes_twice_or_late_gets_the_same_answer(trial: Trial) -> None:
    first = trial.run(0)
    assert first.examples == 12
    assert same(trial.run(0), first)
    closed = trial.run(0, "end_task")
    assert closed.examples == 8
    state = (trial.folder.root / "state-0000.safetensors").read_bytes()
    second = trial.run(1)
    assert second.metrics["samples"] == 12 + 8
    trial.run(1, "end_task")
    assert same(trial.run(0), first)  # a straggler, or a server that has gone back
    assert same(trial.run(0, "end_task"), closed)
    assert (trial.folder.root / "state-0000.safetensors").read_bytes() == state
    assert trial.folder.states() == [1, 2]
    assert same(trial.run(1), second)


def test_the_end_of_a_task_with_other_weights_is_the_beginning_of_another_history(trial: Trial) -> None:
    """Exemplars are chosen anew, and what was built on the old ones goes."""
    for task in (0, 1):
        trial.run(task)
        trial.run(task, "end_task")
    assert trial.folder.states() == [1, 2]
    trial.run(0, "end_task", seed=1)
    assert trial.folder.states() == [1]


def test_a_site_that_missed_the_end_of_a_task_chooses_its_exemplars_later(
    trial: Trial, setup: Setup, tmp_path: Path
) -> None:
    """Chosen at random, they are the ones that it would have chosen in time; so is all that follows."""
    other = Trial(setup, tmp_path / "other")
    for label in range(4):
        other.add(label, 0, 6)
    trial.run(0)
    trial.run(0, "end_task")
    other.run(0)
    assert same(other.run(1), trial.run(1))
    assert other.exemplars(1) == trial.exemplars(1)


def test_a_site_that_missed_a_whole_task_has_everything_in_its_first(trial: Trial) -> None:
    assert trial.run(1).examples == 24
    assert trial.folder.tasks() == [1]
    assert trial.exemplars(1) == {}


def test_an_image_belongs_to_the_first_task_that_has_it(trial: Trial) -> None:
    """A server goes back to a task that this site had missed; in the next one, nothing is left of what came then."""
    assert trial.run(1).examples == 24
    assert trial.run(0).examples == 12
    assert trial.run(1).examples == 12


def test_only_the_last_three_states_are_kept(tmp_path: Path, tiny: Tiny) -> None:
    trial = Trial(prepare(tiny("stream.tasks=1,1,1,1", method="fedavg")), tmp_path)
    for label in range(4):
        trial.add(label, 0, 3)
    for task in range(4):
        plan, job = trial.job(task, "end_task")
        trial.site.run(plan, job)
    assert trial.folder.states() == [2, 3, 4]
    assert trial.folder.tasks() == [0, 1, 2, 3]


def test_two_jobs_of_one_site_wait_for_each_other(trial: Trial) -> None:
    trial.run(0)
    done: list[Update] = []
    worker = threading.Thread(target=lambda: done.append(trial.run(0, round=1)))
    with FileLock(trial.folder.root / ".lock"):
        worker.start()
        worker.join(0.5)
        assert worker.is_alive()
        assert not done
    worker.join(PATIENCE)
    assert len(done) == 1


# Images come and go.


def test_images_that_come_during_a_task_wait_for_the_next_and_deleted_ones_are_not_used(trial: Trial) -> None:
    assert trial.run(0).examples == 12
    trial.add(0, 6, 8)
    trial.remove(1, 0, 1, 2)
    assert trial.run(0, round=1).examples == 9
    trial.run(0, "end_task")
    told = trial.site.announce("trial", 1)
    assert told.fresh == {"0": 10, "2": 10, "3": 10}
    assert trial.run(1).examples == 2 + 12  # two of class 0, which has come back


def test_exemplars_go_with_their_files(trial: Trial) -> None:
    """Before the next job, from all states; those of images that are still there stay, in their order."""
    trial.run(0, "end_task")
    kept = trial.exemplars(1)
    assert [len(kept[name]) for name in ("0", "1")] == [4, 4]
    files = {digest(np.asarray(Image.open(path))): path for path in (trial.data / "0").iterdir()}
    files[kept["0"][1]].unlink()
    trial.remove(1, *range(6))
    (trial.data / "1").rmdir()  # even the name of the class is gone
    said: list[str] = []
    update = Site(trial.settings, said.append).run(*trial.job(1))
    assert update.metrics["samples"] == 12 + 3
    assert said == [f"trial: 5 exemplars deleted, because their images are gone from {trial.data}"]
    assert trial.exemplars(1) == {"0": [kept["0"][0], *kept["0"][2:]], "1": []}
    content = (trial.folder.root / "state-0000.safetensors").read_bytes()
    assert not any(name.encode() in content for name in (kept["0"][1], *kept["1"]))
    trial.run(1, "end_task")
    assert trial.exemplars(2)["0"] == [kept["0"][0], kept["0"][2]]
    entry = trial.folder.state(2).ledger[0]
    assert (entry.task, len(entry.date)) == (0, 10)
    assert digest(trial.folder.state(2).images[0]) == entry.sha256


def test_a_disk_that_is_not_mounted_costs_no_exemplars(trial: Trial) -> None:
    trial.run(0, "end_task")
    trial.data.rename(trial.data.with_name("elsewhere"))
    trial.data.mkdir()
    for phase in ("train", "end_task"):
        with pytest.raises(JobRefusedError, match="has exemplars but no images at the moment, and so takes no part"):
            trial.run(1, phase)
    trial.data.rmdir()
    trial.data.with_name("elsewhere").rename(trial.data)
    assert trial.run(1).metrics["samples"] == 12 + 8


def test_the_owners_limits_count_whatever_the_recipe_says(
    setup: Setup, trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """setup's recipe keeps 8 exemplars."""
    few = Trial(setup, tmp_path / "few", max_exemplars=3)
    for label in range(4):
        few.add(label, 0, 6)
    assert few.run(0, "end_task").examples == 3
    few.settings = replace(few.settings, max_exemplars=0)
    assert few.run(1, "end_task").examples == 0

    trial.settings = replace(trial.settings, min_images=13)
    with pytest.raises(JobRefusedError, match="has fewer images for this than its owner wants in an update"):
        trial.run(0)
    trial.settings = replace(trial.settings, min_images=12, retention_days=30)
    assert trial.run(0).examples == 12
    trial.run(0, "end_task")
    assert len(trial.folder.state(1).ledger) == 8
    later = (date.fromisoformat(today()) + timedelta(days=30)).isoformat()
    monkeypatch.setattr("fedclass.deploy.ledger.today", lambda: later)
    assert trial.run(1).metrics["samples"] == 12 + 8
    later = (date.fromisoformat(later) + timedelta(days=1)).isoformat()
    said: list[str] = []
    assert Site(trial.settings, said.append).run(*trial.job(1)).metrics["samples"] == 12
    assert said == ["trial: 8 exemplars deleted, older than 30 days"]
    assert trial.folder.state(1).ledger == ()


def test_sums_of_features_of_few_images_are_not_sent(tiny: Tiny, tmp_path: Path) -> None:
    trial = Trial(prepare(tiny(method="fedicarl")), tmp_path, min_images=5)
    trial.add(0, 0, 6)
    trial.add(1, 0, 6)
    with pytest.raises(JobRefusedError, match="has fewer images for this"):
        trial.run(0, "end_task")
    trial.settings = replace(trial.settings, min_images=4)
    assert trial.run(0, "end_task").examples == 8


def test_a_tasks_end_can_be_asked_again_and_its_images_are_counted(tiny: Tiny, tmp_path: Path) -> None:
    """EWC's Fisher diagonal is of all images of the task, also after exemplars were chosen from them."""
    trial = Trial(prepare(tiny(method="ewc")), tmp_path, min_images=13)
    trial.add(0, 0, 6)
    trial.add(1, 0, 6)
    with pytest.raises(JobRefusedError, match="has fewer images for this"):
        trial.run(0, "end_task")
    trial.settings = replace(trial.settings, min_images=12)
    first, again = trial.run(0, "end_task"), trial.run(0, "end_task")
    assert int(first.extras["images"]) == 12
    assert first.examples == again.examples == 8
    assert sha256(first.extras) == sha256(again.extras)
    other = trial.run(0, "end_task", seed=1)
    assert int(other.extras["images"]) == 12


def test_an_encrypted_store_gives_the_same_answers_and_shows_nothing(setup: Setup, tmp_path: Path) -> None:
    """Also one that was begun without a key. Without the key, or with another, or after a change, nothing is read."""
    key = tmp_path / "store.key"
    key.write_bytes(bytes(range(32)))
    key.chmod(0o600)
    plain, sealed = Trial(setup, tmp_path / "plain"), Trial(setup, tmp_path / "sealed", store_key=key)
    for trial in (plain, sealed):
        for label in range(4):
            trial.add(label, 0, 6)
        trial.run(0, "train")
        trial.run(0, "end_task")
    for task, phase in ((1, "train"), (1, "end_task")):
        assert sha256(plain.run(task, phase).weights) == sha256(sealed.run(task, phase).weights)
    images = [image.tobytes() for image in plain.folder.state(2).images]
    for path in sealed.folder.root.glob("*.*"):
        content = path.read_bytes()
        assert path.name.startswith(".") or content.startswith(b"fedclass sealed 1\n")
        assert not any(image[:48] in content for image in images)
    seal = Seal.read(key)
    opened = FederationFolder(sealed.folder.root, seal)
    assert opened.state(2).ledger == plain.folder.state(2).ledger
    for other in (None, Seal(bytes(32))):
        with pytest.raises(ClientError, match=r"damaged \(it (is|was) encrypted"):
            FederationFolder(sealed.folder.root, other).state(2)
    moved = sealed.folder.root / "state-0001.safetensors"
    before = moved.read_bytes()
    moved.write_bytes((sealed.folder.root / "state-0000.safetensors").read_bytes())  # an older state, put in its place
    with pytest.raises(ClientError, match="damaged"):
        opened.state(2)
    moved.write_bytes(before)
    begun = FederationFolder(plain.folder.root, seal)
    number = len([path for path in plain.folder.root.glob("*.*") if not path.name.startswith(".")])
    assert (begun.seal_all(), begun.seal_all()) == (number, 0)
    assert begun.state(2).ledger == opened.state(2).ledger
    key.chmod(0o644)
    with pytest.raises(ConfigError, match="others can read this key"):
        Seal.read(key)
    key.chmod(0o600)
    key.write_bytes(b"short")
    with pytest.raises(ConfigError, match="must hold 32 bytes, and holds 5; to make a key: head"):
        sealed.run(1)


def test_a_class_that_comes_back_keeps_its_first_exemplars_and_fills_up_in_order(tiny: Tiny, tmp_path: Path) -> None:
    trial = Trial(prepare(tiny("memory.per_class=4", method="fedavg")), tmp_path)
    trial.add(0, 0, 3)
    trial.run(0, "end_task")
    first = trial.exemplars(1)["0"]
    trial.add(0, 3, 9)
    trial.run(1, "end_task")
    new = [name for label, name in trial.folder.arrivals(1) or [] if label == "0"]
    assert len(first) == 3
    assert trial.exemplars(2)["0"] == [*first, new[0]]
    assert [entry.task for entry in trial.folder.state(2).ledger] == [0, 0, 0, 1]


def test_a_class_may_come_late_to_a_site(setup: Setup, tmp_path: Path) -> None:
    """Others taught class 1 in the first task; here it comes with the second, and is learned then."""
    trial = Trial(setup, tmp_path)
    trial.add(0, 0, 6)
    assert trial.run(0).examples == 6
    trial.run(0, "end_task")
    trial.add(1, 0, 6)
    assert trial.run(1).examples == 6
    trial.run(1, "end_task")
    assert {name: len(kept) for name, kept in trial.exemplars(2).items()} == {"0": 4, "1": 4}


def test_a_site_with_nothing_new_and_one_with_nothing_at_all_answer_without_weight(
    trial: Trial, setup: Setup, tmp_path: Path
) -> None:
    trial.run(0, "end_task")
    for label in (2, 3):
        trial.remove(label, *range(6))
    replayed = trial.run(1)
    assert (replayed.examples, replayed.metrics["samples"]) == (0, 8)
    empty = Trial(setup, tmp_path / "empty")
    answer = empty.run(1)
    assert (answer.examples, dict(answer.metrics)) == (0, {"loss": 0.0, "samples": 0.0})
    assert sha256(answer.weights) == sha256(empty.weights(1))
    assert empty.run(1, "end_task").examples == 0
    assert empty.run(1, "evaluate").examples == 0
    told = empty.site.announce("trial", 1)
    assert (told.classes, told.fresh, told.image) == ({}, {}, None)


def test_an_image_is_known_by_its_class_and_pixels_and_counts_as_often_as_it_is_there(trial: Trial) -> None:
    twice = trial.data / "0" / "9999.png"
    twice.write_bytes((trial.data / "0" / "0000.png").read_bytes())
    assert trial.run(0).examples == 13
    (trial.data / "0" / "0000.png").rename(trial.data / "2" / "8888.png")  # taken for a 2 from now on
    trial.run(0, "end_task")
    assert trial.run(1).examples == 13


# What is on the disk.


def test_only_the_owner_can_read_what_is_kept(trial: Trial) -> None:
    before = os.umask(0)
    try:
        trial.run(0, "end_task")
        trial.run(1)
    finally:
        os.umask(before)
    assert sorted(path.name.split("-")[0] for path in trial.folder.root.iterdir()) == [
        ".lock",
        "site.json",
        "state",
        "task",
        "task",
        "teacher",
    ]
    assert {path.stat().st_mode & 0o777 for path in trial.folder.root.iterdir()} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in (trial.store, trial.folder.root)} == {0o700}


@pytest.mark.parametrize("name", ["state-0000.safetensors", "task-0000.json", "site.json"])
@pytest.mark.parametrize("how", ["a flipped bit", "cut short", "emptied"])
def test_a_damaged_file_is_noticed(name: str, how: str, trial: Trial) -> None:
    trial.run(0, "end_task")
    path = trial.folder.root / name
    content = path.read_bytes()
    at = len(content) - 12
    flipped = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
    path.write_bytes({"a flipped bit": flipped, "cut short": content[:-5], "emptied": b""}[how])
    with pytest.raises(ClientError, match=rf"{name}: damaged .*restore it from a backup, or remove it"):
        trial.run(1)
    path.unlink()
    trial.run(1)


def test_a_store_belongs_to_one_site(trial: Trial) -> None:
    trial.run(0)
    with pytest.raises(
        ClientError, match=r"site ward-8: .* belongs to site ward-7; give every site a store of its own"
    ):
        Site(replace(trial.settings, name="ward-8")).run(*trial.job(0))


def test_a_store_that_cannot_be_written_is_one_line(trial: Trial) -> None:
    trial.store.write_text("a file where the folder should be")
    with pytest.raises(ClientError, match="site ward-7: cannot use"):
        trial.run(0)


# The teacher.


def test_the_teacher_is_kept_and_need_not_be_sent_again(trial: Trial) -> None:
    trial.run(0)
    trial.run(0, "end_task")  # its weights are the next task's teacher
    plan, job = trial.job(1)
    named = replace(job, teacher=None)
    wanted = trial.site.run(plan, named)
    assert same(trial.site.run(plan, job), wanted)
    assert trial.folder.attachments("teacher") == [plan.teacher]
    (kept,) = trial.folder.root.glob("teacher-*")
    content = bytearray(kept.read_bytes())
    content[-3] ^= 1
    kept.write_bytes(content)
    with pytest.raises(MissingAttachmentError, match=f"site ward-7: has not kept the teacher {str(plan.teacher)[:12]}"):
        trial.site.run(plan, named)
    assert same(trial.site.run(plan, job), wanted)  # sent, it is kept in place of the damaged one
    assert same(trial.site.run(plan, named), wanted)


def test_a_teacher_that_was_never_seen_is_asked_for_and_nothing_begins(trial: Trial) -> None:
    plan, job = trial.job(1)
    with pytest.raises(MissingAttachmentError):
        trial.site.run(plan, replace(job, teacher=None))
    assert trial.folder.tasks() == []


def test_only_the_newest_two_teachers_are_kept(trial: Trial) -> None:
    trial.folder.root.mkdir(parents=True)
    models = [trial.weights(0, seed=seed) for seed in range(4)]
    for model in models:
        trial.folder.attach("teacher", model)
    assert set(trial.folder.attachments("teacher")) == {sha256(model) for model in models[2:]}


def test_a_kept_model_that_does_not_fit_is_no_teacher(trial: Trial) -> None:
    trial.run(0, "end_task")
    trial.run(1, "end_task")
    plan, job = trial.job(1)
    with pytest.raises(JobRefusedError, match=r"does not fit the model: head\.\w+ has shape \(4,.* instead of \(2,"):
        trial.site.run(replace(plan, teacher=sha256(trial.weights(1))), replace(job, teacher=None))


def test_a_method_without_a_teacher_leaves_none_behind(tiny: Tiny, tmp_path: Path) -> None:
    trial = Trial(prepare(tiny(method="fedavg")), tmp_path)
    trial.run(0, "end_task")
    assert trial.folder.attachments("teacher") == []


# What a site tells.


def test_a_site_tells_as_much_as_its_owner_lets_it(trial: Trial) -> None:
    trial.add(0, 6, 21)
    trial.remove(2, *range(1, 6))
    expected = {
        "names": {"0": None, "1": None, "2": None, "3": None},
        "rounded": {"0": 20, "1": 10, "2": 10, "3": 10},
        "exact": {"0": 21, "1": 6, "2": 1, "3": 6},
    }
    for how, classes in expected.items():
        told = Site(replace(trial.settings, announce=how)).announce("trial", 0)
        assert told.classes == told.fresh == classes
        assert (told.site, told.image, told.machine) == ("ward-7", (8, 8, 3), fingerprint())
    assert not trial.store.exists()
    trial.run(0)
    told = Site(replace(trial.settings, announce="exact")).announce("trial", 1)
    assert told.classes == expected["exact"]
    assert told.fresh == {"2": 1, "3": 6}
    assert trial.site.announce("trial", 0).fresh == expected["rounded"]  # before the task that had them
    assert trial.site.announce("another", 1).fresh == expected["rounded"]


def test_counts_for_quotas_are_told_as_the_owner_lets_them(tiny: Tiny, tmp_path: Path) -> None:
    trial = Trial(prepare(tiny("memory.quota=balanced", method="fedavg")), tmp_path, max_exemplars=5)
    for label in range(4):
        trial.add(label, 0, 14 if label == 0 else 3 if label < 3 else 0)
    plan, job = trial.job(1, "count")
    job = replace(job, weights={})
    for how, counts in {"exact": [14, 3, 3, 0], "rounded": [10, 10, 10, 0]}.items():
        update = Site(replace(trial.settings, announce=how)).run(plan, job)
        assert update.extras["available"].tolist() == counts
        assert int(update.extras["budget"]) == 5  # of 8 that the recipe would have
        assert (update.weights, update.metrics) == ({}, {})
    with pytest.raises(JobRefusedError, match="names of classes alone"):
        Site(replace(trial.settings, announce="names")).run(plan, job)
    plan, job = trial.job(1, "end_task")
    for quotas, reason in [((1, 1, 1), "one from 0 on"), ((1, 1, 1, -1), "one from 0 on")]:
        with pytest.raises(JobRefusedError, match=reason):
            trial.site.run(plan, replace(job, quotas=quotas))
    trial.site.run(plan, replace(job, quotas=(0, 3, 2, 0)))
    assert {name: len(kept) for name, kept in trial.exemplars(2).items()} == {"0": 0, "1": 3, "2": 2}


def test_one_bad_file_is_left_out_and_not_the_site(trial: Trial) -> None:
    """No image, half of one, another size, a folder, a pipe, a file beside the classes: named to the owner, once."""
    (trial.data / "notes.txt").write_bytes(b"?")
    (trial.data / "1" / "Thumbs.db").write_bytes(b"Windows leaves it behind; it is passed over")
    os.mkfifo(trial.data / "1" / "pipe.png")  # to read it would wait for ever
    (trial.data / "1" / "jane-doe-1970.png").write_text("not an image")
    whole = (trial.data / "0" / "0000.png").read_bytes()
    (trial.data / "0" / "half.png").write_bytes(whole[: len(whole) // 2])
    Image.fromarray(np.zeros((9, 8, 3), np.uint8)).save(trial.data / "0" / "0-other.png")
    (trial.data / "2" / "more").mkdir()
    said: list[str] = []
    site = Site(trial.settings, said.append)
    told = site.announce("trial", 0)
    assert (told.classes, told.image) == ({"0": 10, "1": 10, "2": 10, "3": 10}, (8, 8, 3))
    assert site.run(*trial.job(0)).examples == 12
    (line,) = said
    first, *others = line.splitlines()
    assert first == f"6 files in {trial.data} are not used:"
    for name, reason in (
        ("notes.txt", "lies beside the class folders"),
        ("1/jane-doe-1970.png", "cannot be read as an image"),
        ("0/half.png", "cannot be read as an image"),
        ("0/0-other.png", "is 8x9 pixels, and most are 8x8; set resize"),
        ("2/more", "is a folder, where an image should be"),
        ("1/pipe.png", "is not a regular file, where an image should be"),
    ):
        assert any(f"{trial.data / name}: {reason}" in other for other in others), name
    (trial.data / "notes.txt").unlink()
    site.announce("trial", 0)
    assert said[1].startswith("5 files in")


# Tests at the site.


def counted(update: Update) -> list[list[int]]:
    assert (dict(update.weights), dict(update.metrics), list(update.extras)) == ({}, {}, ["confusion"])
    assert update.extras["confusion"].dtype == torch.int64
    return update.extras["confusion"].tolist()


def test_a_model_is_tested_on_the_test_folder_and_known_classes(setup: Setup, tmp_path: Path) -> None:
    stream = setup.stream
    for split, count in (("train", 3), ("test", 2)):
        index = np.concatenate([np.flatnonzero(stream.targets == label)[:count] for label in range(3)])
        names = [stream.classes[label] for label in stream.targets[index]]
        write_folder(tmp_path / "photos" / split, stream.data.train.images[index], names)
    settings = SiteSettings(name="a", data=tmp_path / "photos", store=tmp_path / "store")
    trial = Trial(setup, tmp_path / "server")
    weights = dict(trial.weights(0))
    weights["head.weight"], weights["head.bias"] = torch.zeros(2, 64), torch.tensor([0.0, 1.0])  # always says 1
    plan, job = trial.job(0, "evaluate")
    update = Site(settings).run(plan, replace(job, weights=weights))
    assert counted(update) == [[0, 2], [0, 2]]
    assert update.examples == 4
    assert (update.client, update.task, update.round) == (5, 0, 2)
    assert not settings.store.exists()
    silent = Site(replace(settings, evaluate=False)).run(plan, replace(job, weights=weights))
    assert (silent.examples, counted(silent)) == (0, [[0, 0], [0, 0]])


def test_what_became_of_a_single_image_is_not_told(setup: Setup, tmp_path: Path) -> None:
    images = setup.stream.data.train.images[:3]
    np.savez(
        tmp_path / "mine.npz", x_train=images, y_train=[0, 1, 1], x_test=images, y_test=[0, 1, 1], classes=["0", "1"]
    )
    settings = SiteSettings(name="a", data=tmp_path / "mine.npz", store=tmp_path / "store")
    update = Site(settings).run(*Trial(setup, tmp_path / "server").job(0, "evaluate"))
    assert update.examples == 2
    assert counted(update)[0] == [0, 0]


def test_held_out_images_stay_held_out_as_others_come_and_are_never_learned_from(trial: Trial) -> None:
    for label in range(4):
        trial.add(label, 6, 24)
    half = read_holdings(trial.data, holdout=0.3)
    assert len(half.held_out) + len(half.train) == 96
    assert 15 < len(half.held_out) < 45
    out = {digest(image) for image in half.held_out.images}
    assert not out & set(half.digests)
    trial.remove(0, *range(0, 24, 2))
    fewer = read_holdings(trial.data, holdout=0.3)
    assert {digest(image) for image in fewer.held_out.images} < out
    site = Site(replace(trial.settings, holdout=0.3))
    known = [name for name in fewer.names() if name[0] in ("0", "1")]
    assert site.run(*trial.job(0)).examples == len(known)
    assert site.run(*trial.job(0, "evaluate")).examples == int((fewer.held_out.labels < 2).sum())


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
