"""Where the filter estimates the true gradient better (mean squared error), and where not.

docs/filter.md states these regimes, with the numbers of `benchmarks/tracking.py`.
"""

from itertools import pairwise

import pytest
from benchmarks.tracking import ESTIMATORS, heavy_tailed, noisy_quadratic, walking_signal


@pytest.mark.parametrize(
    ("measure", "setting", "order"),
    [
        # Nearly still: the gain lets noise through.
        (walking_signal, (0.0,), "EMA K 2K K^0.5"),
        (walking_signal, (0.03,), "EMA K 2K K^0.5"),
        (walking_signal, (0.1,), "EMA K 2K K^0.5"),
        (walking_signal, (0.3,), "K^0.5 2K K EMA"),
        # The trend lags so far that even the noisy gradient is closer.
        (walking_signal, (1.0,), "g K^0.5 2K K EMA"),
        (walking_signal, (0.1, heavy_tailed), "K EMA"),
        (noisy_quadratic, (0.005,), "EMA K 2K g"),
        (noisy_quadratic, (0.05,), "2K K EMA g"),
        (noisy_quadratic, (0.2,), "2K K EMA g"),
        (noisy_quadratic, (0.5,), "2K K EMA g"),
    ],
)
def test_the_order_of_the_errors(measure, setting, order):
    """From the smallest; the last of a quadratic is the raw gradient."""
    errors = measure(*setting)
    found = [errors[name] for name in order.split()]
    assert all(a < b for a, b in pairwise(found))


def test_every_estimator_beats_the_raw_gradient_while_the_signal_is_slow():
    for q in (0.0, 0.03, 0.1, 0.3):
        errors = walking_signal(q)
        assert all(errors[name] < 0.5 * errors["g"] for name in ESTIMATORS), (q, errors)


def test_on_a_noisy_quadratic_with_a_large_rate_only_the_half_power_beats_the_raw_gradient():
    errors = noisy_quadratic(2)
    assert errors["K^0.5"] < errors["g"] < min(errors["EMA"], errors["K"], errors["2K"])
