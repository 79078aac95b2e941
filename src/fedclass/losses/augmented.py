"""New-class augmented self-distillation: the loss of FedCLASS (Eq. 5 and 9).

g old classes come first, h new ones after them. `current` is the student, `previous` the teacher: the global
model at the end of the previous task. Everything stays in log space, so that large logits (±1e4 is tested)
give finite values and finite gradients.
"""

from math import log

import torch
from torch import Tensor
from torch.nn.functional import log_softmax


def augmented_log_target(
    current: Tensor,
    previous: Tensor,
    *,
    temperature: float,
    teacher_temperature: float | None = None,
    mass_temperature: float | None = None,
) -> Tensor:
    """Log of z, the new-class augmented soft label (Eq. 5).

        p = softmax(current / theta),  q = softmax(previous / theta)
        z_j = p_j                        for new classes
        z_j = q_j * (1 - sum_new p)      for old classes

    The current model decides how much mass the new classes get; the previous model decides how the rest is
    shared among the old ones. With h = 0, z is the teacher.

    The paper has one theta. `teacher_temperature` is that of q alone, `mass_temperature` that of the sum over new
    classes. With another mass_temperature z is not normalised, and Eq. 9 no divergence (the authors' release: 5, and 3
    for the mass).

    current: (B, g+h) logits.  previous: (B, g) logits.  Returns (B, g+h).
    """
    g = previous.shape[1]
    log_p = log_softmax(current / temperature, dim=1)
    log_q = log_softmax(previous / (teacher_temperature or temperature), dim=1)
    log_mass = log_p if mass_temperature is None else log_softmax(current / mass_temperature, dim=1)
    log_old_mass = log_mass[:, :g].logsumexp(dim=1, keepdim=True)  # log(1 - sum p_new), no cancellation
    return torch.cat([log_q + log_old_mass, log_p[:, g:]], dim=1)


def augmented_distillation(
    current: Tensor,
    previous: Tensor,
    *,
    temperature: float,
    student_temperature: float = 1.0,
    stop_gradient: bool = True,
    teacher_temperature: float | None = None,
    mass_temperature: float | None = None,
    clip_ratio: bool = False,
) -> Tensor:
    """Batch mean of KL(softmax(current / student_temperature) || z), z at `temperature` (Eq. 9).

    No theta^2 factor: the paper has none. `stop_gradient` treats z as a label, although its new-class part is
    the student's own output. At one shared temperature the switch changes nothing, because the gradient
    through z is identically zero there; at two temperatures it does. `clip_ratio` bounds p / z as in the authors'
    release: a class that z (nearly) rules out then contributes no more than log(1000).

    current: (B, g+h) logits.  previous: (B, g) logits.  Returns a scalar, never negative if z is normalised.
    """
    log_p = log_softmax(current / student_temperature, dim=1)
    log_z = augmented_log_target(
        current,
        previous,
        temperature=temperature,
        teacher_temperature=teacher_temperature,
        mass_temperature=mass_temperature,
    )
    if stop_gradient:
        log_z = log_z.detach()
    log_ratio = _released_log_ratio(log_p, log_z) if clip_ratio else log_p - log_z
    return (log_p.exp() * log_ratio).sum(dim=1).mean()


def _released_log_ratio(log_p: Tensor, log_z: Tensor) -> Tensor:
    """log(clip(1e-8 + p / (1e-9 + z), max=1e3)); where it is clipped, its gradient is zero.  All are (B, C)."""
    log_ratio = log_p - torch.logaddexp(log_z, log_z.new_tensor(log(1e-9)))
    return torch.logaddexp(log_ratio, log_ratio.new_tensor(log(1e-8))).clamp(max=log(1e3))
