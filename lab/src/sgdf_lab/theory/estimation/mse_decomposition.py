"""MSE = bias^2 + variance, for each estimator of a drifting gradient (lem:bias_variance)."""

import math
from typing import NamedTuple

import numpy as np

from sgdf_lab.support.palette import PURPLE, SKY, VERMILION
from sgdf_lab.theory.filtering import BETA1, SimulatedFilter
from sgdf_lab.theory.result import Array, Check, Curve, Panel, Result, mean_and_error

STEPS = 60
SIGNAL = 3 - 0.05 * np.arange(STEPS)
COLOURS = {"EMA": PURPLE, "CM": SKY, "SGDF": VERMILION}


class EstimatorRun(NamedTuple):
    """Squared bias and variance at each step, from one half of the runs, and the last estimates."""

    parts: list[tuple[float, float]]
    last: Array


def run_estimators(samples: int, rng: np.random.Generator) -> dict[str, EstimatorRun]:
    sgdf = SimulatedFilter()
    ema, cm = np.zeros(samples), np.zeros(samples)
    parts: dict[str, list[tuple[float, float]]] = {name: [] for name in COLOURS}
    for gradient in SIGNAL:
        g = gradient + rng.normal(size=samples)
        ema, cm = BETA1 * ema + (1 - BETA1) * g, BETA1 * cm + g
        estimates = {"EMA": ema, "CM": cm, "SGDF": sgdf(g)}
        for name, estimate in estimates.items():
            half = estimate[: samples // 2]
            parts[name].append((float((half.mean() - gradient) ** 2), float(half.var())))
    return {name: EstimatorRun(parts[name], estimates[name]) for name in COLOURS}


def check_mse_decomposition(seed: int = 0, effort: float = 1.0) -> Result:
    """The two sides of the identity, from different runs: within the same runs it is algebra."""
    rng = np.random.default_rng(seed)
    samples = int(20_000 * effort)
    runs = run_estimators(samples, rng)
    checks = [
        *(identity_check(name, run) for name, run in runs.items()),
        fresh_gradient_check(runs["SGDF"], rng),
        descent_check(samples, rng),
    ]
    return Result(
        name="mse-decomposition",
        title="Mean squared error of an estimate",
        label="lem:bias_variance",
        claim="The mean squared error of any estimate of the gradient is its squared bias plus "
        "its variance.",
        assumptions="the true gradient is deterministic (stated in the appendix, not in the main "
        "text, where the variance also lacks its expectation)",
        checks=tuple(checks),
        explanation="An identity. Against a fresh noisy gradient the noise σ² is added. While "
        "an optimizer descends, the true gradient itself depends on past noise; then "
        "Var(∇f) - 2 Cov(estimate, ∇f) is missing, as the last row shows.",
        panels=tuple(
            parts_panel(title, i, runs) for i, title in enumerate(("squared bias", "variance"))
        ),
    )


def identity_check(name: str, run: EstimatorRun) -> Check:
    mse, error = mean_and_error((run.last[len(run.last) // 2 :] - SIGNAL[-1]) ** 2)
    what = f"{name}, drifting gradient: MSE against bias² + variance"
    return Check(what, sum(run.parts[-1]), "=", mse, error * math.sqrt(2))


def fresh_gradient_check(run: EstimatorRun, rng: np.random.Generator) -> Check:
    """Compared with another noisy gradient, the error contains its noise."""
    fresh = SIGNAL[-1] + rng.normal(size=len(run.last))
    mse, error = mean_and_error((run.last - fresh) ** 2)
    what = "SGDF, against a fresh noisy gradient: bias² + variance + σ²"
    return Check(what, sum(run.parts[-1]) + 1, "=", mse, error * math.sqrt(2))


def descent_check(samples: int, rng: np.random.Generator) -> Check:
    """The two sides of the identity while the filter descends theta^2 / 2."""
    theta, sgdf = np.full(samples, 3.0), SimulatedFilter()
    for _ in range(60):
        gradient = theta
        estimate = sgdf(gradient + rng.normal(size=samples))
        theta = theta - 0.5 * estimate
    mse, error = mean_and_error((estimate - gradient) ** 2)
    printed = float((estimate.mean() - gradient.mean()) ** 2 + estimate.var())
    what = "SGDF while descending θ²/2 (lr 0.5): MSE against bias² + variance"
    return Check(what, printed, "=", mse, error, "remark")


def parts_panel(title: str, part: int, runs: dict[str, EstimatorRun]) -> Panel:
    steps = np.arange(1, STEPS + 1)
    curves = tuple(
        Curve(name, steps, [parts[part] for parts in run.parts], COLOURS[name])
        for name, run in runs.items()
    )
    return Panel(title, "step t", title, curves, logy=True)
