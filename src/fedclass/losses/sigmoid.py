"""Losses of methods that score every class with its own sigmoid: iCaRL, and the client losses of GLFC and LGA.

`previous` is None on the first task, when there is no teacher. labels: (B,) int64 in
0..g+h-1, old classes first.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, logsigmoid, one_hot


def icarl_loss(current: Tensor, previous: Tensor | None, labels: Tensor) -> Tensor:
    """Batch mean of the binary cross-entropy summed over classes (Rebuffi et al. 2017, Alg. 3).

        target_j = sigmoid(previous_j)   for old classes
        target_j = [j == label]          for the rest, so an exemplar of an old class has zeros there

    current: (B, g+h) logits.  previous: (B, g) logits or None.  Returns a scalar.
    """
    target = _sigmoid_target(current, previous, labels)
    return binary_cross_entropy_with_logits(current, target, reduction="none").sum(dim=1).mean()


def released_icarl_loss(current: Tensor, previous: Tensor | None, labels: Tensor) -> Tensor:
    """What the FedCLASS authors' release calls iCaRL; name it so in every table.

        cross_entropy(current, label)
        + sum over old classes of the batch mean of BCE_with_logits(sigmoid(current_old), sigmoid(previous))

    The second term squashes the student twice: probabilities go where logits belong, so the student's
    old-class score is confined to sigmoid([0, 1]) = [0.5, 0.73] and cannot match a teacher outside it.
    The release sums over those old classes that it had assigned to the client: in its own settings, all of them.

    current: (B, g+h) logits.  previous: (B, g) logits or None.  Returns a scalar.
    """
    loss = cross_entropy(current, labels)
    if previous is None:
        return loss
    g = previous.shape[1]
    squashed = binary_cross_entropy_with_logits(current[:, :g].sigmoid(), previous.sigmoid(), reduction="none")
    return loss + squashed.sum(dim=1).mean()


def gradient_compensation_weights(current: Tensor, labels: Tensor, *, old_classes: int) -> Tensor:
    """GLFC's weight of each sample (Dong et al. 2022): its gradient over the mean gradient of its own group.

        g_i = |sigmoid(current_i[label_i]) - 1|
        w_i = g_i / mean of g over i's group in the batch: old (label < old_classes) or new

    The mean weight of a group is 1, so neither group is drowned by the other. All ones when old_classes is 0:
    the first task needs no compensation. No gradient flows through the weights.

    current: (B, C) logits.  Returns (B,).
    """
    if old_classes == 0:
        return current.new_ones(len(labels))
    old = labels < old_classes
    return _over_means(_log_gradient(current, labels), torch.stack([~old, old]))


def adaptive_weights(current: Tensor, labels: Tensor, *, ends: Sequence[int]) -> Tensor:
    """LGA's weight of each sample, as its authors' code has it (Dong et al. 2023): groups by task.

        g_i = |sigmoid(current_i[label_i]) - 1|^(t / (t + 1)),  t: earlier tasks
        new classes:   w_i = g_i / mean of g over new classes in the batch
        task k, old:   w_i = sum over j = k..t-1 of g_i / mean of g over tasks 0..j in the batch

    and each limited to 0.5..5. A sample of the oldest task so counts up to t times. No gradient flows through it.

    current: (B, C) logits.  ends: of each earlier task, how many classes there were when it ended.  Returns (B,).
    """
    tasks = len(ends)
    log_g = tasks / (tasks + 1) * _log_gradient(current, labels)
    members = torch.stack([labels >= ends[-1], *(labels < end for end in ends)])
    return _over_means(log_g, members).clamp(0.5, 5.0)


def _log_gradient(current: Tensor, labels: Tensor) -> Tensor:
    """(B,) log |sigmoid(current_i[label_i]) - 1|, finite even where that is zero in float32. No gradient flows."""
    return logsigmoid(-current.detach().gather(1, labels[:, None]).squeeze(1))


def _over_means(log_g: Tensor, members: Tensor) -> Tensor:
    """(B,) g over the mean of g in a group, summed over the groups that a sample belongs to.  members: (groups, B)."""
    # g / mean(g) = n * softmax(log g). The softmax of an empty group is NaN; it has no member to keep it.
    share = log_g.expand(members.shape).masked_fill(~members, -torch.inf).softmax(dim=1)
    return (members.sum(dim=1, keepdim=True) * share).where(members, 0).sum(dim=0)


def compensated_loss(current: Tensor, labels: Tensor, *, old_classes: int) -> Tensor:
    """GLFC's gradient compensation: mean over batch and classes of w_i * BCE_with_logits(current, one-hot).

    current: (B, C) logits.  Returns a scalar.
    """
    weights = gradient_compensation_weights(current, labels, old_classes=old_classes)
    target = _sigmoid_target(current, None, labels)
    loss = binary_cross_entropy_with_logits(current, target, reduction="none")
    return (weights[:, None] * loss).mean()


def relation_distillation(current: Tensor, previous: Tensor, labels: Tensor) -> Tensor:
    """GLFC's relation distillation: mean over batch and classes of BCE_with_logits(current, target).

    The target is iCaRL's: the teacher's sigmoid for old classes, the one-hot label for new ones.

    current: (B, g+h) logits.  previous: (B, g) logits.  Returns a scalar.
    """
    return binary_cross_entropy_with_logits(current, _sigmoid_target(current, previous, labels))


def glfc_loss(current: Tensor, previous: Tensor | None, labels: Tensor, *, compensate: bool = True) -> Tensor:
    """GLFC's client loss: 0.5 * compensated + 0.5 * relation; on the first task, plain binary cross-entropy.

    compensate: without, all weights of the first half are 1, as in its authors' code at a client without old classes.

    current: (B, g+h) logits.  previous: (B, g) logits or None.  Returns a scalar.
    """
    if previous is None:
        return compensated_loss(current, labels, old_classes=0)
    compensated = compensated_loss(current, labels, old_classes=previous.shape[1] if compensate else 0)
    return 0.5 * compensated + 0.5 * relation_distillation(current, previous, labels)


def lga_loss(
    current: Tensor, previous: Tensor | None, labels: Tensor, *, ends: Sequence[int], scale: float = 1.0
) -> Tensor:
    """LGA's client loss, as in its authors' code: scale * mean of w * (BCE(one-hot) + BCE(iCaRL's target)).

    On the first task, plain binary cross-entropy. ends: as for `adaptive_weights`; empty: all weights are 1, as at a
    client that has had no old class.

    current: (B, g+h) logits.  previous: (B, g) logits or None.  Returns a scalar.
    """
    if previous is None:
        return compensated_loss(current, labels, old_classes=0)
    weights = adaptive_weights(current, labels, ends=ends) if ends else current.new_ones(len(labels))
    targets = (_sigmoid_target(current, teacher, labels) for teacher in (None, previous))
    plain, distilled = (binary_cross_entropy_with_logits(current, t, reduction="none") for t in targets)
    return scale * (weights[:, None] * (plain + distilled)).mean()


def _sigmoid_target(current: Tensor, previous: Tensor | None, labels: Tensor) -> Tensor:
    """One-hot labels, the first g entries replaced by the teacher's sigmoids if there is one.  (B, g+h)."""
    target = one_hot(labels, current.shape[1]).to(current.dtype)
    if previous is None:
        return target
    return torch.cat([previous.sigmoid(), target[:, previous.shape[1] :]], dim=1)
