"""The optimal gain: best for an average that does not yet contain g (proof_method)."""

import math
from typing import NamedTuple

import numpy as np

from sgdf_lab.support.palette import BLACK, BLUE, GREY, VERMILION
from sgdf_lab.theory.estimation.averages import (
    average_and_gradient,
    combined_variance,
    corrected_mean_factor,
    optimal_gain,
    optimal_gain_with_covariance,
)
from sgdf_lab.theory.filtering import BETA1, SimulatedFilter
from sgdf_lab.theory.result import Array, Check, Curve, Panel, Result, mean_and_error

STEPS = 100
GAINS = np.linspace(-0.2, 0.3, 501)


class GainScan(NamedTuple):
    """The error of (1-K) m^ + K g for one average m^, by K as sampled and at the printed K."""

    errors: Array  #: for each of GAINS
    var_m: float
    printed: float  #: the printed K
    error_at_printed: float

    @property
    def best(self) -> float:
        return float(GAINS[np.argmin(self.errors)])


def scan_gains(average: Array, g: Array, t: int, covariance: float) -> GainScan:
    """Scan an average of t gradients whose true covariance with g is given."""
    var_m = float(corrected_mean_factor(t, BETA1))
    printed = float(optimal_gain(var_m, 1.0))
    error = float(combined_variance(printed, var_m, 1.0, covariance))
    return GainScan(combined_variance(GAINS, *sampled_moments(average, g)), var_m, printed, error)


def sampled_moments(average: Array, g: Array) -> tuple[float, float, float]:
    """Var m^, Var g and their covariance."""
    sampled = np.cov(average, g)
    return sampled[0, 0], sampled[1, 1], sampled[0, 1]


def check_wiener_gain(seed: int = 0, effort: float = 1.0) -> Result:
    """Scan K for the algorithm's average m^_t and for m^_{t-1}, which is independent of g."""
    rng = np.random.default_rng(seed)
    samples = int(200_000 * effort)
    before, after, g = average_and_gradient(STEPS, samples, rng)
    covariance = (1 - BETA1) / (1 - BETA1**STEPS)
    scan = scan_gains(after, g, STEPS, covariance)
    scan_before = scan_gains(before, g, STEPS - 1, 0.0)
    return Result(
        name="wiener-gain",
        title="The optimal gain",
        label="proof_method",
        claim="Var m̂ / (Var m̂ + Var g) is the K that makes (1-K)m̂ + Kg the best estimate.",
        assumptions="none stated; the derivation drops Cov(m̂, g) and compares variances alone",
        condition="m̂ and g are uncorrelated and have the same mean: true of m̂ₜ₋₁ and a "
        "constant gradient",
        checks=(
            *scan_checks(scan, scan_before, covariance, samples),
            *random_gain_checks(rng, effort),
        ),
        explanation="The algorithm's m̂ₜ already holds g with weight 1-β₁, so Cov(m̂,g) = (1-β₁)σ² "
        "is larger than Var m̂ = σ²(1-β₁)/(1+β₁). For a constant gradient the best gain is then "
        "-(1-β₁)/(2β₁) = -0.056 and any positive gain raises the error. A gradient that moves "
        "adds the squared bias of m̂ to Var m̂, and there a positive gain pays off. The "
        "K of Algorithm 1 further replaces Var g by one squared residual: it is random, on average "
        "five times the printed gain, yet small where the residual is large.",
        panels=(scan_panel(scan, scan_before), drift_panel()),
    )


def scan_checks(
    scan: GainScan, scan_before: GainScan, covariance: float, samples: int
) -> list[Check]:
    # The minimum moves with the sample covariance; the scan's own step is 0.001.
    near = 4 * 2 * math.sqrt(scan.var_m / samples) + 0.001
    exact = float(optimal_gain_with_covariance(scan.var_m, 1.0, covariance))
    best, no_worse = "K of least error, by a scan", "printed K: error no more than with K=0"
    formula = "average m̂ₜ: our formula, with the covariance"
    return [
        Check(f"average m̂ₜ: {best}", scan.printed, "=", scan.best, tolerance=near),
        Check(f"average m̂ₜ, {no_worse}", scan.var_m, "<=", scan.error_at_printed),
        Check(
            f"average m̂ₜ₋₁: {best}",
            scan_before.printed,
            "=",
            scan_before.best,
            under="condition",
            tolerance=near,
        ),
        Check(
            f"average m̂ₜ₋₁, {no_worse}",
            scan_before.var_m,
            "<=",
            scan_before.error_at_printed,
            under="condition",
        ),
        Check(formula, exact, "=", scan.best, under="remark", tolerance=near),
    ]


def random_gain_checks(rng: np.random.Generator, effort: float) -> list[Check]:
    """The mean of Algorithm 1's random K, plain and weighted by r^2, beside the printed gain."""
    samples = int(4000 * effort)
    sgdf, gains, weighted = SimulatedFilter(), [], []
    for t in range(300):
        g = rng.normal(size=samples)
        sgdf(g)
        if t >= 200:
            residual, gain = g - sgdf.m, sgdf.gain
            gains.append(float(gain.mean()))
            weighted.append(float((gain * residual**2).mean() / (residual**2).mean()))
    printed = float(optimal_gain(corrected_mean_factor(300, BETA1), 1.0))
    return [
        Check(what, printed, "=", mean, error, "remark")
        for what, (mean, error) in (
            ("Algorithm 1: mean of K", mean_and_error(np.array(gains))),
            ("Algorithm 1: mean of K weighted by r²", mean_and_error(np.array(weighted))),
        )
    ]


def scan_panel(scan: GainScan, scan_before: GainScan) -> Panel:
    return Panel(
        "Constant gradient, β₁=0.9, t=100",
        "K",
        "MSE of (1-K)m̂ + Kg, σ²=1",
        (
            Curve("with m̂ₜ (the algorithm's)", GAINS, scan.errors, VERMILION),
            Curve("with m̂ₜ₋₁ (independent of g)", GAINS, scan_before.errors, BLUE),
            Curve("printed K", [scan.printed] * 2, [0.04, 0.13], BLACK, "--"),
        ),
        ylim=(0.04, 0.16),
    )


def drift_panel() -> Panel:
    """The best gain on m^_t by the drift of the gradient: the bias joins the variance."""
    drift = np.linspace(0, 0.15, 100)
    var_m, covariance = corrected_mean_factor(1000, BETA1), 1 - BETA1
    bias = drift * BETA1 / (1 - BETA1)  # of m^_t about a signal that moves by `drift` per step
    best = optimal_gain_with_covariance(var_m + bias**2, 1.0, covariance)
    printed = np.full_like(drift, optimal_gain(var_m, 1.0))
    return Panel(
        "Drifting gradient",
        "drift per step / σ",
        "gain",
        (
            Curve("best for m̂ₜ", drift, best, VERMILION),
            Curve("printed K", drift, printed, BLACK, "--"),
            Curve("zero", drift, np.zeros_like(drift), GREY, ":"),
        ),
    )
