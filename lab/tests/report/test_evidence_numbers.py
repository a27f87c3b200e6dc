"""The arithmetic of the evidence, by hand and against all subsets; `test_verdict` has scipy."""

import itertools
import statistics

import pytest

from sgdf_lab.reports.numbers import (
    expected_best,
    holm,
    median_or_never,
    paired_difference,
    share_within,
)


def test_differences_that_are_equal_but_for_rounding_have_no_interval():
    test = paired_difference([0.1 + 0.2, 0.3], [0.0, 0.0])
    assert (test.n, test.mean) == (2, pytest.approx(0.3))
    assert (test.low, test.high, test.p) == (None, None, None)


def test_holm_by_hand():
    # 0.005 * 4, 0.01 * 3, 0.03 * 2, then 0.04 * 1, which is not below the one before.
    assert holm([0.03, 0.005, 0.04, 0.01]) == pytest.approx([0.06, 0.02, 0.06, 0.03])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([None, 0.02, None]) == [None, 0.02, None], "not compared, not counted"
    assert holm([]) == []


@pytest.mark.parametrize("lower_is_better", [True, False])
def test_the_expected_best_is_the_mean_over_all_subsets(lower_is_better):
    values = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0]  # with two equal ones
    best = min if lower_is_better else max
    expected = [
        statistics.fmean(best(subset) for subset in itertools.combinations(values, k))
        for k in range(1, len(values) + 1)
    ]
    assert expected_best(values, lower_is_better=lower_is_better) == pytest.approx(expected)
    assert expected_best([], lower_is_better=lower_is_better) == []


def test_the_share_within_a_margin():
    losses = [2.00, 2.02, 2.03, None]  # 2.02 is at the margin, in spite of rounding
    assert share_within(losses, 2.0, 0.02, lower_is_better=True) == 0.5
    assert share_within(losses, 1.0, 0.02, lower_is_better=True) == 0
    assert share_within([90.0, 89.0, 88.9], 90.0, 1.0, lower_is_better=False) == pytest.approx(
        2 / 3
    )


def test_a_median_counts_who_never_arrived():
    assert median_or_never([100, 300, 200]) == 200
    assert median_or_never([100, 200, None]) == 200
    assert median_or_never([100, None, None]) is None
    assert median_or_never([100, 200, 300, None]) == 250
    assert median_or_never([100, None]) is None
