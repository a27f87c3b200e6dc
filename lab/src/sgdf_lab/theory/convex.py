"""Online convex learning: three lemmas and the regret bound (Section 4, Appendix C)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sgdf.filter import Corrections
from sgdf_lab.support.palette import BLACK, BLUE, GREEN, ORANGE, VERMILION
from sgdf_lab.theory.filtering import BETA1, BETA2, SimulatedFilter, rare_noise
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

# --- A convex function lies above its tangents (lem.B.4)

#: Convex functions of three variables, each with a (sub)gradient.
FUNCTIONS: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "|θ|²/2": (lambda v: (v**2).sum(-1) / 2, lambda v: v),
    "Σ|θᵢ|": (lambda v: np.abs(v).sum(-1), np.sign),
    "log Σ exp θᵢ": (
        lambda v: np.log(np.exp(v).sum(-1)),
        lambda v: np.exp(v) / np.exp(v).sum(-1, keepdims=True),
    ),
}
FUNCTION_COLOURS = dict(zip(FUNCTIONS, (BLUE, GREEN, ORANGE), strict=True))


def tangent_bound(value: Array, slope: Array, step: Array) -> Array:
    """f(x) + grad f(x)^T (y - x), below f(y) for a convex f."""
    return np.asarray(value + np.sum(slope * step, axis=-1))


def gap_above_tangent(name: str, x: Array, y: Array) -> Array:
    """f(y) minus the tangent at x."""
    f, gradient = FUNCTIONS[name]
    return f(y) - tangent_bound(f(x), gradient(x), y - x)


def check_tangent(seed: int = 0, effort: float = 1.0) -> Result:
    """The smallest gap over random pairs of points."""
    rng = np.random.default_rng(seed)
    x, y = 3 * rng.normal(size=(2, int(20_000 * effort), 3))
    least = {name: float(gap_above_tangent(name, x, y).min()) for name in FUNCTIONS}
    return stated(
        "tangent",
        [
            Check(f"{name}: least f(y) - tangent", 0.0, ">=", gap, tolerance=1e-12)
            for name, gap in least.items()
        ],
        gap_panel(),
    )


def gap_panel() -> Curves:
    line = np.linspace(-3, 3, 121)
    along = np.zeros((len(line), 3))
    along[:, 0] = line
    at = np.array([1.0, 0.0, 0.0])
    curves = tuple(
        Curve(name, line, gap_above_tangent(name, at, along), FUNCTION_COLOURS[name])
        for name in FUNCTIONS
    )
    return curves


# --- The printed bound on the sum of the gradients, against the plainest sequences (lem.B.5)


def gradient_sum_bound(gradients: Array, largest: float) -> float:
    """The printed bound 2 G_inf |g_{1:T}|_2 on sum_t g_t."""
    return 2 * largest * float(np.linalg.norm(gradients))


def check_gradient_sum(seed: int = 0, effort: float = 1.0) -> Result:
    """Random gradients around 0, constant ones, and a single small one."""
    constant, small = np.ones(100), np.full(1, 0.1)
    centred = np.random.default_rng(seed).uniform(-1, 1, 100)
    key = "g = 1, T=100: Σg"
    sequences = (
        ("uniform on [-1, 1], T=100: Σg", centred, 1.0),
        (key, constant, 1.0),
        ("g = 0.1, T=1: Σg", small, 0.1),
    )
    cauchy_schwarz = Check(
        "g = 1, T=100: Σg against √T‖g‖ (Cauchy-Schwarz)",
        10 * float(np.linalg.norm(constant)),
        "<=",
        float(constant.sum()),
        under="remark",
    )
    T = np.arange(1, 101)
    return stated(
        "gradient-sum",
        (
            *(
                Check(what, gradient_sum_bound(g, largest), "<=", float(g.sum()))
                for what, g, largest in sequences
            ),
            cauchy_schwarz,
        ),
        (
            Curve("Σ g", T, T, VERMILION),
            Curve("printed bound", T, 2 * np.sqrt(T), BLACK, "--"),
        ),
        key=key,
    )


# --- The printed bound on the sum of squared averages fails for small gradients (lem.B.6)

STEPS = 200
THRESHOLD = np.sqrt(1 - BETA1) / 2


def average_square_bound(gradients: Array, largest: float, beta1: float) -> float:
    """The printed bound 4 G_inf^2 / (1-b1)^2 |g_{1:T}|_2^2 on sum_t m^_t^2."""
    return 4 * largest**2 / (1 - beta1) ** 2 * float(gradients @ gradients)


def average_square_sum(gradients: Array, beta1: float) -> float:
    """sum_t m^_t^2."""
    m, total = 0.0, 0.0
    for t, g in enumerate(gradients, 1):
        m = beta1 * m + (1 - beta1) * g
        total += (m / (1 - beta1**t)) ** 2
    return total


def largest_ratio(scale: float, trials: int, rng: np.random.Generator) -> float:
    """The largest sum over its bound, of random and of extreme sequences with |g| <= scale."""
    largest = -np.inf
    for _ in range(trials):
        decay = rng.uniform(0.9, 1)
        g = scale * rng.uniform(-1, 1, STEPS) * decay ** np.arange(STEPS)
        for sequence in (g, np.abs(g), np.full(STEPS, scale), scale * (np.arange(STEPS) == 0)):
            bound = average_square_bound(sequence, scale, BETA1)
            largest = max(largest, average_square_sum(sequence, BETA1) / bound)
    return largest


def check_average_squares(seed: int = 0, effort: float = 1.0) -> Result:
    """The largest ratio to the bound for large, medium and small gradients."""
    rng = np.random.default_rng(seed)
    trials = max(5, int(40 * effort))
    checks = [
        Check(
            f"G∞={scale:.3g}: largest Σm̂² / bound",
            1.0,
            "<=",
            largest_ratio(scale, trials, rng),
            under="condition" if scale >= THRESHOLD else "paper",
        )
        for scale in (1.0, THRESHOLD, 0.02)
    ]
    first = Check(
        "any scale, all in the first gradient: Σm̂² against ‖g‖²/(1-β₁)",
        1 / (1 - BETA1),
        "<=",
        average_square_sum(1.0 * (np.arange(STEPS) == 0), BETA1),
        under="remark",
    )
    scales = np.geomspace(0.005, 2, 60)
    exact = average_square_sum(np.ones(STEPS), BETA1) / STEPS
    any_scale = np.full_like(scales, 1 / (1 - BETA1))
    return stated(
        "average-squares",
        (*checks, first),
        (
            Curve("exact", scales, np.full_like(scales, exact), VERMILION),
            Curve("printed bound", scales, 4 * scales**2 / (1 - BETA1) ** 2, BLACK, "--"),
            Curve("1/(1-β₁), at any scale", scales, any_scale, BLUE, ":"),
        ),
    )


# --- Online learning with SGDF: four convex problems, the rounds played, and the best fixed choice

#: name: (gain_scale, whether b1 decays as b1 / t)
VARIANTS = {"gain K": (1.0, False), "gain 2K": (2.0, False), "gain 2K, β₁/t": (2.0, True)}
PROBLEMS = ("absolute", "quadratic", "adversary", "skewed")
TITLES = {
    "absolute": "|θ - z|, z uniform",
    "quadratic": "(θ - z)²/2, z uniform",
    "adversary": "sign(θ)·θ on [-1, 1]",
    "skewed": "c(θ²/2 + ξθ), ξ skewed",
}
SCALE, RARE = 1e-3, 0.1  # of the skewed problem: the size of its losses, how often xi is large
ALPHA = {"absolute": 0.5, "quadratic": 0.5, "adversary": 0.5, "skewed": 0.1 / SCALE}


@dataclass
class RegretTrace:
    """A run at its recorded times T, each an array (time, variant, problem, seed)."""

    T: Array
    regret: Array
    D: Array
    largest: Array
    norm: Array


def play(T: int, seeds: int, seed: int) -> RegretTrace:
    """SGDF with step alpha / sqrt(t) on every problem, variant and seed at once."""
    rng = np.random.default_rng(seed)
    z, xi = rng.uniform(-1, 1, (T, seeds)), rare_noise(rng, (T, seeds), RARE)
    alpha = np.array([ALPHA[problem] for problem in PROBLEMS])[None, :, None]
    shape = (len(VARIANTS), len(PROBLEMS), seeds)
    theta, filtered = np.zeros(shape), VariantFilter()
    theta[:, :2] = 1.0
    low, high, largest = theta.copy(), theta.copy(), np.zeros(shape)
    losses, squares, signs = np.zeros(shape), np.zeros(shape), np.zeros((len(VARIANTS), seeds))
    points = np.unique(np.geomspace(10, T, 25).astype(int))
    rows: list[tuple[Array, ...]] = []
    for t in range(1, T + 1):
        loss, g = losses_and_gradients(theta, z[t - 1], xi[t - 1])
        losses += loss
        squares += g * g
        signs += g[:, 2]
        np.maximum(largest, np.abs(g), out=largest)
        theta = theta - alpha / np.sqrt(t) * filtered(g)
        theta[:, 2] = np.clip(theta[:, 2], -1, 1)
        np.minimum(low, theta, out=low)
        np.maximum(high, theta, out=high)
        if t in points:
            best, value = best_in_hindsight(z[:t], xi[:t], signs)
            D = np.maximum(high, best) - np.minimum(low, best)
            rows.append((losses - value, D, largest.copy(), np.sqrt(squares)))
    columns = (np.array(column) for column in zip(*rows, strict=True))
    return RegretTrace(points.astype(float), *columns)


class VariantFilter(SimulatedFilter):
    """The filter with the gain and the b1 of each variant."""

    def __init__(self) -> None:
        gains, decays = (
            np.array(column)[:, None, None] for column in zip(*VARIANTS.values(), strict=True)
        )
        super().__init__(gain_scale=gains)
        self.decays = decays
        self.product, self.weights = np.ones(decays.shape), np.zeros(decays.shape)

    def __call__(self, g: Array) -> Array:
        beta1 = np.where(self.decays, BETA1 / (self.t + 1), BETA1)
        self.settings = self.settings._replace(betas=(beta1, BETA2))
        self.product = self.product * beta1
        self.weights = beta1**2 * self.weights + (1 - beta1) ** 2
        return np.asarray(super().__call__(g))

    @property
    def corrections(self) -> Corrections:
        """The printed ones for a constant b1; the sums also fit a decaying one."""
        return Corrections(1 - self.product, self.weights / (1 - BETA2**self.t))


def losses_and_gradients(theta: Array, z: Array, xi: Array) -> tuple[Array, Array]:
    """f_t(theta) and its gradient; the adversary sees theta before it plays."""
    loss, g = np.empty_like(theta), np.empty_like(theta)
    away = theta[:, :2] - z
    loss[:, 0], g[:, 0] = np.abs(away[:, 0]), np.sign(away[:, 0])
    loss[:, 1], g[:, 1] = away[:, 1] ** 2 / 2, away[:, 1]
    g[:, 2] = np.where(theta[:, 2] >= 0, 1.0, -1.0)
    loss[:, 2] = g[:, 2] * theta[:, 2]
    g[:, 3] = SCALE * (theta[:, 3] + xi)
    loss[:, 3] = SCALE * (theta[:, 3] ** 2 / 2 + xi * theta[:, 3])
    return loss, g


def best_in_hindsight(z: Array, xi: Array, signs: Array) -> tuple[Array, Array]:
    """The best fixed theta for each problem so far, and its total loss."""
    shape = (len(signs), len(PROBLEMS), z.shape[1])
    best, value = np.empty(shape), np.empty(shape)
    best[:, 0] = np.median(z, axis=0)
    value[:, 0] = np.abs(best[0, 0] - z).sum(axis=0)
    best[:, 1] = z.mean(axis=0)
    value[:, 1] = ((best[0, 1] - z) ** 2).sum(axis=0) / 2
    best[:, 2] = -np.sign(signs)
    value[:, 2] = -np.abs(signs)
    best[:, 3] = -xi.mean(axis=0)
    value[:, 3] = -SCALE * len(xi) * best[0, 3] ** 2 / 2
    return best, value


# --- The printed regret bound on four problems; on the last the regret grows like T (the.A.13)

SEEDS = 16
VARIANT_COLOURS = dict(zip(VARIANTS, (BLUE, VERMILION, GREEN), strict=True))


def regret_terms(
    T: Any, alpha: float, beta1: float, D: Any, largest: Any, norm: Any
) -> tuple[Any, Any, Any]:
    """The three terms of the printed bound on R(T) in one dimension.

    D bounds the distance between iterates (in the proof also to the optimum), `largest` is G_inf
    and `norm` is |g_{1:T}|_2. Printed assumptions: convex losses with gradients and iterates so
    bounded, alpha_t = alpha / sqrt(t), constant b1 and b2 in [0, 1).
    """
    return (
        D**2 / alpha * np.sqrt(T),
        2 * D * largest / (1 - beta1) * norm,
        2 * alpha * largest**2 * (1 + (1 - beta1) ** 2) / (np.sqrt(T) * (1 - beta1) ** 2) * norm**2,
    )


def check_convex_regret(seed: int = 0, effort: float = 1.0) -> Result:
    """The regret at the last T beside its bound, and how it grows."""
    T = max(20_000, int(150_000 * effort))
    trace = play(T, SEEDS, seed)
    late = trace.T >= T / 30
    regrets: list[Check] = []
    growths: list[Check] = []
    for p, problem in enumerate(PROBLEMS):
        measured = (x[:, :, p] for x in (trace.D, trace.largest, trace.norm))
        terms = regret_terms(trace.T[:, None, None], ALPHA[problem], BETA1, *measured)
        bound, curves, powers = sum(terms), [], {}
        for v, variant in enumerate(VARIANTS):
            regret, what = trace.regret[:, v, p], f"{TITLES[problem]}, {variant}"
            powers[variant] = power = exponent(trace.T[late], regret[late].mean(-1))
            under: Any = "remark" if "/t" in variant else "paper"
            last, measure = float(bound[-1, v].mean()), mean_and_error(regret[-1])
            regrets.append(Check(f"{what}: R(T)", last, "<=", *measure, under))
            growths.append(Check(f"{what}: p of R ~ T^p", 0.5, "<=", power, 0.0, "remark", 0.1))
            curves.append(Curve(variant, trace.T, regret.mean(-1), VARIANT_COLOURS[variant]))
        of_2k = bound[:, list(VARIANTS).index("gain 2K")].mean(-1)
        curves.append(Curve("printed bound (2K)", trace.T, of_2k, BLACK, "--"))
        if problem == "adversary":
            adversary = curves
    return stated(
        "convex-regret",
        (*regrets, *growths, far_optimum()),
        adversary,
        curves,  # of the last problem, the skewed one
        key=f"{TITLES['skewed']}, gain 2K: R(T)",
        T=T,
        terms=[float(np.mean(term[-1])) for term in terms],
        growth=powers,
    )


def far_optimum() -> Check:
    """|theta - 10| from 0 with a tiny step: iterates stay close together, far from the optimum."""
    alpha, T = 1e-3, 100
    # The gradient is always -1, so m^ = g and the estimate is g whatever the gain.
    theta = alpha * np.concatenate([[0.0], np.cumsum(1 / np.sqrt(np.arange(1, T)))])
    bound = sum(regret_terms(T, alpha, BETA1, float(theta[-1]), 1.0, np.sqrt(T)))
    what = "|θ - 10| from 0, α=0.001, T=100: R(T), D between iterates only"
    return Check(what, bound, "<=", float((10 - theta).sum()))
