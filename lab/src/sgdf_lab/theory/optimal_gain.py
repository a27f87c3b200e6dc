"""The gain K of (1-K) m^ + K g: the optimal one, and s^ as the variance that it needs.

Section 3 and Appendix B. How well a moving signal is tracked is measured by benchmarks/tracking.py
and described in docs/filter.md.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from sgdf.filter import one_minus_power
from sgdf_lab.support.palette import BLACK, BLUE, GREY, PURPLE, VERMILION
from sgdf_lab.theory.filtering import BETA1, BETA2, SimulatedFilter
from sgdf_lab.theory.result import (
    Array,
    Check,
    Curve,
    Panel,
    Result,
    mean_and_error,
    variance_and_error,
)

# --- The average m^ and its combination with the gradient, (1-K) m^ + K g: variances and gains


def optimal_gain(var_m: Any, var_g: Any) -> Any:
    """The printed gain K = Var m^ / (Var m^ + Var g) (proof_method).

    It needs Cov(m^, g) = 0 and equal means, which the paper does not state.
    """
    return var_m / (var_m + var_g)


def optimal_gain_with_covariance(var_m: Any, var_g: Any, covariance: Any) -> Any:
    """The gain that minimises Var((1-K) m^ + K g) when m^ and g are correlated."""
    return (var_m - covariance) / (var_m + var_g - 2 * covariance)


def combined_variance(K: Any, var_m: Any, var_g: Any, covariance: Any = 0.0) -> Any:
    """Var((1-K) m^ + K g)."""
    return (1 - K) ** 2 * var_m + K**2 * var_g + 2 * K * (1 - K) * covariance


def correction_factor(t: Any, beta1: float) -> Any:
    """The printed factor (1-b1)(1-b1^2t)/(1+b1) from Var g to Var m_t (proof_correction)."""
    return (1 - beta1) * (1 - beta1 ** (2 * t)) / (1 + beta1)


def corrected_mean_factor(t: Any, beta1: float) -> Any:
    """Var m^_t / Var g: that of m_t over (1-b1^t)^2; 1 at t = 1, where m^ = g."""
    return correction_factor(t, beta1) / (1 - beta1**t) ** 2


def average_and_gradient(t: int, samples: int, rng: np.random.Generator) -> tuple[Array, ...]:
    """(m^_{t-1}, m^_t, g_t) of independent runs over gradients of mean 0 and variance 1."""
    m = np.zeros(samples)
    before = m
    for _ in range(t):
        before = m
        g = rng.normal(size=samples)
        m = BETA1 * m + (1 - BETA1) * g
    return before / one_minus_power(BETA1, t - 1), m / one_minus_power(BETA1, t), g


# --- The optimal gain: best for an average that does not yet contain g (proof_method)

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
        assumptions="none stated; the derivation drops Cov(m̂, g) and compares variances only",
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
            residual, gain = g - sgdf.moments.m, sgdf.gain
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


# --- The correction factor as the variance of m_t (proof_correction)


def simulated_variances(seed: int, effort: float) -> dict[int, tuple[float, float]]:
    """Var m_t / sigma^2 at some t, with its standard error."""
    rng = np.random.default_rng(seed)
    samples = int(100_000 * effort)
    m, variances = np.zeros(samples), {}
    for t in range(1, 51):
        m = BETA1 * m + (1 - BETA1) * rng.normal(size=samples)
        if t in (1, 5, 20, 50):
            variances[t] = variance_and_error(m)
    return variances


def check_correction_factor(seed: int = 0, effort: float = 1.0) -> Result:
    """The printed factor beside simulated variances."""
    variances = simulated_variances(seed, effort)
    checks = tuple(
        Check(f"Var mₜ / σ² at t={t}", float(correction_factor(t, BETA1)), "=", *variance)
        for t, variance in variances.items()
    )
    return Result(
        name="correction-factor",
        title="The correction factor",
        label="proof_correction",
        claim="The moving average mₜ of independent gradients of variance σ² has the variance "
        "σ²(1-β₁)(1-β₁^2t)/(1+β₁).",
        assumptions="gradients independent and of one variance",
        checks=checks,
        explanation="Exact at every t for mₜ. It is not the variance of m̂ₜ = mₜ/(1-β₁^t), which "
        "the gain needs: see the next statement.",
        panels=(variance_panel(variances),),
    )


def variance_panel(variances: dict[int, tuple[float, float]]) -> Panel:
    steps = np.arange(1, 51)
    simulated = [value for value, _ in variances.values()]
    return Panel(
        "Variance of the average, β₁=0.9",
        "step t",
        "variance / σ²",
        (
            Curve("mₜ: the printed factor", steps, correction_factor(steps, BETA1), BLACK),
            Curve("mₜ, simulated", list(variances), simulated, VERMILION, "o"),
            Curve("m̂ₜ, exact", steps, corrected_mean_factor(steps, BETA1), PURPLE, "--"),
        ),
        logy=True,
    )


# --- s^ as the estimate of Var m^: three gaps, and what closing them does to the error of g^

#: MSE of g^ at t = 1, 2, ... by (signal, factor).
Errors = dict[tuple[str, str], Array]


def squared_residual(t: Any, beta1: float, sigma: float = 1.0, mean: float = 0.0) -> Any:
    """E(g_t - m_t)^2 for gradients of a constant mean: b1^2 E(g_t - m_{t-1})^2."""
    past = correction_factor(t - 1, beta1) * sigma**2
    return beta1**2 * (sigma**2 + past + (mean * beta1 ** (t - 1)) ** 2)


def expected_fluctuation(
    steps: int, beta1: float, beta2: float, sigma: float = 1.0, mean: float = 0.0
) -> Array:
    """E s_t / (1 - b2^t) for t = 1..steps, which the algorithm takes for Var g."""
    values, s = np.empty(steps), 0.0
    for t in range(1, steps + 1):
        s = beta2 * s + (1 - beta2) * squared_residual(t, beta1, sigma, mean)
        values[t - 1] = s / (1 - beta2**t)
    return values


def exact_ratio(steps: int, mean: float = 0.0) -> Array:
    """E s^ / Var m^ for t = 1..steps; the correction factor cancels."""
    t = np.arange(1, steps + 1)
    return np.asarray(expected_fluctuation(steps, BETA1, BETA2, mean=mean) * (1 - BETA1**t) ** 2)


def simulated_ratio(seed: int, effort: float) -> dict[int, tuple[float, float]]:
    """The same at three times for a mean gradient of 0, with its standard error."""
    rng = np.random.default_rng(seed)
    samples = int(20_000 * effort)
    sgdf, ratios = SimulatedFilter(), {}
    for t in range(1, 101):
        sgdf(rng.normal(size=samples))
        if t in (1, 10, 100):
            ratios[t] = mean_and_error(sgdf.s_hat / corrected_mean_factor(t, BETA1))
    return ratios


def errors_by_factor(seed: int, effort: float) -> Errors:
    """MSE of g^ at t = 1..200 with the printed factor and with exact ones."""
    steps, samples = 200, int(10_000 * effort)
    expected = expected_fluctuation(steps, BETA1, BETA2)

    def of_the_mean(t: int) -> float:
        return float((1 - BETA1**t) ** -2)

    factors = {
        "printed": None,
        "exact factor of m̂": of_the_mean,
        "exact E ŝ": lambda t: of_the_mean(t) / expected[t - 1],
    }
    errors = {}
    for signal, step_size in (("still", 0.0), ("walking by 0.3σ", 0.3)):
        for factor, rescale in factors.items():
            rng = np.random.default_rng(seed)
            sgdf, truth, series = SimulatedFilter(rescale=rescale), np.zeros(samples), []
            for _ in range(steps):
                truth = truth + step_size * rng.normal(size=samples)
                estimate = sgdf(truth + rng.normal(size=samples))
                series.append(float(((estimate - truth) ** 2).mean()))
            errors[signal, factor] = np.array(series)
    return errors


def error_ratios(errors: Errors) -> dict[tuple[str, str, str], float]:
    """MSE with an exact factor over that with the printed one, early and late."""
    spans = {"at t=5": slice(4, 5), "after t=150": slice(150, None)}
    return {
        (signal, factor, when): float(series[span].mean() / errors[signal, "printed"][span].mean())
        for (signal, factor), series in errors.items()
        for when, span in spans.items()
        if factor != "printed"
    }


def check_variance_estimate(seed: int = 0, effort: float = 1.0) -> Result:
    """E s^ beside Var m^, and the error of g^ with s^ made exact."""
    simulated, errors = simulated_ratio(seed, effort), errors_by_factor(seed, effort)
    ratios = error_ratios(errors)
    percent = {key: 100 * (value - 1) for key, value in ratios.items()}
    still, walking = ((name, "exact E ŝ") for name in ("still", "walking by 0.3σ"))
    return Result(
        name="variance-estimate",
        title="ŝ as the variance of m̂",
        label="alg:WienerOptimization",
        claim="s times the correction factor accurately estimates the variance of the average.",
        assumptions="m and g independent and identically distributed",
        checks=tuple(ratio_checks(simulated, ratios)),
        explanation="Three gaps. The factor is that of mₜ, and m̂ₜ varies (1-β₁^t)^-2 more: 100 "
        "times at t=1, 2.4 at t=10. Since g - mₜ = β₁(g - mₜ₋₁), s estimates β₁²(σ² + Var mₜ₋₁), "
        "2β₁²/(1+β₁) = 0.85 of σ² in the long run. And m starts at 0, so a mean gradient g* puts "
        "β₁²g*²β₁^(2t-2) into s, which β₂=0.999 keeps for a thousand steps. Do they matter? With "
        f"ŝ made exact the error of ĝ changes by {percent[*still, 'at t=5']:+.0f} % at t=5 and "
        f"{percent[*still, 'after t=150']:+.0f} % later for a constant gradient, by "
        f"{percent[*walking, 'at t=5']:+.0f} % and {percent[*walking, 'after t=150']:+.1f} % for "
        "one that walks by 0.3σ per step: too small a gain is the better mistake, since m̂ₜ "
        "already holds g.",
        panels=(ratio_panel(simulated), error_panel(errors)),
        key="E ŝ / Var m̂ at t=10",
    )


def ratio_checks(
    simulated: dict[int, tuple[float, float]], ratios: dict[tuple[str, str, str], float]
) -> list[Check]:
    return [
        *(Check(f"E ŝ / Var m̂ at t={t}", 1.0, "=", *simulated[t]) for t in simulated),
        Check("E ŝ / Var m̂ at t=1000, exact", 1.0, "=", exact_ratio(1000)[-1]),
        Check("mean gradient 10σ: E ŝ / Var m̂ at t=100", 1.0, "=", exact_ratio(100, 10.0)[-1]),
        *(
            Check(f"our formula at t={t}", exact_ratio(t)[-1], "=", *simulated[t], "remark")
            for t in simulated
        ),
        *(
            Check(f"{signal}: MSE {when}, {factor} / printed", 1.0, "=", ratio, under="remark")
            for (signal, factor, when), ratio in ratios.items()
        ),
    ]


def ratio_panel(simulated: dict[int, tuple[float, float]]) -> Panel:
    t = np.arange(1, 1001)
    points = [value for value, _ in simulated.values()]
    return Panel(
        "How far ŝ is from Var m̂",
        "step t",
        "E ŝ / Var m̂",
        (
            Curve("mean gradient 0", t, exact_ratio(1000), VERMILION),
            Curve("mean gradient 3σ", t, exact_ratio(1000, 3.0), BLUE),
            Curve("simulated (mean 0)", list(simulated), points, VERMILION, "o"),
            Curve("correct", t, np.ones(1000), BLACK, "--"),
        ),
        logx=True,
        logy=True,
    )


def error_panel(errors: Errors) -> Panel:
    shades = {"printed": BLACK, "exact E ŝ": VERMILION}
    curves = tuple(
        Curve(
            f"{signal}, {factor}",
            np.arange(2, len(series) + 1),
            series[1:],
            shades[factor],
            "-" if signal == "still" else "--",
        )
        for (signal, factor), series in errors.items()
        if factor in shades
    )
    return Panel("Error of ĝ (gain 2K)", "step t", "MSE / σ²", curves, logx=True, logy=True)
