"""Loss functions: pure, one per equation, logits in and a scalar out.

A name that starts with `released_` is the arithmetic of the FedCLASS authors' release where it differs from
the paper it implements.
"""

from fedclass.losses.augmented import augmented_distillation, augmented_log_target
from fedclass.losses.balanced import balanced_cross_entropy, log_prior
from fedclass.losses.distillation import disagreement, distillation, stored_logits_error, teacher_divergence
from fedclass.losses.penalty import pull
from fedclass.losses.sigmoid import (
    adaptive_weights,
    compensated_loss,
    glfc_loss,
    gradient_compensation_weights,
    icarl_loss,
    lga_loss,
    relation_distillation,
    released_icarl_loss,
)

__all__ = [
    "adaptive_weights",
    "augmented_distillation",
    "augmented_log_target",
    "balanced_cross_entropy",
    "compensated_loss",
    "disagreement",
    "distillation",
    "glfc_loss",
    "gradient_compensation_weights",
    "icarl_loss",
    "lga_loss",
    "log_prior",
    "pull",
    "relation_distillation",
    "released_icarl_loss",
    "stored_logits_error",
    "teacher_divergence",
]
