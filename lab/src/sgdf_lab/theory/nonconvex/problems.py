"""Noisy problems to descend: a smooth non-convex one, and a quadratic in skewed noise."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sgdf_lab.theory.filtering import rare_noise
from sgdf_lab.theory.result import Array


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
