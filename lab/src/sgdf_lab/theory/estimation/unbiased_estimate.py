"""E g^ = grad f, which both theorems need: true in symmetric noise alone (main_non_convex)."""

from typing import NamedTuple

import numpy as np

from sgdf_lab.support.palette import BLACK, BLUE, VERMILION
from sgdf_lab.theory.filtering import Noise, bias_of_the_estimate, rare_noise
from sgdf_lab.theory.result import Array, Check, Curve, Panel, Result, mean_and_error

#: How often the large value of the skewed noise occurs; the checks use a tenth of the time.
RARE = np.array([0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5])
TENTH = 2
GAINS = {"2K": 2.0, "K": 1.0}
COLOURS = {"2K": VERMILION, "K": BLUE}


class Biases(NamedTuple):
    """Biases of g^ by kind of symmetric noise, and in skewed noise by gain (a row per RARE)."""

    symmetric: dict[str, Array]
    skewed: dict[str, Array]


def simulate_biases(seed: int, effort: float) -> Biases:
    samples = int(4000 * effort)
    symmetric: dict[str, Noise] = {
        "Gaussian": lambda rng: rng.normal(size=samples),
        "coin ±1": lambda rng: rng.choice([-1.0, 1.0], size=samples),
    }

    def skewed(rng: np.random.Generator) -> Array:
        return rare_noise(rng, (len(RARE), samples), RARE[:, None])

    return Biases(
        {
            name: bias_of_the_estimate(noise, np.random.default_rng(seed))
            for name, noise in symmetric.items()
        },
        {
            name: bias_of_the_estimate(skewed, np.random.default_rng(seed), gain_scale=scale)
            for name, scale in GAINS.items()
        },
    )


def check_unbiased_estimate(seed: int = 0, effort: float = 1.0) -> Result:
    """The bias of g^ about a constant gradient, in symmetric and in skewed noise."""
    biases = simulate_biases(seed, effort)
    symmetric = [
        Check(f"{name} noise: E ĝ - ∇f", 0.0, "=", *mean_and_error(runs), "condition")
        for name, runs in biases.symmetric.items()
    ]
    skewed = [
        Check(
            f"9 a tenth of the time, else -1, gain {name}: E ĝ - ∇f",
            0.0,
            "=",
            *mean_and_error(runs[TENTH]),
        )
        for name, runs in biases.skewed.items()
    ]
    return Result(
        name="unbiased-estimate",
        title="The gain and the noise of its own gradient",
        label="main_non_convex (proof, term (3))",
        claim="The noise ζₜ drops out of E⟨∇f, (weights with Kₜ)·ζₜ⟩ since its mean is 0: ĝ points "
        "along the gradient on average.",
        assumptions="unbiased, bounded, independent noise",
        condition="the noise is symmetric: Kₜ depends on ζₜ, so E[Kₜζₜ] is not 0 otherwise",
        checks=(*symmetric, *skewed),
        explanation="K is small for large residuals and near 1 for small ones: rare large "
        "gradients lose their weight, common small ones keep it, and what is left has a nonzero "
        "mean. It is at most √ŝ, about 0.2σ. No learning rate makes it smaller; a smaller gain or "
        "β₁ does. This is what breaks the two theorems.",
        panels=(skew_panel(biases.skewed),),
        key=skewed[0].what,
    )


def skew_panel(skewed: dict[str, Array]) -> Panel:
    sigma = np.sqrt((1 - RARE) / RARE)
    return Panel(
        "Skewed noise about a constant gradient, β₁=0.9",
        "probability of the large value",
        "(E ĝ − ∇f) / σ",
        (
            *(
                Curve(f"gain {name}", RARE, runs.mean(axis=1) / sigma, COLOURS[name], "o-")
                for name, runs in skewed.items()
            ),
            Curve("unbiased", RARE, np.zeros(len(RARE)), BLACK, "--"),
        ),
    )
