"""The damping of a constant gain, against the iteration as a matrix."""

import numpy as np
import pytest

from sgdf_lab.theory.damping import (
    characteristic,
    largest_stable,
    oscillation_factor,
    simulate,
    simulated_factor,
    slowest,
)


def step_matrix(x, beta1, gain):
    """(m, theta) to (m, theta) after a step, with lr h = x and h = 1."""
    average = np.array([[beta1, 1 - beta1], [0, 1]])
    matrix = np.array([[1, 0], [-x * (1 - gain), 1]]) @ average  # theta sees the new m
    matrix[1, 1] -= x * gain  # and the gradient at the old theta
    return matrix


@pytest.mark.parametrize("gain", [0.0, 0.1, 0.4, 1.0])
@pytest.mark.parametrize("beta1", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("x", [0.3, 3.0, 12.0])
def test_the_polynomial_is_that_of_the_step(x, beta1, gain):
    matrix = step_matrix(x, beta1, gain)
    assert characteristic(x, beta1, gain) == pytest.approx(
        (np.trace(matrix), np.linalg.det(matrix)), abs=1e-12
    )
    path, state = simulate(x, beta1, gain, 5), np.array([0.0, 1.0])
    for _ in range(5):
        state = matrix @ state
    assert path[-1] == pytest.approx(state[1])


@pytest.mark.parametrize("gain", [0.0, 0.05, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("beta1", [0.5, 0.9])
def test_it_is_stable_up_to_the_largest_x(beta1, gain):
    largest = largest_stable(beta1, gain)
    radius = [np.abs(np.linalg.eigvals(step_matrix(f * largest, beta1, gain))).max()
              for f in (0.999, 1, 1.001)]  # fmt: skip
    assert radius[0] < 1 < radius[2]
    assert radius[1] == pytest.approx(1)


def test_oscillations_end_where_the_roots_are_real():
    assert oscillation_factor(4, 0.9, 0.1) == pytest.approx(np.sqrt(0.9 * 0.6))
    assert slowest(4, 0.9, 0.1) == pytest.approx(np.sqrt(0.9 * 0.6))
    assert np.isnan(oscillation_factor(0.01, 0.9, 0.1))
    assert slowest(10, 0.9, 0.1) == pytest.approx(0, abs=1e-6)  # Nesterov's gain at 1/(1-b1)


def test_the_simulated_factor_does_not_use_the_formula():
    swinging = 0.8 ** np.arange(40) * np.cos(0.7 * np.arange(40) + 0.3)
    assert simulated_factor(swinging) == pytest.approx(0.8)
