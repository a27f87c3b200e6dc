"""Momentum as an SDE: in which limit it is one (lem:unify_momentum_sde)."""

import numpy as np

from sgdf_lab.support.palette import BLACK, BLUE, VERMILION
from sgdf_lab.theory.momentum.diffusion import diffusion_mean, linear_moments, quadratic_system
from sgdf_lab.theory.momentum.unified_momentum import COLOURS, momentum_mean
from sgdf_lab.theory.result import Array, Check, Curve, Panel, Result, exponent


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
    order = exponent(kappas, gaps)
    return Result(
        name="sde",
        title="Momentum as an SDE",
        label="lem:unify_momentum_sde",
        claim="For a small learning rate γα the iteration is the SDE "
        "dm = [-(1-β)m + μ∇f]dt + μσ dW, dθ = -γα m dt.",
        assumptions="γα small; μ in [0, 1) in the lemma, which leaves out CM's μ = 1",
        checks=(
            *variance_checks(),
            Check(
                "order in 1-β of the gap between the two", 1.0, "=", order, 0.0, "condition", 0.05
            ),
            time_check(),
        ),
        condition="1-β is small too, and a unit of time is one iteration (not γα of one)",
        explanation="The learning rate does not enter m while the gradient is constant: the "
        "iteration's variance is 2/(1+β) times the SDE's for every γα. The two agree as 1-β → 0 "
        "with time counted in iterations, the gap being (1-β)/2 to first order. The proof's time "
        "nγα would slow m down by 1/(γα).",
        panels=(mean_panel(), gap_panel(kappas, gaps)),
    )


def variance_checks() -> list[Check]:
    """A smaller learning rate does not bring the two variances together; a larger β does."""
    what = "variance of m, iteration / SDE"
    return [
        *(
            Check(f"θ²/2, β=0.5, γα={alpha:g}: {what}", 1.0, "=", variance_ratio(0.5, alpha))
            for alpha in (1e-2, 1e-4, 1e-6)
        ),
        Check(
            f"θ²/2, β=0.999, γα=1e-6: {what}",
            1.0,
            "=",
            variance_ratio(1 - 1e-3, 1e-6),
            under="condition",
            tolerance=1e-3,
        ),
    ]


def time_check() -> Check:
    """With t_n = n γα, as in the proof, m would hardly have begun to move."""
    alpha, steps = 0.01, 100
    return Check(
        "β=0.9, γα=0.01, 100 iterations: E m / ∇f, time counted as n·γα",
        float(diffusion_mean(steps * alpha, 0.9, 0.1, 1.0)),
        "=",
        float(momentum_mean(np.ones(steps), 0.9, 0.1)[-1]),
    )


def mean_panel() -> Panel:
    t = np.arange(0, 41)
    curves = tuple(
        curve
        for beta, shade in ((0.5, BLUE), (0.9, VERMILION))
        for curve in (
            Curve(f"iteration, β={beta}", t[::2], (1 - beta**t)[::2], shade, "o"),
            Curve(f"SDE, β={beta}", t, diffusion_mean(t, beta, 1 - beta, 1), shade),
        )
    )
    return Panel("Mean, constant gradient 1, EMA", "iterations", "E m", curves)


def gap_panel(kappas: Array, gaps: Array) -> Panel:
    return Panel(
        "Variance, long after the start",
        "1-β",
        "variance: iteration / SDE − 1",
        (
            Curve("exact, any γα", kappas, gaps, COLOURS["EMA"], "o-"),
            Curve("(1-β)/2", kappas, kappas / 2, BLACK, "--"),
        ),
        logx=True,
        logy=True,
    )
