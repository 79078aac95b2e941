"""The new-class augmented target and its distillation: Eq. 5, Eq. 9, and the theorem of the paper."""

from math import exp, log

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from fedclass.losses import augmented_distillation, augmented_log_target
from reference import losses as oracle
from reference.batches import RELEASED, batches, checked, random_batch

temperatures = st.floats(1, 10)


def gradient(loss: Tensor, logits: Tensor) -> Tensor:
    return torch.autograd.grad(loss, logits)[0]


@given(batch=batches(), theta=temperatures)
@checked
def test_the_target_is_equation_5(batch, theta):
    z = augmented_log_target(batch.current, batch.previous, temperature=theta).exp()
    want = oracle.augmented_target(batch.current.tolist(), batch.previous.tolist(), theta)
    torch.testing.assert_close(z, torch.tensor(want, dtype=torch.float64), rtol=1e-6, atol=1e-9)


@given(batch=batches(min_new=0), theta=temperatures)
@checked
def test_the_target_is_a_distribution(batch, theta):
    z = augmented_log_target(batch.current, batch.previous, temperature=theta).exp()
    assert (z >= 0).all()
    torch.testing.assert_close(z.sum(1), torch.ones(len(z), dtype=torch.float64))


@given(batch=batches(), theta=temperatures)
@checked
def test_without_new_classes_the_target_is_the_teacher(batch, theta):
    student = batch.current[:, : batch.g]
    want = (batch.previous / theta).log_softmax(1)
    torch.testing.assert_close(augmented_log_target(student, batch.previous, temperature=theta), want)


@given(batch=batches(), theta=temperatures)
@checked
def test_theorem_given_that_no_new_class_is_present_the_target_is_the_teacher(batch, theta):
    """Item 1: the teacher's scores are conditional probabilities in the absence of new classes."""
    old = augmented_log_target(batch.current, batch.previous, temperature=theta)[:, : batch.g]
    conditional = old - old.logsumexp(1, keepdim=True)
    torch.testing.assert_close(conditional, (batch.previous / theta).log_softmax(1))


@given(batch=batches(), theta=temperatures)
@checked
def test_theorem_on_new_classes_the_target_is_the_student(batch, theta):
    """Item 2, Assumption 3: what the teacher would say of new classes is what the student says."""
    new = augmented_log_target(batch.current, batch.previous, temperature=theta)[:, batch.g :]
    torch.testing.assert_close(new, (batch.current / theta).log_softmax(1)[:, batch.g :])


@given(batch=batches(), theta=temperatures)
@checked
def test_theorem_an_old_class_has_its_conditional_probability_times_that_of_no_new_class(batch, theta):
    """The last line of the proof: p(old_u) = p(old_u | not new) * (1 - sum of p(new))."""
    z = augmented_log_target(batch.current, batch.previous, temperature=theta).exp()
    no_new = 1 - z[:, batch.g :].sum(1, keepdim=True)
    torch.testing.assert_close(z[:, : batch.g], (batch.previous / theta).softmax(1) * no_new)


def test_old_mass_survives_where_one_minus_the_new_mass_would_be_zero():
    """float32 cannot tell 1 - exp(-50) from 1; the log of the old mass can."""
    z = augmented_log_target(torch.tensor([[0.0, 50.0]]), torch.tensor([[0.0]]), temperature=1.0)
    torch.testing.assert_close(z, torch.tensor([[-50.0, 0.0]]))


@given(batch=batches(), theta=temperatures, student_temperature=temperatures)
@checked
def test_the_loss_is_equation_9(batch, theta, student_temperature):
    got = augmented_distillation(
        batch.current, batch.previous, temperature=theta, student_temperature=student_temperature
    )
    want = oracle.augmented_distillation(batch.current.tolist(), batch.previous.tolist(), theta, student_temperature)
    assert got.item() == pytest.approx(want, rel=1e-6, abs=1e-9)


@given(batch=batches(min_new=0), theta=temperatures, student_temperature=temperatures)
@checked
def test_the_loss_is_a_divergence_and_never_negative(batch, theta, student_temperature):
    loss = augmented_distillation(
        batch.current, batch.previous, temperature=theta, student_temperature=student_temperature
    )
    assert loss >= -1e-12


@given(batch=batches(), theta=temperatures)
@checked
def test_at_one_temperature_the_loss_is_old_mass_times_conditional_kl(batch, theta):
    """New-class terms of Eq. 9 cancel, leaving m * KL(p(.|old) || q)."""
    log_p, log_q = (batch.current / theta).log_softmax(1), (batch.previous / theta).log_softmax(1)
    log_m = log_p[:, : batch.g].logsumexp(1, keepdim=True)
    conditional = log_p[:, : batch.g] - log_m
    want = (log_m.exp() * conditional.exp() * (conditional - log_q)).sum(1).mean()
    got = augmented_distillation(batch.current, batch.previous, temperature=theta, student_temperature=theta)
    torch.testing.assert_close(got, want)


@given(batch=batches(), theta=temperatures)
@checked
def test_at_one_temperature_the_gradient_through_the_target_is_zero(batch, theta):
    """Only z's part: the student's own log-probabilities are held fixed, and z alone is differentiated."""
    student = batch.current.requires_grad_()
    log_z = augmented_log_target(student, batch.previous, temperature=theta)
    p = (student.detach() / theta).softmax(1)
    through_z = gradient(-(p * log_z).sum(), student)
    torch.testing.assert_close(through_z, torch.zeros_like(through_z), rtol=0, atol=1e-12)


@given(batch=batches(), theta=temperatures)
@checked
def test_at_one_temperature_stopping_the_gradient_changes_nothing(batch, theta):
    student = batch.current.requires_grad_()
    stopped, attached = (
        gradient(
            augmented_distillation(
                student, batch.previous, temperature=theta, student_temperature=theta, stop_gradient=stop
            ),
            student,
        )
        for stop in (True, False)
    )
    torch.testing.assert_close(stopped, attached, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("student_temperature", "theta"), [(1.0, 3.0), (1.0, 5.0), (3.0, 5.0)])
def test_at_two_temperatures_stopping_the_gradient_matters(student_temperature, theta):
    batch = random_batch()
    student = batch.current.requires_grad_()
    stopped, attached = (
        gradient(
            augmented_distillation(
                student,
                batch.previous,
                temperature=theta,
                student_temperature=student_temperature,
                stop_gradient=stop,
            ),
            student,
        )
        for stop in (True, False)
    )
    assert (stopped - attached).norm() > 0.1 * attached.norm()


@given(batch=batches(), theta=temperatures)
@checked
def test_the_stopped_gradient_is_that_of_a_fixed_label(batch, theta):
    """d/dx_j of KL(softmax(x) || z) with z fixed: p_j * (log p_j - log z_j - KL)."""
    student = batch.current.requires_grad_()
    loss = augmented_distillation(student, batch.previous, temperature=theta)
    log_p = student.detach().log_softmax(1)
    log_z = augmented_log_target(student.detach(), batch.previous, temperature=theta)
    excess = log_p - log_z
    kl = (log_p.exp() * excess).sum(1, keepdim=True)
    want = log_p.exp() * (excess - kl) / len(student)
    torch.testing.assert_close(gradient(loss, student), want, rtol=1e-6, atol=1e-12)


@given(batch=batches(), theta=temperatures)
@checked
def test_at_one_temperature_the_loss_vanishes_at_agreement(batch, theta):
    agreeing = batch.current[:, : batch.g]
    loss = augmented_distillation(batch.current, agreeing, temperature=theta, student_temperature=theta)
    torch.testing.assert_close(loss, torch.zeros_like(loss), rtol=0, atol=1e-12)


def test_an_untempered_student_does_not_reach_zero_at_agreement():
    """z is then the student softened by theta, and KL(p || p^(1/theta)) is positive unless p is uniform."""
    student = random_batch().current
    loss = augmented_distillation(student, student[:, :5], temperature=3.0)
    softened = (student / 3.0).log_softmax(1)
    log_p = student.log_softmax(1)
    torch.testing.assert_close(loss, (log_p.exp() * (log_p - softened)).sum(1).mean())
    assert loss > 0.3


def test_an_untempered_student_is_pushed_to_be_less_confident_of_new_classes():
    student = torch.tensor([[0.0, 0.0, 4.0, 0.0]], requires_grad=True)
    loss = augmented_distillation(student, torch.zeros(1, 2), temperature=3.0)
    assert gradient(loss, student)[0, 2] > 0.1  # descent lowers the confident new class


def test_the_teacher_gets_its_gradient_only_if_the_target_is_attached():
    batch = random_batch(size=2)
    teacher = batch.previous.requires_grad_()
    student = batch.current.requires_grad_()
    attached = augmented_distillation(student, teacher, temperature=3.0, stop_gradient=False)
    stopped = augmented_distillation(student, teacher, temperature=3.0)
    assert gradient(attached, teacher).abs().sum() > 0
    assert torch.autograd.grad(stopped, teacher, allow_unused=True) == (None,)


EXAMPLE = torch.tensor([[6.0, 0.0, 0.0, 0.0]]), torch.tensor([[0.0]])  # one old class, three new


@given(batch=batches(), theta=temperatures, teacher_temperature=temperatures)
@checked
def test_a_temperature_of_the_teachers_own_changes_only_how_the_old_classes_share_their_mass(
    batch, theta, teacher_temperature
):
    plain = augmented_log_target(batch.current, batch.previous, temperature=theta)
    own = augmented_log_target(
        batch.current, batch.previous, temperature=theta, teacher_temperature=teacher_temperature
    )
    g = batch.g
    assert torch.equal(own[:, g:], plain[:, g:])
    torch.testing.assert_close(own[:, :g].logsumexp(1), plain[:, :g].logsumexp(1))
    shares = own[:, :g] - own[:, :g].logsumexp(1, keepdim=True)
    torch.testing.assert_close(shares, (batch.previous / teacher_temperature).log_softmax(1))


def test_the_released_target_does_not_sum_to_one():
    """Old mass at temperature 3 plus new mass at 5: exp(2) / (exp(2) + 3) + 3 / (exp(6/5) + 3)."""
    current, previous = EXAMPLE
    (z,) = oracle.released_target(current.tolist(), previous.tolist())
    assert sum(z) == pytest.approx(exp(2) / (exp(2) + 3) + 3 / (exp(1.2) + 3))
    assert sum(z) > 1.18


def test_the_released_divergence_can_be_negative():
    """By hand: the old class agrees, each new class has p = 1/(exp(2) + 3) against z = 1/(exp(1.2) + 3)."""
    current, previous = EXAMPLE
    want = 3 / (exp(2) + 3) * log((exp(1.2) + 3) / (exp(2) + 3))
    assert augmented_distillation(current, previous, **RELEASED).item() == pytest.approx(want)
    assert want < -0.14


def test_on_random_logits_the_released_target_sums_to_anything_from_below_to_above_one():
    batch = random_batch(size=200)
    sums = [sum(z) for z in oracle.released_target(batch.current.tolist(), batch.previous.tolist())]
    assert min(sums) < 0.95
    assert max(sums) > 1.05


@given(batch=batches(), theta=temperatures)
@checked
def test_with_all_temperatures_equal_to_theta_the_general_form_is_the_papers(batch, theta):
    """What sets the release apart is its temperatures, nothing else."""
    general = augmented_distillation(
        batch.current, batch.previous, temperature=theta, teacher_temperature=theta, mass_temperature=theta
    )
    torch.testing.assert_close(general, augmented_distillation(batch.current, batch.previous, temperature=theta))


def test_with_confident_logits_the_release_clips_the_ratio_and_is_its_oracle():
    """Where z gives (nearly) no mass to a class of which the student is sure, p / z is 1000 and no more."""
    batch = random_batch(scale=30.0)
    got = augmented_distillation(batch.current, batch.previous, **RELEASED)
    want = oracle.released_distillation(batch.current.tolist(), batch.previous.tolist())
    assert got.item() == pytest.approx(want, rel=1e-6)
    unclipped = augmented_distillation(batch.current, batch.previous, **{**RELEASED, "clip_ratio": False})
    assert unclipped - got > 0.1


def test_a_clipped_ratio_is_a_constant_to_the_gradient():
    """By hand: p of the old class is a, z gives it nothing, so that the loss is a * log(1000) there."""
    student = torch.tensor([[90.0, 0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    teacher = torch.tensor([[-200.0, 200.0]], dtype=torch.float64)
    loss = augmented_distillation(student, teacher, **RELEASED)
    assert loss.item() == pytest.approx(log(1e3))
    p = (student.detach() / 3).softmax(1)
    slope = p[0, 0] * (1 - p[0, 0]) * log(1e3) / 3
    assert gradient(loss, student)[0, 0].item() == pytest.approx(slope.item(), rel=1e-3)


def test_the_released_gradient_is_the_derivative_on_both_sides_of_the_clip():
    batch = random_batch(size=4, g=3, h=2, scale=30.0)
    student = batch.current.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: augmented_distillation(x, batch.previous, **RELEASED), (student,))


def test_the_released_gradient_flows_through_the_target():
    """At agreement with a fixed z, p's own gradient would be the whole; the difference is z's."""
    batch = random_batch()
    student = batch.current.requires_grad_()
    log_p, log_p_soft = (student / 3).log_softmax(1), (student / 5).log_softmax(1)
    old_mass = log_p[:, :5].logsumexp(1, keepdim=True)
    log_z = torch.cat([(batch.previous / 5).log_softmax(1) + old_mass, log_p_soft[:, 5:]], 1)
    frozen = gradient((log_p.exp() * (log_p - log_z.detach())).sum(1).mean(), student)
    flowing = gradient(augmented_distillation(student, batch.previous, **RELEASED), student)
    assert (flowing - frozen).norm() > 0.1 * flowing.norm()
