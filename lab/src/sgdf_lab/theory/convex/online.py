"""Online learning with SGDF: four convex problems, the rounds played, and the best fixed choice."""

from dataclasses import dataclass

import numpy as np

from sgdf.filter import Corrections
from sgdf_lab.theory.filtering import BETA1, BETA2, filter_step, rare_noise
from sgdf_lab.theory.result import Array

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
    theta, filtered = np.zeros(shape), VariantFilter(shape)
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


class VariantFilter:
    """The filter with the gain and the b1 of each variant."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.scale = np.array([gain for gain, _ in VARIANTS.values()])[:, None, None]
        self.decays = np.array([decay for _, decay in VARIANTS.values()])[:, None, None]
        self.m, self.s, self.t = np.zeros(shape), np.zeros(shape), 0
        self.product, self.weights = np.ones_like(self.scale), np.zeros_like(self.scale)

    def __call__(self, g: Array) -> Array:
        self.t += 1
        beta1 = np.where(self.decays, BETA1 / self.t, BETA1)
        # For a constant b1 these are the printed corrections; the sums also fit a decaying one.
        self.product = self.product * beta1
        self.weights = beta1**2 * self.weights + (1 - beta1) ** 2
        corrections = Corrections(1 - self.product, self.weights / (1 - BETA2**self.t))
        estimate, self.m, self.s = filter_step(
            g, self.m, self.s, corrections, beta1=beta1, gain_scale=self.scale
        )
        return np.asarray(estimate)


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
