"""Errors in a user's own builders: one message with method, hook, client, round, and the user's line."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fedclass.errors import ConfigError, FedclassError
from fedclass.experiment.config import Experiment
from fedclass.experiment.launch import run_one

Tiny = Callable[..., Experiment]
UserModule = Callable[[str, str], str]

SMALL = ("train.rounds=1", "partition.clients=2", "evaluation.every=0")
MINE = """
from dataclasses import dataclass
import torch
from fedclass import FedAvg
from fedclass.methods import Declaration, Outcome, Spec

def helper():
    return {{}}["absent"]

@dataclass(frozen=True, kw_only=True)
class Mine(FedAvg):
    def declare(self):
        return Declaration({declares})

    def end_round(self, client):
        return Outcome({{n: torch.zeros(1) for n in self.declare().client}}, {{}})

    def {signature}:
{body}
"""
CLIENT = r"client \d, task 1, "
TASK_END = "end of the task: "


def mine(signature: str, body: str, declares: str = "") -> str:
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    return MINE.format(signature=signature, body=lines, declares=declares)


# The hook with its arguments, where it fails, and what must be declared for it to be called.
FAILING = [
    ("loss(self, client, batch)", CLIENT + "round 1: ", ""),
    ("teacher(self, client)", CLIENT + "round 1: ", 'teacher="own"'),
    ("rates(self, usual, *, progress)", CLIENT + "round 1: ", ""),
    ("adjust(self, client, gradient)", CLIENT + "round 1: ", ""),
    ("after_step(self, client)", CLIENT + "round 1: ", ""),
    ("end_round(self, client)", CLIENT + "round 1: ", ""),
    ("annotate(self, client, images, labels)", CLIENT + TASK_END, 'rows={"mark": Spec((2,))}'),
    ("report(self, client, exemplars)", CLIENT + TASK_END, 'uploads={"end_task": {"mean": Spec(())}}'),
    ("upload_flaw(self, uploads)", CLIENT + TASK_END, 'uploads={"end_task": {"mean": Spec(())}}'),
    ("start(self, server)", "task 1, round 1: ", ""),
    ("aggregate(self, server, updates)", "task 1, round 1: ", ""),
    ("end_rounds(self, server)", "task 1, " + TASK_END, ""),
    ("end_task(self, server, reports)", "task 1, " + TASK_END, ""),
    ("never_predicted(self, state)", "task 1, " + TASK_END, ""),
    ("predict(self, model, images, state)", "evaluation, task 1, test images: ", ""),
]
REPORTS = """
    def report(self, client, exemplars):
        return {"mean": torch.zeros(())}
"""


@pytest.mark.parametrize(("signature", "where", "declares"), FAILING)
def test_an_error_in_a_hook_names_the_users_line(
    signature: str, where: str, declares: str, tiny: Tiny, user_module: UserModule, tmp_path: Path
) -> None:
    hook = signature.partition("(")[0]
    source = mine(signature, "return helper()", declares) + (REPORTS if hook == "upload_flaw" else "")
    user_module("failing", source)
    with pytest.raises(FedclassError) as raised:
        run_one(tiny(*SMALL, method="failing:Mine"), tmp_path / "run")
    line = source.splitlines().index('    return {}["absent"]') + 1
    raised.match(rf"^{where}Mine\.{hook}: KeyError: 'absent' \(.*/failing\.py, line {line}, in helper\)$")
    assert not (tmp_path / "run" / "summary.json").exists()
    assert not (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signature", "where"),
    [
        ("loss(self, client, batch)", CLIENT + "round 1"),
        ("predict(self, model, images, state)", "evaluation, task 1, test images"),
    ],
)
def test_so_does_one_in_a_worker(
    signature: str, where: str, tiny: Tiny, user_module: UserModule, tmp_path: Path
) -> None:
    user_module("failing", mine(signature, "return helper()"))
    hook = signature.partition("(")[0]
    with pytest.raises(FedclassError, match=rf"^{where}: Mine\.{hook}: KeyError: .*failing\.py, line 8"):
        run_one(tiny(*SMALL, method="failing:Mine"), tmp_path / "run", engine="processes", workers=2)


WRONG = [
    ("loss(self, client, batch)", "return batch.images.mean((1, 2, 3))",
     r"client \d, task 1, round 1: Mine\.loss: must return a scalar tensor with a gradient, such as a mean over the "
     r"batch; it returned a tensor \(\d,\) torch\.float32 without a gradient"),
    ("loss(self, client, batch)", "return None", r"Mine\.loss: must return a scalar .* it returned None$"),
    ("rates(self, usual, *, progress)", "return 0.1", r"Mine\.rates: must return Rates; it returned a float"),
    ("adjust(self, client, gradient)", "return gradient * 2", r"Mine\.adjust: must return nothing, and change what"),
    ("after_step(self, client)", "return 1", r"Mine\.after_step: must return nothing"),
    ("end_round(self, client)", "return {}", r"Mine\.end_round: must return an Outcome; it returned a dict"),
    ("end_round(self, client)", 'client.weights["head.bias"].add_(1)\nreturn Outcome()',
     r"round 1: Mine\.end_round: changes client\.weights in place; change a clone"),
    ("loss(self, client, batch)", 'client.weights["head.bias"].add_(1)\nreturn super().loss(client, batch)',
     r"Mine\.loss or adjust or after_step: changes client\.weights in place"),
    ("aggregate(self, server, updates)", "return server.mean(updates)",
     r"task 1, round 1: Mine\.aggregate: must return a pair, the model's weights and the method's state; it"),
    ("aggregate(self, server, updates)", 'return {"a": torch.zeros(1)}, {}', r"Mine\.aggregate: names differ"),
    ("aggregate(self, server, updates)", 'm = server.mean(updates)\nreturn {n: t.double() for n, t in m.items()}, {}',
     r"Mine\.aggregate: .* is torch\.float64 instead of torch\.float32"),
    ("end_task(self, server, reports)", 'w = server.weights\nreturn {**w, "head.bias": w["head.bias"] * torch.nan}, {}',
     r"task 1, end of the task: Mine\.end_task: .* holds NaN or infinite values"),
    ("end_task(self, server, reports)", 'server.weights["head.bias"].zero_()\nreturn server.weights, server.state',
     r"Mine\.end_task: changes server\.weights in place"),
    ("start(self, server)", "return None", r"Mine\.start: must return tensors by name; it returned None"),
    ("predict(self, model, images, state)", "return model(images)[:, :1]",
     r"evaluation, task 1, test images: Mine\.predict: must return scores \(\d+, 2\); it returned a tensor \(\d+, 1\) "
     r"torch\.float32$"),
]  # fmt: skip


@pytest.mark.parametrize(("signature", "body", "message"), WRONG)
def test_what_a_hook_returns_or_changes_is_checked(
    signature: str, body: str, message: str, tiny: Tiny, user_module: UserModule, tmp_path: Path
) -> None:
    user_module("wrong", mine(signature, body))
    with pytest.raises(FedclassError, match=message):
        run_one(tiny(*SMALL, method="wrong:Mine"), tmp_path / "run")
    assert not (tmp_path / "run" / "summary.json").exists()


def test_a_teacher_must_be_the_model(tiny: Tiny, user_module: UserModule, tmp_path: Path) -> None:
    body = 'return {**client.weights, "head.weight": torch.zeros(2, 3)}'
    user_module("wrong", mine("teacher(self, client)", body, 'teacher="own"'))
    with pytest.raises(FedclassError, match=r"Mine\.teacher: head\.weight has shape \(2, 3\) instead of \(2, \d+\)"):
        run_one(tiny(*SMALL, method="wrong:Mine"), tmp_path / "run")


def test_a_loss_that_is_no_number_is_rejected_by_name(tiny: Tiny, user_module: UserModule, tmp_path: Path) -> None:
    """It may be one client's bad luck: the run goes on if others are left."""
    user_module("wrong", mine("loss(self, client, batch)", "return super().loss(client, batch) * float('nan')"))
    with pytest.raises(FedclassError, match="0 of 2 updates were usable"):
        run_one(tiny(*SMALL, method="wrong:Mine"), tmp_path / "run")
    events = (tmp_path / "run" / "events.jsonl").read_text()
    assert events.count("Mine.loss: its mean over the round is nan, not a finite number") == 2


BEFORE = [
    (mine("declare(self)", "return helper()"), r"method: 'early:Mine': Mine\.declare: KeyError: .*early\.py, line 8"),
    (mine("declare(self)", "return {}"), r"Mine\.declare: must return a Declaration; it returned a dict"),
    (mine("__post_init__(self)", "helper()"), r"Mine cannot be made: KeyError: .*early\.py, line 8"),
    (mine("other(self)", "return 1", 'client={"sum": Spec((1,), torch.complex128)}'),
     r"declares client 'sum' as torch\.complex128, which cannot be stored"),
    (mine("other(self)", "return 1", 'client={"sum": Spec(("klasses",))}'),
     r"declares client 'sum' of shape \('klasses',\); write a tuple of whole numbers and of 'classes', 'features'"),
    (mine("other(self)", "return 1", 'client={"sum": Spec("classes")}'), r"of shape 'classes'; write a tuple"),
    ("import nothing_like_it", r"cannot import 'early:Mine' \(ModuleNotFoundError: .*early\.py, line 1, in <module>\)"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "message"), BEFORE)
def test_what_can_be_known_before_anything_runs_is(
    source: str, message: str, tiny: Tiny, user_module: UserModule
) -> None:
    user_module("early", source)
    with pytest.raises(ConfigError, match=message):
        tiny(method="early:Mine")


CODE = """
import numpy as np
import torch
from fedclass.models.lora import add_lora

def broken(*args, **named):
    torch.zeros(2).reshape(3)

def adapted():
    return add_lora(torch.nn.Linear(2, 2), "conv*", rank=1)

class Shape(torch.nn.Module):
    def forward(self, images):
        return images.flatten(1) @ torch.zeros(5, 5)
"""


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "model.name=builders:broken",
            r"\[model\] name: calling 'builders:broken' failed: RuntimeError: .*builders\.py, line 7, in br",
        ),
        (
            "model.name=builders:Shape",
            r"'builders:Shape' cannot take images of 3x8x8: RuntimeError.*builders\.py, line 14, in forward",
        ),
        (
            "model.name=builders:adapted",
            r"\[model\] name: 'builders:adapted': add_lora: 'conv\*' matches no weight of Linear",
        ),
        (
            "data.name=builders:broken",
            r"data\.name: 'builders:broken' failed: RuntimeError: .*builders\.py, line 7, in broken",
        ),
        (
            "data.transform=builders:broken",
            r"\[data\] transform: 'builders:broken' cannot take .*builders\.py, line 7, in broken",
        ),
    ],
)
def test_builders_loaders_and_transforms_are_named_too(
    override: str, message: str, tiny: Tiny, user_module: UserModule, tmp_path: Path
) -> None:
    """The user's line, not that of the library it calls; and no directory is left behind."""
    user_module("builders", CODE)
    with pytest.raises(FedclassError, match=message):
        run_one(tiny(override), tmp_path / "run")
    assert not (tmp_path / "run").exists()
