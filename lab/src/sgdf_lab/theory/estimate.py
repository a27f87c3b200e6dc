"""The estimate g^: its distribution (Section 3), its mean, and the gains that make it (proofs)."""

import math
from typing import Any

import numpy as np

from sgdf_lab.support.palette import BLACK, BLUE, GREEN, ORANGE, PURPLE, VERMILION
from sgdf_lab.theory.filtering import (
    BETA1,
    Noise,
    SimulatedFilter,
    bias_of_the_estimate,
    rare_noise,
)
from sgdf_lab.theory.optimal_gain import (
    average_and_gradient,
    combined_variance,
    corrected_mean_factor,
    optimal_gain,
)
from sgdf_lab.theory.result import (
    Array,
    Check,
    Curve,
    Curves,
    Result,
    mean_and_error,
    stated,
    variance_and_error,
)

# --- The product of two Gaussians, and what it means for the estimate with K and with 2K

FUSED_AT = 100


def fuse(mean_m: float, var_m: float, mean_g: float, var_g: float) -> tuple[float, float]:
    """Mean and variance of the normalised product of two Gaussian densities (proof_section3.2)."""
    total = var_m + var_g
    return (var_g * mean_m + var_m * mean_g) / total, var_m * var_g / total


def check_gaussian_fusion(seed: int = 0, effort: float = 1.0) -> Result:
    """The printed product beside sums over a grid, and the variance of g^ beside it."""
    product, estimate = product_checks(), estimate_checks(seed, effort)
    return stated(
        "gaussian-fusion",
        (*product, *estimate),
        density_panel(),
        variance_by_gain_panel(),
        key=estimate[0].what,
    )


def product_checks() -> list[Check]:
    """The printed product of N(1, 0.5) and N(2, 1.5) against sums over a grid."""
    mean, variance = fuse(1.0, 0.5, 2.0, 1.5)

    def power(x: Any) -> Any:
        return -((x - 1) ** 2) / (2 * 0.5) - (x - 2) ** 2 / (2 * 1.5)

    grid = np.linspace(-12, 15, 200_001)
    weights = np.exp(power(grid))
    weights /= weights.sum()
    summed = float((weights * grid).sum())
    squares = float((weights * (grid - summed) ** 2).sum())
    x = 0.3  # any x: what is left after completing the square does not depend on it
    constant = power(x) + (x - mean) ** 2 / (2 * variance)
    printed = (1 - 2) ** 2 / (2 * (0.5 + 1.5))
    return [
        Check("product of N(1, 0.5) and N(2, 1.5): mean", mean, "=", summed, tolerance=1e-9),
        Check("product: variance", variance, "=", squares, tolerance=1e-9),
        Check("product: variance below the smaller one", 0.5, "<=", squares),
        Check("product: constant left in the exponent", printed, "=", constant),
    ]


def estimate_checks(seed: int, effort: float) -> list[Check]:
    """Var((1-K) m^ + K g) for an m^ that holds g and for one that does not, with K and 2K."""
    rng = np.random.default_rng(seed)
    samples = int(200_000 * effort)
    var_m = float(corrected_mean_factor(FUSED_AT, BETA1))
    K, fused = float(optimal_gain(var_m, 1.0)), fuse(0, var_m, 0, 1)[1]
    _, after, g = average_and_gradient(FUSED_AT, samples, rng)
    independent = np.sqrt(var_m) * rng.normal(size=samples)

    def variance(average: Array, gain: float) -> tuple[float, float]:
        return variance_and_error((1 - gain) * average + gain * g)

    at_k, at_2k = (float(combined_variance(gain, var_m, 1.0)) for gain in (K, 2 * K))
    return [
        Check("ĝ with K, the algorithm's m̂ₜ: variance", fused, "=", *variance(after, K)),
        Check(
            "ĝ with K, independent m̂: variance",
            fused,
            "=",
            *variance(independent, K),
            "condition",
        ),
        Check("ĝ with K, independent m̂: below Var m̂", var_m, "<=", at_k, under="condition"),
        Check("ĝ with 2K, independent m̂: against Var m̂", var_m, "=", at_2k, under="remark"),
        Check(
            "ĝ with 2K, the algorithm's m̂ₜ: against Var m̂",
            var_m,
            "=",
            *variance(after, 2 * K),
            "remark",
        ),
    ]


def density_panel() -> Curves:
    x = np.linspace(-2.5, 2.5, 301)

    def density(variance: float) -> Array:
        return np.asarray(np.exp(-(x**2) / (2 * variance)) / math.sqrt(2 * math.pi * variance))

    return (
        Curve("g", x, density(1.0), BLUE),
        Curve("m̂", x, density(0.25), PURPLE),
        Curve("fused", x, density(fuse(0, 0.25, 0, 1)[1]), VERMILION),
    )


def variance_by_gain_panel() -> Curves:
    scales = np.linspace(0, 3, 101)
    var_m = corrected_mean_factor(FUSED_AT, BETA1)
    gains = scales * optimal_gain(var_m, 1.0)
    correlated = combined_variance(gains, var_m, 1.0, 1 - BETA1)
    return (
        Curve("independent m̂", scales, combined_variance(gains, var_m, 1.0), BLUE),
        Curve("the algorithm's m̂ₜ", scales, correlated, VERMILION),
        Curve("m̂ alone", scales, np.full_like(scales, var_m), BLACK, "--"),
    )


# --- E g^ = grad f, which both theorems need: true only in symmetric noise (main_non_convex)

#: How often the large value of the skewed noise occurs; the checks use a tenth of the time.
RARE = np.array([0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5])
TENTH = 2


def check_unbiased_estimate(seed: int = 0, effort: float = 1.0) -> Result:
    """The bias of g^ about a constant gradient, in symmetric and in skewed noise."""
    samples = int(4000 * effort)
    symmetric = []
    for name in ("Gaussian", "coin ±1"):
        runs = bias_of_the_estimate(noises(samples)[name], np.random.default_rng(seed))
        what = f"{name} noise: E ĝ - ∇f"
        symmetric.append(Check(what, 0.0, "=", *mean_and_error(runs), "condition"))

    def skewed_noise(rng: np.random.Generator) -> Array:
        return rare_noise(rng, (len(RARE), samples), RARE[:, None])

    skewed, curves = [], []
    for name, scale, shade in (("2K", 2.0, VERMILION), ("K", 1.0, BLUE)):
        rng = np.random.default_rng(seed)
        runs = bias_of_the_estimate(skewed_noise, rng, gain_scale=scale)  # a row for each of RARE
        what = f"9 a tenth of the time, else -1, gain {name}: E ĝ - ∇f"
        skewed.append(Check(what, 0.0, "=", *mean_and_error(runs[TENTH])))
        in_sigma = runs.mean(axis=1) / np.sqrt((1 - RARE) / RARE)
        curves.append(Curve(f"gain {name}", RARE, in_sigma, shade, "o-"))
    curves.append(Curve("unbiased", RARE, np.zeros(len(RARE)), BLACK, "--"))
    return stated("unbiased-estimate", (*symmetric, *skewed), curves, key=skewed[0].what)


# --- A step of the convex proof: the mean gain is above 1/2 (the.A.13)

STEPS = 500
NOISE_COLOURS = {
    "Gaussian": BLUE,
    "uniform": GREEN,
    "coin ±1": ORANGE,
    "heavy tails (t, 2.5)": PURPLE,
}


def noises(samples: int) -> dict[str, Noise]:
    return {
        "Gaussian": lambda rng: rng.normal(size=samples),
        "uniform": lambda rng: rng.uniform(-1, 1, size=samples),
        "coin ±1": lambda rng: rng.choice([-1.0, 1.0], size=samples),
        "heavy tails (t, 2.5)": lambda rng: rng.standard_t(2.5, size=samples),
    }


def check_gain_above_half(seed: int = 0, effort: float = 1.0) -> Result:
    """The mean of K over 500 steps, in four kinds of noise about a constant gradient."""
    samples, steps = int(2000 * effort), np.arange(1, STEPS + 1)
    checks, curves = [], []
    for name, noise in noises(samples).items():
        rng = np.random.default_rng(seed)
        sgdf, gains, so_far, left, right = SimulatedFilter(), np.zeros(samples), [], 0.0, 0.0
        for t in steps:
            sgdf(noise(rng))
            left += float(sgdf.s_hat.mean())
            right += float((sgdf.residual**2).mean())
            gains += sgdf.gain
            so_far.append(float(gains.mean()) / t)
        what = f"{name} noise: mean of K over {STEPS} steps"
        checks.append(Check(what, 0.5, ">=", *mean_and_error(gains / STEPS)))
        if name == "Gaussian":
            checks.append(Check("Gaussian noise: Σŝ / Σ(g-m̂)²", 1.0, ">=", left / right))
        curves.append(Curve(name, steps, so_far, NOISE_COLOURS[name]))
    curves.append(Curve("printed: above", [1, STEPS], [0.5, 0.5], BLACK, "--"))
    return stated("gain-above-half", checks, curves)
