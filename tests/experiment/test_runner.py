"""Whole runs, on a data set that takes seconds."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from safetensors.torch import load_file

from conftest import write_tiny
from fedclass.data.partition import save_partition
from fedclass.engines.inprocess import InProcess
from fedclass.errors import ConfigError, RoundError
from fedclass.experiment.config import Experiment
from fedclass.experiment.recipe import load
from fedclass.experiment.runner import run
from fedclass.experiment.setup import Setup, prepare
from fedclass.federation.store import MemoryStore
from fedclass.runs.events import (
    Event,
    RoundFinished,
    RunFinished,
    RunStarted,
    TaskFinished,
    UpdateRejected,
    Warned,
    read_events,
)
from fedclass.runs.layout import RunDirectory, create
from fedclass.wire import Job, Update, nbytes, sha256

T = TypeVar("T")
Tiny = Callable[..., Experiment]


def carried_out(
    experiment: Experiment, out: Path, engine: Callable[[Setup], InProcess] | None = None
) -> tuple[dict[str, Any], list[Event]]:
    setup = prepare(experiment)
    engine = engine or (lambda setup: InProcess(setup.client(MemoryStore())))
    summary = run(setup, engine(setup), create(out))
    return summary, list(read_events(RunDirectory(out).events))


def of_kind(kind: type[T], events: list[Event]) -> list[T]:
    return [event for event in events if isinstance(event, kind)]


@pytest.mark.parametrize(
    "method",
    [
        *("fedavg", "fedclass", "fedclass-tuned", "fedeven", "glfc", "glfc:glfc", "fedicarl", "fedwa", "fedwa:pycil"),
        *("fedprox", "lwf", "ewc", "fedgkd", "joint", "lga"),
    ],
)
def test_every_method_learns_two_tasks(method: str, tiny: Tiny, tmp_path: Path) -> None:
    """Chance is 50 % after the first task and 25 % after the second."""
    name, _, variant = method.partition(":")
    settings = ["train.rounds=3", "train.local_epochs=2", "optimizer.learning_rate=0.05", "evaluation.every=0"]
    settings += [f"method.variant={variant}"] if variant else []
    summary, _ = carried_out(tiny(*settings, method=name), tmp_path / "run")
    assert summary["accuracy_matrix"][0][0] > 80
    assert summary["accuracy_last"] > 50


@pytest.mark.parametrize("method", ["fedclass", "fedicarl", "fedwa"])
def test_every_released_variant_runs_and_says_so(method: str, tiny: Tiny, tmp_path: Path) -> None:
    summary, events = carried_out(tiny("method.variant=released", "train.rounds=1", method=method), tmp_path / "run")
    ours, _ = carried_out(tiny("train.rounds=1", method=method), tmp_path / "ours")
    assert summary["variant"] == of_kind(RunStarted, events)[0].variant == "released"
    assert summary["weights_sha256"] != ours["weights_sha256"]


def test_fedclass_with_beta_zero_is_fedavg_bit_for_bit(tiny: Tiny, tmp_path: Path) -> None:
    once = "train.rounds=1"
    fedavg, _ = carried_out(tiny(once, method="fedavg"), tmp_path / "a")
    fedclass, _ = carried_out(tiny(once, "method.beta=0", method="fedclass"), tmp_path / "b")
    distilled, _ = carried_out(tiny(once, method="fedclass"), tmp_path / "c")
    assert fedclass["weights_sha256"] == fedavg["weights_sha256"] != distilled["weights_sha256"]


def test_a_run_repeats_to_the_bit_and_its_stored_config_is_enough(tiny: Tiny, tmp_path: Path) -> None:
    settings = ("train.augment=crop-flip-cutout", "train.rounds=1")
    first, _ = carried_out(tiny(*settings), tmp_path / "a")
    again, _ = carried_out(load(str(tmp_path / "a" / "config.toml")), tmp_path / "b")
    other, _ = carried_out(tiny(*settings, seed=1), tmp_path / "c")
    assert again["weights_sha256"] == first["weights_sha256"] != other["weights_sha256"]
    assert (tmp_path / "a" / "config.toml").read_text() == (tmp_path / "b" / "config.toml").read_text()


def test_the_number_of_threads_does_not_reach_a_run(tiny: Tiny, tmp_path: Path) -> None:
    one, _ = carried_out(tiny(), tmp_path / "a")
    torch.set_num_threads(2)
    two, _ = carried_out(tiny(), tmp_path / "b")
    assert torch.get_num_threads() == 2
    assert one["weights_sha256"] == two["weights_sha256"]


def test_the_run_directory_keeps_its_contract(tiny: Tiny, tmp_path: Path) -> None:
    summary, events = carried_out(tiny(), tmp_path / "run")
    directory = RunDirectory(tmp_path / "run")
    stored = json.loads(directory.summary.read_text())
    assert stored == summary == of_kind(RunFinished, events)[0].summary
    assert list(stored) == [
        *("method", "variant", "dataset", "dataset_sha256", "official_data", "tasks", "seed", "engine"),
        *("accuracy_matrix", "accuracy_last", "accuracy_last_macro", "accuracy_average_incremental"),
        *("forgetting_fedclass", "forgetting_per_task", "forgetting_chaudhry", "forgetting_first_task", "bwt"),
        *("accuracy_per_client", "accuracy_worst_client", "worst_client", "accuracy_deviation_over_clients"),
        *("images_used", "images_available", "validation_images", "test_images_used", "test_images_available"),
        *(
            "bytes_up",
            "bytes_down",
            "seconds",
            "samples_per_second",
            "memory_bytes",
            "weights_sha256",
            "code",
            "mixed_code",
        ),
    ]
    assert stored["official_data"] is None, "the user's own data"
    assert json.loads(directory.classes.read_text()) == ["0", "1", "2", "3"]
    assert sha256(load_file(directory.model)) == summary["weights_sha256"]
    assert sorted(path.name for path in directory.root.iterdir()) == [
        *(".lock", "checkpoints", "classes.json", "config.toml", "events.jsonl", "model.safetensors", "source.json"),
        "summary.json",
    ]


def test_the_stored_counts_give_the_summary(tiny: Tiny, tmp_path: Path) -> None:
    summary, events = carried_out(tiny(), tmp_path / "run")
    last = of_kind(TaskFinished, events)[-1].confusion
    right = sum(last[i][i] for i in range(4))
    assert [sum(row) for row in last] == [10] * 4
    assert summary["accuracy_last"] == pytest.approx(100 * right / 40)
    assert summary["accuracy_matrix"][1] == pytest.approx(
        [100 * (last[0][0] + last[1][1]) / 20, 100 * (last[2][2] + last[3][3]) / 20]
    )


def test_bytes_are_those_of_weights_sent_and_received(tiny: Tiny, tmp_path: Path) -> None:
    """FedCLASS sends each client the teacher once a task; random exemplars need no model at the end of a task."""
    summary, _ = carried_out(tiny(method="fedclass"), tmp_path / "run")
    model = load_file(tmp_path / "run" / "model.safetensors")
    full = nbytes(model)
    small = full - 2 * 4 * (64 + 1)  # two classes less
    assert summary["bytes_up"] == 2 * 3 * (small + full)
    assert summary["bytes_down"] == 2 * 3 * (small + full) + 3 * small


def test_rounds_are_tested_as_often_as_asked(tiny: Tiny, tmp_path: Path) -> None:
    """The last round of a task is tested by the task's end."""
    _, events = carried_out(tiny("train.rounds=4", "evaluation.every=2"), tmp_path / "a")
    assert [r.tested is not None for r in of_kind(RoundFinished, events)] == [False, True, False, False] * 2
    _, events = carried_out(tiny("evaluation.every=0"), tmp_path / "b")
    assert all(r.accuracy is None for r in of_kind(RoundFinished, events))


def test_participation_asks_some_clients_and_different_ones(tiny: Tiny, tmp_path: Path) -> None:
    _, events = carried_out(tiny("partition.clients=6", "server.participation=0.5", "train.rounds=4"), tmp_path / "run")
    asked = [tuple(r.clients) for r in of_kind(RoundFinished, events)]
    assert all(len(clients) == 3 and list(clients) == sorted(clients) for clients in asked)
    assert len(set(asked)) > 2


class Tampering(InProcess):
    """Changes the update of client 1 on its way."""

    def __init__(self, setup: Setup, change: Callable[[Update], Update]) -> None:
        super().__init__(setup.client(MemoryStore()))
        self.change = change

    def run(self, jobs: Sequence[Job]) -> Iterator[Update]:
        for job, update in zip(jobs, super().run(jobs), strict=True):
            yield self.change(update) if update.client == 1 and job.phase == "train" else update


def with_head(update: Update, head: torch.Tensor) -> Update:
    return replace(update, weights={**update.weights, "head.weight": head})


BAD_UPDATES = {
    "NaN": lambda u: with_head(u, u.weights["head.weight"] * float("nan")),
    "infinite": lambda u: with_head(u, u.weights["head.weight"] + float("inf")),
    "shape": lambda u: with_head(u, u.weights["head.weight"][:1]),
    "float64": lambda u: with_head(u, u.weights["head.weight"].double()),
    "names differ": lambda u: replace(u, weights={k: v for k, v in u.weights.items() if k != "head.bias"}),
    "claims 0 examples": lambda u: replace(u, examples=0),
    "claims -5 examples": lambda u: replace(u, examples=-5),
    "claims nan examples": lambda u: replace(u, examples=float("nan")),
    "claims 1000000000000000000000 examples": lambda u: replace(u, examples=10**21),
    "its mean over the round is nan": lambda u: replace(u, metrics={**u.metrics, "loss": float("nan")}),
    "reports {}": lambda u: replace(u, metrics={}),
    "answers for": lambda u: replace(u, round=u.round + 1),
    "uploads differ": lambda u: replace(u, extras={"images": torch.zeros(3)}),
}


def test_bad_updates_are_left_out_and_told(tiny: Tiny, tmp_path: Path) -> None:
    """Each kind of them in a round of its own, half of them in the second task."""
    rounds = -(-len(BAD_UPDATES) // 2)
    reasons = [*BAD_UPDATES, "NaN"][: 2 * rounds]
    kinds = iter(reasons)

    def engine(setup: Setup) -> InProcess:
        return Tampering(setup, lambda update: BAD_UPDATES[next(kinds)](update))

    _, events = carried_out(tiny(f"train.rounds={rounds}", "evaluation.every=0"), tmp_path / "run", engine)
    rejected = of_kind(UpdateRejected, events)
    assert [(r.task, r.round, r.client) for r in rejected] == [(t, r, 1) for t in (0, 1) for r in range(rounds)]
    for event, reason in zip(rejected, reasons, strict=True):
        assert reason in event.reason
    assert all(r.clients == [0, 2] for r in of_kind(RoundFinished, events))
    for tensor in load_file(tmp_path / "run" / "model.safetensors").values():
        assert torch.isfinite(tensor).all()


def test_the_rest_counts_as_if_the_bad_client_had_not_been_there(tiny: Tiny, tmp_path: Path) -> None:
    summaries = [
        carried_out(tiny("train.rounds=1"), tmp_path / reason, lambda s, r=reason: Tampering(s, BAD_UPDATES[r]))[0]  # type: ignore[misc]
        for reason in ("NaN", "shape")
    ]
    assert summaries[0]["weights_sha256"] == summaries[1]["weights_sha256"]


def test_a_round_without_enough_updates_ends_the_run_with_a_reason(tiny: Tiny, tmp_path: Path) -> None:
    def engine(setup: Setup) -> InProcess:
        return Tampering(setup, BAD_UPDATES["NaN"])

    with pytest.raises(
        RoundError, match=r"task 1, round 1: 2 of 3 updates were usable, but server.min_updates requires 3"
    ):
        carried_out(tiny("server.min_updates=3"), tmp_path / "run", engine)
    with pytest.raises(RoundError, match="0 of 3 updates were usable"):
        carried_out(tiny("optimizer.learning_rate=1e30"), tmp_path / "diverged")


def test_results_on_unofficial_data_say_so(tiny: Tiny, tmp_path: Path) -> None:
    setup = prepare(tiny())
    setup = replace(setup, stream=replace(setup.stream, data=replace(setup.stream.data, official=False)))
    summary = run(setup, InProcess(setup.client(MemoryStore())), create(tmp_path / "run"))
    events = list(read_events(tmp_path / "run" / "events.jsonl"))
    assert summary["official_data"] is False
    assert "checksums" in of_kind(Warned, events)[0].message


@pytest.mark.parametrize("weighting", ["new-data", "with-exemplars"])
@pytest.mark.parametrize("method", ["fedavg", "fedclass", "glfc", "fedicarl", "fedwa"])
def test_odd_clients_work(method: str, weighting: str, tiny: Tiny, tmp_path: Path) -> None:
    """Client 0 has one image, 1 nothing in the second task, 2 nothing in the first, 3 nothing at all, 4 the rest."""
    whole = prepare(tiny()).stream
    first, second = whole.targets < 2, whole.targets >= 2
    old, new = first.nonzero()[0], second.nonzero()[0]
    shares = [old[:1], old[1:9], new[:8], old[:0], [*old[9:], *new[8:]]]
    save_partition(
        [__import__("numpy").array(s, dtype="int64") for s in shares], tmp_path / "p.json", dataset=whole.data.sha256
    )
    settings = ["partition.kind=file", f"partition.path={tmp_path / 'p.json'}", "partition.clients=5", "train.rounds=1"]
    summary, events = carried_out(tiny(*settings, f"server.weighting={weighting}", method=method), tmp_path / "run")
    rounds = of_kind(RoundFinished, events)
    assert rounds[0].clients == [0, 1, 4]
    assert rounds[0].examples[0] == 1
    assert rounds[1].clients == ([2, 4] if weighting == "new-data" else [0, 1, 2, 4])
    assert not of_kind(UpdateRejected, events)
    assert len(summary["accuracy_matrix"]) == 2


def test_one_classifier_predicts_in_a_whole_run(tiny: Tiny, tmp_path: Path) -> None:
    """One exemplar of a class has no mean that may be sent: the nearest mean is refused, the sigmoids are not."""
    with pytest.raises(ConfigError, match=r"per_class = 1 .*per_class = 2; or .*method\.classifier=sigmoid"):
        prepare(tiny("memory.per_class=1", method="fedicarl"))
    few = tiny("memory.per_class=1", "method.classifier=sigmoid", method="fedicarl")
    summary, events = carried_out(few, tmp_path / "few")
    assert summary["variant"] == "icarl, sigmoids"
    assert [event.correct is not None for event in of_kind(RoundFinished, events)] == [True, False] * 2
    assert not [name for name in load_file(tmp_path / "few" / "model.safetensors") if name.startswith("extras.")]
    summary, events = carried_out(tiny("memory.per_class=2", method="fedicarl"), tmp_path / "enough")
    assert summary["variant"] == "icarl, nearest mean"
    assert not of_kind(Warned, events)
    assert [event.correct for event in of_kind(RoundFinished, events)] == [None] * 4, "there are no means yet"
    assert load_file(tmp_path / "enough" / "model.safetensors")["extras.class_counts"].tolist() == [6] * 4


def test_means_that_do_not_arrive_are_told_and_their_classes_never_predicted(tiny: Tiny, tmp_path: Path) -> None:
    class Forgetful(InProcess):
        """Class 1 has no mean; after the last task, nobody answers at all."""

        def run(self, jobs: Sequence[Job]) -> Iterator[Update]:
            for update in super().run(jobs):
                if jobs[0].phase != "end_task":
                    yield update
                elif jobs[0].task == 0:
                    for tensor in update.extras.values():
                        tensor[1] = 0
                    yield update

    with pytest.raises(RoundError, match="task 2: no client sent its class_means and class_counts"):
        carried_out(tiny(method="fedicarl"), tmp_path / "run", lambda setup: Forgetful(setup.client(MemoryStore())))
    events = list(read_events(RunDirectory(tmp_path / "run").events))
    (warned,) = of_kind(Warned, events)
    assert "task 1: no client has enough exemplars of class '1', so it is never predicted" in warned.message
    (finished,) = of_kind(TaskFinished, events)
    assert [row[1] for row in finished.confusion] == [0, 0]


def test_wa_has_no_bias_and_no_weight_below_zero_in_the_model_it_ends_with(tiny: Tiny, tmp_path: Path) -> None:
    for variant in ("wa", "pycil"):
        carried_out(tiny(f"method.variant={variant}", "train.rounds=1", method="fedwa"), tmp_path / variant)
    wa, pycil = (load_file(tmp_path / name / "model.safetensors") for name in ("wa", "pycil"))
    assert not wa["head.bias"].any()
    assert wa["head.weight"].min() == 0
    assert pycil["head.bias"].any()
    assert pycil["head.weight"].min() < 0


def test_a_batch_of_one_that_cannot_be_normalised_is_explained(tmp_path: Path, tiny: Tiny) -> None:
    write_tiny(tmp_path / "t.npz", side=4)
    with pytest.raises(ConfigError, match=r"batch of one image.*train\.batch_size"):
        carried_out(tiny(f"data.path={tmp_path / 't.npz'}", "train.batch_size=15"), tmp_path / "run")
    summary, _ = carried_out(
        tiny(f"data.path={tmp_path / 't.npz'}", "train.batch_size=15", "model.norm=group"), tmp_path / "group"
    )
    assert summary["accuracy_matrix"]


def test_without_memory_nothing_is_kept(tiny: Tiny, tmp_path: Path) -> None:
    for method, own in (("fedavg", []), ("fedclass", []), ("fedicarl", ["method.classifier=sigmoid"])):
        _, events = carried_out(tiny("memory.per_client=0", "train.rounds=1", *own, method=method), tmp_path / method)
        assert [t.exemplars for t in of_kind(TaskFinished, events)] == [0, 0]


def test_the_plan_is_what_happens(tiny: Tiny, tmp_path: Path) -> None:
    for budget in ("memory.per_client=7", "memory.per_class=3"):
        _, events = carried_out(tiny(budget, "train.rounds=1"), tmp_path / budget)
        planned = of_kind(RunStarted, events)[0].exemplars
        assert planned == [t.exemplars for t in of_kind(TaskFinished, events)] != [0, 0]


def test_one_task_is_a_run_without_forgetting(tiny: Tiny, tmp_path: Path) -> None:
    summary, _ = carried_out(tiny("stream.tasks=4"), tmp_path / "run")
    assert summary["forgetting_fedclass"] is None
    assert summary["forgetting_per_task"] == []
