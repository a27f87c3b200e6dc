"""|g^| <= G, which the non-convex proof uses at each step: true with K, not with 2K."""

import numpy as np

from sgdf_lab.support.palette import BLACK, BLUE, VERMILION
from sgdf_lab.theory.filtering import SimulatedFilter
from sgdf_lab.theory.result import Array, Check, Curve, Panel, Result

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
    return Result(
        name="estimate-bound",
        title="The estimate is no larger than the gradients",
        label="main_non_convex (proof, step (a))",
        claim="|ĝ| ≤ G whenever every gradient is at most G, K being in [0, 1].",
        assumptions="|g| ≤ G",
        condition="the gain is K: the algorithm uses 2K, which reaches 2",
        checks=(
            Check("gain 2K (Algorithm 1), |g| ≤ 1: largest |ĝ|", 1.0, "<=", largest["2K"]),
            Check(with_k, 1.0, "<=", largest["K"], under="condition"),
        ),
        explanation="With K the estimate is a weighted mean of m̂ and g. With 2K the weights are "
        "1-2K and 2K, outside [0, 1] once K > 1/2. The overshoot is small: |2K(g - m̂)| ≤ √ŝ, so "
        "|ĝ| ≤ G + √ŝ, and constants of the theorem grow by at most (1 + √ŝ/G)², 1.5 at β₁=0.9.",
        panels=(overshoot_panel(paths),),
    )


def overshoot_panel(paths: dict[str, Array]) -> Panel:
    """The run with the largest overshoot."""
    shown = np.arange(STEPS - 60, STEPS)
    worst = int(np.abs(paths["2K"][-ONES:]).max(axis=0).argmax())
    return Panel(
        "A coin, then ones",
        "step t",
        "estimate ĝ",
        (
            Curve("gain 2K", shown, paths["2K"][shown, worst], VERMILION),
            Curve("gain K", shown, paths["K"][shown, worst], BLUE),
            Curve("G", shown, np.ones(len(shown)), BLACK, "--"),
        ),
    )
