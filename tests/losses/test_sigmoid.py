"""Losses with one sigmoid per class: iCaRL, as published and as released, and GLFC's client loss."""

from math import exp, log

import pytest
import torch
from hypothesis import given
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, one_hot

from fedclass.losses import (
    adaptive_weights,
    compensated_loss,
    glfc_loss,
    gradient_compensation_weights,
    icarl_loss,
    relation_distillation,
    released_icarl_loss,
)
from reference import losses as oracle
from reference.batches import batches, checked, random_batch


@given(batch=batches())
@checked
def test_on_the_first_task_icarl_is_plain_binary_cross_entropy(batch):
    target = one_hot(batch.labels, batch.current.shape[1]).double()
    want = binary_cross_entropy_with_logits(batch.current, target, reduction="sum") / len(batch.labels)
    torch.testing.assert_close(icarl_loss(batch.current, None, batch.labels), want)


@given(batch=batches())
@checked
def test_icarl_pulls_old_classes_to_the_teacher_and_new_ones_to_the_label(batch):
    """d/dx of the loss is sigmoid(x) minus the target, over the batch size."""
    student = batch.current.requires_grad_()
    (gradient,) = torch.autograd.grad(icarl_loss(student, batch.previous, batch.labels), student)
    label = one_hot(batch.labels, student.shape[1]).double()
    target = torch.cat([batch.previous.sigmoid(), label[:, batch.g :]], 1)
    torch.testing.assert_close(gradient, (student.detach().sigmoid() - target) / len(student))


@given(batch=batches())
@checked
def test_to_icarl_all_exemplars_of_old_classes_are_none_of_the_new(batch):
    """Their label is only used as "not new": which old class it names makes no difference."""
    exemplars = batch.labels % batch.g
    any_old = torch.zeros_like(exemplars)
    torch.testing.assert_close(
        icarl_loss(batch.current, batch.previous, exemplars),
        icarl_loss(batch.current, batch.previous, any_old),
    )


@given(batch=batches())
@checked
def test_on_the_first_task_the_released_icarl_is_plain_cross_entropy(batch):
    got = released_icarl_loss(batch.current, None, batch.labels)
    torch.testing.assert_close(got, cross_entropy(batch.current, batch.labels))


@pytest.mark.parametrize(("logit", "least"), [(-1e4, log(2)), (1e4, log(1 + exp(-1)))])
def test_the_released_icarl_squashes_twice_so_perfect_agreement_costs_a_constant(logit, least):
    """Student and teacher agree and are certain; BCE of sigmoid(sigmoid(x)), 0.5 or 0.73, is left over."""
    current, labels = torch.tensor([[logit, 0.0]]), torch.tensor([1])
    loss = released_icarl_loss(current, current[:, :1], labels) - cross_entropy(current, labels)
    assert loss.item() == pytest.approx(least, abs=1e-3)  # cross-entropy is 1e4 in one case


def test_the_released_icarl_sums_over_old_classes():
    """Doubling the old classes, same logits, doubles its distillation term."""
    batch = random_batch(size=4, g=3, h=2)
    extra = released_icarl_loss(batch.current, batch.previous, batch.labels) - cross_entropy(
        batch.current, batch.labels
    )
    old = batch.current[:, :3]
    doubled = torch.cat([old, old, batch.current[:, 3:]], 1)
    labels = batch.labels + 3
    teacher = torch.cat([batch.previous, batch.previous], 1)
    again = released_icarl_loss(doubled, teacher, labels) - cross_entropy(doubled, labels)
    torch.testing.assert_close(again, 2 * extra)


@given(batch=batches())
@checked
def test_a_weight_is_the_gradient_over_the_mean_of_its_group(batch):
    got = gradient_compensation_weights(batch.current, batch.labels, old_classes=batch.g)
    want = oracle.gradient_compensation_weights(batch.current.tolist(), batch.labels.tolist(), batch.g)
    torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float64))


@given(batch=batches())
@checked
def test_weights_have_mean_one_in_each_group(batch):
    weights = gradient_compensation_weights(batch.current, batch.labels, old_classes=batch.g)
    for group in (batch.labels < batch.g, batch.labels >= batch.g):
        if group.any():
            torch.testing.assert_close(weights[group].mean().item(), 1.0)


def test_a_group_does_not_see_the_other():
    batch = random_batch(size=20)
    old = batch.labels < 5
    assert 0 < old.sum() < 20
    alone = gradient_compensation_weights(batch.current[old], batch.labels[old], old_classes=5)
    together = gradient_compensation_weights(batch.current, batch.labels, old_classes=5)
    torch.testing.assert_close(together[old], alone)


@given(batch=batches())
@checked
def test_on_the_first_task_every_weight_is_one(batch):
    weights = gradient_compensation_weights(batch.current, batch.labels, old_classes=0)
    assert weights.tolist() == [1.0] * len(batch.labels)


def test_a_group_whose_gradients_all_underflow_still_has_its_weights():
    """1 - sigmoid(200) is zero in float32; the ratio of two such, exp(-200) : exp(-201), is not."""
    current = torch.tensor([[200.0, 0.0], [201.0, 0.0], [0.0, 1e4]])
    weights = gradient_compensation_weights(current, torch.tensor([0, 0, 1]), old_classes=1)
    ratio = exp(-1)
    torch.testing.assert_close(weights, torch.tensor([2 / (1 + ratio), 2 * ratio / (1 + ratio), 1.0]))


def test_a_batch_of_one_group_only_has_finite_weights():
    current = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    for label in (0, 1):
        weights = gradient_compensation_weights(current, torch.tensor([label, label]), old_classes=1)
        assert weights.isfinite().all()
        assert weights.sum().item() == pytest.approx(2.0)


@given(batch=batches())
@checked
def test_weights_are_constants_to_the_gradient(batch):
    """d/dx of the compensated loss is w * (sigmoid(x) - one-hot), over the number of entries."""
    student = batch.current.requires_grad_()
    weights = gradient_compensation_weights(student, batch.labels, old_classes=batch.g)
    assert not weights.requires_grad
    (gradient,) = torch.autograd.grad(compensated_loss(student, batch.labels, old_classes=batch.g), student)
    error = student.detach().sigmoid() - one_hot(batch.labels, student.shape[1]).double()
    torch.testing.assert_close(gradient, weights[:, None] * error / student.numel())


@given(batch=batches())
@checked
def test_relation_distillation_is_icarl_per_class(batch):
    """The same target and the same cross-entropy, averaged over classes instead of summed."""
    torch.testing.assert_close(
        relation_distillation(batch.current, batch.previous, batch.labels) * batch.current.shape[1],
        icarl_loss(batch.current, batch.previous, batch.labels),
    )


@given(batch=batches())
@checked
def test_glfc_is_half_compensation_and_half_relation(batch):
    compensated = compensated_loss(batch.current, batch.labels, old_classes=batch.g)
    relation = relation_distillation(batch.current, batch.previous, batch.labels)
    torch.testing.assert_close(glfc_loss(batch.current, batch.previous, batch.labels), (compensated + relation) / 2)


@given(batch=batches())
@checked
def test_on_the_first_task_glfc_is_plain_binary_cross_entropy(batch):
    target = one_hot(batch.labels, batch.current.shape[1]).double()
    want = binary_cross_entropy_with_logits(batch.current, target)
    torch.testing.assert_close(glfc_loss(batch.current, None, batch.labels), want)


@given(batch=batches())
@checked
def test_lgas_weights_are_those_of_its_authors_code_and_finite_where_theirs_are_not(batch):
    old = [1, batch.g] if batch.g > 1 else [1]
    got = adaptive_weights(batch.current.requires_grad_(), batch.labels, ends=old)
    want = oracle.adaptive_weights(batch.current.tolist(), batch.labels.tolist(), old)
    assert got.tolist() == pytest.approx(want, rel=1e-6)
    assert not got.requires_grad
    sure = adaptive_weights(torch.full_like(batch.current, 1e4), batch.labels, ends=old)  # every g is 0 in float32
    assert sure.isfinite().all()


def test_with_one_earlier_task_lgas_weights_are_glfcs_softened_and_limited():
    """A group's g has the power 1/2, and no weight is below 0.5 or above 5."""
    batch = random_batch(size=16, g=3, h=2, scale=2.0)
    score = batch.current.gather(1, batch.labels[:, None]).squeeze(1)
    g = (1 - score.sigmoid()).sqrt()
    want = torch.stack([g[i] / g[(batch.labels < 3) == (batch.labels[i] < 3)].mean() for i in range(16)])
    torch.testing.assert_close(adaptive_weights(batch.current, batch.labels, ends=[3]), want.clamp(0.5, 5.0))
    assert want.min() < 0.5, "the limit was met"
