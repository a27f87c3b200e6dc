"""The definition of unified momentum: what m_t estimates (def:unify_momentum)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from sgdf_lab.support.palette import PURPLE, SKY
from sgdf_lab.theory.result import (
    Array,
    Check,
    Curve,
    Panel,
    Result,
    mean_and_error,
    variance_and_error,
)

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


class LastMoments(NamedTuple):
    """Mean and variance of the last m, each with its standard error."""

    kind: str
    signal: str
    mean: tuple[float, float]
    variance: tuple[float, float]


def simulate_all(seed: int, effort: float) -> list[LastMoments]:
    rng = np.random.default_rng(seed)
    rows = []
    for kind, mu_of in KINDS.items():
        for signal, gradients in SIGNALS.items():
            m = simulate_momentum(gradients, BETA, mu_of(BETA), SIGMA, int(40_000 * effort), rng)
            rows.append(LastMoments(kind, signal, mean_and_error(m), variance_and_error(m)))
    return rows


def check_unified_momentum(seed: int = 0, effort: float = 1.0) -> Result:
    """The exact moments of m_t beside simulated ones, for a constant and a drifting gradient."""
    checks = []
    for kind, signal, mean, variance in simulate_all(seed, effort):
        mu = KINDS[kind](BETA)
        exact_mean = momentum_mean(SIGNALS[signal], BETA, mu)[-1]
        exact_variance = momentum_variance(STEPS, BETA, mu, SIGMA)
        checks += [
            Check(f"{kind}, {signal}: mean at t={STEPS}", exact_mean, "=", *mean),
            Check(f"{kind}, {signal}: variance at t={STEPS}", exact_variance, "=", *variance),
        ]
    return Result(
        name="unified-momentum",
        title="Unified momentum: mean and variance",
        label="def:unify_momentum",
        claim="m ← βm + μg averages past gradients: EMA (μ=1-β) keeps their scale, CM (μ=1) sums "
        "them. We state its exact moments, with which the bounds below are compared.",
        assumptions="gradients with independent noise of variance σ², m₀ = 0",
        checks=tuple(checks),
        explanation="E m = μ Σ β^(t-i) ∇f_i and Var m = μ²σ²(1-β^2t)/(1-β²), as simulated. EMA "
        "lags a drift of c per step by cβ/(1-β); CM is 1/(1-β) times as large, so as an "
        "estimate of the gradient it has the wrong scale before anything else.",
        panels=(bias_panel(), deviation_panel()),
    )


def bias_panel() -> Panel:
    curves = tuple(
        Curve(
            f"{kind}, {signal}",
            np.arange(1, STEPS + 1),
            momentum_mean(gradients, BETA, mu_of(BETA)) - gradients,
            COLOURS[kind],
            "-" if signal == "constant" else "--",
        )
        for kind, mu_of in KINDS.items()
        for signal, gradients in SIGNALS.items()
    )
    return Panel("Bias of m, β=0.9", "step t", "E m − ∇f", curves, ylim=(-1.5, 14))


def deviation_panel() -> Panel:
    t = np.arange(1, STEPS + 1)
    curves = tuple(
        Curve(kind, t, np.sqrt(momentum_variance(t, BETA, mu_of(BETA), SIGMA)), COLOURS[kind])
        for kind, mu_of in KINDS.items()
    )
    title = "Standard deviation, σ=1"
    return Panel(title, "step t", "standard deviation of m", curves, logy=True)
