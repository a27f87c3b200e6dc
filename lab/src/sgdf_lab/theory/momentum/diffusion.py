"""The SDE of momentum: moments of its printed solution, exact linear systems, a simulation."""

from collections.abc import Callable
from typing import Any

import numpy as np

from sgdf_lab.theory.result import Array


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
