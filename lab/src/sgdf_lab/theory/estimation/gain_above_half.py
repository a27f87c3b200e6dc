"""A step of the convex proof: the mean gain is above 1/2 (the.A.13)."""

from typing import NamedTuple

import numpy as np

from sgdf_lab.support.palette import BLACK, BLUE, GREEN, ORANGE, PURPLE
from sgdf_lab.theory.filtering import Noise, SimulatedFilter
from sgdf_lab.theory.result import Check, Curve, Panel, Result, mean_and_error

STEPS = 500
COLOURS = {
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


class MeanGain(NamedTuple):
    """K in one kind of noise: its mean over all steps, and over the steps so far."""

    mean: tuple[float, float]  #: with its standard error
    so_far: list[float]
    premise: float  #: sum s^ / sum (g - m^)^2


def mean_gain(noise: Noise, samples: int, seed: int) -> MeanGain:
    rng = np.random.default_rng(seed)
    sgdf, gains, so_far, left, right = SimulatedFilter(), np.zeros(samples), [], 0.0, 0.0
    for t in range(1, STEPS + 1):
        sgdf(noise(rng))
        left += float(sgdf.s_hat.mean())
        right += float((sgdf.residual**2).mean())
        gains += sgdf.gain
        so_far.append(float(gains.mean()) / t)
    return MeanGain(mean_and_error(gains / STEPS), so_far, left / right)


def check_gain_above_half(seed: int = 0, effort: float = 1.0) -> Result:
    """The mean of K over 500 steps, in four kinds of noise about a constant gradient."""
    samples = int(2000 * effort)
    runs = {name: mean_gain(noise, samples, seed) for name, noise in noises(samples).items()}
    checks = []
    for name, run in runs.items():
        what = f"{name} noise: mean of K over {STEPS} steps"
        checks.append(Check(what, 0.5, ">=", *run.mean))
        if name == "Gaussian":
            checks.append(Check("Gaussian noise: Σŝ / Σ(g-m̂)²", 1.0, ">=", run.premise))
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
        panels=(gain_panel(runs),),
    )


def gain_panel(runs: dict[str, MeanGain]) -> Panel:
    t = np.arange(1, STEPS + 1)
    return Panel(
        "Mean of K so far, noise about a constant gradient",
        "step t",
        "mean of K",
        (
            *(Curve(name, t, run.so_far, COLOURS[name]) for name, run in runs.items()),
            Curve("printed: above", [1, STEPS], [0.5, 0.5], BLACK, "--"),
        ),
        logx=True,
        ylim=(0, 1.05),
    )
