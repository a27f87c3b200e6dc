"""The product of two Gaussians, and what it means for the estimate with K and with 2K."""

import math
from typing import Any

import numpy as np

from sgdf_lab.support.palette import BLACK, BLUE, PURPLE, VERMILION
from sgdf_lab.theory.estimation.averages import (
    average_and_gradient,
    combined_variance,
    corrected_mean_factor,
    optimal_gain,
)
from sgdf_lab.theory.filtering import BETA1
from sgdf_lab.theory.result import Array, Check, Curve, Panel, Result, variance_and_error

T = 100


def fuse(mean_m: float, var_m: float, mean_g: float, var_g: float) -> tuple[float, float]:
    """Mean and variance of the normalised product of two Gaussian densities (proof_section3.2)."""
    total = var_m + var_g
    return (var_g * mean_m + var_m * mean_g) / total, var_m * var_g / total


def check_gaussian_fusion(seed: int = 0, effort: float = 1.0) -> Result:
    """The printed product beside sums over a grid, and the variance of g^ beside it."""
    product, estimate = product_checks(), estimate_checks(seed, effort)
    return Result(
        name="gaussian-fusion",
        title="Fusion of two Gaussians",
        label="proof_section3.2",
        claim="Multiplying the densities of m̂ and g gives a Gaussian, its mean weighted by the "
        "inverse variances, its variance below both; ĝ has this distribution.",
        assumptions="m̂ and g are Gaussian",
        condition="m̂ and g are independent, and the gain is K rather than 2K",
        checks=(*product, *estimate),
        explanation="Mean and variance of the product are right (the constant left in the "
        "exponent is printed with the wrong sign and changes nothing). They are those of "
        "(1-K)m̂ + Kg only for independent m̂ and g: with the algorithm's m̂ₜ the variance is above "
        "Var m̂. And the variance is a parabola in the gain with its minimum at K, so at 2K it is "
        "Var m̂ again: on a constant gradient the factor 2 undoes exactly what the fusion gained.",
        panels=(density_panel(), gain_panel()),
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
    var_m = float(corrected_mean_factor(T, BETA1))
    K, fused = float(optimal_gain(var_m, 1.0)), fuse(0, var_m, 0, 1)[1]
    _, after, g = average_and_gradient(T, samples, rng)
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


def density_panel() -> Panel:
    x = np.linspace(-2.5, 2.5, 301)

    def density(variance: float) -> Array:
        return np.asarray(np.exp(-(x**2) / (2 * variance)) / math.sqrt(2 * math.pi * variance))

    return Panel(
        "Var g = 1, Var m̂ = 0.25",
        "value",
        "density",
        (
            Curve("g", x, density(1.0), BLUE),
            Curve("m̂", x, density(0.25), PURPLE),
            Curve("fused", x, density(fuse(0, 0.25, 0, 1)[1]), VERMILION),
        ),
    )


def gain_panel() -> Panel:
    scales = np.linspace(0, 3, 101)
    var_m = corrected_mean_factor(T, BETA1)
    gains = scales * optimal_gain(var_m, 1.0)
    correlated = combined_variance(gains, var_m, 1.0, 1 - BETA1)
    return Panel(
        "Var ĝ by gain, constant gradient, β₁=0.9",
        "gain, in units of the printed K",
        "variance / σ²",
        (
            Curve("independent m̂", scales, combined_variance(gains, var_m, 1.0), BLUE),
            Curve("the algorithm's m̂ₜ", scales, correlated, VERMILION),
            Curve("m̂ alone", scales, np.full_like(scales, var_m), BLACK, "--"),
        ),
    )
