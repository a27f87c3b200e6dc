"""Estimating a gradient from m^ and g: errors, the optimal gain, the correction factor, fusion.

Section 3 and Appendix B. What these say of tracking a moving signal is measured by
benchmarks/tracking.py and told in docs/filter.md.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from sgdf.filter import Corrections, bias_corrections, one_minus_power, wiener_filter
from sgdf.support.palette import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, VERMILION, colour
from sgdf.theory.result import (
    Array,
    Check,
    Curve,
    Panel,
    Result,
    mean_and_error,
    variance_and_error,
)

BETA1, BETA2 = 0.9, 0.999
NO_EPS = 1e-300  # the paper has no eps


# Formulas


def optimal_gain(var_m: Any, var_g: Any) -> Any:
    """The printed gain K = Var m^ / (Var m^ + Var g) (proof_method).

    Silently needs Cov(m^, g) = 0 and the same mean for both.
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
    """Var m^_t / Var g: that of m_t over (1-b1^t)^2, 1 at t = 1 where m^ = g."""
    return correction_factor(t, beta1) / (1 - beta1**t) ** 2


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


def fuse(mean_m: float, var_m: float, mean_g: float, var_g: float) -> tuple[float, float]:
    """Mean and variance of the normalised product of two Gaussian densities (proof_section3.2)."""
    total = var_m + var_g
    return (var_g * mean_m + var_m * mean_g) / total, var_m * var_g / total


# Simulations


class Filter:
    """The algorithm over independent coordinates; `rescale(t)` multiplies its s^."""

    def __init__(self, shape: Any, gain_scale: Any = 2.0, rescale: Any = None) -> None:
        self.m, self.s, self.t = np.zeros(shape), np.zeros(shape), 0
        self.gain_scale, self.rescale = gain_scale, rescale

    def __call__(self, g: Array) -> Array:
        self.t += 1
        corrections = bias_corrections(self.t, BETA1, BETA2)
        if self.rescale is not None:
            corrections = corrections._replace(
                fluctuation=corrections.fluctuation * self.rescale(self.t)
            )
        estimate, self.m, self.s = wiener_filter(
            g,
            self.m,
            self.s,
            corrections,
            beta1=BETA1,
            beta2=BETA2,
            eps=NO_EPS,
            gain_scale=self.gain_scale,
        )
        return np.asarray(estimate)

    def gain(self, g: Array) -> Array:
        """K of the step just taken."""
        corrections: Corrections = bias_corrections(self.t, BETA1, BETA2)
        s_hat = self.s * corrections.fluctuation
        return np.asarray(s_hat / (s_hat + (g - self.m / corrections.trend) ** 2 + NO_EPS))


def average_and_gradient(t: int, samples: int, rng: np.random.Generator) -> tuple[Array, ...]:
    """(m^_{t-1}, m^_t, g_t) of independent runs over gradients of mean 0 and variance 1."""
    m = np.zeros(samples)
    before = m
    for _ in range(t):
        before = m
        g = rng.normal(size=samples)
        m = BETA1 * m + (1 - BETA1) * g
    return before / one_minus_power(BETA1, t - 1), m / one_minus_power(BETA1, t), g


def rare_noise(rng: np.random.Generator, shape: tuple[int, ...], rare: Any) -> Array:
    """Skewed noise of mean 0: large with probability `rare`, else -1."""
    return np.where(rng.random(shape) < rare, (1 - rare) / rare, -1.0)


def bias_of_the_estimate(
    noise: Callable[[np.random.Generator], Array],
    rng: np.random.Generator,
    betas: tuple[float, float] = (BETA1, BETA2),
    gain_scale: float = 2.0,
) -> Array:
    """g^ minus the gradient, averaged over 600 steps of each run over a gradient that stands still.

    g is taken off rather than its mean: that leaves the mean and takes most of the scatter away.
    """
    steps, burn_in = 800, 200
    m, s, total = 0.0, 0.0, 0.0
    for t in range(1, steps + 1):
        g = noise(rng)
        estimate, m, s = wiener_filter(
            g,
            m,
            s,
            bias_corrections(t, *betas),
            beta1=betas[0],
            beta2=betas[1],
            eps=NO_EPS,
            gain_scale=gain_scale,
        )
        if t > burn_in:
            total = total + (estimate - g)
    return np.asarray(total) / (steps - burn_in)


# Statements


def mean_squared_error(seed: int = 0, effort: float = 1.0) -> Result:
    """MSE = bias^2 + variance, for each estimator of a drifting gradient."""
    rng = np.random.default_rng(seed)
    T, samples = 60, int(20_000 * effort)
    signal = 3 - 0.05 * np.arange(T)
    sgdf = Filter(samples)
    ema, cm = np.zeros(samples), np.zeros(samples)
    parts: dict[str, list[tuple[float, float]]] = {"EMA": [], "CM": [], "SGDF": []}
    checks, estimates = [], {}
    for gradient in signal:
        g = gradient + rng.normal(size=samples)
        ema, cm = BETA1 * ema + (1 - BETA1) * g, BETA1 * cm + g
        estimates = {"EMA": ema, "CM": cm, "SGDF": sgdf(g)}
        for name, estimate in estimates.items():
            # The two sides from different runs: within the same ones it is an identity.
            half = estimate[: samples // 2]
            parts[name].append((float((half.mean() - gradient) ** 2), float(half.var())))
    for name, estimate in estimates.items():
        error, spread = mean_and_error((estimate[samples // 2 :] - signal[-1]) ** 2)
        total = sum(parts[name][-1])
        what = f"{name}, drifting gradient: MSE against bias² + variance"
        checks.append(Check(what, total, "=", error, spread * math.sqrt(2)))
    fresh = signal[-1] + rng.normal(size=samples)
    error, spread = mean_and_error((estimates["SGDF"] - fresh) ** 2)
    checks.append(
        Check(
            "SGDF, against a fresh noisy gradient: bias² + variance + σ²",
            sum(parts["SGDF"][-1]) + 1,
            "=",
            error,
            spread * math.sqrt(2),
        )
    )
    checks.append(descent_decomposition(samples, rng))
    steps = np.arange(1, T + 1)
    shades = {"EMA": colour("sgd-ema"), "CM": colour("sgd-cm"), "SGDF": colour("sgdf")}
    return Result(
        name="mse-decomposition",
        title="Mean squared error of an estimate",
        label="lem:bias_variance",
        claim="The mean squared error of any estimate of the gradient is its squared bias plus "
        "its variance.",
        assumptions="the true gradient is deterministic (said in the appendix, not in the main "
        "text, where the variance also lacks its expectation)",
        checks=tuple(checks),
        explanation="An identity. Against a fresh noisy gradient the noise σ² comes on top. While "
        "an optimizer descends, the true gradient itself depends on the noise met before; then "
        "Var(∇f) - 2 Cov(estimate, ∇f) is missing, as the last row shows.",
        panels=tuple(
            Panel(
                title,
                "step t",
                title,
                tuple(
                    Curve(name, steps, [row[i] for row in rows], shades[name])
                    for name, rows in parts.items()
                ),
                logy=True,
            )
            for i, title in enumerate(("squared bias", "variance"))
        ),
    )


def descent_decomposition(samples: int, rng: np.random.Generator) -> Check:
    """The two sides of the identity while the filter descends theta^2 / 2."""
    theta, sgdf = np.full(samples, 3.0), Filter(samples)
    for _ in range(60):
        gradient = theta
        estimate = sgdf(gradient + rng.normal(size=samples))
        theta = theta - 0.5 * estimate
    mse, error = mean_and_error((estimate - gradient) ** 2)
    printed = float((estimate.mean() - gradient.mean()) ** 2 + estimate.var())
    what = "SGDF while descending θ²/2 (lr 0.5): MSE against bias² + variance"
    return Check(what, printed, "=", mse, error, "remark")


def wiener_gain_optimality(seed: int = 0, effort: float = 1.0) -> Result:
    """Scan K: the printed gain is best for an average that has not yet seen g."""
    rng = np.random.default_rng(seed)
    t, samples = 100, int(200_000 * effort)
    before, after, g = average_and_gradient(t, samples, rng)
    K = np.linspace(-0.2, 0.3, 501)
    scans = [combined_variance(K, *moments(average, g)) for average in (after, before)]
    best, best_before = (float(K[np.argmin(scan)]) for scan in scans)
    var_m, var_before = (float(corrected_mean_factor(n, BETA1)) for n in (t, t - 1))
    covariance = (1 - BETA1) / (1 - BETA1**t)
    printed, printed_before = (float(optimal_gain(var, 1.0)) for var in (var_m, var_before))
    exact = float(optimal_gain_with_covariance(var_m, 1.0, covariance))
    # The minimum moves with the sample covariance; the scan's own step is 0.001.
    near = 4 * 2 * math.sqrt(var_m / samples) + 0.001
    mse = float(combined_variance(printed, var_m, 1.0, covariance))
    mse_before = float(combined_variance(printed_before, var_before, 1.0))
    checks = (
        Check("average m̂ₜ: K of least error, by a scan", printed, "=", best, tolerance=near),
        Check("average m̂ₜ, printed K: error no more than with K=0", var_m, "<=", mse),
        Check(
            "average m̂ₜ₋₁: K of least error, by a scan",
            printed_before,
            "=",
            best_before,
            under="condition",
            tolerance=near,
        ),
        Check(
            "average m̂ₜ₋₁, printed K: error no more than with K=0",
            var_before,
            "<=",
            mse_before,
            under="condition",
        ),
        Check(
            "average m̂ₜ: our formula, with the covariance",
            exact,
            "=",
            best,
            under="remark",
            tolerance=near,
        ),
        *actual_gain(rng, effort),
    )
    scanned = Panel(
        "Still gradient, β₁=0.9, t=100",
        "K",
        "MSE of (1-K)m̂ + Kg, σ²=1",
        (
            Curve("with m̂ₜ (the algorithm's)", K, scans[0], colour("sgdf")),
            Curve("with m̂ₜ₋₁ (independent of g)", K, scans[1], BLUE),
            Curve("printed K", [printed] * 2, [0.04, 0.13], BLACK, "--"),
        ),
        ylim=(0.04, 0.16),
    )
    return Result(
        name="wiener-gain",
        title="The optimal gain",
        label="proof_method",
        claim="Var m̂ / (Var m̂ + Var g) is the K that makes (1-K)m̂ + Kg the best estimate.",
        assumptions="none stated; the derivation drops Cov(m̂, g) and compares variances alone",
        condition="m̂ and g are uncorrelated and have the same mean: true of m̂ₜ₋₁ and a "
        "gradient that stands still",
        checks=checks,
        explanation="The algorithm's m̂ₜ already holds g with weight 1-β₁, so Cov(m̂,g) = (1-β₁)σ² "
        "is larger than Var m̂ = σ²(1-β₁)/(1+β₁). For a still gradient the best gain on it is then "
        "-(1-β₁)/(2β₁) = -0.056 and any positive gain raises the error. A gradient that moves "
        "adds the squared bias of m̂ to Var m̂, which is where a positive gain earns its keep. The "
        "K of Algorithm 1 further replaces Var g by one squared residual: it is random, on average "
        "five times the printed gain, yet small where the residual is large.",
        panels=(scanned, drifting_panel()),
    )


def moments(average: Array, g: Array) -> tuple[float, float, float]:
    """Var m^, Var g and their covariance, as sampled."""
    sampled = np.cov(average, g)
    return sampled[0, 0], sampled[1, 1], sampled[0, 1]


def actual_gain(rng: np.random.Generator, effort: float) -> list[Check]:
    """The mean of Algorithm 1's random K and of its pull on g, beside the printed gain."""
    samples = int(4000 * effort)
    sgdf, gains, pulls = Filter(samples), [], []
    for t in range(300):
        g = rng.normal(size=samples)
        sgdf(g)
        if t >= 200:
            residual = g - sgdf.m
            gain = sgdf.gain(g)
            gains.append(float(gain.mean()))
            pulls.append(float((gain * residual**2).mean() / (residual**2).mean()))
    printed = float(optimal_gain(corrected_mean_factor(300, BETA1), 1.0))
    return [
        Check(what, printed, "=", mean, error, "remark")
        for what, (mean, error) in (
            ("Algorithm 1: mean of K", mean_and_error(np.array(gains))),
            ("Algorithm 1: mean of K weighted by r²", mean_and_error(np.array(pulls))),
        )
    ]


def drifting_panel() -> Panel:
    """The best gain on m^_t against the drift of the gradient: bias joins the variance."""
    drift = np.linspace(0, 0.15, 100)
    var_m, covariance = corrected_mean_factor(1000, BETA1), 1 - BETA1
    bias = drift * BETA1 / (1 - BETA1)  # of m^_t about a signal moving by `drift` a step
    best = optimal_gain_with_covariance(var_m + bias**2, 1.0, covariance)
    printed = np.full_like(drift, optimal_gain(var_m, 1.0))
    return Panel(
        "Drifting gradient",
        "drift a step / σ",
        "gain",
        (
            Curve("best for m̂ₜ", drift, best, colour("sgdf")),
            Curve("printed K", drift, printed, BLACK, "--"),
            Curve("zero", drift, np.zeros_like(drift), GREY, ":"),
        ),
    )


def correction_of_m(seed: int = 0, effort: float = 1.0) -> Result:
    """The correction factor as the variance of m_t."""
    rng = np.random.default_rng(seed)
    samples, checks = int(100_000 * effort), []
    m = np.zeros(samples)
    for t in range(1, 51):
        m = BETA1 * m + (1 - BETA1) * rng.normal(size=samples)
        if t in (1, 5, 20, 50):
            value, error = variance_and_error(m)
            factor = float(correction_factor(t, BETA1))
            checks.append(Check(f"Var mₜ / σ² at t={t}", factor, "=", value, error))
    steps = np.arange(1, 51)
    return Result(
        name="correction-factor",
        title="The correction factor",
        label="proof_correction",
        claim="The moving average mₜ of independent gradients of variance σ² has the variance "
        "σ²(1-β₁)(1-β₁^2t)/(1+β₁).",
        assumptions="gradients independent and of one variance",
        checks=tuple(checks),
        explanation="Exact at every t for mₜ. It is not the variance of m̂ₜ = mₜ/(1-β₁^t), which "
        "the gain needs: see the next statement.",
        panels=(
            Panel(
                "Variance of the average, β₁=0.9",
                "step t",
                "variance / σ²",
                (
                    Curve("mₜ: the printed factor", steps, correction_factor(steps, BETA1), BLACK),
                    Curve(
                        "mₜ, simulated",
                        [1, 5, 20, 50],
                        [check.measured for check in checks],
                        colour("sgdf"),
                        "o",
                    ),
                    Curve("m̂ₜ, exact", steps, corrected_mean_factor(steps, BETA1), PURPLE, "--"),
                ),
                logy=True,
            ),
        ),
    )


def estimate_of_the_variance(seed: int = 0, effort: float = 1.0) -> Result:
    """s^ as the estimate of Var m^: three gaps, and what closing them does to the error."""
    simulated = simulated_ratio(seed, effort)
    errors = errors_by_factor(seed, effort)
    changes = changes_of_the_error(errors)
    change = {key: 100 * (value - 1) for key, value in changes.items()}
    still, walking = ((name, "exact E ŝ") for name in ("still", "walking by 0.3σ"))
    checks = [
        *(Check(f"E ŝ / Var m̂ at t={t}", 1.0, "=", *simulated[t]) for t in simulated),
        Check("E ŝ / Var m̂ at t=1000, exact", 1.0, "=", exact_ratio(1000)[-1]),
        Check("mean gradient 10σ: E ŝ / Var m̂ at t=100", 1.0, "=", exact_ratio(100, 10.0)[-1]),
        *(
            Check(f"our formula at t={t}", exact_ratio(t)[-1], "=", *simulated[t], "remark")
            for t in simulated
        ),
        *(
            Check(f"{signal}: MSE {when}, {factor} / printed", 1.0, "=", value, under="remark")
            for (signal, factor, when), value in changes.items()
        ),
    ]
    return Result(
        name="variance-estimate",
        title="ŝ as the variance of m̂",
        label="alg:WienerOptimization",
        claim="s times the correction factor accurately estimates the variance of the average.",
        assumptions="m and g independent and identically distributed",
        checks=tuple(checks),
        explanation="Three gaps. The factor is that of mₜ, and m̂ₜ varies (1-β₁^t)^-2 more: 100 "
        "times at t=1, 2.4 at t=10. Since g - mₜ = β₁(g - mₜ₋₁), s estimates β₁²(σ² + Var mₜ₋₁), "
        "2β₁²/(1+β₁) = 0.85 of σ² in the long run. And m starts at 0, so a mean gradient g* puts "
        "β₁²g*²β₁^(2t-2) into s, which β₂=0.999 keeps for a thousand steps. Do they matter? With "
        f"ŝ made exact the error of ĝ changes by {change[*still, 'at t=5']:+.0f} % at t=5 and "
        f"{change[*still, 'after t=150']:+.0f} % later for a still gradient, by "
        f"{change[*walking, 'at t=5']:+.0f} % and {change[*walking, 'after t=150']:+.1f} % for one "
        "that walks by 0.3σ a step: too small a gain is the better mistake, since m̂ₜ already "
        "holds g.",
        panels=(ratio_panel(simulated), error_panel(errors)),
        key="E ŝ / Var m̂ at t=10",
    )


def exact_ratio(steps: int, mean: float = 0.0) -> Array:
    """E s^ / Var m^ for t = 1..steps; the correction factor cancels."""
    t = np.arange(1, steps + 1)
    return np.asarray(expected_fluctuation(steps, BETA1, BETA2, mean=mean) * (1 - BETA1**t) ** 2)


def simulated_ratio(seed: int, effort: float) -> dict[int, tuple[float, float]]:
    """The same at three times, by simulation about a mean gradient of 0, with its error."""
    rng = np.random.default_rng(seed)
    samples = int(20_000 * effort)
    sgdf, found = Filter(samples), {}
    for t in range(1, 101):
        sgdf(rng.normal(size=samples))
        if t in (1, 10, 100):
            s_hat = sgdf.s * bias_corrections(t, BETA1, BETA2).fluctuation
            found[t] = mean_and_error(s_hat / corrected_mean_factor(t, BETA1))
    return found


def changes_of_the_error(errors: dict[tuple[str, str], Array]) -> dict[tuple[str, str, str], float]:
    """MSE with an exact factor over that with the printed one, early and late."""
    spans = {"at t=5": slice(4, 5), "after t=150": slice(150, None)}
    return {
        (signal, factor, when): float(series[span].mean() / errors[signal, "printed"][span].mean())
        for (signal, factor), series in errors.items()
        for when, span in spans.items()
        if factor != "printed"
    }


def ratio_panel(simulated: dict[int, tuple[float, float]]) -> Panel:
    t = np.arange(1, 1001)
    points = [value for value, _ in simulated.values()]
    return Panel(
        "How far ŝ is from Var m̂",
        "step t",
        "E ŝ / Var m̂",
        (
            Curve("mean gradient 0", t, exact_ratio(1000), colour("sgdf")),
            Curve("mean gradient 3σ", t, exact_ratio(1000, 3.0), BLUE),
            Curve("simulated (mean 0)", list(simulated), points, colour("sgdf"), "o"),
            Curve("right", t, np.ones(1000), BLACK, "--"),
        ),
        logx=True,
        logy=True,
    )


def error_panel(errors: dict[tuple[str, str], Array]) -> Panel:
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


def errors_by_factor(seed: int, effort: float) -> dict[tuple[str, str], Array]:
    """MSE of g^ at t = 1..200 with the printed factor and with exact ones, by signal."""
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
            sgdf, truth, series = Filter(samples, rescale=rescale), np.zeros(samples), []
            for _ in range(steps):
                truth = truth + step_size * rng.normal(size=samples)
                estimate = sgdf(truth + rng.normal(size=samples))
                series.append(float(((estimate - truth) ** 2).mean()))
            errors[signal, factor] = np.array(series)
    return errors


def gaussian_fusion(seed: int = 0, effort: float = 1.0) -> Result:
    """The product of two Gaussians, and what it says of the estimate with K and with 2K."""
    checks = (*product_of_densities(), *variances_of_the_estimate(seed, effort))
    return Result(
        name="gaussian-fusion",
        title="Fusion of two Gaussians",
        label="proof_section3.2",
        claim="Multiplying the densities of m̂ and g gives a Gaussian, its mean weighted by the "
        "inverse variances, its variance below both; ĝ is distributed so.",
        assumptions="m̂ and g are Gaussian",
        condition="m̂ and g are independent, and the gain is K rather than 2K",
        checks=checks,
        explanation="Mean and variance of the product are right (the constant left in the "
        "exponent is printed with the wrong sign and changes nothing). They are those of "
        "(1-K)m̂ + Kg only for independent m̂ and g: with the algorithm's m̂ₜ the variance is above "
        "Var m̂. And the variance is a parabola in the gain with its bottom at K, so at 2K it is "
        "Var m̂ again: on a still gradient the factor 2 takes back exactly what fusing gave.",
        panels=fusion_panels(),
        key=checks[4].what,
    )


def product_of_densities() -> list[Check]:
    """The printed product of N(1, 0.5) and N(2, 1.5) against sums over a grid."""
    mean, variance = fuse(1.0, 0.5, 2.0, 1.5)

    def power(x: Any) -> Any:
        return -((x - 1) ** 2) / (2 * 0.5) - (x - 2) ** 2 / (2 * 1.5)

    grid = np.linspace(-12, 15, 200_001)
    weights = np.exp(power(grid))
    weights /= weights.sum()
    summed = float((weights * grid).sum())
    squares = float((weights * (grid - summed) ** 2).sum())
    x = 0.3  # anywhere: what is left after completing the square does not depend on it
    constant = power(x) + (x - mean) ** 2 / (2 * variance)
    printed = (1 - 2) ** 2 / (2 * (0.5 + 1.5))
    return [
        Check("product of N(1, 0.5) and N(2, 1.5): mean", mean, "=", summed, tolerance=1e-9),
        Check("product: variance", variance, "=", squares, tolerance=1e-9),
        Check("product: variance below the smaller one", 0.5, "<=", squares),
        Check("product: constant left in the exponent", printed, "=", constant),
    ]


def variances_of_the_estimate(seed: int, effort: float) -> list[Check]:
    """Var((1-K) m^ + K g) for an m^ that holds g and for one that does not, with K and 2K."""
    rng = np.random.default_rng(seed)
    samples = int(200_000 * effort)
    var_m = float(corrected_mean_factor(100, BETA1))
    K, fused = float(optimal_gain(var_m, 1.0)), fuse(0, var_m, 0, 1)[1]
    _, after, g = average_and_gradient(100, samples, rng)
    apart = np.sqrt(var_m) * rng.normal(size=samples)

    def spread(average: Array, gain: float) -> tuple[float, float]:
        return variance_and_error((1 - gain) * average + gain * g)

    at_k, at_2k = (float(combined_variance(gain, var_m, 1.0)) for gain in (K, 2 * K))
    return [
        Check("ĝ with K, the algorithm's m̂ₜ: variance", fused, "=", *spread(after, K)),
        Check("ĝ with K, independent m̂: variance", fused, "=", *spread(apart, K), "condition"),
        Check("ĝ with K, independent m̂: below Var m̂", var_m, "<=", at_k, under="condition"),
        Check("ĝ with 2K, independent m̂: against Var m̂", var_m, "=", at_2k, under="remark"),
        Check(
            "ĝ with 2K, the algorithm's m̂ₜ: against Var m̂",
            var_m,
            "=",
            *spread(after, 2 * K),
            "remark",
        ),
    ]


def fusion_panels() -> tuple[Panel, Panel]:
    x, scales = np.linspace(-2.5, 2.5, 301), np.linspace(0, 3, 101)
    var_m = corrected_mean_factor(100, BETA1)
    gains = scales * optimal_gain(var_m, 1.0)

    def density(variance: float) -> Array:
        return np.asarray(np.exp(-(x**2) / (2 * variance)) / math.sqrt(2 * math.pi * variance))

    shapes = Panel(
        "Var g = 1, Var m̂ = 0.25",
        "value",
        "density",
        (
            Curve("g", x, density(1.0), BLUE),
            Curve("m̂", x, density(0.25), PURPLE),
            Curve("fused", x, density(fuse(0, 0.25, 0, 1)[1]), colour("sgdf")),
        ),
    )
    correlated = combined_variance(gains, var_m, 1.0, 1 - BETA1)
    by_gain = Panel(
        "Var ĝ by gain, still gradient, β₁=0.9",
        "gain, in units of the printed K",
        "variance / σ²",
        (
            Curve("independent m̂", scales, combined_variance(gains, var_m, 1.0), BLUE),
            Curve("the algorithm's m̂ₜ", scales, correlated, colour("sgdf")),
            Curve("m̂ alone", scales, np.full_like(scales, var_m), BLACK, "--"),
        ),
    )
    return shapes, by_gain


def gain_above_half(seed: int = 0, effort: float = 1.0) -> Result:
    """The convex proof's step: the mean gain is above 1/2."""
    samples = int(2000 * effort)
    noises: dict[str, Callable[[np.random.Generator], Array]] = {
        "Gaussian": lambda rng: rng.normal(size=samples),
        "uniform": lambda rng: rng.uniform(-1, 1, size=samples),
        "coin ±1": lambda rng: rng.choice([-1.0, 1.0], size=samples),
        "heavy tails (t, 2.5)": lambda rng: rng.standard_t(2.5, size=samples),
    }
    checks, curves = [], []
    for (name, noise), shade in zip(noises.items(), (BLUE, GREEN, ORANGE, PURPLE), strict=True):
        rng = np.random.default_rng(seed)
        sgdf, means, left, right = Filter(samples), [], 0.0, 0.0
        gains = np.zeros(samples)
        for t in range(1, 501):
            g = noise(rng)
            sgdf(g)
            corrections = bias_corrections(t, BETA1, BETA2)
            left += float((sgdf.s * corrections.fluctuation).mean())
            right += float(((g - sgdf.m / corrections.trend) ** 2).mean())
            gains += sgdf.gain(g)
            means.append(float(gains.mean()) / t)
        mean, error = mean_and_error(gains / 500)
        checks.append(Check(f"{name} noise: mean of K over 500 steps", 0.5, ">=", mean, error))
        curves.append(Curve(name, np.arange(1, 501), means, shade))
        if name == "Gaussian":
            checks.append(Check("Gaussian noise: Σŝ / Σ(g-m̂)²", 1.0, ">=", left / right))
    return Result(
        name="gain-above-half",
        title="The mean gain is above one half",
        label="the.A.13 (proof)",
        claim="Σŝ exceeds Σ(g - m̂)², hence the mean of K over time exceeds 1/2; the regret bound "
        "replaces 1/K by 2.",
        assumptions="those of the convex theorem",
        checks=tuple(checks),
        explanation="ŝ estimates the variance of the average and the squared residual that of a "
        "gradient, about (1+β₁)/(1-β₁) = 19 times as large. The premise fails from the second "
        "step on and the mean of K is near 1/4 (1 at t=1, where m̂ = g). Without the correction "
        "factor the two sums are about equal, which may be where the step comes from.",
        panels=(
            Panel(
                "Mean of K so far, noise about a still gradient",
                "step t",
                "mean of K",
                (*curves, Curve("printed: above", [1, 500], [0.5, 0.5], BLACK, "--")),
                logx=True,
                ylim=(0, 1.05),
            ),
        ),
    )


def unbiased_estimate(seed: int = 0, effort: float = 1.0) -> Result:
    """E g^ = grad f, which both theorems need: true in symmetric noise alone."""
    samples = int(4000 * effort)
    noises: dict[str, Callable[[np.random.Generator], Array]] = {
        "Gaussian": lambda rng: rng.normal(size=samples),
        "coin ±1": lambda rng: rng.choice([-1.0, 1.0], size=samples),
    }
    checks = []
    for name, noise in noises.items():
        bias = mean_and_error(bias_of_the_estimate(noise, np.random.default_rng(seed)))
        checks.append(Check(f"{name} noise: E ĝ - ∇f", 0.0, "=", *bias, "condition"))
    rare = np.array([0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5])[:, None]
    sigma = np.sqrt((1 - rare) / rare)[:, 0]
    curves = []
    for name, scale, shade in (("2K", 2.0, colour("sgdf")), ("K", 1.0, BLUE)):
        runs = bias_of_the_estimate(
            lambda rng: rare_noise(rng, (len(rare), samples), rare),
            np.random.default_rng(seed),
            gain_scale=scale,
        )
        bias = mean_and_error(runs[2])
        checks.append(
            Check(f"9 a tenth of the time, else -1, gain {name}: E ĝ - ∇f", 0.0, "=", *bias)
        )
        curves.append(Curve(f"gain {name}", rare[:, 0], runs.mean(axis=1) / sigma, shade, "o-"))
    curves.append(Curve("unbiased", rare[:, 0], np.zeros(len(rare)), BLACK, "--"))
    return Result(
        name="unbiased-estimate",
        title="The gain and the noise of its own gradient",
        label="main_non_convex (proof, term (3))",
        claim="The noise ζₜ drops out of E⟨∇f, (weights with Kₜ)·ζₜ⟩ since its mean is 0: ĝ points "
        "along the gradient on average.",
        assumptions="unbiased, bounded, independent noise",
        condition="the noise is symmetric: Kₜ depends on ζₜ, so E[Kₜζₜ] is not 0 otherwise",
        checks=tuple(checks),
        explanation="K is small for large residuals and near 1 for small ones: rare large "
        "gradients lose their weight, common small ones keep it, and what is left has a mean. It "
        "is at most √ŝ, about 0.2σ. No learning rate makes it smaller; a smaller gain or β₁ does. "
        "This is what breaks the two theorems.",
        panels=(
            Panel(
                "Skewed noise about a still gradient, β₁=0.9",
                "how often the large value comes",
                "(E ĝ − ∇f) / σ",
                tuple(curves),
            ),
        ),
        key=checks[2].what,
    )
