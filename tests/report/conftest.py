"""Runs as events tell them, made up in full: reports read nothing else."""

from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from fedclass.runs.events import (
    Event,
    EventLog,
    RoundFinished,
    RunFinished,
    RunStarted,
    TaskFinished,
    TaskStarted,
)
from fedclass.runs.summary import Result

MACHINE = {"python": "3.11", "torch": "2.13.0", "processor": "x86_64", "capability": "AVX2"}
PHASES = {"clients": 1.5, "aggregate": 0.25, "evaluate": 0.125}


def events_of(
    *,
    method: str = "fedclass",
    variant: str = "paper",
    dataset: str = "synnum",
    sha256: str = "ab" * 32,
    official: bool = True,
    tasks: tuple[int, ...] = (2, 3),
    names: tuple[str, ...] | None = None,
    clients: int = 3,
    rounds: int = 2,
    seed: int = 0,
    every: int = 1,
    phases: bool = True,
    finished: bool = True,
) -> list[Event]:
    """A whole run whose numbers derive from `method` and `seed`, so that no two of them agree by chance."""
    rng = np.random.default_rng([seed, *method.encode()])
    edges = list(accumulate(tasks, initial=0))
    classes = list(names or (f"class {c}" for c in range(edges[-1])))
    counts = rng.integers(0, 40, (clients, edges[-1]))
    told: list[Event] = [
        RunStarted(
            version="0.1.0",
            method=method,
            variant=variant,
            dataset=dataset,
            dataset_sha256=sha256,
            official=official,
            tasks=list(tasks),
            classes=classes,
            counts=counts.tolist(),
            exemplars=[8] * len(tasks),
            rounds=rounds,
            seed=seed,
            engine="inprocess",
            machine=MACHINE,
        )
    ]
    for task, end in enumerate(edges[1:]):
        told.append(TaskStarted(task=task, new_classes=classes[edges[task] : end], clients=clients))
        for round in range(rounds):
            part = sorted(rng.choice(clients, max(1, clients * 2 // 3), replace=False).tolist())
            tested = every and (round + 1) % every == 0 and round < rounds - 1
            losses = rng.uniform(0.2, 2.0, len(part)).tolist()
            told.append(
                RoundFinished(
                    task=task,
                    round=round,
                    clients=part,
                    examples=[10] * len(part),
                    losses=losses,
                    loss=float(np.mean(losses)),
                    bytes_up=1_000_000 * len(part),
                    bytes_down=1_500_000 * len(part),
                    seconds=2.0,
                    correct=rng.integers(0, 20, end).tolist() if tested else None,
                    tested=[20] * end if tested else None,
                    phases=PHASES if phases else {},
                )
            )
        confusion = rng.multinomial(20, np.full(end, 1 / end), end) + np.diag(rng.integers(0, 20, end))
        up = sum(e.bytes_up for e in told if isinstance(e, RoundFinished) and e.task == task)
        told.append(
            TaskFinished(
                task=task,
                confusion=confusion.tolist(),
                exemplars=8,
                bytes_up=up + 500,
                bytes_down=2 * up,
                seconds=2.0 * rounds + 1,
                phases={"evaluate": 0.5, "checkpoint": 0.25} if phases else {},
            )
        )
    return [*told, RunFinished(summary={})] if finished else told


def write_run(root: Path, events: list[Event], config: str | None = None) -> Path:
    """A run directory with what a report reads. Without `config`, a recipe that fits the first event."""
    root.mkdir(parents=True)
    with EventLog(root / "events.jsonl") as log:
        for event in events:
            log.write(event)
    start = events[0]
    assert isinstance(start, RunStarted)
    recipe = f'seed = {start.seed}\n\n[train]\nrounds = {start.rounds}\n\n[method]\nname = "{start.method}"\n'
    recipe += "beta = 5.0\n" if start.method == "fedclass" else ""
    (root / "config.toml").write_text(recipe if config is None else config, encoding="utf-8")
    return root


@pytest.fixture(scope="session")
def told() -> Callable[..., list[Event]]:
    """told(method="fedavg", seed=1): the events of such a run."""
    return events_of


@pytest.fixture(scope="session")
def written() -> Callable[..., Path]:
    """written(root, events, config): a run directory with these events."""
    return write_run


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Path]:
    """made("name", method="fedavg", seed=1): a run directory of that name; or with `events` of your own."""

    def make(
        name: str = "run", *, events: list[Event] | None = None, config: str | None = None, **about: object
    ) -> Path:
        return write_run(tmp_path / name, events or events_of(**about), config)  # type: ignore[arg-type]

    return make


@pytest.fixture
def result(tmp_path: Path) -> Callable[..., Result]:
    """result("fedavg", 1, overall=60.0, config={"train": {"rounds": 2}}): a finished run, with its stored recipe."""
    made = []

    def make(
        method: str = "fedclass",
        seed: int = 0,
        *,
        last: tuple[float, ...] = (40.0, 80.0),
        overall: float = 60.0,
        forgetting: float | None = 20.0,
        config: dict[str, dict[str, object]] | None = None,
        **other: Any,
    ) -> Result:
        summary = {
            "method": method,
            "variant": "paper",
            "dataset": "synnum",
            "official_data": True,
            "tasks": [5] * len(last),
            "seed": seed,
            "accuracy_matrix": [
                list(last)[: t + 1] if t == len(last) - 1 else [90.0] * (t + 1) for t in range(len(last))
            ],
            "accuracy_last": overall,
            "forgetting_fedclass": forgetting,
        }
        made.append(method)
        path = tmp_path / f"{method.replace(':', '.')}-{len(made)}"
        path.mkdir()
        tables = {"seed": seed, "train": {"rounds": 2}} | (config or {})
        tables["method"] = {"name": method} | tables.get("method", {})
        (path / "config.toml").write_text(tomli_w.dumps(tables))
        return Result(path, summary | other)

    return make
