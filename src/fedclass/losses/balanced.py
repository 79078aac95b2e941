"""Balanced softmax: cross-entropy that does not learn how many images of each class a client happens to hold."""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy


def log_prior(counts: Tensor, *, strength: float = 1.0, smoothing: float = 0.0) -> Tensor:
    """strength * log of the share of each class in a client's own data.

        pi_j = (n_j + smoothing) / sum_k (n_k + smoothing)

    A class that the client lacks has -inf without smoothing: its logit then takes no part in the softmax, and gets no
    gradient. There is no adjustment, 0 for every class, at strength 0, and where there is no image of any class.

    counts: (C,) images of each class.  Returns (C,), in float64.
    """
    share = counts.double() + smoothing
    if strength == 0 or share.sum() == 0:
        return torch.zeros_like(share)
    return strength * (share / share.sum()).log()


def balanced_cross_entropy(current: Tensor, labels: Tensor, prior: Tensor) -> Tensor:
    """Batch mean of -log softmax(current + prior)[label] (Ren et al. 2020; Menon et al. 2021, Eq. 10).

    If images of class j are drawn from p(x | j) and classes from pi, the minimiser over all functions is
    current_j(x) = log p(x | j) + a function of x alone: the classifier of balanced classes, whatever pi is.

    current: (B, C) logits.  labels: (B,).  prior: (C,) log shares.  Returns a scalar; infinite if a label has share 0.
    """
    return cross_entropy(current + prior.to(current), labels)
