"""Every formula against another way to the same number."""

import numpy as np
import pytest

from sgdf.filter import bias_corrections, wiener_filter
from sgdf.theory import convex, estimation, momentum, nonconvex

integrate = pytest.importorskip("scipy.integrate")
linalg = pytest.importorskip("scipy.linalg")
optimize = pytest.importorskip("scipy.optimize")


def weights(t, beta, mu):
    """Those of g_1..g_t in m_t, by unrolling the iteration on unit vectors."""
    m = np.zeros(t)
    for i in range(t):
        m = beta * m
        m[i] += mu
    return m


# Momentum


@pytest.mark.parametrize(("beta", "mu"), [(0.0, 1.0), (0.9, 0.1), (0.9, 1.0), (0.5, 0.7)])
def test_moments_of_momentum(beta, mu):
    gradients = np.linspace(2, -1, 12)
    w = weights(12, beta, mu)
    assert momentum.momentum_mean(gradients, beta, mu)[-1] == pytest.approx(w @ gradients)
    assert momentum.momentum_variance(12, beta, mu, 1.7) == pytest.approx(1.7**2 * w @ w)


def test_moments_of_the_diffusion_are_the_printed_integrals():
    beta, mu, sigma, t = 0.8, 0.3, 1.4, 7.0
    mean, _ = integrate.quad(lambda s: mu * np.exp(-(1 - beta) * (t - s)) * 2.5, 0, t)
    variance, _ = integrate.quad(lambda s: (mu * sigma * np.exp(-(1 - beta) * (t - s))) ** 2, 0, t)
    assert momentum.diffusion_mean(t, beta, mu, 2.5) == pytest.approx(mean)
    assert momentum.diffusion_variance(t, beta, mu, sigma) == pytest.approx(variance)


def test_linear_moments_by_the_matrix_exponential():
    drift, noise = momentum.quadratic_system(0.1, 0.05)
    start = np.array([0.3, 1.0])
    means, covariances = momentum.linear_moments(drift, noise, start, np.array([9.0]))
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
    assert momentum.iterated_covariance(beta, mu, alpha, steps) == pytest.approx(brute)


def test_euler_moments_by_recursion():
    mean = variance = 0.0
    for _ in range(40):
        mean += (-0.1 * mean + 0.2) * 0.25
        variance = (1 - 0.1 * 0.25) ** 2 * variance + (0.2 * 1.5) ** 2 * 0.25
    assert momentum.euler_moments(0.25, 10.0, 0.9, 0.2, 1.5) == pytest.approx((mean, variance))


def test_the_diffusion_without_noise_is_its_equation():
    drift, _ = momentum.quadratic_system(0.1, 0.05)
    _, ms, thetas = momentum.simulate_diffusion(
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
    assert momentum.bias_bound(0.9, 0.1, 0.01, 2.0, 3.0) == pytest.approx(0.01 * 2 * 3 / 0.1)
    cm = 0.01 * 2 * 3 / 0.1**2 + 0.9 / 0.1 * 3
    assert momentum.bias_bound(0.9, 1.0, 0.01, 2.0, 3.0) == pytest.approx(cm)
    assert momentum.variance_bound(0.9, 0.1, 2.0, 3.0) == pytest.approx(0.1 / 2 * 13)


# Estimation


@pytest.mark.parametrize("covariance", [0.0, 0.1, 0.4])
def test_optimal_gain_by_search(covariance):
    found = optimize.minimize_scalar(
        lambda K: estimation.combined_variance(K, 0.3, 1.2, covariance), (-1, 1)
    )
    K = estimation.optimal_gain_with_covariance(0.3, 1.2, covariance)
    assert pytest.approx(found.x, abs=1e-6) == K
    if covariance == 0:
        assert pytest.approx(K) == estimation.optimal_gain(0.3, 1.2)


def test_still_gradient_wants_a_negative_gain():
    b = 0.9
    K = estimation.optimal_gain_with_covariance((1 - b) / (1 + b), 1.0, 1 - b)
    assert pytest.approx(-(1 - b) / (2 * b)) == K


@pytest.mark.parametrize("t", [1, 2, 7, 40])
def test_correction_factors(t):
    w = weights(t, 0.9, 0.1)
    assert estimation.correction_factor(t, 0.9) == pytest.approx(w @ w)
    w_hat = w / w.sum()
    assert estimation.corrected_mean_factor(t, 0.9) == pytest.approx(w_hat @ w_hat)
    used = bias_corrections(t, 0.9, 0.999).fluctuation * (1 - 0.999**t)
    assert used == pytest.approx(w @ w)


def test_expected_fluctuation_from_the_weights():
    beta1, beta2, sigma, mean, steps = 0.8, 0.95, 1.3, 2.0, 15
    s = 0.0
    for t in range(1, steps + 1):
        residual = -weights(t, beta1, 1 - beta1)
        residual[-1] += 1
        square = sigma**2 * residual @ residual + (mean * residual.sum()) ** 2
        s = beta2 * s + (1 - beta2) * square
    values = estimation.expected_fluctuation(steps, beta1, beta2, sigma, mean)
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
    mean, variance = estimation.fuse(1.0, 0.4, -0.5, 2.0)
    assert mean == pytest.approx(first / total)
    assert variance == pytest.approx(second / total - mean**2)


# Convex


def test_sums_of_lemmas():
    g = np.random.default_rng(0).uniform(-0.5, 1, 30)
    rows = np.array([np.pad(weights(t, 0.9, 0.1), (0, 30 - t)) for t in range(1, 31)])
    averages = (rows / rows.sum(axis=1, keepdims=True)) @ g
    assert convex.average_square_sum(g, 0.9) == pytest.approx(averages @ averages)
    norm = np.sqrt((g**2).sum())
    assert convex.gradient_sum_bound(g, 0.7) == pytest.approx(2 * 0.7 * norm)
    assert convex.average_square_bound(g, 0.7, 0.9) == pytest.approx(4 * 0.49 / 0.01 * norm**2)


def test_regret_terms_as_printed():
    terms = convex.regret_terms(16, 0.5, 0.9, 2.0, 3.0, 5.0)
    assert terms == pytest.approx(
        (4 / 0.5 * 4, 2 * 2 * 3 / 0.1 * 5, 2 * 0.5 * 9 * 1.01 / 0.04 * 25)
    )


def test_gradients_of_the_online_losses():
    rng = np.random.default_rng(0)
    theta = rng.uniform(-0.9, 0.9, (3, 4, 5))
    z, xi = rng.uniform(-1, 1, 5), estimation.rare_noise(rng, (5,), 0.1)
    _, g = convex.losses_and_gradients(theta, z, xi)
    h = 1e-7
    above, _ = convex.losses_and_gradients(theta + h, z, xi)
    below, _ = convex.losses_and_gradients(theta - h, z, xi)
    assert g == pytest.approx((above - below) / (2 * h), abs=1e-6)


def test_best_in_hindsight_on_a_grid():
    rng = np.random.default_rng(1)
    z, xi = rng.uniform(-1, 1, (21, 1)), estimation.rare_noise(rng, (21, 1), 0.1)
    best, value = convex.best_in_hindsight(z, xi, np.array([[4.0]]))
    grid = np.linspace(-1, 1, 20_001)
    losses = (
        np.abs(grid - z).sum(axis=0),
        ((grid - z) ** 2).sum(axis=0) / 2,
        4 * grid,
        convex.SCALE * (grid**2 / 2 + xi * grid).sum(axis=0),
    )
    for p, loss in enumerate(losses):
        inside = min(max(best[0, p, 0], -1), 1)
        assert inside == pytest.approx(best[0, p, 0])
        assert best[0, p, 0] == pytest.approx(grid[loss.argmin()], abs=1e-4)
        assert value[0, p, 0] == pytest.approx(loss.min(), rel=1e-4)


def test_play_is_the_algorithm():
    """The quadratic's regret again, by one run of the filter written out."""
    T = 40
    trace = convex.play(T, 1, seed=5)
    z = np.random.default_rng(5).uniform(-1, 1, (T, 1))[:, 0]
    theta, m, s, loss = 1.0, 0.0, 0.0, 0.0
    for t in range(1, T + 1):
        g = theta - z[t - 1]
        loss += g**2 / 2
        estimate, m, s = wiener_filter(
            g, m, s, bias_corrections(t, 0.9, 0.999), beta1=0.9, beta2=0.999, eps=1e-300
        )
        theta -= 0.5 / np.sqrt(t) * estimate
    regret = loss - ((z - z.mean()) ** 2).sum() / 2
    gain_2k, quadratic = 1, 1
    assert trace.regret[-1, gain_2k, quadratic, 0] == pytest.approx(regret)


def test_runs_stay_where_the_quadratics_are_quadratic():
    assert convex.play(2000, 4, seed=0).D[:, :, (1, 3)].max() < 5


# Non-convex


def test_wells_are_smooth_and_not_convex():
    wells = nonconvex.Wells()
    theta, h = np.linspace(-4, 4, 401)[:, None], 1e-5
    slope = (wells.value(theta + h) - wells.value(theta - h)) / (2 * h)
    assert wells.true(theta)[:, 0] == pytest.approx(slope, abs=1e-8)
    assert np.abs(wells.true(theta)).max() <= wells.steepest
    curvature = (wells.true(theta + h) - wells.true(theta - h)) / (2 * h)
    assert np.abs(curvature).max() <= wells.L * (1 + 1e-8)
    assert curvature.min() < 0


def test_skewed_noise_has_mean_zero():
    problem = nonconvex.Skewed(curvature=1.0, scale=2.0, rare=0.25)
    noise = problem.noise(np.random.default_rng(0), (4000,))
    assert set(noise) == {problem.largest, -problem.scale}
    assert 0.25 * problem.largest - 0.75 * problem.scale == pytest.approx(0)


def test_the_skewed_run_stays_within_its_bound_on_the_gradient():
    rng = np.random.default_rng(3)
    problem = nonconvex.SKEWED
    betas = (0.5, 0.9)
    runs = estimation.bias_of_the_estimate(lambda rng: problem.noise(rng, (2000,)), rng, betas)
    bias = runs.mean()
    start = np.full((8, 1), nonconvex.START * abs(bias) / problem.curvature)
    every = np.arange(1, 5001)
    squares, least = nonconvex.descend(
        problem, start, 5000, 1 / problem.scale, (0.5, 0.9), rng, every
    )
    assert np.sqrt(squares.max()) < nonconvex.REACH * abs(bias)
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
    constants = nonconvex.Constants(b, G, L, alpha, gap, d)
    assert pytest.approx(C1 + C3 + C5 + C6) == constants.C7
    assert pytest.approx(gap + (C2 + C4) * alpha / (1 - b)) == constants.C8
    bound = (constants.C7 * alpha**2 * (np.log(9) + 1) + constants.C8) / (2 * alpha * 3)
    assert constants.bound(9) == pytest.approx(bound)


def test_smoothness_bound_of_a_parabola():
    """On L x^2 / 2 the printed right side minus the rise is L/2 (xi' - theta)^2 - or more."""
    theta, before, after = np.array([[1.0]]), np.array([[2.0]]), np.array([[-0.5]])
    bound = nonconvex.smoothness_bound(3.0, 3 * theta, theta, before, after)
    assert bound == pytest.approx(1.5 * 1 + 3 * 6.25 + 3 * -2.5)
    assert bound >= 1.5 * (0.25 - 4)
