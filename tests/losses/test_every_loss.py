"""What holds for each loss alike: its oracle, its mean over the batch, its finiteness, its gradient."""

from collections.abc import Callable

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch.autograd import gradcheck

from fedclass import losses
from reference import losses as oracle
from reference.batches import RELEASED, Batch, batches, checked, random_batch

Loss = Callable[[Batch], Tensor]


def stored(batch: Batch) -> Tensor:
    """The teacher's logits, as if they had been stored when there were no new classes yet."""
    unknown = batch.current.new_full((len(batch.current), batch.current.shape[1] - batch.g), torch.nan)
    return torch.cat([batch.previous, unknown], dim=1)


def prior(batch: Batch) -> Tensor:
    """Of a client with 1, 2, 3, ... images of each class."""
    return losses.log_prior(torch.arange(1, batch.current.shape[1] + 1))


def ends(old_classes: int) -> list[int]:
    """Of earlier tasks: one class each, but for the last, which has the rest."""
    return [*range(1, min(old_classes, 3)), old_classes]


LOSSES: dict[str, Loss] = {
    "augmented_distillation": lambda b: losses.augmented_distillation(
        b.current, b.previous, temperature=5.0, student_temperature=3.0, stop_gradient=False
    ),
    "augmented_distillation, temperatures apart": lambda b: losses.augmented_distillation(
        b.current, b.previous, temperature=2.0, teacher_temperature=1.5, mass_temperature=1.2, stop_gradient=False
    ),
    "augmented_distillation, z stopped": lambda b: losses.augmented_distillation(
        b.current, b.previous, temperature=3.0
    ),
    "augmented_distillation, released": lambda b: losses.augmented_distillation(b.current, b.previous, **RELEASED),
    "balanced_cross_entropy": lambda b: losses.balanced_cross_entropy(b.current, b.labels, prior(b)),
    "distillation": lambda b: losses.distillation(b.current, b.previous, temperature=2.0),
    "teacher_divergence": lambda b: losses.teacher_divergence(b.current, b.previous, temperature=2.0),
    "icarl_loss": lambda b: losses.icarl_loss(b.current, b.previous, b.labels),
    "icarl_loss, first task": lambda b: losses.icarl_loss(b.current, None, b.labels),
    "released_icarl_loss": lambda b: losses.released_icarl_loss(b.current, b.previous, b.labels),
    "released_icarl_loss, first task": lambda b: losses.released_icarl_loss(b.current, None, b.labels),
    "compensated_loss": lambda b: losses.compensated_loss(b.current, b.labels, old_classes=b.g),
    "relation_distillation": lambda b: losses.relation_distillation(b.current, b.previous, b.labels),
    "glfc_loss": lambda b: losses.glfc_loss(b.current, b.previous, b.labels),
    "glfc_loss, no old class": lambda b: losses.glfc_loss(b.current, b.previous, b.labels, compensate=False),
    "glfc_loss, first task": lambda b: losses.glfc_loss(b.current, None, b.labels),
    "lga_loss": lambda b: losses.lga_loss(b.current, b.previous, b.labels, ends=ends(b.g)),
    "lga_loss, no old class": lambda b: losses.lga_loss(b.current, b.previous, b.labels, ends=[]),
    "lga_loss, first task": lambda b: losses.lga_loss(b.current, None, b.labels, ends=[]),
    "stored_logits_error": lambda b: losses.stored_logits_error(b.current, stored(b)),
}

ORACLES: dict[str, Callable[[list, list, list], float]] = {
    "augmented_distillation": lambda c, p, _: oracle.augmented_distillation(c, p, 5.0, 3.0),
    "augmented_distillation, z stopped": lambda c, p, _: oracle.augmented_distillation(c, p, 3.0, 1.0),
    "augmented_distillation, temperatures apart": lambda c, p, _: oracle.augmented_distillation(
        c, p, 2.0, 1.0, 1.5, 1.2
    ),
    "augmented_distillation, released": lambda c, p, _: oracle.released_distillation(c, p),
    "balanced_cross_entropy": lambda c, _, y: oracle.balanced_cross_entropy(c, y, range(1, len(c[0]) + 1)),
    "distillation": lambda c, p, _: oracle.distillation(c, p, 2.0),
    "teacher_divergence": lambda c, p, _: oracle.teacher_divergence(c, p, 2.0),
    "icarl_loss": oracle.icarl_loss,
    "icarl_loss, first task": lambda c, _, y: oracle.icarl_loss(c, None, y),
    "released_icarl_loss": oracle.released_icarl_loss,
    "released_icarl_loss, first task": lambda c, _, y: oracle.released_icarl_loss(c, None, y),
    "compensated_loss": lambda c, p, y: oracle.compensated_loss(c, y, len(p[0])),
    "relation_distillation": oracle.relation_distillation,
    "glfc_loss": oracle.glfc_loss,
    "glfc_loss, no old class": lambda c, p, y: oracle.glfc_loss(c, p, y, learned_classes=0),
    "glfc_loss, first task": lambda c, _, y: oracle.glfc_loss(c, None, y),
    "lga_loss": lambda c, p, y: oracle.lga_loss(c, p, y, ends(len(p[0]))),
    "lga_loss, no old class": lambda c, p, y: oracle.lga_loss(c, p, y, []),
    "lga_loss, first task": lambda c, _, y: oracle.lga_loss(c, None, y, []),
    "stored_logits_error": lambda c, p, _: oracle.stored_logits_error(c, p),
}

# A detached part is a constant to autograd but not to finite differences. Those gradients have closed forms,
# and tests of their own.
DETACHED = {"augmented_distillation, z stopped", "compensated_loss", "glfc_loss", "lga_loss"}

every_loss = pytest.mark.parametrize("name", LOSSES)
extreme = st.sampled_from([-1e4, 0.0, 1e4]) | st.floats(-1e4, 1e4, width=32)


def test_all_names_exactly_the_functions_of_the_package():
    defined = {name for name, value in vars(losses).items() if callable(value)}
    assert set(losses.__all__) == defined
    assert losses.__all__ == sorted(losses.__all__)


def test_no_loss_is_left_out_here():
    weights = {"gradient_compensation_weights", "adaptive_weights"}
    jumps = {"disagreement"}  # where the classes of two models meet; it has a test of its own
    scalar = set(losses.__all__) - weights - jumps - {"augmented_log_target", "log_prior", "pull"}
    assert {name.split(",")[0] for name in LOSSES} == scalar
    assert ORACLES.keys() == LOSSES.keys()


@every_loss
@given(batch=batches())
@checked
def test_the_loss_is_its_oracle(name, batch):
    got = LOSSES[name](batch)
    assert got.shape == ()
    assert got.item() == pytest.approx(ORACLES[name](*(part.tolist() for part in batch)), rel=1e-6, abs=1e-9)


@every_loss
@given(batch=batches(), data=st.data())
@checked
def test_the_order_of_the_batch_does_not_matter(name, batch, data):
    order = data.draw(st.permutations(range(len(batch.labels))))
    shuffled = Batch(*(part[order] for part in batch))
    torch.testing.assert_close(LOSSES[name](shuffled), LOSSES[name](batch))


@every_loss
@given(batch=batches())
@checked
def test_the_loss_is_a_mean_over_the_batch_so_repeating_it_changes_nothing(name, batch):
    twice = Batch(*(torch.cat([part, part]) for part in batch))
    torch.testing.assert_close(LOSSES[name](twice), LOSSES[name](batch))


@every_loss
@given(batch=batches(logits=extreme, dtype=np.float32))
@checked
def test_logits_of_ten_thousand_give_finite_values_and_gradients(name, batch):
    student = batch.current.requires_grad_()
    loss = LOSSES[name](batch)
    (gradient,) = torch.autograd.grad(loss, student)
    assert loss.dtype == torch.float32
    assert loss.isfinite()
    assert gradient.isfinite().all()


@every_loss
@given(batch=batches(logits=extreme, dtype=np.float32))
@checked
def test_at_ten_thousand_float32_still_agrees_with_float64(name, batch):
    exact = LOSSES[name](Batch(batch.current.double(), batch.previous.double(), batch.labels))
    # 1e-2: ten units in the last place of a logit of 1e4
    torch.testing.assert_close(LOSSES[name](batch).double(), exact, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("name", sorted(LOSSES.keys() - DETACHED))
def test_the_gradient_is_the_derivative(name):
    batch = random_batch(size=3, g=3, h=2)

    def loss(current: Tensor, previous: Tensor) -> Tensor:
        return LOSSES[name](Batch(current, previous, batch.labels))

    # The teacher is an argument like any other: these are pure functions.
    assert gradcheck(loss, (batch.current.requires_grad_(), batch.previous.requires_grad_()))
