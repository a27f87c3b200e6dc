"""The printed solution of the SDE, the limit of an Euler scheme (lem:unify_momentum_solution)."""

from typing import NamedTuple

import numpy as np

from sgdf_lab.support.palette import BLACK, BLUE, GREEN
from sgdf_lab.theory.momentum.diffusion import (
    diffusion_mean,
    diffusion_variance,
    linear_moments,
    quadratic_system,
    simulate_diffusion,
)
from sgdf_lab.theory.momentum.unified_momentum import COLOURS
from sgdf_lab.theory.result import (
    Array,
    Check,
    Curve,
    Panel,
    Result,
    exponent,
    mean_and_error,
    variance_and_error,
)


def euler_moments(
    dt: float, time: float, beta: float, mu: float, sigma: float
) -> tuple[float, float]:
    """The Euler scheme's exact mean and variance of m(time), for a constant gradient of 1."""
    keep, steps = 1 - (1 - beta) * dt, round(time / dt)
    mean = mu * dt * (1 - keep**steps) / (1 - keep)
    return mean, mu**2 * sigma**2 * dt * (1 - keep ** (2 * steps)) / (1 - keep**2)


class QuadraticRun(NamedTuple):
    """One of m and theta on theta^2 / 2: simulated paths beside the moments of the solution."""

    what: str
    times: Array
    paths: Array
    mean: Array
    variance: Array


def run_on_quadratic(seed: int, effort: float) -> list[QuadraticRun]:
    """theta and m drive each other: the printed solution is a matrix exponential."""
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
    return [
        QuadraticRun(what, times, paths, means[:, i], covariances[:, i, i])
        for i, (what, paths) in enumerate((("m", ms), ("θ", thetas)))
    ]


def check_sde_solution(seed: int = 0, effort: float = 1.0) -> Result:
    """An Euler scheme converges to the printed solution as its step shrinks."""
    constant_checks, constant_panel = constant_gradient()
    runs = run_on_quadratic(seed, effort)
    return Result(
        name="sde-solution",
        title="Solution of the SDE",
        label="lem:unify_momentum_solution",
        claim="m(t) is the exponentially weighted integral of past gradients and of past noise.",
        assumptions="m(0) = 0, θ(0) given; θ is on both sides, so the solution is implicit",
        checks=(*constant_checks, *(check for run in runs for check in quadratic_checks(run))),
        explanation="The Euler scheme's mean and variance converge to the printed ones at first "
        "order in its step, and on a quadratic, where θ and m drive each other, its simulated "
        "moments are those of the matrix exponential.",
        panels=(constant_panel, quadratic_panel(runs)),
    )


def constant_gradient() -> tuple[list[Check], Panel]:
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
    panel = Panel(
        "Constant gradient: error at t=20",
        "step dt of the Euler scheme",
        "distance from the printed value",
        (
            Curve("mean", steps, gaps[:, 0], COLOURS["EMA"], "o-"),
            Curve("variance", steps, gaps[:, 1], GREEN, "o-"),
            Curve("slope 1", steps, steps * gaps[0, 0], BLACK, ":"),
        ),
        logx=True,
        logy=True,
    )
    return checks, panel


def quadratic_checks(run: QuadraticRun) -> list[Check]:
    """At the end; the tolerances are the scheme's own error at its step."""
    at, last = f"of {run.what} at t=60", run.paths[-1]
    mean, variance = mean_and_error(last), variance_and_error(last)
    return [
        Check(f"quadratic: mean {at}", run.mean[-1], "=", *mean, tolerance=2e-3),
        Check(f"quadratic: variance {at}", run.variance[-1], "=", *variance, tolerance=5e-4),
    ]


def quadratic_panel(runs: list[QuadraticRun]) -> Panel:
    shown, shades = slice(0, None, 40), {"m": COLOURS["EMA"], "θ": BLUE}
    curves: list[Curve] = []
    for what, times, paths, mean, variance in runs:
        simulated = paths.mean(axis=1)[shown]
        curves += [
            Curve(f"{what}, printed solution", times, mean, shades[what], band=np.sqrt(variance)),
            Curve(f"{what}, simulated", times[shown], simulated, shades[what], "o"),
        ]
    title = "Quadratic, EMA, α=0.05"
    return Panel(title, "time t (iterations)", "mean ± standard deviation", tuple(curves))
