"""Sites with images of their own: classes are found out, sites come and go, answers are not believed."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the extra [flower]")

from flwr.app import Context, Message, RecordDict

from deploy.memory_grid import MemoryGrid
from fedclass.data.image_set import ImageSet, Split
from fedclass.deploy.client_app import app as client_app
from fedclass.deploy.server_app import app as server_app
from fedclass.deploy.status import read_status
from fedclass.engines.flower.frames import Frame
from fedclass.errors import RoundError, RunError
from fedclass.runs.events import (
    Event,
    RoundFinished,
    RunStarted,
    SitesKnown,
    TaskFinished,
    TaskStarted,
    UpdateMissing,
    Warned,
    read_events,
)
from fedclass.runs.summary import Result

SIDE = 8
NAMES = ("ant", "bee", "cat", "dog", "eel", "fox")
PATTERNS = np.random.default_rng(0).integers(40, 216, size=(len(NAMES), SIDE, SIDE, 3))


def pictures(name: str, count: int, seed: int) -> np.ndarray:
    noise = np.random.default_rng([seed, NAMES.index(name)]).integers(-40, 40, size=(count, SIDE, SIDE, 3))
    return (PATTERNS[NAMES.index(name)] + noise).astype(np.uint8)


@dataclass
class Federation:
    """Sites by name, each with what it holds: class -> number of images. Nodes are numbered from 100 on."""

    root: Path
    held: dict[str, dict[str, int]] = field(default_factory=dict)
    grid: MemoryGrid = field(init=False)

    def __post_init__(self) -> None:
        self.grid = MemoryGrid(client_app, {})

    def site(self, name: str, held: dict[str, int], **config: Any) -> int:
        node = 100 + len(self.grid.nodes)
        self.hold(name, held)
        settings = {"name": name, "data": str(self.root / f"{name}.npz"), "store": str(self.root / f"store-{name}")}
        self.grid.nodes[node] = {**settings, "holdout": 0.2, **config}
        return node

    def hold(self, name: str, held: dict[str, int], called: dict[str, str] | None = None) -> None:
        """From now on the site's file has these images; more of a class are added after the ones that were there.

        called: the animal that is meant by a name, if it is not the name of one.
        """
        self.held[name] = held
        seed = sum(name.encode())
        images = [pictures((called or {}).get(label, label), count, seed) for label, count in held.items()]
        labels = [np.full(count, i) for i, count in enumerate(held.values())]
        part = self.root / f"{name}.part.npz"  # a federation in another thread may be reading
        classes = np.array(list(held))
        np.savez(part, x_train=np.concatenate(images), y_train=np.concatenate(labels), classes=classes)
        part.rename(self.root / f"{name}.npz")

    def run(self, **config: Any) -> dict[str, Any]:
        given = {key.replace("_", "-"): value for key, value in config.items()}
        usual = {
            "set": "train.rounds=2 train.local_epochs=1 memory.per_client=6 evaluation.every=0",
            "out": str(self.root / "run"),
            "classes-admit": "all",
            "min-class-images": 1,
            "tasks": 2,
            "poll-seconds": 0.01,
            "ask-every-seconds": 0.1,
            "wait-seconds": 600.0,
            "deadline-seconds": 1.0,
        }
        server_app(self.grid, Context(1, 1, {}, RecordDict(), {**usual, **given}))
        return Result.read(self.root / "run").summary

    def events(self, kind: type[Event]) -> list[Any]:
        return [event for event in read_events(self.root / "run" / "events.jsonl") if isinstance(event, kind)]


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path)


def header(message: Message) -> dict[str, Any]:
    return dict(Frame.from_record(message.content).header)


def once(
    action: Callable[[], None], *, task: int, phase: str, round: int | None = None
) -> Callable[[Message, Message], Message]:
    """A `tamper` that does something else while the first such job is under way."""
    left = [action]

    def tamper(message: Message, reply: Message) -> Message:
        job = header(message).get("job", {})
        if left and (job.get("task"), job.get("phase")) == (task, phase) and round in (None, job["round"]):
            left.pop()()
        return reply

    return tamper


# Classes are found out.


def test_new_names_become_classes_of_the_next_task(federation: Federation) -> None:
    """One site alone has bee; north has nothing new later; south brings ant, an old class, late; east joins later."""
    federation.site("north", {"ant": 20, "bee": 20})
    federation.site("south", {"cat": 20})
    east = federation.site("east", {"dog": 20, "ant": 10}, announce="names")
    federation.grid.away = {east}

    def later() -> None:
        federation.hold("south", {"cat": 20, "dog": 20, "ant": 20})
        federation.grid.away = set()

    federation.grid.tamper = once(later, task=0, phase="end_task")
    summary = federation.run()
    assert summary["tasks"] == [3, 1]
    first, second = federation.events(SitesKnown)
    assert (first.sites, first.classes) == (["north", "south"], ["ant", "bee", "cat"])
    assert {count for row in first.counts for count in row} <= {0, 10, 20}  # to the nearest ten
    assert (first.counts[0][2], first.counts[1][:2]) == (0, [0, 0])
    assert (second.sites, second.classes) == (["north", "south", "east"], ["ant", "bee", "cat", "dog"])
    assert second.counts[2] == [0, 0, 0, 0]  # withheld
    assert [event.new_classes for event in federation.events(TaskStarted)] == [["ant", "bee", "cat"], ["dog"]]
    rounds = federation.events(RoundFinished)
    assert [event.clients for event in rounds] == [[0, 1], [0, 1], [1, 2], [1, 2]]
    new_at_south = rounds[2].examples[0]
    assert 24 <= new_at_south <= 40  # dog and ant, not cat once more
    assert summary["accuracy_matrix"][1][1] >= 0
    (last,) = federation.events(TaskFinished)[1:]
    assert sum(map(sum, last.confusion)) > 10
    assert json.loads((federation.root / "run" / "classes.json").read_text()) == ["ant", "bee", "cat", "dog"]


@pytest.mark.parametrize("rule", ["classes", "manual"])
def test_a_task_waits_for_its_time(federation: Federation, rule: str) -> None:
    """Two classes are wanted, one comes; or the operator has to say so. Nothing is trained meanwhile."""
    federation.site("north", {"ant": 20, "bee": 20})
    federation.site("south", {"ant": 20, "bee": 20})
    run, asked = federation.root / "run", []

    def tamper(message: Message, reply: Message) -> Message:
        if header(message)["ask"] == "announcement" and header(message)["task"] == 1:
            asked.append(message)
            if len(asked) == 1:
                federation.hold("north", {"ant": 20, "bee": 20, "cat": 20})
            if len(asked) == 9 and rule == "classes":
                federation.hold("south", {"ant": 20, "bee": 20, "dog": 20})
            if len(asked) == 9 and rule == "manual":
                (run / "next-task").touch()
        return reply

    federation.grid.tamper = tamper
    federation.run(next_task=rule, new_classes=2)
    (_, second) = federation.events(TaskStarted)
    assert second.new_classes == (["cat", "dog"] if rule == "classes" else ["cat"])
    nothing, something = (warned.message for warned in federation.events(Warned))
    what = "2 new classes" if rule == "classes" else f"`fedclass deploy next {run}`"
    assert nothing == f"task 2 waits for {what} (no new class is there yet)"
    assert something == f"task 2 waits for {what} (new there: 'cat')"
    assert len(asked) >= 10
    assert not (run / "next-task").exists()


def test_what_a_task_waits_for_is_said(federation: Federation) -> None:
    """The operator has given the word already; a site is away, then comes back, then brings a class."""
    federation.site("north", {"ant": 20, "bee": 20})
    away = federation.site("south", {"ant": 20, "bee": 20})
    asked = []

    def tamper(message: Message, reply: Message) -> Message:
        if header(message).get("job", {}).get("phase") == "evaluate" and not asked:
            (federation.root / "run" / "next-task").touch()
            federation.grid.away.add(away)
        if header(message)["ask"] == "announcement" and header(message)["task"] == 1:
            asked.append(message)
            if len(asked) == 2:
                federation.grid.away.clear()
            if len(asked) == 6:
                federation.hold("south", {"ant": 20, "bee": 20, "dog": 20})
        return reply

    federation.grid.tamper = tamper
    federation.run(next_task="manual", min_sites=2)
    assert [warned.message for warned in federation.events(Warned)] == [
        "task 2 waits for sites: 1 with images are there, and min-sites = 2 are needed",
        "task 2 waits for a new class (no new class is there yet)",
    ]


def test_the_operator_may_end_the_run(federation: Federation) -> None:
    federation.site("north", {"ant": 20, "bee": 20})
    federation.site("south", {"bee": 20})
    federation.grid.tamper = once((federation.root / "run" / "finish").touch, task=0, phase="train")
    assert federation.run(tasks=0)["tasks"] == [2]
    (started,) = federation.events(RunStarted)
    assert (started.dataset, started.dataset_sha256, started.counts) == ("sites", "", [[], []]), "nothing is here"


def test_test_images_of_the_server_and_of_sites(federation: Federation) -> None:
    for name in ("north", "south"):
        federation.site(name, {"ant": 20, "bee": 20}, announce="exact")
    labels = np.repeat([0, 1], 7)
    images = np.concatenate([pictures("bee", 7, 9), pictures("ant", 7, 9)])
    test = federation.root / "test.npz"
    np.savez(test, x_train=images, y_train=labels, x_test=images, y_test=labels, classes=np.array(["bee", "ant"]))
    federation.run(tasks=1, test_at="both", test_data=str(test))
    (started,) = federation.events(RunStarted)
    used = ImageSet("npz", ("bee", "ant"), Split(images[:0], labels[:0]), Split(images, labels), official=None)
    assert started.dataset_sha256 == used.sha256, "its training images do not matter"
    (done,) = federation.events(TaskFinished)
    assert [sum(row) for row in done.confusion] == [7, 7]
    (known,) = federation.events(SitesKnown)
    assert [sum(row) for row in done.at_sites] == [40 - sum(column) for column in zip(*known.counts, strict=True)]


def test_sites_test_with_the_method_s_own_rule(federation: Federation) -> None:
    """FedICARL's class means go to the sites with the model, which they test by nearest mean."""
    federation.site("north", {"ant": 20, "bee": 20})
    federation.site("south", {"ant": 20})
    federation.run(set="method.name=fedicarl memory.per_client=6 train.rounds=1", tasks=1)
    (done,) = federation.events(TaskFinished)
    assert sum(map(sum, done.confusion)) > 0
    frames = [Frame.from_record(message.content) for message in federation.grid.sent]
    tests = [frame for frame in frames if frame.header.get("job", {}).get("phase") == "evaluate"]
    assert len(tests) == 2
    assert all("broadcast" in frame.tensors for frame in tests)


def test_a_control_variate_reaches_sites_with_each_round_and_theirs_stay_on_their_disks(
    federation: Federation,
) -> None:
    federation.site("north", {"ant": 20, "bee": 20})
    federation.site("south", {"ant": 20, "bee": 10})
    federation.run(set="method.name=scaffold train.rounds=3 optimizer.momentum=0 memory.per_client=6", tasks=1)
    frames = [Frame.from_record(message.content) for message in federation.grid.sent]
    jobs = [frame for frame in frames if frame.header.get("job", {}).get("phase") == "train"]
    assert [frame.header["job"]["round"] for frame in jobs] == [0, 0, 1, 1, 2, 2], "nobody had to be asked twice"
    assert all("broadcast" in frame.tensors for frame in jobs)
    for site in ("north", "south"):
        names = sorted(path.name for path in federation.root.glob(f"store-{site}/*/method-*"))
        assert names == [f"method-0000-000{round}.safetensors" for round in range(3)]


def test_images_of_another_size_do_not_take_part(federation: Federation) -> None:
    federation.site("north", {"ant": 20, "bee": 20})
    federation.site("south", {"ant": 20})
    federation.site("west", {"ant": 20})
    np.savez(federation.root / "west.npz", x_train=np.zeros((9, 5, 5, 3), np.uint8), y_train=np.zeros(9, int))
    federation.run(tasks=1)
    assert any(
        "west takes no part: its images are (5, 5, 3), not (8, 8, 3)" in w.message for w in federation.events(Warned)
    )
    assert federation.events(SitesKnown)[0].sites == ["north", "south"]


def test_too_few_sites_end_the_wait(federation: Federation) -> None:
    federation.site("north", {"ant": 20})
    with pytest.raises(RoundError, match=r"1 sites with images, and min-sites = 2 are needed"):
        federation.run(wait_seconds=0.3)


def test_a_model_waits_for_the_site_without_which_it_cannot_be_tested(federation: Federation) -> None:
    """South alone has the second task's class, and is away when it is to be tested."""
    federation.site("north", {"ant": 20, "bee": 20})
    south = federation.site("south", {"bee": 20})
    tests: list[int] = []

    def tamper(message: Message, reply: Message) -> Message:
        job = header(message).get("job", {})
        if (job.get("task"), job.get("phase")) == (0, "end_task"):
            federation.hold("south", {"bee": 20, "cat": 20})
        if (job.get("task"), job.get("phase"), job.get("client")) == (1, "end_task", 1):
            federation.grid.away = {south}
        if (job.get("task"), job.get("phase")) == (1, "evaluate"):
            tests.append(job["client"])
            if tests.count(0) == 2 and south in federation.grid.away:
                federation.grid.away = set()
        return reply

    federation.grid.tamper = tamper
    settings = "train.rounds=2 train.local_epochs=1 server.participation=1.0 memory.per_client=6 evaluation.every=1"
    federation.run(set=settings)
    assert tests[-2:] == [0, 1]  # north first, then south, which is back; north is not asked twice
    last = federation.events(TaskFinished)[-1]
    assert sum(last.confusion[2]) >= 2
    assert any(event.task == 1 and event.client == 1 for event in federation.events(UpdateMissing))


# Servers come and go.


def test_a_server_that_was_replaced_cannot_write(federation: Federation) -> None:
    """The first one is still waiting for an answer when the second one takes over, and wakes up when that has ended."""
    for name in ("north", "south"):
        federation.site(name, {"ant": 20, "bee": 20})
    run, seen = federation.root / "run", dict[str, bytes]()

    def take_over() -> None:
        federation.grid.tamper = lambda _, reply: reply
        federation.run(tasks=1)
        seen.update({str(path): path.read_bytes() for path in run.rglob("*") if path.is_file()})

    federation.grid.tamper = once(take_over, task=0, phase="train")
    with pytest.raises(RunError, match="another server has taken over this run"):
        federation.run(tasks=1)
    assert {str(path): path.read_bytes() for path in run.rglob("*") if path.is_file()} == seen
    assert "summary.json" in " ".join(seen)
    with pytest.raises(RunError, match="this run is finished"):
        federation.run(tasks=1)


def test_a_server_that_begins_again_asks_nothing_twice(federation: Federation) -> None:
    """Stopped right after the sites were asked: their classes stay as they were announced then."""
    federation.site("north", {"ant": 20})
    federation.site("south", {"bee": 20})

    def fail() -> None:
        federation.hold("south", {"bee": 20, "cat": 20})
        raise KeyboardInterrupt

    federation.grid.tamper = once(fail, task=0, phase="train")
    with pytest.raises(KeyboardInterrupt):
        federation.run()
    summary = federation.run()
    assert summary["tasks"] == [2, 1]


def test_a_server_of_other_code_does_not_go_on_unless_told(federation: Federation) -> None:
    federation.site("north", {"ant": 20})
    federation.site("south", {"bee": 20})

    def fail() -> None:
        raise KeyboardInterrupt

    federation.grid.tamper = once(fail, task=0, phase="train", round=1)
    with pytest.raises(KeyboardInterrupt):
        federation.run(tasks=1)
    source = federation.root / "run" / "source.json"
    record = json.loads(source.read_text())
    record["parts"][0]["files"]["fedclass/federation/server.py"] = "0" * 64  # as if it had been edited since
    source.write_text(json.dumps(record))
    with pytest.raises(RunError, match=r"its code has changed: fedclass/federation/server\.py changed"):
        federation.run(tasks=1)
    status = read_status(federation.root / "run")
    assert (status.state, "its code has changed" in status.failure) == ("failed", True)
    assert federation.run(tasks=1, changed_code=True)["mixed_code"] is True
    assert read_status(federation.root / "run").state == "finished"


def test_a_server_that_begins_again_keeps_the_size_of_images_and_takes_newcomers_in(federation: Federation) -> None:
    """While it is away two sites come, the first by name with images of another size."""
    federation.site("north", {"ant": 20, "bee": 20})
    federation.site("south", {"ant": 20, "bee": 20})

    def fail() -> None:
        federation.site("west", {"ant": 20, "bee": 20})
        federation.site("aaa", {"ant": 20})
        odd = np.zeros((20, 2 * SIDE, SIDE, 3), np.uint8)
        np.savez(federation.root / "aaa.npz", x_train=odd, y_train=np.zeros(20, int), classes=np.array(["ant"]))
        raise KeyboardInterrupt

    federation.grid.tamper = once(fail, task=0, phase="train", round=1)
    with pytest.raises(KeyboardInterrupt):
        federation.run(tasks=1)
    federation.run(tasks=1)
    assert [done.clients for done in federation.events(RoundFinished)] == [[0, 1], [0, 1, 2]]
    assert federation.events(SitesKnown)[-1].sites == ["north", "south", "west"]
    assert any("site aaa takes no part: its images are (16, 8, 3)" in e.message for e in federation.events(Warned))


# Sites come and go.


def test_a_round_goes_on_without_those_who_do_not_answer(federation: Federation) -> None:
    """West has left by the second round; south's data are gone for one round, and its refusal says so."""
    federation.site("north", {"ant": 20, "bee": 20})
    federation.site("south", {"ant": 20, "bee": 20})
    west = federation.site("west", {"ant": 20, "bee": 20})
    data, away = federation.root / "south.npz", federation.root / "away.npz"

    def tamper(message: Message, reply: Message) -> Message:
        job = header(message).get("job", {})
        if job.get("phase") == "train" and job.get("round") == 0 and job.get("client") == 2:
            federation.grid.away = {west}
            data.rename(away)
        if job.get("round") == 1 and job.get("client") == 1 and away.exists():
            away.rename(data)
        return reply

    federation.grid.tamper = tamper
    federation.run(tasks=1)
    assert [event.clients for event in federation.events(RoundFinished)] == [[0, 1, 2], [0]]
    missing = [(event.round, event.client) for event in federation.events(UpdateMissing)]
    assert missing[:2] == [(1, 1), (1, 2)]
    reasons = {event.client: event.reason for event in federation.events(UpdateMissing)}
    assert "site west is not connected" in reasons[2]
    assert "does not exist" in reasons[1]


def test_a_site_that_came_back_as_another_node_takes_the_place_of_the_first(federation: Federation) -> None:
    """Without keys a node that is started again has a new number; the old one is listed for another minute."""
    federation.site("north", {"ant": 20, "bee": 20})
    old = federation.site("south", {"ant": 20, "bee": 20})

    def restart() -> None:
        federation.grid.nodes[999] = federation.grid.nodes[old]

    federation.grid.tamper = once(restart, task=0, phase="train")
    federation.run(tasks=1, pin_nodes=False, set="train.rounds=4 server.participation=1.0 memory.per_client=4")
    assert [event.clients for event in federation.events(RoundFinished)] == [[0, 1]] * 4
    asked = [m.metadata.dst_node_id for m in federation.grid.sent if header(m).get("job", {}).get("client") == 1]
    assert asked[0] == old
    assert set(asked[1:]) == {999}
    announced = [m.metadata.dst_node_id for m in federation.grid.sent if header(m)["ask"] == "announcement"]
    assert announced.count(old) == 1


def test_a_site_whose_images_could_not_be_read_is_asked_again(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A picture may have been half copied when the task began."""
    monkeypatch.setattr("fedclass.engines.flower.roster.AGAIN", 0.0)
    for name in ("north", "south", "west"):
        federation.site(name, {"ant": 20, "bee": 20})
    whole = (federation.root / "west.npz").read_bytes()
    (federation.root / "west.npz").write_bytes(whole[:100])

    def mend() -> None:
        (federation.root / "west.npz").write_bytes(whole)

    federation.grid.tamper = once(mend, task=0, phase="train")
    federation.run(tasks=1)
    assert [event.clients for event in federation.events(RoundFinished)] == [[0, 1], [0, 1, 2]]


def test_a_site_that_is_known_and_could_not_be_read_is_asked_again_too(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """North has nothing new in the second task, and is not asked to train, whoever else comes back."""
    monkeypatch.setattr("fedclass.engines.flower.roster.AGAIN", 0.0)
    for name in ("north", "south", "west"):
        federation.site(name, {"ant": 20, "bee": 20})

    def later() -> None:
        for name in ("south", "west"):
            federation.hold(name, {"ant": 20, "bee": 20, "cat": 20})
        whole.append((federation.root / "west.npz").read_bytes())
        (federation.root / "west.npz").write_bytes(whole[0][:100])

    def tamper(message: Message, reply: Message) -> Message:
        job = header(message).get("job", {})
        if (job.get("task"), job.get("phase"), job.get("client")) == (0, "evaluate", 2):
            later()
        if (job.get("task"), job.get("phase")) == (1, "train"):
            (federation.root / "west.npz").write_bytes(whole[0])
        return reply

    whole: list[bytes] = []
    federation.grid.tamper = tamper
    federation.run()
    assert [event.clients for event in federation.events(RoundFinished)] == [[0, 1, 2], [0, 1, 2], [1], [1, 2]]


def test_silence_ends_with_the_deadline(federation: Federation) -> None:
    federation.site("north", {"ant": 20, "bee": 20})
    node = federation.site("south", {"ant": 20, "bee": 20})
    real = federation.grid.pull_messages

    def pull(numbers: Any) -> Any:
        late = [m.metadata.message_id for m in federation.grid.sent if m.metadata.dst_node_id == node]
        jobs = {m.metadata.message_id for m in federation.grid.sent if "job" in header(m)}
        return real([number for number in numbers if number not in jobs or number not in late])

    federation.grid.pull_messages = pull  # type: ignore[method-assign]
    federation.run(tasks=1)
    assert {event.reason for event in federation.events(UpdateMissing)} == {"site south: no answer within 1 s"}


def test_fewer_updates_than_wanted_stop_the_run_and_it_goes_on_later(federation: Federation) -> None:
    """Undisturbed and stopped runs end with the same bits."""
    for name in ("north", "south"):
        federation.site(name, {"ant": 20, "bee": 20})
    settings = "train.rounds=3 train.local_epochs=1 memory.per_client=6 server.participation=1.0 server.min_updates=2"
    federation.run(tasks=1, set=settings, min_sites=1)
    undisturbed = (federation.root / "run").rename(federation.root / "undisturbed")
    node = next(iter(federation.grid.nodes))
    federation.grid.tamper = once(lambda: federation.grid.away.add(node), task=0, phase="train")
    with pytest.raises(RoundError, match=r"1 of 2 updates were usable"):
        federation.run(tasks=1, set=settings, min_sites=1)
    federation.grid.away = set()
    assert federation.run(tasks=1, set=settings)["weights_sha256"] == Result.read(undisturbed).summary["weights_sha256"]
