"""The printed rate of min_t E|grad f|^2: true in symmetric noise alone (main_non_convex)."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sgdf_lab.support.palette import BLACK, GREEN, VERMILION
from sgdf_lab.theory.filtering import BETA1, BETA2, SimulatedFilter, bias_of_the_estimate
from sgdf_lab.theory.nonconvex.problems import NoisyProblem, SkewedQuadratic, Wells
from sgdf_lab.theory.result import Array, Check, Curve, Panel, Result, exponent, mean_and_error

#: Large gradients, so that C_5 and C_6 contribute little to the bound.
SKEWED, SKEWED_BETAS = SkewedQuadratic(curvature=40.0, scale=1e4, rare=0.25), (0.5, 0.9)
#: The gradient at the start and at most, in units of the bias, at which it settles.
START, REACH = 1.3, 1.7
FAR = 1e8  # a T at which the bound is below the squared bias


@dataclass(frozen=True)
class RateConstants:
    """C_1 to C_8 as the proof prints them.

    G bounds the true and the noisy gradient in each of d dimensions, L is the smoothness, gap is
    f(theta_1) - f*, alpha the first learning rate.
    """

    beta1: float
    G: float
    L: float
    alpha: float
    gap: float
    d: int = 1

    @property
    def C7(self) -> float:
        """C_1 + C_3 + C_5 + C_6."""
        b, squares = self.beta1, self.d * self.G**2
        return squares * (
            self.L / 2 * b**2 / (1 - b) ** 2
            + 4 * self.L / (1 - b) ** 2
            + 3 * b / (1 - b)
            + 2 / (1 - b)
        )

    @property
    def C8(self) -> float:
        """gap + (C_2 + C_4) alpha / (1 - b1)."""
        b, squares, first = self.beta1, self.d * self.G**2, self.alpha / (1 - self.beta1)
        C2 = 2 * self.L * b**2 / (1 - b) ** 2 * squares * first
        C4 = b / (1 - b) * squares
        return self.gap + (C2 + C4) * first

    def bound(self, T: Array | float) -> Array:
        """The printed bound on min_t E|grad f|^2, for alpha_t = alpha / sqrt(t)."""
        a = self.alpha
        return np.asarray((self.C7 * a**2 * (np.log(T) + 1) + self.C8) / (2 * a * np.sqrt(T)))


def descend_with_filter(
    problem: NoisyProblem,
    start: Array,
    T: int,
    alpha: float,
    betas: tuple[float, float],
    rng: np.random.Generator,
    points: Array,
) -> tuple[Array, Array]:
    """SGDF with alpha / sqrt(t): |grad f|^2 of every run (a row of start) at each point of T.

    The row of a point is that of theta_t before its t-th step. The second array is the minimum of
    each run, whose mean is at most min_t E|grad f|^2.
    """
    theta, sgdf = start.copy(), SimulatedFilter(betas=betas)
    recorded, rows, least = set(points.tolist()), [], np.full(len(start), np.inf)
    block = 1000  # noise drawn in advance: one call per step would take half the time
    for t in range(1, T + 1):
        if (t - 1) % block == 0:
            noise = problem.noise(rng, (block, *start.shape))
        slope = problem.gradient(theta)
        squares = (slope * slope).sum(-1)
        np.minimum(least, squares, out=least)
        if t in recorded:
            rows.append(squares)
        theta = theta - alpha / t**0.5 * sgdf(slope + noise[(t - 1) % block])
    return np.array(rows), least


class SymmetricRun(NamedTuple):
    """Wells in coin noise: |grad f|^2 at each point, one column per run."""

    points: Array
    squares: Array
    constants: RateConstants

    @property
    def minimum(self) -> Array:
        """min_t E|grad f|^2 up to each point."""
        return np.minimum.accumulate(self.squares.mean(-1))


class SkewedRun(NamedTuple):
    """The quadratic in skewed noise, where SGDF stops at a gradient that is not 0."""

    points: Array
    squares: Array
    least: Array
    bias: tuple[float, float]  #: of g^ about a constant gradient, with its standard error
    constants: RateConstants


def run_symmetric(seed: int, effort: float) -> SymmetricRun:
    wells, alpha, d = Wells(), 0.5, 4
    points = recorded_points(max(5000, int(50_000 * effort)))
    start, rng = np.full((64, d), 1.2), np.random.default_rng(seed)
    squares, _ = descend_with_filter(
        wells, start, int(points[-1]), alpha, (BETA1, BETA2), rng, points
    )
    gap = float(wells.value(start[:1])[0])
    return SymmetricRun(
        points, squares, RateConstants(BETA1, 1 + wells.steepest, wells.L, alpha, gap, d)
    )


def run_skewed(seed: int, effort: float) -> SkewedRun:
    problem, alpha, rng = SKEWED, 1 / SKEWED.scale, np.random.default_rng(seed)
    samples = max(2000, int(10_000 * effort))
    bias, error = mean_and_error(
        bias_of_the_estimate(lambda rng: problem.noise(rng, (samples,)), rng, SKEWED_BETAS)
    )
    points = recorded_points(max(10_000, int(1_000_000 * effort)))
    slope = START * abs(bias)
    start = np.full((8, 1), slope / problem.curvature)
    squares, least = descend_with_filter(
        problem, start, int(points[-1]), alpha, SKEWED_BETAS, rng, points
    )
    constants = RateConstants(
        SKEWED_BETAS[0],
        problem.largest + REACH * abs(bias),
        problem.curvature,
        alpha,
        slope**2 / (2 * problem.curvature),
    )
    return SkewedRun(points, squares, least, (bias, error), constants)


def recorded_points(T: int) -> Array:
    return np.unique(np.geomspace(1, T, 60).astype(int))


def check_nonconvex_rate(seed: int = 0, effort: float = 1.0) -> Result:
    """min_t E|grad f|^2 falls on a symmetric problem and stops falling on a skewed one."""
    symmetric, skewed = run_symmetric(seed, effort), run_skewed(seed, effort)
    broken = skewed_checks(skewed)
    return Result(
        name="nonconvex-rate",
        title="Rate in non-convex stochastic optimization",
        label="main_non_convex",
        claim="min_t E|∇f|² is at most (C₇α²(log T + 1) + C₈)/(2α√T), so it falls like log T/√T.",
        assumptions="A1 to A4: bounded iterates, unbiased independent bounded noise, L-smooth f",
        checks=(*symmetric_checks(symmetric), *broken),
        explanation="On a smooth non-convex function with symmetric noise the squared gradient "
        "falls at the rate, far below the bound. The proof takes K out of E[Kₜζₜ] though Kₜ "
        "depends on the noise ζₜ. With skewed noise (mean 0, bounded, independent) E ĝ ≠ ∇f "
        "whatever the learning rate, SGDF settles where E ĝ = 0, and min_t E|∇f|² stays at the "
        "square of that bias, while the printed bound goes to 0 and falls below it (shown on a "
        "quadratic; a bump elsewhere makes it non-convex and changes nothing). C₇ is not "
        "independent of d either: it holds ΣG² and d.",
        panels=(symmetric_panel(symmetric), skewed_panel(skewed)),
        key=broken[0].what,
    )


def symmetric_checks(run: SymmetricRun) -> list[Check]:
    T = int(run.points[-1])
    value = mean_and_error(run.squares[int(np.argmin(run.squares.mean(-1)))])
    late = run.points >= T / 50
    power = exponent(run.points[late].astype(float), run.minimum[late])
    return [
        Check(f"wells, coin noise: E(T), T={T}", float(run.constants.bound(T)), "<=", *value),
        Check("wells, coin noise: p of E(T) ~ T^p", -0.5, "<=", power, 0.0, "remark", 0.1),
    ]


def skewed_checks(run: SkewedRun) -> list[Check]:
    """In units of the squared noise: from the run, and from the bias about a constant gradient."""
    T, unit = int(run.points[-1]), SKEWED.scale**2
    value, error = mean_and_error(run.least)
    bias, bias_error = run.bias
    return [
        Check(
            f"skewed noise: E(T)/c² or less, T={T}",
            float(run.constants.bound(T)) / unit,
            "<=",
            value / unit,
            error / unit,
        ),
        Check(
            "skewed noise: (E ĝ - ∇f)²/c² of a still gradient, against the bound at T=1e8",
            float(run.constants.bound(FAR)) / unit,
            "<=",
            bias**2 / unit,
            2 * abs(bias) * bias_error / unit,
        ),
    ]


def symmetric_panel(run: SymmetricRun) -> Panel:
    return Panel(
        "Wells θ²/(1+θ²), coin noise",
        "T",
        "min over t ≤ T of E|∇f|²",
        (
            Curve("SGDF", run.points, run.minimum, VERMILION),
            Curve("printed bound", run.points, run.constants.bound(run.points), BLACK, "--"),
        ),
        logx=True,
        logy=True,
    )


def skewed_panel(run: SkewedRun) -> Panel:
    unit, axis = SKEWED.scale**2, np.geomspace(1, FAR, 60)
    minimum = np.minimum.accumulate(run.squares.mean(-1))
    level = np.full(60, run.bias[0] ** 2 / unit)
    return Panel(
        "Quadratic, skewed noise (β₁=0.5, β₂=0.9)",
        "T",
        "min over t ≤ T of E|∇f|² / c²",
        (
            Curve("SGDF", run.points, minimum / unit, VERMILION),
            Curve("(E ĝ − ∇f)², constant gradient", axis, level, GREEN, ":"),
            Curve("printed bound", axis, run.constants.bound(axis) / unit, BLACK, "--"),
        ),
        logx=True,
        logy=True,
    )
