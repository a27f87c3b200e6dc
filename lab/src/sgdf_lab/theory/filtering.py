"""The algorithm in float64 over many independent coordinates, and the noise it is fed with."""

from collections.abc import Callable
from typing import Any

import numpy as np

from sgdf.filter import Corrections, Filter, FilterSettings
from sgdf_lab.theory.result import Array

BETA1, BETA2 = 0.9, 0.999
NO_EPS = 1e-300  # the paper has no eps

Noise = Callable[[np.random.Generator], Array]


class SimulatedFilter(Filter):
    """The filter without eps, one gradient at a time; `rescale(t)` multiplies its s^."""

    def __init__(
        self,
        *,
        betas: tuple[float, float] = (BETA1, BETA2),
        gain_scale: Any = 2.0,
        rescale: Callable[[int], float] | None = None,
    ) -> None:
        super().__init__(FilterSettings(betas, NO_EPS, gain_scale))
        self.rescale = rescale

    @property
    def corrections(self) -> Corrections:
        corrections = super().corrections
        if self.rescale is None:
            return corrections
        return corrections._replace(fluctuation=corrections.fluctuation * self.rescale(self.t))

    @property
    def residual(self) -> Any:
        """g - m^ of the step just taken."""
        return self.g - self.m_hat


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
