"""The formulas and the game of online learning against another way to the same number."""

import numpy as np
import pytest

from sgdf_lab.theory.convex import (
    SCALE,
    average_square_bound,
    average_square_sum,
    best_in_hindsight,
    gradient_sum_bound,
    losses_and_gradients,
    play,
    regret_terms,
)
from sgdf_lab.theory.filtering import SimulatedFilter, rare_noise


def test_sums_of_lemmas(weights):
    g = np.random.default_rng(0).uniform(-0.5, 1, 30)
    rows = np.array([np.pad(weights(t, 0.9, 0.1), (0, 30 - t)) for t in range(1, 31)])
    averages = (rows / rows.sum(axis=1, keepdims=True)) @ g
    assert average_square_sum(g, 0.9) == pytest.approx(averages @ averages)
    norm = np.sqrt((g**2).sum())
    assert gradient_sum_bound(g, 0.7) == pytest.approx(2 * 0.7 * norm)
    assert average_square_bound(g, 0.7, 0.9) == pytest.approx(4 * 0.49 / 0.01 * norm**2)


def test_regret_terms_as_printed():
    terms = regret_terms(16, 0.5, 0.9, 2.0, 3.0, 5.0)
    assert terms == pytest.approx(
        (4 / 0.5 * 4, 2 * 2 * 3 / 0.1 * 5, 2 * 0.5 * 9 * 1.01 / 0.04 * 25)
    )


def test_gradients_of_the_online_losses():
    rng = np.random.default_rng(0)
    theta = rng.uniform(-0.9, 0.9, (3, 4, 5))
    z, xi = rng.uniform(-1, 1, 5), rare_noise(rng, (5,), 0.1)
    _, g = losses_and_gradients(theta, z, xi)
    h = 1e-7
    above, _ = losses_and_gradients(theta + h, z, xi)
    below, _ = losses_and_gradients(theta - h, z, xi)
    assert g == pytest.approx((above - below) / (2 * h), abs=1e-6)


def test_best_in_hindsight_on_a_grid():
    rng = np.random.default_rng(1)
    z, xi = rng.uniform(-1, 1, (21, 1)), rare_noise(rng, (21, 1), 0.1)
    best, value = best_in_hindsight(z, xi, np.array([[4.0]]))
    grid = np.linspace(-1, 1, 20_001)
    losses = (
        np.abs(grid - z).sum(axis=0),
        ((grid - z) ** 2).sum(axis=0) / 2,
        4 * grid,
        SCALE * (grid**2 / 2 + xi * grid).sum(axis=0),
    )
    for p, loss in enumerate(losses):
        inside = min(max(best[0, p, 0], -1), 1)
        assert inside == pytest.approx(best[0, p, 0])
        assert best[0, p, 0] == pytest.approx(grid[loss.argmin()], abs=1e-4)
        assert value[0, p, 0] == pytest.approx(loss.min(), rel=1e-4)


def test_play_is_the_algorithm():
    """The quadratic's regret again, by a single run with the printed corrections."""
    T = 40
    trace = play(T, 1, seed=5)
    z = np.random.default_rng(5).uniform(-1, 1, (T, 1))[:, 0]
    theta, loss, sgdf = 1.0, 0.0, SimulatedFilter()
    for t in range(1, T + 1):
        g = theta - z[t - 1]
        loss += g**2 / 2
        theta -= 0.5 / np.sqrt(t) * float(sgdf(g))
    regret = loss - ((z - z.mean()) ** 2).sum() / 2
    gain_2k, quadratic = 1, 1
    assert trace.regret[-1, gain_2k, quadratic, 0] == pytest.approx(regret)


def test_runs_stay_where_the_quadratics_are_quadratic():
    assert play(2000, 4, seed=0).D[:, :, (1, 3)].max() < 5
