"""Quadratic pulls on weights: FedProx towards the received model, EWC towards the last task's."""

from torch import Tensor


def pull(weights: Tensor, anchor: Tensor, importance: Tensor | float) -> Tensor:
    """The gradient of 1/2 * sum_i importance_i * (w_i - a_i)^2, which is importance * (weights - anchor).

    One number for all weights is FedProx's mu (Li et al. 2020, Eq. 2); a number for each, EWC's lambda * F (Kirkpatrick
    et al. 2017, Eq. 3). As a gradient, and not as a term of the loss, it is a single operation on the flat vector.

    weights, anchor, importance: (P,).  Returns (P,).
    """
    return importance * (weights - anchor)
