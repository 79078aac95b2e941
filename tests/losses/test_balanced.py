"""Balanced softmax: its formula, and the theorem that clients with different classes agree on the minimiser."""

import pytest
import torch

from fedclass.losses.balanced import balanced_cross_entropy, log_prior
from reference import losses as oracle


@pytest.mark.parametrize("strength", [0.5, 1.0, 2.0])
def test_it_is_the_cross_entropy_of_logits_plus_log_shares(strength: float) -> None:
    rng = torch.Generator().manual_seed(0)
    current = torch.randn(16, 5, generator=rng, dtype=torch.float64)
    counts = torch.tensor([100, 3, 0, 7, 1])
    labels = torch.tensor([0, 1, 3, 4] * 4)
    loss = balanced_cross_entropy(current, labels, log_prior(counts, strength=strength).double())
    assert float(loss) == pytest.approx(
        oracle.balanced_cross_entropy(current.tolist(), labels.tolist(), counts.tolist(), strength), rel=1e-6
    )


def test_at_strength_0_it_is_plain_cross_entropy_over_all_classes() -> None:
    current, labels = torch.randn(16, 5, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 3, 4] * 4)
    prior = log_prior(torch.tensor([100, 3, 0, 7, 1]), strength=0.0)
    assert torch.equal(
        balanced_cross_entropy(current, labels, prior), torch.nn.functional.cross_entropy(current, labels)
    )


def test_smoothing_adds_images_to_every_class() -> None:
    counts = torch.tensor([6, 0, 2])
    torch.testing.assert_close(log_prior(counts, smoothing=1.0), torch.tensor([7 / 11, 1 / 11, 3 / 11]).log())


def test_a_class_that_the_client_lacks_gets_no_gradient() -> None:
    current = torch.zeros(4, 3, requires_grad=True)
    balanced_cross_entropy(current, torch.tensor([0, 2, 0, 2]), log_prior(torch.tensor([5, 0, 1]))).backward()
    assert current.grad is not None
    assert bool(torch.isfinite(current.grad).all())
    assert not bool(current.grad[:, 1].any())
    assert bool(current.grad[:, 0].any())


def test_equal_counts_are_plain_cross_entropy() -> None:
    rng = torch.Generator().manual_seed(1)
    current, labels = torch.randn(8, 4, generator=rng), torch.randint(4, (8,), generator=rng)
    plain = torch.nn.functional.cross_entropy(current, labels)
    balanced = balanced_cross_entropy(current, labels, log_prior(torch.full((4,), 9)))
    torch.testing.assert_close(balanced, plain)


def test_clients_with_other_shares_of_the_same_classes_have_the_same_minimiser() -> None:
    """Over a finite set of images, p(x | y) known: each client's exact risk is minimised over a table of logits.

    All end with softmax = the balanced posterior p(x | y) / sum_j p(x | j); plain cross-entropy does not.
    """
    rng = torch.Generator().manual_seed(2)
    given_class = torch.rand(3, 6, generator=rng, dtype=torch.float64)
    given_class /= given_class.sum(dim=1, keepdim=True)  # p(x | y) over six images
    posterior = given_class / given_class.sum(dim=0)

    def minimiser(share: torch.Tensor, *, balanced: bool) -> torch.Tensor:
        logits = torch.zeros(6, 3, dtype=torch.float64, requires_grad=True)
        joint = share[:, None] * given_class  # p(y) p(x | y)
        prior = share.log() if balanced else torch.zeros(3, dtype=torch.float64)
        optimizer = torch.optim.LBFGS([logits], max_iter=500, tolerance_grad=1e-13, line_search_fn="strong_wolfe")

        def risk() -> torch.Tensor:
            optimizer.zero_grad()
            loss = -(joint.T * (logits + prior).log_softmax(dim=1)).sum()
            loss.backward()
            return loss

        optimizer.step(risk)
        return logits.detach().softmax(dim=1).T

    shares = [torch.tensor(s, dtype=torch.float64) for s in ([0.8, 0.15, 0.05], [0.1, 0.1, 0.8], [0.98, 0.01, 0.01])]
    for share in shares:
        torch.testing.assert_close(minimiser(share, balanced=True), posterior, atol=1e-4, rtol=0)
    plain = [minimiser(share, balanced=False) for share in shares]
    assert float((plain[0] - plain[1]).abs().max()) > 0.3
