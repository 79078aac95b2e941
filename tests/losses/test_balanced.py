"""Balanced softmax: its formula, and the theorem that clients with different classes agree on the minimiser."""

import pytest
import torch

from fedclass.losses import balanced_cross_entropy, log_prior
from reference import losses as oracle


@pytest.mark.parametrize(("strength", "smoothing"), [(0.5, 0.0), (1.0, 0.0), (2.0, 0.0), (1.0, 0.5)])
def test_it_is_the_cross_entropy_of_logits_plus_log_shares(strength: float, smoothing: float) -> None:
    """With a class of which the client has nothing: without smoothing it is not among the classes."""
    rng = torch.Generator().manual_seed(0)
    current = torch.randn(16, 5, generator=rng, dtype=torch.float64)
    counts, labels = torch.tensor([100, 3, 0, 7, 1]), torch.tensor([0, 1, 3, 4] * 4)
    loss = balanced_cross_entropy(current, labels, log_prior(counts, strength=strength, smoothing=smoothing))
    want = oracle.balanced_cross_entropy(current.tolist(), labels.tolist(), counts.tolist(), strength, smoothing)
    assert float(loss) == pytest.approx(want, rel=1e-12)


def test_at_strength_0_it_is_plain_cross_entropy_over_all_classes() -> None:
    current, labels = torch.randn(16, 5, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 3, 4] * 4)
    prior = log_prior(torch.tensor([100, 3, 0, 7, 1]), strength=0.0)
    assert torch.equal(
        balanced_cross_entropy(current, labels, prior), torch.nn.functional.cross_entropy(current, labels)
    )


def test_smoothing_adds_images_to_every_class() -> None:
    counts = torch.tensor([6, 0, 2])
    want = torch.tensor([7 / 11, 1 / 11, 3 / 11], dtype=torch.float64).log()
    torch.testing.assert_close(log_prior(counts, smoothing=1.0), want)


def test_a_class_that_the_client_lacks_gets_no_gradient() -> None:
    current = torch.zeros(4, 3, requires_grad=True)
    balanced_cross_entropy(current, torch.tensor([0, 2, 0, 2]), log_prior(torch.tensor([5, 0, 1]))).backward()
    assert current.grad is not None
    assert bool(torch.isfinite(current.grad).all())
    assert not bool(current.grad[:, 1].any())
    assert bool(current.grad[:, 0].any())


def test_without_any_image_there_is_no_adjustment() -> None:
    """Rather than NaN: a client that holds nothing is asked at the end of a task too."""
    assert log_prior(torch.zeros(3, dtype=torch.int64)).tolist() == [0.0, 0.0, 0.0]
    assert log_prior(torch.zeros(0, dtype=torch.int64)).shape == (0,)
    smoothed = log_prior(torch.zeros(4, dtype=torch.int64), smoothing=2.0)
    torch.testing.assert_close(smoothed.exp(), torch.full((4,), 0.25, dtype=torch.float64))


def test_a_client_of_one_class_learns_nothing_from_it_unless_smoothed() -> None:
    """Its images say nothing of how classes differ: the loss and its gradient are exactly 0."""
    current = torch.randn(4, 3, generator=torch.Generator().manual_seed(3), requires_grad=True)
    labels, counts = torch.tensor([1, 1, 1, 1]), torch.tensor([0, 4, 0])
    loss = balanced_cross_entropy(current, labels, log_prior(counts))
    loss.backward()
    assert current.grad is not None
    assert float(loss.detach()) == 0
    assert not current.grad.any()
    current.grad = None
    balanced_cross_entropy(current, labels, log_prior(counts, smoothing=1.0)).backward()
    assert bool((current.grad[:, 1] < 0).all())


def test_a_label_that_the_counts_lack_is_an_infinite_loss_and_no_wrong_number() -> None:
    assert balanced_cross_entropy(torch.zeros(1, 2), torch.tensor([1]), log_prior(torch.tensor([3, 0]))) == torch.inf


def test_equal_counts_are_plain_cross_entropy() -> None:
    rng = torch.Generator().manual_seed(1)
    current, labels = torch.randn(8, 4, generator=rng), torch.randint(4, (8,), generator=rng)
    plain = torch.nn.functional.cross_entropy(current, labels)
    balanced = balanced_cross_entropy(current, labels, log_prior(torch.full((4,), 9)))
    torch.testing.assert_close(balanced, plain)


def minimiser(given_class: torch.Tensor, share: torch.Tensor, *, balanced: bool) -> torch.Tensor:
    """(classes, images): softmax of the table of logits with the least exact risk, for images of a finite set.

    given_class: (classes, images), p(x | y).  share: (classes,), p(y) at the client.
    """
    logits = torch.zeros(given_class.shape[::-1], dtype=torch.float64, requires_grad=True)
    joint = (share[:, None] * given_class).T  # p(x, y)
    prior = log_prior(share) if balanced else torch.zeros(len(share), dtype=torch.float64)
    optimizer = torch.optim.LBFGS([logits], max_iter=500, tolerance_grad=1e-13, line_search_fn="strong_wolfe")
    images, labels = (part.flatten() for part in torch.meshgrid(*map(torch.arange, joint.shape), indexing="ij"))
    held = joint.flatten() > 0

    def risk() -> torch.Tensor:
        optimizer.zero_grad()
        terms = [
            p * balanced_cross_entropy(logits[x : x + 1], y[None], prior)
            for p, x, y in zip(joint.flatten()[held], images[held], labels[held], strict=True)
        ]
        loss = torch.stack(terms).sum()
        loss.backward()
        return loss

    optimizer.step(risk)
    return logits.detach().softmax(dim=1).T


class TestTheTheorem:
    """If clients share p(x | y), the adjusted risk of each is least where softmax(logits) is the balanced posterior."""

    given_class = torch.rand(3, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    given_class /= given_class.sum(dim=1, keepdim=True)  # p(x | y) over six images
    posterior = given_class / given_class.sum(dim=0)

    def test_whatever_their_shares_clients_have_the_same_minimiser(self) -> None:
        shares = [
            torch.tensor(share, dtype=torch.float64)
            for share in ([0.8, 0.15, 0.05], [0.1, 0.1, 0.8], [0.98, 0.01, 0.01])
        ]
        for share in shares:
            found = minimiser(self.given_class, share, balanced=True)
            torch.testing.assert_close(found, self.posterior, atol=1e-4, rtol=0)
        plain = [minimiser(self.given_class, share, balanced=False) for share in shares]
        assert float((plain[0] - plain[1]).abs().max()) > 0.3

    def test_a_client_without_a_class_agrees_on_the_classes_that_it_has(self) -> None:
        """Of the others its minimiser says nothing; plain cross-entropy would say that there are none."""
        share = torch.tensor([0.9, 0.0, 0.1], dtype=torch.float64)
        found = minimiser(self.given_class, share, balanced=True)[[0, 2]]
        want = self.given_class[[0, 2]] / self.given_class[[0, 2]].sum(dim=0)
        torch.testing.assert_close(found / found.sum(dim=0), want, atol=1e-4, rtol=0)
        plain = minimiser(self.given_class, share, balanced=False)
        assert float(plain[1].max()) < 1e-3

    def test_where_clients_see_classes_differently_it_does_not_hold(self) -> None:
        """The assumption is p(x | y), and it is needed."""
        other = self.given_class.flip(1)
        share = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
        found = minimiser(other, share, balanced=True)
        assert float((found - self.posterior).abs().max()) > 0.1
