"""Distillation on old classes, as in LwF and WA."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from fedclass.losses import disagreement, distillation
from reference import losses as oracle
from reference.batches import batches, checked

temperatures = st.floats(1, 10)


@given(batch=batches(min_new=0), temperature=temperatures)
@checked
def test_the_loss_is_the_cross_entropy_of_the_old_classes(batch, temperature):
    got = distillation(batch.current, batch.previous, temperature=temperature)
    want = oracle.distillation(batch.current.tolist(), batch.previous.tolist(), temperature)
    assert got.item() == pytest.approx(want, rel=1e-6)


@given(batch=batches(min_new=0))
@checked
def test_the_adversary_seeks_what_both_call_the_same_and_see_differently(batch):
    student, teacher = batch.current[:, : batch.g], batch.previous
    want = oracle.disagreement(student.tolist(), teacher.tolist())
    assert disagreement(student, teacher).item() == pytest.approx(want, rel=1e-5, abs=1e-6)


@given(batch=batches(), temperature=temperatures)
@checked
def test_the_gradient_is_student_minus_teacher_on_old_classes_and_zero_on_new_ones(batch, temperature):
    student = batch.current.requires_grad_()
    loss = distillation(student, batch.previous, temperature=temperature)
    (gradient,) = torch.autograd.grad(loss, student)
    p = (student.detach()[:, : batch.g] / temperature).softmax(1)
    q = (batch.previous / temperature).softmax(1)
    want = torch.zeros_like(gradient)
    want[:, : batch.g] = (p - q) / (temperature * len(p))
    torch.testing.assert_close(gradient, want)


@given(batch=batches(), temperature=temperatures)
@checked
def test_the_least_loss_is_the_entropy_of_the_teacher(batch, temperature):
    q = (batch.previous / temperature).softmax(1)
    entropy = -(q * q.log()).sum(1).mean()
    torch.testing.assert_close(distillation(batch.previous, batch.previous, temperature=temperature), entropy)
    assert distillation(batch.current, batch.previous, temperature=temperature) >= entropy - 1e-12
