"""Knowledge distillation on the old classes, as in LwF and WA."""

from torch import Tensor
from torch.nn.functional import log_softmax, softmax


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
