"""The printed bound on the sum of squared averages fails for small gradients (lem.B.6)."""

import numpy as np

from sgdf_lab.support.palette import BLACK, BLUE, VERMILION
from sgdf_lab.theory.result import Array, Check, Curve, Panel, Result

BETA1, STEPS = 0.9, 200
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
    return Result(
        name="average-squares",
        title="Sum of the squared averages",
        label="lem.B.6",
        claim="Σ m̂_t² ≤ 4G∞²/(1-β₁)² ‖g_{1:T}‖₂².",
        assumptions="|g_t| ≤ G∞",
        condition="G∞ ≥ √(1-β₁)/2 (0.158 at β₁=0.9)",
        checks=(*checks, first),
        explanation="m̂ is a weighted mean, so Σm̂² ≤ ‖g‖²/(1-β₁) at any scale. The printed right "
        "side has an extra G∞² from Lemma B.5 and shrinks below that for small gradients: a "
        "constant gradient below (1-β₁)/2 breaks it.",
        panels=(scale_panel(),),
    )


def scale_panel() -> Panel:
    scales = np.geomspace(0.005, 2, 60)
    exact = average_square_sum(np.ones(STEPS), BETA1) / STEPS
    any_scale = np.full_like(scales, 1 / (1 - BETA1))
    return Panel(
        "Constant gradient, β₁=0.9",
        "size of the gradient, G∞",
        "Σm̂² / ‖g‖²",
        (
            Curve("exact", scales, np.full_like(scales, exact), VERMILION),
            Curve("printed bound", scales, 4 * scales**2 / (1 - BETA1) ** 2, BLACK, "--"),
            Curve("1/(1-β₁), at any scale", scales, any_scale, BLUE, ":"),
        ),
        logx=True,
        logy=True,
    )
