"""The algorithm in float64 over many independent coordinates, for the simulations.

Everything in this package that filters a gradient does so here.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from sgdf.filter import Corrections, bias_corrections, wiener_filter, wiener_gain
from sgdf_lab.theory.result import Array

BETA1, BETA2 = 0.9, 0.999
NO_EPS = 1e-300  # the paper has no eps

Noise = Callable[[np.random.Generator], Array]


def filter_step(
    g: Array,
    m: Any,
    s: Any,
    corrections: Corrections,
    *,
    beta1: Any = BETA1,
    beta2: float = BETA2,
    gain_scale: Any = 2.0,
) -> tuple[Any, Any, Any]:
    """One step: (g, m, s) -> (g^, m, s)."""
    return wiener_filter(
        g, m, s, corrections, beta1=beta1, beta2=beta2, eps=NO_EPS, gain_scale=gain_scale
    )


class SimulatedFilter:
    """The filter with its state, one gradient at a time; `rescale(t)` multiplies its s^."""

    def __init__(
        self,
        *,
        betas: tuple[float, float] = (BETA1, BETA2),
        gain_scale: float = 2.0,
        rescale: Callable[[int], float] | None = None,
    ) -> None:
        self.betas, self.gain_scale, self.rescale = betas, gain_scale, rescale
        self.g: Any = 0.0
        self.m: Any = 0.0
        self.s: Any = 0.0
        self.t = 0

    def __call__(self, g: Array) -> Array:
        """The estimate g^."""
        self.t += 1
        self.g = g
        beta1, beta2 = self.betas
        estimate, self.m, self.s = filter_step(
            g,
            self.m,
            self.s,
            self.corrections,
            beta1=beta1,
            beta2=beta2,
            gain_scale=self.gain_scale,
        )
        return np.asarray(estimate)

    @property
    def corrections(self) -> Corrections:
        corrections = bias_corrections(self.t, *self.betas)
        if self.rescale is None:
            return corrections
        return corrections._replace(fluctuation=corrections.fluctuation * self.rescale(self.t))

    @property
    def s_hat(self) -> Array:
        return np.asarray(self.s * self.corrections.fluctuation)

    @property
    def residual(self) -> Array:
        """g - m^ of the step just taken."""
        return np.asarray(self.g - self.m / self.corrections.trend)

    @property
    def gain(self) -> Array:
        """K of the step just taken."""
        return np.asarray(wiener_gain(self.s_hat, self.residual, NO_EPS))


def rare_noise(rng: np.random.Generator, shape: tuple[int, ...], rare: Any) -> Array:
    """Skewed noise of mean 0: large with probability `rare`, otherwise -1."""
    return np.where(rng.random(shape) < rare, (1 - rare) / rare, -1.0)


def bias_of_the_estimate(
    noise: Noise,
    rng: np.random.Generator,
    betas: tuple[float, float] = (BETA1, BETA2),
    gain_scale: float = 2.0,
) -> Array:
    """g^ minus a constant gradient, averaged over 600 steps of each run.

    Subtracts g instead of its mean: the expectation is the same and the variance much smaller.
    """
    steps, burn_in = 800, 200
    sgdf = SimulatedFilter(betas=betas, gain_scale=gain_scale)
    total: Any = 0.0
    for t in range(1, steps + 1):
        g = noise(rng)
        estimate = sgdf(g)
        if t > burn_in:
            total = total + (estimate - g)
    return np.asarray(total) / (steps - burn_in)
