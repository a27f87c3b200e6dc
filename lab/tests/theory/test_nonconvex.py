"""The problems and constants of the non-convex theorem against another way to the same number."""

import numpy as np
import pytest

from sgdf_lab.theory.filtering import bias_of_the_estimate
from sgdf_lab.theory.nonconvex import (
    REACH,
    SKEWED,
    START,
    RateConstants,
    SkewedQuadratic,
    Wells,
    descend_with_filter,
    smoothness_bound,
)


def test_wells_are_smooth_and_not_convex():
    wells = Wells()
    theta, h = np.linspace(-4, 4, 401)[:, None], 1e-5
    slope = (wells.value(theta + h) - wells.value(theta - h)) / (2 * h)
    assert wells.gradient(theta)[:, 0] == pytest.approx(slope, abs=1e-8)
    assert np.abs(wells.gradient(theta)).max() <= wells.steepest
    curvature = (wells.gradient(theta + h) - wells.gradient(theta - h)) / (2 * h)
    assert np.abs(curvature).max() <= wells.L * (1 + 1e-8)
    assert curvature.min() < 0


def test_skewed_noise_has_mean_zero():
    problem = SkewedQuadratic(curvature=1.0, scale=2.0, rare=0.25)
    noise = problem.noise(np.random.default_rng(0), (4000,))
    assert set(noise) == {problem.largest, -problem.scale}
    assert 0.25 * problem.largest - 0.75 * problem.scale == pytest.approx(0)


def test_the_skewed_run_stays_within_its_bound_on_the_gradient():
    rng = np.random.default_rng(3)
    problem = SKEWED
    betas = (0.5, 0.9)
    runs = bias_of_the_estimate(lambda rng: problem.noise(rng, (2000,)), rng, betas)
    bias = runs.mean()
    start = np.full((8, 1), START * abs(bias) / problem.curvature)
    every = np.arange(1, 5001)
    squares, least = descend_with_filter(
        problem, start, 5000, 1 / problem.scale, (0.5, 0.9), rng, every
    )
    assert np.sqrt(squares.max()) < REACH * abs(bias)
    assert least == pytest.approx(squares.min(axis=0))


def test_constants_of_the_rate():
    """C_1..C_6 written out as in the proof's list."""
    b, G, L, alpha, gap, d = 0.8, 1.5, 2.0, 0.3, 0.7, 3
    C1 = L / 2 * b**2 / (1 - b) ** 2 * sum([G**2] * d)
    C2 = L * 2 * b**2 / (1 - b) ** 2 * G**2 * d * alpha / (1 - b)
    C3 = L * 4 / (1 - b) ** 2 * sum([G**2] * d)
    C4 = b / (1 - b) * G * G * d
    C5 = b / (1 - b) * G * G * d + b / (1 - b) * G * 2 * G * d
    C6 = 2 / (1 - b) * sum([G**2] * d)
    constants = RateConstants(b, G, L, alpha, gap, d)
    assert pytest.approx(C1 + C3 + C5 + C6) == constants.C7
    assert pytest.approx(gap + (C2 + C4) * alpha / (1 - b)) == constants.C8
    bound = (constants.C7 * alpha**2 * (np.log(9) + 1) + constants.C8) / (2 * alpha * 3)
    assert constants.bound(9) == pytest.approx(bound)


def test_smoothness_bound_of_a_parabola():
    """On L x^2 / 2 the printed right side minus the rise is L/2 (xi' - theta)^2 - or more."""
    theta, before, after = np.array([[1.0]]), np.array([[2.0]]), np.array([[-0.5]])
    bound = smoothness_bound(3.0, 3 * theta, theta, before, after)
    assert bound == pytest.approx(1.5 * 1 + 3 * 6.25 + 3 * -2.5)
    assert bound >= 1.5 * (0.25 - 4)
