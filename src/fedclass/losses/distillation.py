"""Knowledge distillation on the classes that a teacher knows (LwF, WA, FedGKD), or of stored logits (DER++)."""

from torch import Tensor
from torch.nn.functional import kl_div, log_softmax, softmax


def distillation(current: Tensor, previous: Tensor, *, temperature: float) -> Tensor:
    """Batch mean of -sum_old q_j * log p_j (Li and Hoiem 2016; Zhao et al. 2020).

        q = softmax(previous / T),  p = softmax(current[:, :g] / T)

    A cross-entropy: at agreement it is the teacher's entropy, not zero. The student's new classes take no
    part, not even in its normalisation.

    current: (B, g+h) logits.  previous: (B, g) logits.  Returns a scalar.
    """
    g = previous.shape[1]
    q = softmax(previous / temperature, dim=1)
    log_p = log_softmax(current[:, :g] / temperature, dim=1)
    return -(q * log_p).sum(dim=1).mean()


def teacher_divergence(current: Tensor, previous: Tensor, *, temperature: float) -> Tensor:
    """T^2 times the batch mean of KL(q || p) (Yao et al. 2021; Hinton et al. 2015).

        q = softmax(previous / T),  p = softmax(current[:, :g] / T)

    T^2 * (`distillation` - the teacher's entropy): its gradient is T^2 times that of `distillation`, and it is zero at
    agreement. g are the classes that the teacher knows, which may be all.

    current: (B, g+h) logits.  previous: (B, g) logits.  Returns a scalar, never negative.
    """
    g = previous.shape[1]
    log_q = log_softmax(previous / temperature, dim=1)
    log_p = log_softmax(current[:, :g] / temperature, dim=1)
    return temperature**2 * kl_div(log_p, log_q, reduction="batchmean", log_target=True)


def disagreement(student: Tensor, teacher: Tensor) -> Tensor:
    """Minus the mean of KL(teacher || student) where both agree on the class (Zhang et al. 2023; the adversary's aim).

    student, teacher: (B, C) logits.  Returns a scalar, never above 0.
    """
    agree = student.argmax(dim=1) == teacher.argmax(dim=1)
    apart = kl_div(log_softmax(student, dim=1), softmax(teacher, dim=1), reduction="none").sum(dim=1)
    return -(apart * agree).mean()


def stored_logits_error(current: Tensor, stored: Tensor) -> Tensor:
    """Mean of (current_ij - stored_ij)^2 over all logits that were stored (Buzzega et al. 2020, Eq. 6).

    stored: (B, C), NaN for classes that were not known when it was stored; these take no part.

    current: (B, C) logits.  Returns a scalar; 0 if nothing was stored.
    """
    known = ~stored.isnan()
    gap = (current - stored.where(known, current.detach())) * known
    return gap.square().sum() / known.sum().clamp(min=1)
