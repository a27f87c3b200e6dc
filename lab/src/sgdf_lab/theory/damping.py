"""A constant gain on a quadratic: what it damps, and up to which learning rate it is stable.

Not a statement of the paper but our own, written as the paper's are. With curvature h and
x = lr h, the step

    m <- b1 m + (1-b1) g,   theta <- theta - lr ((1-c) m + c g),   g = h theta

is, with m eliminated by lr (1-c) m_(t-1) = theta_(t-1) - theta_t - c x theta_(t-1),

    theta_(t+1) = (1 + b1 - x k) theta_t - b1 (1 - c x) theta_(t-1),   k = (1-c)(1-b1) + c.
"""

import numpy as np

from sgdf_lab.support.palette import BLACK, BLUE, GREEN, PURPLE, VERMILION
from sgdf_lab.theory.filtering import BETA1
from sgdf_lab.theory.result import Array, Check, Curve, Result, stated

GAINS = {0.0: PURPLE, 0.05: BLUE, 0.1: GREEN, 0.3: VERMILION}


def characteristic(x: float, beta1: float, gain: float) -> tuple[float, float]:
    """a and b of the characteristic polynomial z^2 - a z + b."""
    return 1 + beta1 - x * ((1 - gain) * (1 - beta1) + gain), beta1 * (1 - gain * x)


def largest_stable(beta1: float, gain: float) -> float:
    """The x up to which nothing grows: there z = -1 is a root."""
    return 2 * (1 + beta1) / ((1 - gain) * (1 - beta1) + gain * (1 + beta1))


def oscillation_factor(x: float, beta1: float, gain: float) -> float:
    """What an oscillation shrinks by per step; NaN where the roots are real."""
    a, b = characteristic(x, beta1, gain)
    return float(np.sqrt(b)) if a * a < 4 * b else np.nan


def slowest(x: float, beta1: float, gain: float) -> float:
    """The larger modulus of the two roots."""
    a, b = characteristic(x, beta1, gain)
    return float(np.abs(np.roots([1.0, -a, b])).max())


def simulate(x: float, beta1: float, gain: float, steps: int) -> Array:
    """theta of the iteration itself, from theta = 1 and m = 0."""
    m, theta, path = 0.0, 1.0, np.empty(steps + 1)
    for t in range(steps + 1):
        path[t] = theta
        m = beta1 * m + (1 - beta1) * x * theta
        theta -= (1 - gain) * m + gain * x * theta
    return path


def simulated_factor(path: Array) -> float:
    """The factor per step of a decaying oscillation, from a conserved ratio of its values.

    For any solution of the recursion the determinant theta_(t+1) theta_(t-1) - theta_t^2 is
    multiplied by the product of the roots at each step.
    """
    determinants = path[2:] * path[:-2] - path[1:-1] ** 2
    return float((determinants[-1] / determinants[0]) ** (0.5 / (len(determinants) - 1)))


def simulated_largest(beta1: float, gain: float) -> float:
    """The largest x whose iteration does not grow, by bisection on simulated paths."""
    low, high = 0.0, 1.5 * largest_stable(beta1, 0.0)
    for _ in range(40):
        x = (low + high) / 2
        path = np.abs(simulate(x, beta1, gain, 2000))
        grows = not path[-100:].max() <= path[:100].max()
        low, high = (low, x) if grows else (x, high)
    return low


def check_damping(seed: int = 0, effort: float = 1.0) -> Result:
    """Factors and largest stable x beside those of the iteration; nothing in it is random."""
    del seed, effort
    checks = [
        Check(f"β₁={BETA1}, c={gain:g}, x={x:g}: factor of the oscillation",
              oscillation_factor(x, BETA1, gain), "=",
              simulated_factor(simulate(x, BETA1, gain, 60)), tolerance=1e-6)
        for gain, x in ((0.0, 4.0), (0.05, 4.0), (0.1, 4.0), (0.1, 8.0), (0.3, 2.0))
    ]  # fmt: skip
    checks += [
        Check(f"β₁={beta1}, c={gain:g}: largest stable x", largest_stable(beta1, gain), "=",
              simulated_largest(beta1, gain), tolerance=0.02)
        for beta1 in (BETA1, 0.5) for gain in (0.0, 0.1, 1.0)
    ]  # fmt: skip
    t = np.arange(41)
    rings = [
        Curve(f"c={gain:g}", t, simulate(4.0, BETA1, gain, 40), GAINS[gain], "-")
        for gain in (0.0, 0.05, 0.1)
    ]
    grid = np.geomspace(0.01, 45, 400)
    factors = [
        Curve(f"c={gain:g}", grid, [slowest(x, BETA1, gain) for x in grid], shade)
        for gain, shade in GAINS.items()
    ]
    factors.append(Curve("stable below", grid, np.ones(len(grid)), BLACK, ":"))
    return stated("damping", checks, rings, factors, key=checks[2].what)
