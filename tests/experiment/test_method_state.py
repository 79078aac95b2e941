"""Methods with memory: the same bits wherever it is kept, and one clear message where it is not as declared."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fedclass.errors import FedclassError
from fedclass.experiment.config import Experiment
from fedclass.experiment.launch import run_one
from stopping import Stop, stop_after

Tiny = Callable[..., Experiment]
UserModule = Callable[[str, str], str]

# Server and client state, broadcast (scaffold); rows with exemplars (derpp); server state that predicts (fedicarl); a
# teacher that the method makes (fedgkd); uploads of the task's end that are broadcast (ewc); all images so far (joint);
# images that the server makes (target); quotas that it returns.
SYNTHETIC = tuple(f"method.{key}" for key in ("synthetic=12", "made_at_once=8", "steps=2", "width=4", "warmup=1"))
PROXIES = ("method.perturbation=1", "method.iterations=1", "method.keep=1", "method.proxies=3", "partition.clients=3")
SYNTHETIC += ("method.synthetic_batch=4", "method.student_steps=2")
STATEFUL = [
    ("scaffold", ()),
    ("derpp", ("memory.per_client=9",)),
    ("fedicarl", ("memory.per_class=3",)),
    ("fedgkd", ("method.models=2", "method.gamma=1.0")),
    ("ewc", ()),
    ("joint", ()),
    ("target", SYNTHETIC),
    ("refed", ("memory.per_client=5",)),
    ("glfc-full", PROXIES),
    ("fedavg", ("memory.quota=balanced", "partition.kind=dirichlet", "partition.min_size=5")),
]
PARTIAL = ("partition.clients=5", "server.participation=0.6", "evaluation.every=0")


@pytest.mark.slow
@pytest.mark.parametrize(("method", "overrides"), STATEFUL)
def test_state_survives_workers_and_a_stop_at_any_round(
    method: str, overrides: tuple[str, ...], tiny: Tiny, tmp_path: Path
) -> None:
    experiment = tiny(*PARTIAL, *overrides, method=method)
    alone = run_one(experiment, tmp_path / "alone")
    spread = run_one(experiment, tmp_path / "spread", engine="processes", workers=2)
    assert spread["weights_sha256"] == alone["weights_sha256"]
    assert spread["accuracy_matrix"] == alone["accuracy_matrix"]
    assert spread["bytes_up"] == alone["bytes_up"]

    root = tmp_path / "stopped"
    for rounds in range(1, 5):  # stopped after every round, of two tasks with two
        with pytest.raises(Stop):
            run_one(experiment, root, stop_after(rounds), go_on=rounds > 1)
    ended = run_one(experiment, root, go_on=True)
    assert ended["weights_sha256"] == alone["weights_sha256"]
    assert ended["accuracy_matrix"] == alone["accuracy_matrix"]


MINE = """
from dataclasses import dataclass
import torch
from fedclass import FedAvg
from fedclass.methods import Declaration, Outcome, Spec

@dataclass(frozen=True, kw_only=True)
class Mine(FedAvg):
    def declare(self):
        return Declaration({declares})
{hooks}
"""


@pytest.mark.parametrize(
    ("declares", "hooks", "message"),
    [
        (
            'client={"seen": Spec(("classes",))}',
            'def end_round(self, client): return Outcome(state={"seen": torch.zeros(7)})',
            r"client \d, task 1, round 1: Mine.end_round: seen is \(7,\) torch.float32 instead of \(2,\) torch.float32",
        ),
        (
            'client={"seen": Spec(("classes",))}',
            'def end_round(self, client): return Outcome(state={"seen": [1, 2]})',
            r"Mine.end_round: seen is a list instead of a tensor",
        ),
        (
            "",
            'def end_round(self, client): return Outcome(uploads={"secret": torch.zeros(3)})',
            r"Mine.end_round: 'secret' is not declared \(declared: nothing\)",
        ),
        (
            'uploads={"train": {"norm": Spec(())}}',
            "",
            r"Mine.end_round: 'norm' is declared and missing",
        ),
        (
            'rows={"mark": Spec((2,))}',
            'def annotate(self, client, images, labels): return {"mark": torch.zeros(len(labels), 3)}',
            r"Mine.annotate: mark is \(\d+, 3\) torch.float32 instead of \(\d+, 2\)",
        ),
        (
            'server={"sum": Spec((1,))}',
            'def start(self, server): return {"sum": torch.zeros(1), "more": torch.zeros(1)}',
            r"Mine.start: 'more' is not declared \(declared: sum\)",
        ),
    ],
)
def test_what_a_hook_returns_must_be_as_declared(
    declares: str, hooks: str, message: str, tiny: Tiny, user_module: UserModule, tmp_path: Path
) -> None:
    """One message that names client, method, hook, and what was expected."""
    user_module(
        "stateful", MINE.format(declares=declares, hooks="\n".join(f"    {line}" for line in hooks.splitlines()))
    )
    with pytest.raises(FedclassError, match=message):
        run_one(tiny(method="stateful:Mine"), tmp_path / "run")


def test_counts_are_the_clients_own_with_its_exemplars(tiny: Tiny, user_module: UserModule, tmp_path: Path) -> None:
    """Every class that a client holds, in the proportions of its own data; they stay there unless uploaded."""
    user_module(
        "counting",
        """
from dataclasses import dataclass
import torch
from fedclass import FedAvg
from fedclass.methods import Declaration, Outcome, Spec

@dataclass(frozen=True, kw_only=True)
class Counting(FedAvg):
    def declare(self):
        counts = Spec(("classes",), torch.int64)
        return Declaration(server={"seen": counts}, uploads={"train": {"counts": counts}})
    def end_round(self, client):
        return Outcome(uploads={"counts": client.counts})
    def aggregate(self, server, updates):
        updates = list(updates)
        return server.mean(updates), {"seen": sum(u.extras["counts"] for u in updates)}
""",
    )
    from fedclass.experiment.checkpoint import Checkpoints

    experiment = tiny("memory.per_class=2", method="counting:Counting")
    run_one(experiment, tmp_path / "run")
    known = Checkpoints(tmp_path / "run" / "checkpoints")
    seen = known.load(max(known.numbers())).state.method["seen"].tolist()
    assert seen == [6, 6, 24, 24]  # three clients keep two exemplars of each old class; new ones have 24 images
