"""The operator's decisions: which names become classes, when one goes back, who may be called what."""

import json
import threading
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the extra [flower]")

from flwr.app import Message

from commands import called
from deploy.test_sites import Federation, header, once, pictures
from experiment.test_method_state import SYNTHETIC
from fedclass.deploy.decisions import read_offers
from fedclass.deploy.names import name_flaw, normal
from fedclass.deploy.registered import FOLDER
from fedclass.deploy.site_store import federations
from fedclass.experiment.trained import load_model
from fedclass.methods import METHODS
from fedclass.report.history import read_history
from fedclass.report.html import build
from fedclass.runs.events import (
    RoundFinished,
    SiteChanged,
    SitesKnown,
    TaskFinished,
    TaskStarted,
    UpdateMissing,
    Warned,
)

SETTINGS = "train.rounds=2 train.local_epochs=1 memory.per_client=6 evaluation.every=0"


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path)


def warnings(federation: Federation) -> list[str]:
    return [event.message for event in federation.events(Warned)]


def typed(federation: Federation, *words: str) -> str:
    """What the operator's command says."""
    done = called(*words, cwd=federation.root)
    assert done.returncode == 0, done.stderr
    return done.stdout


# Names.


@pytest.mark.parametrize(
    ("name", "flaw"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("a" * 101, "101 characters"),
        ("a\nb", "U+000A, a control"),
        ("a\u202eb", "U+202E, a invisible or direction"),
        ("a\u2066b", "U+2066"),
        ("a\u200bb", "U+200B"),
        ("\ud800", "U+D800"),
        ("Ärzte \u05d0", None),
    ],
)
def test_names_that_could_deceive_are_refused(name: str, flaw: str | None) -> None:
    found = name_flaw(name)
    assert found is None if flaw is None else flaw in str(found)


def test_white_space_and_composition_make_no_other_name() -> None:
    assert normal(" Ä \u00a0b ") == normal(unicodedata.normalize("NFD", "Ä b")) == "Ä b"


def test_the_operator_decides_which_names_are_learned(federation: Federation) -> None:
    """Spam of 300 names counts for nothing; 'ua' and 'e\u0301el' are other spellings; one name is rejected."""
    federation.site("north", {"ant": 1})
    federation.site("south", {"ant": 1})
    federation.site("spammer", {"ant": 1})
    eel = unicodedata.normalize("NFD", "éel")
    federation.hold("north", {"UA": 20, "bee": 20, "dog": 20}, {"UA": "ant"})
    federation.hold("south", {"ua": 20, f" {eel} ": 20, "éel": 10}, {"ua": "ant", f" {eel} ": "eel", "éel": "eel"})
    federation.hold(
        "spammer", {"bee": 20} | {f"spam {i}": 1 for i in range(300)}, {f"spam {i}": "fox" for i in range(300)}
    )
    run, asked = federation.root / "run", []

    def tamper(message: Message, reply: Message) -> Message:
        if header(message)["ask"] == "announcement":
            asked.append(message)
            if len(asked) == 4:  # all three have answered once
                assert [(offer.name, offer.state) for offer in read_offers(run)] == [
                    *((name, "waiting") for name in ("UA", "bee", "dog", "ua", "éel")),
                ]
                offers = {offer.name: offer for offer in read_offers(run)}
                assert (offers["bee"].images, list(offers["bee"].sites)) == (20, ["north"])
                assert offers["ua"].like == "UA"
                assert "5 names, 5 wait for approval" in typed(federation, "deploy", "classes", str(run))
                typed(federation, "deploy", "classes", str(run), "merge", "ua", "UA")
                typed(federation, "deploy", "classes", str(run), "reject", "dog")
                typed(federation, "deploy", "classes", str(run), "approve", "--all")
        return reply

    federation.grid.tamper = tamper
    federation.run(tasks=1, classes_admit="approve")
    assert any("announces 300 new names of classes, and max-classes-per-site = 200" in w for w in warnings(federation))
    assert any(
        "waits for a new class (no new class is there yet; 5 wait for approval" in w for w in warnings(federation)
    )
    (known,) = federation.events(SitesKnown)[-1:]
    assert known.classes == ["UA", "bee", "éel"]
    assert known.counts[1][0] > 0, "south's ua are UA"
    rounds = federation.events(RoundFinished)
    south = known.sites.index("south")
    assert rounds[0].examples[rounds[0].clients.index(south)] >= 30, "all of its folders are learned from"
    states = {
        offer["name"]: offer["state"]
        for offer in json.loads(typed(federation, "deploy", "classes", str(run), "--json"))
    }
    assert (states["UA"], states["dog"]) == ("learned", "rejected")
    (folder,) = federations(federation.root / "store-south")
    assert set(folder.classes()) == {"UA", "éel"}
    assert folder.forget("ua") > 0, "the owner may use the site's own name"
    assert set(folder.classes()) == {"éel"}


def test_a_vocabulary_is_an_approval_and_case_may_be_ignored(federation: Federation) -> None:
    federation.site("north", {"ant": 1})
    federation.site("south", {"ant": 1})
    federation.hold("north", {"ANT": 20, "bee": 20}, {"ANT": "ant"})
    federation.hold("south", {"ant": 20, "Bee": 20, "cat": 20}, {"Bee": "bee"})
    (federation.root / "words").write_text("# animals\nAnt\n\nbee\n")
    federation.run(tasks=1, classes_admit="approve", class_case="ignore", vocabulary=str(federation.root / "words"))
    assert federation.events(SitesKnown)[-1].classes == ["Ant", "bee"]
    offers = {offer.name: offer.state for offer in read_offers(federation.root / "run")}
    assert offers["cat"] == "not in the vocabulary"


def test_a_class_needs_enough_images_before_it_is_learned(federation: Federation) -> None:
    """Three images of a class once ended a run. 'few' does not become a class until there are more."""
    federation.site("north", {"ant": 20, "bee": 20}, announce="exact")
    federation.site("south", {"ant": 20, "cat": 3}, announce="exact")
    seen: list[list[str]] = []

    def tamper(message: Message, reply: Message) -> Message:
        if header(message)["ask"] == "announcement" and header(message)["task"] == 1:
            seen.append([])
            if len(seen) == 3:
                federation.hold("south", {"ant": 20, "cat": 20})
        return reply

    federation.grid.tamper = tamper
    federation.run(tasks=2, min_class_images=10)
    assert [event.new_classes for event in federation.events(TaskStarted)] == [["ant", "bee"], ["cat"]]
    assert any("1 have fewer images than min-class-images = 10" in warning for warning in warnings(federation))


# Tests that cannot be made.


def test_a_missing_test_is_never_fatal_and_whose_images_test_may_change(federation: Federation) -> None:
    """Nobody holds out a cat. The server that goes on tests with images of its own, which lack bees and cats."""
    federation.site("north", {"ant": 20, "bee": 20})
    federation.site("south", {"ant": 20})

    def later() -> None:
        federation.hold("south", {"ant": 20, "cat": 3})

    def fail() -> None:
        raise KeyboardInterrupt

    federation.grid.tamper = once(later, task=0, phase="end_task")
    assert federation.run(wait_seconds=0.2)["accuracy_matrix"][1][1] is None
    assert any("no site that answered holds out an image of class 'cat'" in warning for warning in warnings(federation))
    history = read_history(federation.root / "run")
    assert history.matrix[1][1] is None
    assert build([history]).page
    (federation.root / "run").rename(federation.root / "before")
    federation.hold("south", {"ant": 20})
    first, second = once(later, task=0, phase="end_task"), once(fail, task=1, phase="train")
    federation.grid.tamper = lambda message, reply: second(message, first(message, reply))
    with pytest.raises(KeyboardInterrupt):
        federation.run(wait_seconds=0.2)
    federation.grid.tamper = lambda _, reply: reply
    images, labels = pictures("ant", 7, 9), np.zeros(7, int)
    test = federation.root / "test.npz"
    np.savez(test, x_train=images, y_train=labels, x_test=images, y_test=labels, classes=np.array(["ant"]))
    summary = federation.run(test_at="server", test_data=str(test))
    assert [sum(row) for row in federation.events(TaskFinished)[-1].confusion] == [7, 0, 0]
    assert summary["accuracy_matrix"][1][1] is None


# Tasks without new classes, and runs that go on.


def test_a_finished_run_goes_on_with_new_images_of_known_classes_and_with_a_site_that_joins(
    federation: Federation,
) -> None:
    federation.site("north", {"ant": 20, "bee": 20})
    federation.site("south", {"ant": 20, "bee": 20})
    run = federation.root / "run"
    first = federation.run(tasks=1)
    assert load_model(run).classes == ("ant", "bee")
    federation.hold("south", {"ant": 30, "bee": 30})
    federation.site("west", {"bee": 20})
    typed(federation, "deploy", "next", str(run))
    models: list[bytes] = []

    def look(message: Message, reply: Message) -> Message:
        if header(message).get("job", {}).get("phase") == "train" and not models:
            models.append((run / "model.safetensors").read_bytes())
            load_model(run)  # can be used while the federation lives
        return reply

    federation.grid.tamper = look
    second = federation.run(tasks=1)
    assert models
    assert models[0] != (run / "model.safetensors").read_bytes()
    assert second["tasks"] == [2, 0]
    assert second["accuracy_matrix"][0] == first["accuracy_matrix"][0]
    assert second["accuracy_matrix"][1][1] is None
    rounds = federation.events(RoundFinished)
    assert [event.clients for event in rounds] == [[0, 1], [0, 1], [1, 2], [1, 2]], "north has nothing new"
    assert federation.events(TaskStarted)[1].new_classes == []
    assert build([read_history(run)]).page


@pytest.mark.parametrize("method", sorted(set(METHODS) - {"joint", "analytic", "glfc-full"}))
def test_every_method_can_learn_a_task_without_new_classes(federation: Federation, method: str) -> None:
    """But for those that sites refuse, and the one that needs a frozen backbone."""
    federation.site("north", {"ant": 10, "bee": 10})
    settings = f"method.name={method} train.rounds=1 train.local_epochs=1 memory.per_client=4 optimizer.momentum=0"
    settings += " ".join(["", *SYNTHETIC]) if method == "target" else ""
    federation.run(tasks=1, min_sites=1, set=settings)
    federation.hold("north", {"ant": 20, "bee": 20})
    typed(federation, "deploy", "next", str(federation.root / "run"))
    assert federation.run(tasks=1, min_sites=1, set=settings)["tasks"] == [2, 0]


# Back.


def test_back_to_before_a_task_and_sites_follow(federation: Federation) -> None:
    """The same images give the same bits again; other ones are learned, because sites have forgotten what they had."""
    federation.site("north", {"ant": 20, "bee": 20})
    federation.site("south", {"ant": 20, "bee": 20})
    run = federation.root / "run"

    def later() -> None:
        federation.hold("south", {"ant": 20, "bee": 20, "cat": 20})

    federation.grid.tamper = once(later, task=0, phase="evaluate")
    first = federation.run()
    model = (run / "checkpoints" / "ended-0001" / "model" / "model.safetensors").read_bytes()
    said = typed(federation, "deploy", "back", str(run), "--task", "2", "--yes")
    assert "back to before task 2" in said
    assert (run / "model.safetensors").read_bytes() == model
    assert load_model(run).classes == ("ant", "bee")
    assert federation.run()["weights_sha256"] == first["weights_sha256"]
    trained = federation.events(RoundFinished)[-1].examples
    assert warnings(federation).count("the operator has gone back to before task 2, and sites follow") == 1

    typed(federation, "deploy", "back", str(run), "--yes")
    federation.hold("south", {"ant": 20, "bee": 20, "cat": 30, "dog": 20})
    assert federation.run()["tasks"] == [2, 2]
    assert federation.events(RoundFinished)[-1].examples[-1] > trained[-1]
    assert json.loads((run / "federation.json").read_text())["returns"] == [1, 1]
    (folder,) = federations(federation.root / "store-south")
    assert {label for label, _ in folder.arrivals(1) or []} == {"cat", "dog"}

    typed(federation, "deploy", "back", str(run), "--task", "1", "--yes")
    federation.run(tasks=1)
    assert federation.events(SitesKnown)[-1].classes == ["ant", "bee", "cat", "dog"]


def test_a_server_that_still_runs_ends_when_the_operator_goes_back(federation: Federation) -> None:
    federation.site("north", {"ant": 20, "bee": 20})
    federation.site("south", {"ant": 20, "bee": 20})
    run = federation.root / "run"

    def back() -> None:
        typed(federation, "deploy", "back", str(run), "--yes")

    federation.grid.tamper = once(back, task=0, phase="train", round=1)
    with pytest.raises(Exception, match="another server has taken over this run"):
        federation.run(tasks=1)
    assert federation.run(tasks=1)["tasks"] == [2]


# Rounds.


def test_a_round_waits_until_enough_sites_are_back(federation: Federation) -> None:
    """South is cut off after its first round, for a while; no round goes by without it."""
    federation.site("north", {"ant": 20, "bee": 20})
    south = federation.site("south", {"ant": 20, "bee": 20})
    looks: list[int] = []
    listed = federation.grid.get_node_ids

    def nodes() -> Any:
        if south in federation.grid.away:
            looks.append(south)
            if len(looks) == 6:
                federation.grid.away = set()
        return listed()

    federation.grid.get_node_ids = nodes  # type: ignore[method-assign]

    def cut_off(message: Message, reply: Message) -> Message:
        job = header(message).get("job", {})
        if (job.get("client"), job.get("round"), job.get("phase")) == (1, 0, "train"):
            federation.grid.away.add(south)
        return reply

    federation.grid.tamper = cut_off
    federation.run(tasks=1, set=SETTINGS.replace("rounds=2", "rounds=3"))
    assert [event.clients for event in federation.events(RoundFinished)] == [[0, 1]] * 3
    assert len(looks) >= 6
    assert any("a round waits: 2 sites are needed (min-sites), and 'south' is away" in w for w in warnings(federation))
    changes = [(event.site, event.connected) for event in federation.events(SiteChanged)]
    assert changes == [("south", False), ("south", True)]


def test_an_answer_that_never_arrives_whole_does_not_stop_the_others(federation: Federation) -> None:
    """Flower's pull of such an answer blocks, for minutes."""
    federation.site("north", {"ant": 20, "bee": 20})
    node = federation.site("south", {"ant": 20, "bee": 20})
    real, over = federation.grid.pull_messages, threading.Event()

    def pull(numbers: Any) -> Any:
        wanted = list(numbers)
        sent = {m.metadata.message_id: m for m in list(federation.grid.sent)}
        if any(sent[number].metadata.dst_node_id == node and "job" in header(sent[number]) for number in wanted):
            over.wait()
            return []
        return real(wanted)

    federation.grid.pull_messages = pull  # type: ignore[method-assign]
    try:
        federation.run(tasks=1)
    finally:
        over.set()
    assert {event.reason for event in federation.events(UpdateMissing)} == {"site south: no answer within 1 s"}
    assert [event.clients for event in federation.events(RoundFinished)] == [[0], [0]]


def test_the_size_of_images_is_the_majoritys_or_the_operators_and_sites_may_resize(federation: Federation) -> None:
    federation.site("aaa", {"ant": 20})
    odd = np.zeros((20, 16, 8, 3), np.uint8)
    np.savez(federation.root / "aaa.npz", x_train=odd, y_train=np.zeros(20, int), classes=np.array(["ant"]))
    federation.site("north", {"ant": 20, "bee": 20})
    federation.site("south", {"ant": 20, "bee": 20})
    federation.run(tasks=1)
    assert federation.events(SitesKnown)[-1].sites == ["north", "south"]
    (federation.root / "run").rename(federation.root / "before")
    for node in federation.grid.nodes.values():
        node["resize"] = "6x5x1"
    federation.run(tasks=1, image_size="6x5x1", min_sites=3)
    assert federation.events(SitesKnown)[-1].sites == ["aaa", "north", "south"]


# Names of sites.


def test_a_name_belongs_to_the_key_it_was_registered_for_in_every_run(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever comes first; a site that was removed is not asked, and neither is a key without a name."""
    keys = federation.root / "keys"
    keys.mkdir()
    monkeypatch.setenv(FOLDER, str(keys))
    impostor = federation.site("south", {"ant": 20, "bee": 20})
    federation.site("north", {"ant": 20, "bee": 20})
    south = federation.site("south", {"ant": 20, "bee": 20}, store=str(federation.root / "store-real"))
    removed = federation.site("east", {"ant": 20, "bee": 20})
    unknown = federation.site("west", {"ant": 20, "bee": 20})
    (keys / "registered.json").write_text(json.dumps({"north": 101, "south": south, "east": None, "other": impostor}))
    federation.run(tasks=1)
    asked = {message.metadata.dst_node_id for message in federation.grid.sent if "job" in header(message)}
    assert asked == {101, south}
    told = "\n".join(warnings(federation))
    assert "site other takes no part: calls itself 'south': this name is taken" in told
    assert "'east', a site that was removed" in told
    assert "'west': no key is registered under this name" in told
    assert {removed, unknown}.isdisjoint(asked)
