"""Momentum m <- beta m + mu g as an estimate of the gradient, and as an SDE.

Section 2 and Appendix A. EMA is mu = 1 - beta, CM is mu = 1. Time is counted in iterations and
kappa stands for 1 - beta. The printed bounds are in momentum_bounds.py.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from sgdf_lab.support.palette import BLACK, BLUE, GREEN, PURPLE, SKY, VERMILION
from sgdf_lab.theory.result import (
    Array,
    Check,
    Curve,
    Curves,
    Result,
    exponent,
    mean_and_error,
    stated,
    variance_and_error,
)

# --- The definition of unified momentum: what m_t estimates (def:unify_momentum)

KINDS: dict[str, Callable[[float], float]] = {"EMA": lambda beta: 1 - beta, "CM": lambda beta: 1.0}
COLOURS = {"EMA": PURPLE, "CM": SKY}
BETA, SIGMA, STEPS = 0.9, 1.0, 60
SIGNALS = {"constant": np.ones(STEPS), "drifting": 1 - 0.02 * np.arange(STEPS)}


def momentum_mean(gradients: Array, beta: float, mu: float) -> Array:
    """E m_t = mu sum_i beta^(t-i) grad_i for t = 1, 2, ... (m_0 = 0)."""
    means, m = np.empty(len(gradients)), 0.0
    for t, gradient in enumerate(gradients):
        m = beta * m + mu * gradient
        means[t] = m
    return means


def momentum_variance(t: Any, beta: float, mu: float, sigma: float) -> Any:
    """Var m_t = mu^2 sigma^2 (1 - beta^2t) / (1 - beta^2), whatever the deterministic gradient."""
    return mu**2 * sigma**2 * (1 - beta ** (2 * t)) / (1 - beta**2)


def simulate_momentum(
    gradients: Array, beta: float, mu: float, sigma: float, paths: int, rng: np.random.Generator
) -> Array:
    """m_T of `paths` independent runs over the given true gradients."""
    m = np.zeros(paths)
    for gradient in gradients:
        m = beta * m + mu * (gradient + sigma * rng.normal(size=paths))
    return m


def check_unified_momentum(seed: int = 0, effort: float = 1.0) -> Result:
    """The exact moments of m_t beside simulated ones, for a constant and a drifting gradient."""
    rng, t = np.random.default_rng(seed), np.arange(1, STEPS + 1)
    checks: list[Check] = []
    biases: list[Curve] = []
    deviations: list[Curve] = []
    for kind, mu_of in KINDS.items():
        mu, colour = mu_of(BETA), COLOURS[kind]
        variances = momentum_variance(t, BETA, mu, SIGMA)
        deviations.append(Curve(kind, t, np.sqrt(variances), colour))
        for signal, gradients in SIGNALS.items():
            means = momentum_mean(gradients, BETA, mu)
            m = simulate_momentum(gradients, BETA, mu, SIGMA, int(40_000 * effort), rng)
            what, at = f"{kind}, {signal}", f"at t={STEPS}"
            checks += [
                Check(f"{what}: mean {at}", means[-1], "=", *mean_and_error(m)),
                Check(f"{what}: variance {at}", variances[-1], "=", *variance_and_error(m)),
            ]
            style = "-" if signal == "constant" else "--"
            biases.append(Curve(what, t, means - gradients, colour, style))
    return stated("unified-momentum", checks, biases, deviations)


# --- The SDE of momentum: moments of its printed solution, exact linear systems, a simulation


def diffusion_mean(t: Any, beta: float, mu: float, gradient: float) -> Any:
    """E m(t) of the printed solution for a constant gradient (lem:unify_momentum_solution)."""
    return mu * gradient * (1 - np.exp(-(1 - beta) * t)) / (1 - beta)


def diffusion_variance(t: Any, beta: float, mu: float, sigma: float) -> Any:
    """Var m(t) of the printed solution for a deterministic gradient."""
    return mu**2 * sigma**2 * (1 - np.exp(-2 * (1 - beta) * t)) / (2 * (1 - beta))


def linear_moments(
    drift: Array, noise: Array, start: Array, times: Array
) -> tuple[list[Array], list[Array]]:
    """Mean and covariance of dx = A x dt + B dW at each time, by diagonalising A."""
    values, vectors = np.linalg.eig(drift)
    inverse = np.linalg.inv(vectors)
    spread = inverse @ noise @ noise.T @ inverse.T
    sums = values[:, None] + values[None, :]
    means, covariances = [], []
    for t in times:
        means.append((vectors @ np.diag(np.exp(values * t)) @ inverse @ start).real)
        inner = spread * np.expm1(sums * t) / sums
        covariances.append((vectors @ inner @ vectors.T).real)
    return means, covariances


def quadratic_system(kappa: float, alpha: float) -> tuple[Array, Array]:
    """Drift and noise of (m, theta) for EMA on theta^2 / 2 with noise of variance 1."""
    return np.array([[-kappa, kappa], [-alpha, 0.0]]), np.array([[kappa], [0.0]])


def simulate_diffusion(
    gradient: Callable[[Array], Array],
    *,
    beta: float,
    mu: float,
    sigma: float,
    alpha: float,
    theta: float,
    time: float,
    dt: float,
    paths: int,
    rng: np.random.Generator,
) -> tuple[Array, Array, Array]:
    """The printed SDE by the Euler-Maruyama scheme: (times, m, theta), one row per time."""
    steps = round(time / dt)
    m, position = np.zeros(paths), np.full(paths, theta)
    ms, thetas = np.empty((steps + 1, paths)), np.empty((steps + 1, paths))
    ms[0], thetas[0] = m, position
    for n in range(steps):
        kick = mu * sigma * np.sqrt(dt) * rng.normal(size=paths)
        slope = gradient(position)
        position = position - alpha * m * dt
        m = m + (-(1 - beta) * m + mu * slope) * dt + kick
        ms[n + 1], thetas[n + 1] = m, position
    return np.linspace(0, steps * dt, steps + 1), ms, thetas


# --- Momentum as an SDE: in which limit it is one (lem:unify_momentum_sde)


def variance_ratio(beta: float, alpha: float) -> float:
    """Var m on theta^2 / 2, the iteration's over the SDE's, after five times 1 / (1 - beta)."""
    mu, steps = 1 - beta, round(5 / (1 - beta))
    covariance = iterated_covariance(beta, mu, alpha, steps)
    drift, noise = quadratic_system(mu, alpha)
    _, printed = linear_moments(drift, noise, np.zeros(2), np.array([float(steps)]))
    return float(covariance[0, 0] / printed[0][0, 0])


def iterated_covariance(beta: float, mu: float, alpha: float, steps: int) -> Array:
    """The covariance of (m, theta) after `steps` iterations on theta^2 / 2, noise variance 1."""
    keep = np.array([[beta, mu], [-alpha * beta, 1 - alpha * mu]])
    kick = np.array([[mu], [-alpha * mu]])
    covariance = np.zeros((2, 2))
    for _ in range(steps):
        covariance = keep @ covariance @ keep.T + kick @ kick.T
    return covariance


def check_sde(seed: int = 0, effort: float = 1.0) -> Result:
    """The iteration becomes the SDE as 1-β shrinks, not as the learning rate does."""
    kappas = np.array([0.3, 0.1, 0.03, 0.01, 0.003])
    gaps = np.array([variance_ratio(1 - kappa, 1e-6) - 1 for kappa in kappas])
    order, ratio = exponent(kappas, gaps), variance_ratio(1 - 1e-3, 1e-6)
    what = "variance of m, iteration / SDE"
    alpha, steps = 0.01, 100
    # With t_n = n γα, as in the proof, m would hardly have begun to move.
    slowed = float(diffusion_mean(steps * alpha, 0.9, 0.1, 1.0))
    moved = float(momentum_mean(np.ones(steps), 0.9, 0.1)[-1])
    gap = "order in 1-β of the gap between the two"
    time = "β=0.9, γα=0.01, 100 iterations: E m / ∇f, time counted as n·γα"
    checks = [
        # A smaller learning rate does not bring the two variances together; a larger β does.
        *(
            Check(f"θ²/2, β=0.5, γα={rate:g}: {what}", 1.0, "=", variance_ratio(0.5, rate))
            for rate in (1e-2, 1e-4, 1e-6)
        ),
        Check(f"θ²/2, β=0.999, γα=1e-6: {what}", 1.0, "=", ratio, 0.0, "condition", 1e-3),
        Check(gap, 1.0, "=", order, 0.0, "condition", 0.05),
        Check(time, slowed, "=", moved),
    ]
    t = np.arange(0, 41)
    means: list[Curve] = []
    for beta, shade in ((0.5, BLUE), (0.9, VERMILION)):
        means += [
            Curve(f"iteration, β={beta}", t[::2], (1 - beta**t)[::2], shade, "o"),
            Curve(f"SDE, β={beta}", t, diffusion_mean(t, beta, 1 - beta, 1), shade),
        ]
    variances = (
        Curve("exact, any γα", kappas, gaps, COLOURS["EMA"], "o-"),
        Curve("(1-β)/2", kappas, kappas / 2, BLACK, "--"),
    )
    return stated("sde", checks, means, variances)


# --- The printed solution of the SDE, the limit of an Euler scheme (lem:unify_momentum_solution)


def euler_moments(
    dt: float, time: float, beta: float, mu: float, sigma: float
) -> tuple[float, float]:
    """The Euler scheme's exact mean and variance of m(time), for a constant gradient of 1."""
    keep, steps = 1 - (1 - beta) * dt, round(time / dt)
    mean = mu * dt * (1 - keep**steps) / (1 - keep)
    return mean, mu**2 * sigma**2 * dt * (1 - keep ** (2 * steps)) / (1 - keep**2)


def check_sde_solution(seed: int = 0, effort: float = 1.0) -> Result:
    """An Euler scheme converges to the printed solution as its step shrinks."""
    convergence, gaps = constant_gradient()
    moments, paths = on_quadratic(seed, effort)
    return stated("sde-solution", (*convergence, *moments), gaps, paths)


def on_quadratic(seed: int, effort: float) -> tuple[list[Check], Curves]:
    """theta and m drive each other: the printed solution is a matrix exponential.

    Its moments beside simulated ones at the end; the tolerances are the scheme's own error.
    """
    alpha, kappa = 0.05, 0.1
    times, ms, thetas = simulate_diffusion(
        lambda theta: theta,
        beta=1 - kappa,
        mu=kappa,
        sigma=1.0,
        alpha=alpha,
        theta=1.0,
        time=60,
        dt=0.05,
        paths=max(500, int(4000 * effort)),
        rng=np.random.default_rng(seed),
    )
    drift, noise = quadratic_system(kappa, alpha)
    moments = linear_moments(drift, noise, np.array([0.0, 1.0]), times)
    means, covariances = np.array(moments[0]), np.array(moments[1])
    checks: list[Check] = []
    curves: list[Curve] = []
    shown = slice(0, None, 40)
    for i, (what, paths, shade) in enumerate((("m", ms, COLOURS["EMA"]), ("θ", thetas, BLUE))):
        mean, variance, last = means[:, i], covariances[:, i, i], paths[-1]
        at, measured, spread = f"of {what} at t=60", mean_and_error(last), variance_and_error(last)
        checks += [
            Check(f"quadratic: mean {at}", mean[-1], "=", *measured, tolerance=2e-3),
            Check(f"quadratic: variance {at}", variance[-1], "=", *spread, tolerance=5e-4),
        ]
        simulated = paths.mean(axis=1)[shown]
        curves += [
            Curve(f"{what}, printed solution", times, mean, shade, band=np.sqrt(variance)),
            Curve(f"{what}, simulated", times[shown], simulated, shade, "o"),
        ]
    return checks, curves


def constant_gradient() -> tuple[list[Check], Curves]:
    """The Euler scheme's moments at t=20, exact for each step size, beside the printed ones."""
    beta, mu, sigma, time = 0.9, 0.1, 1.0, 20.0
    steps = np.array([1.0, 0.5, 0.25, 0.125, 0.0625])
    printed = np.array(
        [diffusion_mean(time, beta, mu, 1.0), diffusion_variance(time, beta, mu, sigma)]
    )
    euler = np.array([euler_moments(dt, time, beta, mu, sigma) for dt in steps])
    gaps = np.abs(euler - printed)
    # Richardson extrapolation cancels the first order: the rest must be close to the formula.
    limit = 2 * euler[-1] - euler[-2]
    checks = []
    for i, what in enumerate(("mean", "variance")):
        order, dt_to_0 = f"order in dt of the Euler scheme's {what}", f"{what} at t=20, dt → 0"
        checks += [
            Check(order, 1.0, "=", exponent(steps, gaps[:, i]), tolerance=0.05),
            Check(f"constant gradient: {dt_to_0}", printed[i], "=", limit[i], tolerance=1e-4),
        ]
    panel = (
        Curve("mean", steps, gaps[:, 0], COLOURS["EMA"], "o-"),
        Curve("variance", steps, gaps[:, 1], GREEN, "o-"),
        Curve("slope 1", steps, steps * gaps[0, 0], BLACK, ":"),
    )
    return checks, panel
