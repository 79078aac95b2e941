"""What sites report of their held-out images: capped, and compared."""

import numpy as np
import pytest

from fedclass.deploy.site_tests import capped, outliers


def test_counts_are_capped_by_row_and_keep_their_proportions() -> None:
    counts = np.array([[30, 10], [2**60, 0]])
    found, over = capped(counts, [20, 12])
    assert found.tolist() == [[15, 5], [12, 0]]
    assert over == [0, 1]
    same, none = capped(counts, [40, None])
    assert same.tolist() == counts.tolist()
    assert none == []


def test_a_site_that_is_right_far_more_often_than_others_stands_out() -> None:
    honest, other, liar = np.array([[8, 12], [9, 11]]), np.array([[10, 10], [12, 8]]), np.diag([20, 20])
    found = outliers({0: honest, 1: other, 2: liar})
    assert list(found) == [2]
    assert found[2][0] == 100
    assert found[2][1] == pytest.approx(100 * (10 / 20 + 11 / 20) / 2)
    assert list(outliers({2: liar}, np.array([[50, 50], [50, 50]]))) == [2]
    assert outliers({0: honest, 1: other}) == {}
    assert list(outliers({0: np.diag([3, 3]), 1: honest, 2: other})) == []  # six images say nothing
