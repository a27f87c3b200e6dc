"""The formulas of momentum against another way to the same number."""

import numpy as np
import pytest

from sgdf_lab.theory.momentum import (
    diffusion_mean,
    diffusion_variance,
    euler_moments,
    iterated_covariance,
    linear_moments,
    momentum_mean,
    momentum_variance,
    quadratic_system,
    simulate_diffusion,
)
from sgdf_lab.theory.momentum_bounds import bias_bound, variance_bound

integrate = pytest.importorskip("scipy.integrate")
linalg = pytest.importorskip("scipy.linalg")


@pytest.mark.parametrize(("beta", "mu"), [(0.0, 1.0), (0.9, 0.1), (0.9, 1.0), (0.5, 0.7)])
def test_moments_of_momentum(weights, beta, mu):
    gradients = np.linspace(2, -1, 12)
    w = weights(12, beta, mu)
    assert momentum_mean(gradients, beta, mu)[-1] == pytest.approx(w @ gradients)
    assert momentum_variance(12, beta, mu, 1.7) == pytest.approx(1.7**2 * w @ w)


def test_moments_of_the_diffusion_are_the_printed_integrals():
    beta, mu, sigma, t = 0.8, 0.3, 1.4, 7.0
    mean, _ = integrate.quad(lambda s: mu * np.exp(-(1 - beta) * (t - s)) * 2.5, 0, t)
    variance, _ = integrate.quad(lambda s: (mu * sigma * np.exp(-(1 - beta) * (t - s))) ** 2, 0, t)
    assert diffusion_mean(t, beta, mu, 2.5) == pytest.approx(mean)
    assert diffusion_variance(t, beta, mu, sigma) == pytest.approx(variance)


def test_linear_moments_by_the_matrix_exponential():
    drift, noise = quadratic_system(0.1, 0.05)
    start = np.array([0.3, 1.0])
    means, covariances = linear_moments(drift, noise, start, np.array([9.0]))
    assert means[0] == pytest.approx(linalg.expm(drift * 9) @ start)
    grid = np.linspace(0, 9, 2001)
    kicks = [linalg.expm(drift * u) @ noise for u in grid]
    brute = integrate.simpson([kick @ kick.T for kick in kicks], x=grid, axis=0)
    assert covariances[0] == pytest.approx(brute, rel=1e-8)


def test_iterated_covariance_is_the_sum_over_past_noise():
    beta, mu, alpha, steps = 0.7, 0.3, 0.2, 9
    effects = []
    for when in range(steps):
        m = theta = 0.0
        for t in range(steps):
            m = beta * m + mu * (theta + (t == when))
            theta -= alpha * m
        effects.append([m, theta])
    brute = np.transpose(effects) @ np.array(effects)
    assert iterated_covariance(beta, mu, alpha, steps) == pytest.approx(brute)


def test_euler_moments_by_recursion():
    mean = variance = 0.0
    for _ in range(40):
        mean += (-0.1 * mean + 0.2) * 0.25
        variance = (1 - 0.1 * 0.25) ** 2 * variance + (0.2 * 1.5) ** 2 * 0.25
    assert euler_moments(0.25, 10.0, 0.9, 0.2, 1.5) == pytest.approx((mean, variance))


def test_the_diffusion_without_noise_is_its_equation():
    drift, _ = quadratic_system(0.1, 0.05)
    _, ms, thetas = simulate_diffusion(
        lambda theta: theta,
        beta=0.9,
        mu=0.1,
        sigma=0.0,
        alpha=0.05,
        theta=1.0,
        time=10,
        dt=1e-3,
        paths=1,
        rng=np.random.default_rng(0),
    )
    exact = linalg.expm(drift * 10) @ [0.0, 1.0]
    assert [ms[-1, 0], thetas[-1, 0]] == pytest.approx(exact, rel=1e-3)


def test_printed_bounds():
    assert bias_bound(0.9, 0.1, 0.01, 2.0, 3.0) == pytest.approx(0.01 * 2 * 3 / 0.1)
    cm = 0.01 * 2 * 3 / 0.1**2 + 0.9 / 0.1 * 3
    assert bias_bound(0.9, 1.0, 0.01, 2.0, 3.0) == pytest.approx(cm)
    assert variance_bound(0.9, 0.1, 2.0, 3.0) == pytest.approx(0.1 / 2 * 13)
