"""Where the filter estimates the true gradient better (mean squared error), and where not.

docs/filter.md states these regimes, with the numbers of `benchmarks/tracking.py`.
"""

import pytest
from benchmarks.tracking import ESTIMATORS, heavy_tailed, noisy_quadratic, walking_signal


def test_every_estimator_beats_the_raw_gradient_while_the_signal_is_slow():
    for q in (0.0, 0.03, 0.1, 0.3):
        errors = walking_signal(q)
        assert all(errors[name] < 0.5 * errors["g"] for name in ESTIMATORS), (q, errors)


@pytest.mark.parametrize("q", [0.3, 1.0])
def test_the_gain_lowers_the_error_of_the_average_where_the_signal_moves_fast(q):
    errors = walking_signal(q)
    assert errors["K^0.5"] < errors["2K"] < errors["K"] < errors["EMA"]


@pytest.mark.parametrize("q", [0.0, 0.03, 0.1])
def test_the_gain_raises_the_error_of_the_average_where_the_signal_is_nearly_still(q):
    """With little signal to follow, the gain lets noise through."""
    errors = walking_signal(q)
    assert errors["EMA"] < errors["K"] < errors["2K"] < errors["K^0.5"]


def test_heavy_tails_favour_the_plain_gain():
    errors = walking_signal(0.1, heavy_tailed)
    assert errors["K"] < errors["EMA"]


def test_a_signal_that_outruns_the_average_is_better_followed_raw():
    """At q = 1 the trend lags so far that even the noisy gradient is closer."""
    errors = walking_signal(1.0)
    assert errors["g"] < min(errors[name] for name in ESTIMATORS)


@pytest.mark.parametrize("lr", [0.05, 0.2, 0.5])
def test_on_a_noisy_quadratic_the_filter_beats_the_average_and_the_raw_gradient(lr):
    errors = noisy_quadratic(lr)
    assert errors["2K"] < errors["K"] < errors["EMA"] < errors["g"]


def test_on_a_noisy_quadratic_with_a_small_rate_the_average_is_better():
    errors = noisy_quadratic(0.005)
    assert errors["EMA"] < errors["K"] < errors["2K"] < errors["g"]


def test_on_a_noisy_quadratic_with_a_large_rate_only_the_half_power_beats_the_raw_gradient():
    errors = noisy_quadratic(2)
    assert errors["K^0.5"] < errors["g"] < min(errors["EMA"], errors["K"], errors["2K"])
