"""Runs in which classes reach clients at different rounds and in different orders."""

from collections.abc import Callable
from pathlib import Path

import pytest

from commands import called
from deploy.sites import Sites
from fedclass.deploy.server import ServerSettings
from fedclass.deploy.split import split
from fedclass.errors import ConfigError
from fedclass.experiment.config import Experiment
from fedclass.experiment.launch import run_one
from fedclass.experiment.runner import run
from fedclass.experiment.setup import prepare
from fedclass.runs.events import Event, RoundFinished, TaskFinished, TaskStarted, UpdateRejected, read_events
from fedclass.runs.layout import RunDirectory, create
from stopping import Stop

Tiny = Callable[..., Experiment]
LATE = ("train.rounds=4", "partition.clients=4", "stream.arrival_delay=3", "evaluation.every=0")


def test_without_delay_the_bits_are_those_of_together(tiny: Tiny, tmp_path: Path) -> None:
    together = run_one(tiny(), tmp_path / "together")["weights_sha256"]
    for arrival in ("staggered", "own-order"):
        assert run_one(tiny(f"stream.arrival={arrival}"), tmp_path / arrival)["weights_sha256"] == together


@pytest.mark.parametrize("arrival", ["staggered", "own-order"])
def test_clients_learn_from_what_has_reached_them(arrival: str, tiny: Tiny, tmp_path: Path) -> None:
    experiment = tiny(*LATE, f"stream.arrival={arrival}")
    summary = run_one(experiment, tmp_path / "run")
    stream, events = prepare(experiment).stream, list(read_events(tmp_path / "run" / "events.jsonl"))
    rounds = [event for event in events if isinstance(event, RoundFinished)]
    for done in rounds:
        images = [len(stream.new_data(client, done.task, done.round)) for client in range(4)]
        assert dict(zip(done.clients, done.examples, strict=True)) == {c: n for c, n in enumerate(images) if n}
    assert sum(rounds[0].examples) < sum(rounds[3].examples) == 48, "all of the first task, in the end"
    assert [event.clients for event in events if isinstance(event, TaskStarted)] == [4, 4]
    assert [[sum(row) for row in e.confusion] for e in events if isinstance(e, TaskFinished)] == [[10] * 2, [10] * 4]
    assert not [event for event in events if isinstance(event, UpdateRejected)]
    assert [len(row) for row in summary["accuracy_matrix"]] == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arrival", "weighting", "method"),
    [
        ("staggered", "with-exemplars", "fedclass"),
        ("own-order", "new-data", "derpp"),
    ],
)
def test_the_same_bits_in_processes_at_sites_and_after_a_stop(
    arrival: str, weighting: str, method: str, tiny: Tiny, tmp_path: Path
) -> None:
    """FedCLASS keeps its teacher's outputs from round to round, while images are added."""
    sooner = ("train.rounds=3", "stream.arrival_delay=2")
    experiment = tiny(*LATE, *sooner, f"stream.arrival={arrival}", f"server.weighting={weighting}", method=method)
    alone = run_one(experiment, tmp_path / "alone")
    processes = run_one(experiment, tmp_path / "processes", engine="processes", workers=2)
    setup = prepare(experiment)
    sites = Sites(setup, split(experiment, tmp_path / "split"), tmp_path / "stores")
    there = run(setup, sites, create(tmp_path / "there"))

    def stop(event: Event) -> None:
        if isinstance(event, RoundFinished) and (event.task, event.round) == (1, 1):
            raise Stop

    with pytest.raises(Stop):
        run_one(experiment, tmp_path / "stopped", stop)
    resumed = run_one(experiment, tmp_path / "stopped", go_on=True)
    hashes = [summary["weights_sha256"] for summary in (alone, processes, there, resumed)]
    assert hashes == [hashes[0]] * 4
    if weighting == "with-exemplars":
        rounds = [e for e in read_events(RunDirectory(tmp_path / "alone").events) if isinstance(e, RoundFinished)]
        assert [len(done.clients) for done in rounds[3:]] == [4] * 3, "who waits trains on exemplars"


def test_plan_shows_the_rounds(tiny_settings: list[str], tmp_path: Path) -> None:
    words = [*tiny_settings, *LATE, "stream.arrival=own-order"]
    shown = called("plan", *(part for word in words for part in ("--set", word)), cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    _, _, rows = shown.stdout.partition("rounds of arrival")
    own = [line.split() for line in rows.splitlines() if line.strip()[:1].isdigit()]
    assert [line[0] for line in own] == ["0", "1", "2", "3"]
    assert all(sorted(line[1:3]) == sorted(line[3:5]) == ["1", "3"] for line in own)


def test_sites_with_data_of_their_own_cannot_be_told_when_classes_arrive(tmp_path: Path) -> None:
    config = {"out": str(tmp_path / "run"), "set": "stream.arrival=staggered"}
    with pytest.raises(ConfigError, match=r"stream\.arrival: at sites a class arrives when its images are there"):
        ServerSettings.read(config).experiment()
    assert ServerSettings.read({**config, "classes-from": "recipe"}).experiment().stream.arrival == "staggered"


def test_a_delay_beyond_the_task_is_refused_before_anything_is_read(tiny: Tiny) -> None:
    with pytest.raises(ConfigError, match=r"arrival_delay = 2: every class must arrive .* 2 rounds .* at most 1"):
        prepare(tiny("stream.arrival=staggered", "stream.arrival_delay=2", "data.path=/nowhere"))
