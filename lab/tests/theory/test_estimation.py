"""The formulas of estimation against another way to the same number."""

import numpy as np
import pytest

from sgdf.filter import bias_corrections
from sgdf_lab.theory.estimate import fuse
from sgdf_lab.theory.filtering import SimulatedFilter
from sgdf_lab.theory.optimal_gain import (
    combined_variance,
    corrected_mean_factor,
    correction_factor,
    expected_fluctuation,
    optimal_gain,
    optimal_gain_with_covariance,
)

integrate = pytest.importorskip("scipy.integrate")
optimize = pytest.importorskip("scipy.optimize")


@pytest.mark.parametrize("covariance", [0.0, 0.1, 0.4])
def test_optimal_gain_by_search(covariance):
    minimum = optimize.minimize_scalar(
        lambda K: combined_variance(K, 0.3, 1.2, covariance), (-1, 1)
    )
    K = optimal_gain_with_covariance(0.3, 1.2, covariance)
    assert pytest.approx(minimum.x, abs=1e-6) == K
    if covariance == 0:
        assert pytest.approx(K) == optimal_gain(0.3, 1.2)


def test_the_best_gain_for_a_constant_gradient_is_negative():
    b = 0.9
    K = optimal_gain_with_covariance((1 - b) / (1 + b), 1.0, 1 - b)
    assert pytest.approx(-(1 - b) / (2 * b)) == K


@pytest.mark.parametrize("t", [1, 2, 7, 40])
def test_correction_factors(weights, t):
    w = weights(t, 0.9, 0.1)
    assert correction_factor(t, 0.9) == pytest.approx(w @ w)
    w_hat = w / w.sum()
    assert corrected_mean_factor(t, 0.9) == pytest.approx(w_hat @ w_hat)
    used = bias_corrections(t, 0.9, 0.999).fluctuation * (1 - 0.999**t)
    assert used == pytest.approx(w @ w)


def test_expected_fluctuation_from_the_weights(weights):
    beta1, beta2, sigma, mean, steps = 0.8, 0.95, 1.3, 2.0, 15
    s = 0.0
    for t in range(1, steps + 1):
        residual = -weights(t, beta1, 1 - beta1)
        residual[-1] += 1
        square = sigma**2 * residual @ residual + (mean * residual.sum()) ** 2
        s = beta2 * s + (1 - beta2) * square
    values = expected_fluctuation(steps, beta1, beta2, sigma, mean)
    assert values[-1] == pytest.approx(s / (1 - beta2**steps))


def test_the_residual_is_that_of_the_average_before():
    g, m = np.random.default_rng(0).normal(size=(2, 100))
    assert g - (0.9 * m + 0.1 * g) == pytest.approx(0.9 * (g - m))


def test_fusion_by_integration():
    def product(x):
        return np.exp(-((x - 1) ** 2) / (2 * 0.4) - (x + 0.5) ** 2 / (2 * 2.0))

    total, first, second = (
        integrate.quad(lambda x, k=k: x**k * product(x), -20, 20)[0] for k in range(3)
    )
    mean, variance = fuse(1.0, 0.4, -0.5, 2.0)
    assert mean == pytest.approx(first / total)
    assert variance == pytest.approx(second / total - mean**2)


def test_the_gain_of_a_simulated_step_is_the_one_that_was_applied():
    g = np.random.default_rng(0).normal(size=(5, 50))
    plain, double = SimulatedFilter(gain_scale=1.0), SimulatedFilter()
    for gradients in g:
        estimate, doubled = plain(gradients), double(gradients)
    m_hat = gradients - plain.residual
    assert estimate == pytest.approx(m_hat + plain.gain * plain.residual)
    assert doubled == pytest.approx(m_hat + 2 * plain.gain * plain.residual)


def test_rescaling_multiplies_the_variance_estimate():
    g = np.random.default_rng(0).normal(size=(5, 50))
    plain, rescaled = SimulatedFilter(), SimulatedFilter(rescale=lambda t: t)
    for gradients in g:
        plain(gradients)
        rescaled(gradients)
    assert rescaled.s_hat == pytest.approx(5 * plain.s_hat)
