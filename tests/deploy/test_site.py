"""A site and its disk: what it keeps, through repeats and stops, and while images come and go."""

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from PIL import Image

from deploy.sites import Trial, same
from fedclass.deploy.holdings import digest
from fedclass.deploy.ledger import today
from fedclass.deploy.sealed import Seal
from fedclass.deploy.site import JobRefusedError, MissingAttachmentError, Site
from fedclass.deploy.site_store import FederationFolder
from fedclass.errors import ClientError, ConfigError
from fedclass.experiment.config import Experiment
from fedclass.experiment.setup import Setup, prepare
from fedclass.wire import Update, sha256
from waiting import PATIENCE

Tiny = Callable[..., Experiment]


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
    assert not answer.weights
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
