"""Paired differences: against scipy's paired t-test, and by hand."""

import math

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from fedclass.report.statistics import Difference, paired

percents = st.floats(0, 100).map(lambda value: round(value, 2))
pairs = st.lists(st.tuples(percents, percents), min_size=2, max_size=8)


@given(pairs)
@settings(max_examples=50, deadline=None, derandomize=True)
def test_mean_and_interval_are_those_of_the_paired_t_test(found):
    values, reference = zip(*found, strict=True)
    gaps = {round(a - b, 6) for a, b in found}
    if len(gaps) == 1:  # scipy divides by the deviation
        return
    from scipy import stats  # slow to import, and every test worker imports every module of tests

    want = stats.ttest_rel(values, reference)
    got = paired(values, reference)
    interval = want.confidence_interval(0.95)
    assert got.mean == pytest.approx(sum(values) / len(values) - sum(reference) / len(reference), abs=1e-9)
    assert got.interval == pytest.approx((interval.low, interval.high), abs=1e-6)
    if abs(want.pvalue - 0.05) > 1e-6:
        assert (got.verdict == "not distinguishable") == (want.pvalue > 0.05)


def test_three_seeds_by_hand():
    """Differences 1, 2, 6: mean 3, deviation sqrt(7); t of 2 degrees at 97.5 % is 4.302653."""
    got = paired([11.0, 22.0, 36.0], [10.0, 20.0, 30.0])
    reach = 4.302652729911275 * math.sqrt(7) / math.sqrt(3)
    assert got.mean == 3.0
    assert got.interval == pytest.approx((3 - reach, 3 + reach))
    assert got.verdict == "not distinguishable"


def test_pairs_see_what_means_and_deviations_hide():
    """Seeds scatter by tens, but the second is always about five better."""
    assert paired([25.0, 55.1, 84.9], [20.0, 50.0, 80.0]).verdict == "higher"
    assert paired([20.0, 50.0, 80.0], [25.0, 55.1, 84.9]).verdict == "lower"


@pytest.mark.parametrize(
    ("difference", "verdict"),
    [
        (Difference(1.0, (0.5, 1.5)), "higher"),
        (Difference(-1.0, (-1.5, -0.5)), "lower"),
        (Difference(1.0, (0.0, 2.0)), "not distinguishable"),
        (Difference(0.0, (0.0, 0.0)), "not distinguishable"),
        (Difference(9.0, None), "one seed: no interval"),
    ],
)
def test_verdicts(difference, verdict):
    assert difference.verdict == verdict


def test_one_seed_has_a_difference_and_no_interval():
    assert paired([5.0], [3.0]) == Difference(2.0, None)


def test_seeds_without_a_partner_are_refused():
    with pytest.raises(ValueError, match="shorter"):
        paired([1.0, 2.0], [1.0])
