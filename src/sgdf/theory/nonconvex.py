"""Non-convex stochastic optimization: the lemma, the steps and the rate of Appendix D."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sgdf.filter import bias_corrections, wiener_filter
from sgdf.support.palette import BLACK, BLUE, GREEN, VERMILION
from sgdf.theory.estimation import NO_EPS, bias_of_the_estimate, rare_noise
from sgdf.theory.result import Array, Check, Curve, Panel, Result, exponent, mean_and_error

# Formulas


@dataclass(frozen=True)
class Constants:
    """C_1 to C_8 as the proof of main_non_convex prints them.

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


def smoothness_bound(L: float, slope: Array, theta: Array, before: Array, after: Array) -> Array:
    """The printed bound on f(xi_{t+1}) - f(xi_t) for an L-smooth f (non-assume)."""
    step = after - before
    distance = ((before - theta) ** 2).sum(-1)
    return np.asarray(L / 2 * distance + L * (step**2).sum(-1) + (slope * step).sum(-1))


# Simulation


def descend(
    gradient: "Gradient",
    start: Array,
    T: int,
    alpha: float,
    betas: tuple[float, float],
    rng: np.random.Generator,
    points: Array,
) -> tuple[Array, Array]:
    """SGDF with alpha / sqrt(t): |grad f|^2 of every run (a row of start) at each point of T.

    The row of a point is that of theta_t before its t-th step. Beside it the least each run ever
    had, whose mean is at most min_t E|grad f|^2.
    """
    theta, m, s = start.copy(), np.zeros_like(start), np.zeros_like(start)
    wanted, rows, least = set(points.tolist()), [], np.full(len(start), np.inf)
    block = 1000  # noise drawn ahead: one call a step would take half the time
    for t in range(1, T + 1):
        if (t - 1) % block == 0:
            noise = gradient.noise(rng, (block, *start.shape))
        slope = gradient.true(theta)
        squares = (slope * slope).sum(-1)
        np.minimum(least, squares, out=least)
        if t in wanted:
            rows.append(squares)
        estimate, m, s = wiener_filter(
            slope + noise[(t - 1) % block],
            m,
            s,
            bias_corrections(t, *betas),
            beta1=betas[0],
            beta2=betas[1],
            eps=NO_EPS,
        )
        theta = theta - alpha / t**0.5 * estimate
    return np.array(rows), least


class Gradient(Protocol):
    """A true gradient and its noise."""

    def true(self, theta: Array) -> Array: ...

    def noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array: ...


class Wells:
    """f = sum theta^2 / (1 + theta^2): smooth (L = 2), not convex beyond 0.58; coin noise."""

    L, steepest = 2.0, 0.65

    def value(self, theta: Array) -> Array:
        return np.asarray((theta**2 / (1 + theta**2)).sum(-1))

    def true(self, theta: Array) -> Array:
        return np.asarray(2 * theta / (1 + theta**2) ** 2)

    def noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        return 2.0 * rng.integers(0, 2, shape) - 1


@dataclass(frozen=True)
class Skewed:
    """f = curvature theta^2 / 2 with noise of mean 0 that is rarely large, else -scale."""

    curvature: float
    scale: float
    rare: float

    @property
    def largest(self) -> float:
        return self.scale * (1 - self.rare) / self.rare

    def true(self, theta: Array) -> Array:
        return self.curvature * theta

    def noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        return self.scale * rare_noise(rng, shape, self.rare)


#: Large gradients, so that C_5 and C_6 weigh little in the bound.
SKEWED = Skewed(curvature=40.0, scale=1e4, rare=0.25)
#: In units of the bias: the gradient at the start, beyond where it will settle, and its most.
START, REACH = 1.3, 1.7


# Statements


def smoothness(seed: int = 0, effort: float = 1.0) -> Result:
    """The descent inequality at random points of a function that is smooth and not convex."""
    rng = np.random.default_rng(seed)
    wells = Wells()
    theta, before, after = 2 * rng.normal(size=(3, int(40_000 * effort), 2))
    rise = wells.value(after) - wells.value(before)
    bound = smoothness_bound(wells.L, wells.true(theta), theta, before, after)
    line = np.linspace(-3, 3, 121)[:, None]
    at, point = np.array([[0.5]]), np.array([[1.0]])
    return Result(
        name="smoothness",
        title="Descent inequality of a smooth function",
        label="non-assume",
        claim="f(ξₜ₊₁) - f(ξₜ) is at most (L/2)|ξₜ - θₜ|² + L|ξₜ₊₁ - ξₜ|² + ⟨∇f(θₜ), ξₜ₊₁ - ξₜ⟩.",
        assumptions="f is L-smooth",
        checks=(
            Check(
                "least slack over random triples of points", 0.0, ">=", float((bound - rise).min())
            ),
        ),
        explanation="Held at every one of the random triples, convex or not.",
        panels=(
            Panel(
                "f = θ²/(1+θ²), from ξ=0.5, θ=1",
                "ξₜ₊₁",
                "change of f",
                (
                    Curve("f(ξₜ₊₁) − f(ξₜ)", line[:, 0], wells.value(line) - wells.value(at), BLUE),
                    Curve(
                        "printed bound",
                        line[:, 0],
                        smoothness_bound(wells.L, wells.true(point), point, at, line),
                        BLACK,
                        "--",
                    ),
                ),
                ylim=(-1, 6),
            ),
        ),
    )


def bounded_estimate(seed: int = 0, effort: float = 1.0) -> Result:
    """|g^| <= G, which the proof uses at each step: true with K, not with the algorithm's 2K."""
    rng = np.random.default_rng(seed)
    T, samples = 400, int(2000 * effort)
    # A coin for the fluctuation, then a run of ones: m^ comes close, K above 1/2, 2K overshoots.
    g = 2.0 * rng.integers(0, 2, (T, samples)) - 1
    g[T - 40 :] = 1.0
    largest, paths = {}, {}
    for name, scale in (("K", 1.0), ("2K", 2.0)):
        m, s = np.zeros(samples), np.zeros(samples)
        path = np.empty((T, samples))
        for t in range(1, T + 1):
            path[t - 1], m, s = wiener_filter(
                g[t - 1],
                m,
                s,
                bias_corrections(t, 0.9, 0.999),
                beta1=0.9,
                beta2=0.999,
                eps=NO_EPS,
                gain_scale=scale,
            )
        largest[name], paths[name] = float(np.abs(path).max()), path
    shown = np.arange(T - 60, T)
    worst = int(np.abs(paths["2K"][-40:]).max(axis=0).argmax())
    return Result(
        name="estimate-bound",
        title="The estimate is no larger than the gradients",
        label="main_non_convex (proof, step (a))",
        claim="|ĝ| ≤ G whenever every gradient is at most G, K being in [0, 1].",
        assumptions="|g| ≤ G",
        condition="the gain is K: the algorithm uses 2K, which reaches 2",
        checks=(
            Check("gain 2K (Algorithm 1), |g| ≤ 1: largest |ĝ|", 1.0, "<=", largest["2K"]),
            Check(
                "gain K (the proof), |g| ≤ 1: largest |ĝ|",
                1.0,
                "<=",
                largest["K"],
                under="condition",
            ),
        ),
        explanation="With K the estimate is a weighted mean of m̂ and g. With 2K the weights are "
        "1-2K and 2K, outside [0, 1] once K > 1/2. The overshoot is small: |2K(g - m̂)| ≤ √ŝ, so "
        "|ĝ| ≤ G + √ŝ, and constants of the theorem grow by at most (1 + √ŝ/G)², 1.5 at β₁=0.9.",
        panels=(
            Panel(
                "A coin, then ones",
                "step t",
                "estimate ĝ",
                (
                    Curve("gain 2K", shown, paths["2K"][shown, worst], VERMILION),
                    Curve("gain K", shown, paths["K"][shown, worst], BLUE),
                    Curve("G", shown, np.ones(len(shown)), BLACK, "--"),
                ),
            ),
        ),
    )


def sums_of_steps(seed: int = 0, effort: float = 1.0) -> Result:
    """The sums of learning rates that end the proof."""
    alpha, T = 0.5, np.array([1, 10, 100, 1000, 10_000, 100_000])
    rates = alpha / np.sqrt(np.arange(1, T[-1] + 1))
    sums, squares = np.cumsum(rates)[T - 1], np.cumsum(rates**2)[T - 1]
    checks = [
        Check(
            "T=100000: Σαₜ² against α²(1 + log T)",
            alpha**2 * (1 + np.log(T[-1])),
            "<=",
            squares[-1],
        ),
        *(
            Check(f"T={t}: Σαₜ against 2α√T", 2 * alpha * np.sqrt(t), ">=", total)
            for t, total in zip(T, sums, strict=True)
            if t in (1, 100, 100_000)
        ),
        Check("α=0.5, T=1000: Σαₜ against Σαₜ²", squares[3], "<=", sums[3]),
        Check("T=100000: Σαₜ against α√T", alpha * np.sqrt(T[-1]), ">=", sums[-1], under="remark"),
    ]
    return Result(
        name="step-sums",
        title="Sums of the learning rates",
        label="main_non_convex (proof, last steps)",
        claim="(C₅+C₆)Σαₜ ≤ (C₅+C₆)Σαₜ², and dividing by Σαₜ gives 2α√T below the line.",
        assumptions="αₜ = α/√t",
        checks=tuple(checks),
        explanation="Σαₜ is always below 2α√T (α√T is safe), so the printed bound is too small by "
        "up to 2. More serious, αₜ ≤ αₜ² needs αₜ ≥ 1, which fails for all t > α². What the proof "
        "shows then holds (C₅+C₆)Σαₜ/Σαₜ = C₅+C₆, a constant: no convergence.",
        panels=(
            Panel(
                "α = 0.5",
                "T",
                "sum",
                (
                    Curve("Σαₜ", T, sums, VERMILION, "o-"),
                    Curve("2α√T (printed, below Σαₜ)", T, 2 * alpha * np.sqrt(T), BLACK, "--"),
                    Curve("Σαₜ² (printed, above Σαₜ)", T, squares, BLUE, "o--"),
                    Curve("α√T", T, alpha * np.sqrt(T), GREEN, ":"),
                ),
                logx=True,
                logy=True,
            ),
        ),
        key="α=0.5, T=1000: Σαₜ against Σαₜ²",
    )


def rate(seed: int = 0, effort: float = 1.0) -> Result:
    """min_t E|grad f|^2: it falls on a symmetric problem and stops falling on a skewed one."""
    rng = np.random.default_rng(seed)
    wells, alpha, d = Wells(), 0.5, 4
    T = max(5000, int(50_000 * effort))
    points = np.unique(np.geomspace(1, T, 60).astype(int))
    start = np.full((64, d), 1.2)
    squares, _ = descend(wells, start, T, alpha, (0.9, 0.999), rng, points)
    means = np.minimum.accumulate(squares.mean(-1))
    lowest = int(np.argmin(squares.mean(-1)))
    gap = float(wells.value(start[:1])[0])
    benign = Constants(0.9, 1 + wells.steepest, wells.L, alpha, gap, d)
    value, error = mean_and_error(squares[lowest])
    late = points >= T / 50
    checks = [
        Check(f"wells, coin noise: E(T), T={T}", float(benign.bound(T)), "<=", value, error),
        Check(
            "wells, coin noise: p of E(T) ~ T^p",
            -0.5,
            "<=",
            exponent(points[late].astype(float), means[late]),
            0.0,
            "remark",
            0.1,
        ),
    ]
    counter, panel = floor(seed, effort)
    return Result(
        name="nonconvex-rate",
        title="Rate in non-convex stochastic optimization",
        label="main_non_convex",
        claim="min_t E|∇f|² is at most (C₇α²(log T + 1) + C₈)/(2α√T), so it falls like log T/√T.",
        assumptions="A1-A4: bounded iterates, unbiased independent bounded noise, L-smooth f",
        checks=(*checks, *counter),
        explanation="On a smooth non-convex function with symmetric noise the squared gradient "
        "falls at the rate, far below the bound. The proof takes K out of E[Kₜζₜ] though Kₜ "
        "depends on the noise ζₜ. With skewed noise (mean 0, bounded, independent) E ĝ ≠ ∇f "
        "whatever the learning rate, SGDF settles where E ĝ = 0, and min_t E|∇f|² stays at the "
        "square of that bias, while the printed bound goes to 0 and passes below it (shown on a "
        "quadratic; a bump elsewhere makes it non-convex and changes nothing). C₇ is not "
        "independent of d either: it holds ΣG² and d.",
        panels=(
            Panel(
                "Wells θ²/(1+θ²), coin noise",
                "T",
                "min over t ≤ T of E|∇f|²",
                (
                    Curve("SGDF", points, means, VERMILION),
                    Curve("printed bound", points, benign.bound(points), BLACK, "--"),
                ),
                logx=True,
                logy=True,
            ),
            panel,
        ),
        key=counter[0].what,
    )


def floor(seed: int, effort: float) -> tuple[list[Check], Panel]:
    """A quadratic in skewed noise: SGDF stops at a gradient that is not 0."""
    rng = np.random.default_rng(seed)
    betas, problem, alpha = (0.5, 0.9), SKEWED, 1 / SKEWED.scale
    samples = max(2000, int(10_000 * effort))
    runs = bias_of_the_estimate(lambda rng: problem.noise(rng, (samples,)), rng, betas)
    bias, bias_error = mean_and_error(runs)
    T = max(10_000, int(1_000_000 * effort))
    points = np.unique(np.geomspace(1, T, 60).astype(int))
    slope = START * abs(bias)
    start = np.full((8, 1), slope / problem.curvature)
    squares, least = descend(problem, start, T, alpha, betas, rng, points)
    constants = Constants(
        betas[0],
        problem.largest + REACH * abs(bias),
        problem.curvature,
        alpha,
        slope**2 / (2 * problem.curvature),
    )
    means = np.minimum.accumulate(squares.mean(-1))
    value, error = mean_and_error(least)
    unit = problem.scale**2
    far = 1e8
    checks = [
        Check(
            f"skewed noise: E(T)/c² or less, T={T}",
            float(constants.bound(T)) / unit,
            "<=",
            value / unit,
            error / unit,
        ),
        Check(
            "skewed noise: (E ĝ - ∇f)²/c² of a still gradient, against the bound at T=1e8",
            float(constants.bound(far)) / unit,
            "<=",
            bias**2 / unit,
            2 * abs(bias) * bias_error / unit,
        ),
    ]
    axis = np.geomspace(1, far, 60)
    panel = Panel(
        "Quadratic, skewed noise (β₁=0.5, β₂=0.9)",
        "T",
        "min over t ≤ T of E|∇f|² / c²",
        (
            Curve("SGDF", points, means / unit, VERMILION),
            Curve("(E ĝ − ∇f)², still gradient", axis, np.full(60, bias**2 / unit), GREEN, ":"),
            Curve("printed bound", axis, constants.bound(axis) / unit, BLACK, "--"),
        ),
        logx=True,
        logy=True,
    )
    return checks, panel
