"""Non-convex stochastic optimization: the steps of the proof and the rate (main_non_convex)."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sgdf_lab.support.palette import BLACK, BLUE, GREEN, VERMILION
from sgdf_lab.theory.filtering import (
    BETA1,
    BETA2,
    SimulatedFilter,
    bias_of_the_estimate,
    rare_noise,
)
from sgdf_lab.theory.result import (
    Array,
    Check,
    Curve,
    Curves,
    Result,
    exponent,
    mean_and_error,
    stated,
)

# --- Noisy problems to descend: a smooth non-convex one, and a quadratic in skewed noise


class NoisyProblem(Protocol):
    """A true gradient and its noise."""

    def gradient(self, theta: Array) -> Array: ...

    def noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array: ...


class Wells:
    """f = sum theta^2 / (1 + theta^2): smooth (L = 2), not convex beyond 0.58; coin noise."""

    L, steepest = 2.0, 0.65

    def value(self, theta: Array) -> Array:
        return np.asarray((theta**2 / (1 + theta**2)).sum(-1))

    def gradient(self, theta: Array) -> Array:
        return np.asarray(2 * theta / (1 + theta**2) ** 2)

    def noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        return 2.0 * rng.integers(0, 2, shape) - 1


@dataclass(frozen=True)
class SkewedQuadratic:
    """f = curvature theta^2 / 2 with noise of mean 0 that is rarely large, otherwise -scale."""

    curvature: float
    scale: float
    rare: float

    @property
    def largest(self) -> float:
        return self.scale * (1 - self.rare) / self.rare

    def gradient(self, theta: Array) -> Array:
        return self.curvature * theta

    def noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        return self.scale * rare_noise(rng, shape, self.rare)


# --- The descent inequality of a smooth function (non-assume)


def smoothness_bound(L: float, slope: Array, theta: Array, before: Array, after: Array) -> Array:
    """The printed bound on f(xi_{t+1}) - f(xi_t) for an L-smooth f."""
    step = after - before
    distance = ((before - theta) ** 2).sum(-1)
    return np.asarray(L / 2 * distance + L * (step**2).sum(-1) + (slope * step).sum(-1))


def check_smoothness(seed: int = 0, effort: float = 1.0) -> Result:
    """The smallest slack at random points of a function that is smooth and not convex."""
    wells = Wells()
    rng = np.random.default_rng(seed)
    theta, before, after = 2 * rng.normal(size=(3, int(40_000 * effort), 2))
    rise = wells.value(after) - wells.value(before)
    bound = smoothness_bound(wells.L, wells.gradient(theta), theta, before, after)
    slack = float((bound - rise).min())
    return stated(
        "smoothness",
        (Check("least slack over random triples of points", 0.0, ">=", slack),),
        bound_panel(wells),
    )


def bound_panel(wells: Wells) -> Curves:
    line = np.linspace(-3, 3, 121)[:, None]
    at, point = np.array([[0.5]]), np.array([[1.0]])
    bound = smoothness_bound(wells.L, wells.gradient(point), point, at, line)
    return (
        Curve("f(ξₜ₊₁) − f(ξₜ)", line[:, 0], wells.value(line) - wells.value(at), BLUE),
        Curve("printed bound", line[:, 0], bound, BLACK, "--"),
    )


# --- |g^| <= G, which the non-convex proof uses at each step: true with K, not with 2K

STEPS, ONES = 400, 40
GAINS = {"K": 1.0, "2K": 2.0}


def estimates_by_gain(seed: int, effort: float) -> dict[str, Array]:
    """g^ of coin tosses that end in a run of ones, one row per step.

    The coin gives s its size; during the ones m^ comes close to g, K exceeds 1/2, 2K overshoots.
    """
    rng = np.random.default_rng(seed)
    g = 2.0 * rng.integers(0, 2, (STEPS, int(2000 * effort))) - 1
    g[STEPS - ONES :] = 1.0
    paths = {}
    for name, scale in GAINS.items():
        sgdf = SimulatedFilter(gain_scale=scale)
        paths[name] = np.array([sgdf(gradients) for gradients in g])
    return paths


def check_estimate_bound(seed: int = 0, effort: float = 1.0) -> Result:
    """The largest estimate from gradients of size 1."""
    paths = estimates_by_gain(seed, effort)
    largest = {name: float(np.abs(path).max()) for name, path in paths.items()}
    with_k = "gain K (the proof), |g| ≤ 1: largest |ĝ|"
    # The run with the largest overshoot.
    shown = np.arange(STEPS - 60, STEPS)
    worst = int(np.abs(paths["2K"][-ONES:]).max(axis=0).argmax())
    return stated(
        "estimate-bound",
        (
            Check("gain 2K (Algorithm 1), |g| ≤ 1: largest |ĝ|", 1.0, "<=", largest["2K"]),
            Check(with_k, 1.0, "<=", largest["K"], under="condition"),
        ),
        (
            Curve("gain 2K", shown, paths["2K"][shown, worst], VERMILION),
            Curve("gain K", shown, paths["K"][shown, worst], BLUE),
            Curve("G", shown, np.ones(len(shown)), BLACK, "--"),
        ),
    )


# --- The sums of learning rates at the end of the non-convex proof (main_non_convex)

ALPHA, TIMES = 0.5, np.array([1, 10, 100, 1000, 10_000, 100_000])


def check_step_sums(seed: int = 0, effort: float = 1.0) -> Result:
    """Both sums beside the bounds that the proof uses, for alpha_t = alpha / sqrt(t)."""
    rates = ALPHA / np.sqrt(np.arange(1, TIMES[-1] + 1))
    sums, squares = np.cumsum(rates)[TIMES - 1], np.cumsum(rates**2)[TIMES - 1]
    of_rates, of_squares = (dict(zip(TIMES, s, strict=True)) for s in (sums, squares))
    last, key = TIMES[-1], "α=0.5, T=1000: Σαₜ against Σαₜ²"
    limit, safe = ALPHA**2 * (1 + np.log(last)), ALPHA * np.sqrt(last)
    checks = [
        Check("T=100000: Σαₜ² against α²(1 + log T)", limit, "<=", of_squares[last]),
        *(
            Check(f"T={t}: Σαₜ against 2α√T", 2 * ALPHA * np.sqrt(t), ">=", of_rates[t])
            for t in (1, 100, 100_000)
        ),
        Check(key, of_squares[1000], "<=", of_rates[1000]),
        Check("T=100000: Σαₜ against α√T", safe, ">=", of_rates[last], under="remark"),
    ]
    curves = (
        Curve("Σαₜ", TIMES, sums, VERMILION, "o-"),
        Curve("2α√T (printed, below Σαₜ)", TIMES, 2 * ALPHA * np.sqrt(TIMES), BLACK, "--"),
        Curve("Σαₜ² (printed, above Σαₜ)", TIMES, squares, BLUE, "o--"),
        Curve("α√T", TIMES, ALPHA * np.sqrt(TIMES), GREEN, ":"),
    )
    return stated("step-sums", checks, curves, key=key)


# --- The printed rate of min_t E|grad f|^2: true only in symmetric noise (main_non_convex)

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


def recorded_points(T: int) -> Array:
    return np.unique(np.geomspace(1, T, 60).astype(int))


def check_nonconvex_rate(seed: int = 0, effort: float = 1.0) -> Result:
    """min_t E|grad f|^2 falls on a symmetric problem and stops falling on a skewed one."""
    holds, falling = symmetric_rate(seed, effort)
    broken, level = skewed_rate(seed, effort)
    return stated("nonconvex-rate", (*holds, *broken), falling, level, key=broken[0].what)


def symmetric_rate(seed: int, effort: float) -> tuple[list[Check], Curves]:
    """Wells in coin noise."""
    wells, alpha, d = Wells(), 0.5, 4
    points = recorded_points(max(5000, int(50_000 * effort)))
    T, start, rng = int(points[-1]), np.full((64, d), 1.2), np.random.default_rng(seed)
    squares, _ = descend_with_filter(wells, start, T, alpha, (BETA1, BETA2), rng, points)
    means = squares.mean(-1)
    minimum, late = np.minimum.accumulate(means), points >= T / 50
    gap = float(wells.value(start[:1])[0])
    bound = RateConstants(BETA1, 1 + wells.steepest, wells.L, alpha, gap, d).bound
    value, power = (
        mean_and_error(squares[int(np.argmin(means))]),
        exponent(points[late], minimum[late]),
    )
    checks = [
        Check(f"wells, coin noise: E(T), T={T}", float(bound(T)), "<=", *value),
        Check("wells, coin noise: p of E(T) ~ T^p", -0.5, "<=", power, 0.0, "remark", 0.1),
    ]
    return checks, (
        Curve("SGDF", points, minimum, VERMILION),
        Curve("printed bound", points, bound(points), BLACK, "--"),
    )


def skewed_rate(seed: int, effort: float) -> tuple[list[Check], Curves]:
    """The quadratic in skewed noise, where SGDF stops at a gradient that is not 0.

    In units of the squared noise: from the run, and from the bias about a constant gradient.
    """
    problem, alpha, rng = SKEWED, 1 / SKEWED.scale, np.random.default_rng(seed)
    samples = max(2000, int(10_000 * effort))
    bias, bias_error = mean_and_error(
        bias_of_the_estimate(lambda rng: problem.noise(rng, (samples,)), rng, SKEWED_BETAS)
    )
    points = recorded_points(max(10_000, int(1_000_000 * effort)))
    T, slope, unit = int(points[-1]), START * abs(bias), problem.scale**2
    start = np.full((8, 1), slope / problem.curvature)
    squares, least = descend_with_filter(problem, start, T, alpha, SKEWED_BETAS, rng, points)
    largest, gap = problem.largest + REACH * abs(bias), slope**2 / (2 * problem.curvature)
    bound = RateConstants(SKEWED_BETAS[0], largest, problem.curvature, alpha, gap).bound
    run, run_error = mean_and_error(least)
    still = "skewed noise: (E ĝ - ∇f)²/c² of a still gradient, against the bound at T=1e8"
    checks = [
        Check(
            f"skewed noise: E(T)/c² or less, T={T}",
            float(bound(T)) / unit,
            "<=",
            run / unit,
            run_error / unit,
        ),
        Check(
            still, float(bound(FAR)) / unit, "<=", bias**2 / unit, 2 * abs(bias) * bias_error / unit
        ),
    ]
    axis, minimum = np.geomspace(1, FAR, 60), np.minimum.accumulate(squares.mean(-1))
    return checks, (
        Curve("SGDF", points, minimum / unit, VERMILION),
        Curve("(E ĝ − ∇f)², constant gradient", axis, np.full(60, bias**2 / unit), GREEN, ":"),
        Curve("printed bound", axis, bound(axis) / unit, BLACK, "--"),
    )
