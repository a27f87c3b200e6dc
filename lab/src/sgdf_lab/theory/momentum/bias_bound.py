"""The printed bound on the bias of momentum (thm:bias_variance_momentum)."""

from typing import NamedTuple

import numpy as np

from sgdf_lab.support.palette import BLACK
from sgdf_lab.theory.momentum.diffusion import diffusion_mean, simulate_diffusion
from sgdf_lab.theory.momentum.unified_momentum import COLOURS, KINDS
from sgdf_lab.theory.result import Array, Check, Curve, Panel, Result, mean_and_error

BETA = 0.9
NOISY_ALPHA, NOISY_SIGMA = 0.005, 63.0


def bias_bound(beta: float, mu: float, alpha: float, L: float, G: float) -> float:
    """The printed bound on |Bias m| (the paper prints its square).

    Printed assumptions: the gradient is bounded by G and L-Lipschitz, mu >= 1 - beta.
    """
    return mu * alpha * L * G / (1 - beta) ** 2 + (mu / (1 - beta) - 1) * G


def descend_quadratic(
    beta: float, mu: float, alpha: float, L: float, theta: float, steps: int
) -> tuple[Array, Array]:
    """Momentum on L theta^2 / 2 without noise: the gradients, and m minus the gradient."""
    m, gradients, biases = 0.0, np.empty(steps), np.empty(steps)
    for t in range(steps):
        gradients[t] = L * theta
        m = beta * m + mu * gradients[t]
        biases[t] = m - gradients[t]
        theta -= alpha * m
    return gradients, biases


def weighted_past(slopes: Array, beta: float, mu: float, dt: float) -> Array:
    """The part of m(t) that comes from the gradients, by the same Euler scheme."""
    m = np.zeros_like(slopes)
    for n in range(len(slopes) - 1):
        m[n + 1] = m[n] + (-(1 - beta) * m[n] + mu * slopes[n]) * dt
    return m


class NoisyBias(NamedTuple):
    """EMA on a bumpy function in strong noise: m minus the gradient, one row per time."""

    times: Array
    errors: Array
    bound: float

    @property
    def bias(self) -> Array:
        return np.asarray(self.errors.mean(axis=1))


def simulate_noisy_bias(seed: int, effort: float) -> NoisyBias:
    """Noise moves the parameters further than the gradient does: E|m| <= G does not hold."""
    mu = 1 - BETA
    times, _, thetas = simulate_diffusion(
        np.cos,  # bounded by G = 1, Lipschitz with L = 1
        beta=BETA,
        mu=mu,
        sigma=NOISY_SIGMA,
        alpha=NOISY_ALPHA,
        theta=0.0,
        time=60,
        dt=0.1,
        paths=max(1000, int(10_000 * effort)),
        rng=np.random.default_rng(seed),
    )
    slopes = np.cos(thetas)
    # The noise's own part of m has mean 0; without it the bias has a smaller standard error.
    errors = weighted_past(slopes, BETA, mu, times[1]) - slopes
    return NoisyBias(times, errors, bias_bound(BETA, mu, NOISY_ALPHA, 1.0, 1.0))


def check_bias_bound(seed: int = 0, effort: float = 1.0) -> Result:
    """The bound holds late and without noise; it fails early, and in strong noise."""
    # For a constant gradient any L is valid, so the bound for EMA is near 0 at every t.
    early = Check(
        "EMA, constant gradient 1, no noise, t=10: |bias| of m(t)",
        bias_bound(BETA, 1 - BETA, 0.005, 1e-3, 1.0),
        "<=",
        abs(float(diffusion_mean(10, BETA, 1 - BETA, 1.0)) - 1),
    )
    noisy = simulate_noisy_bias(seed, effort)
    return Result(
        name="bias-bound",
        title="Bound on the bias of momentum",
        label="thm:bias_variance_momentum",
        claim="The bias of m as an estimate of the gradient is at most "
        "μαLG/(1-β)² + (μ/(1-β) - 1)G at any time.",
        assumptions="gradient bounded by G and L-Lipschitz, μ ≥ 1-β, m(0) = 0",
        checks=(*late_checks(), early, noisy_check(noisy)),
        explanation="The proof turns |μ(1-e^(-(1-β)t))/(1-β) - 1| into the same without bars. For "
        "EMA that is negative at every finite t, so the bound misses the start-up bias "
        "Ge^(-(1-β)t) (Adam's bias correction removes it). It also takes E|m| ≤ G, which noise "
        "breaks: σ=63G carries θ across the gradient's bumps faster than any drift. Without noise "
        "and after some 1/(1-β) steps the bound holds. At β=0 it reads αLG where the true bias is "
        "0, and as β → 1 it diverges where EMA's bias cannot exceed 2G.",
        panels=(early_panel(), noisy_panel(noisy)),
        key=early.what,
    )


def late_checks() -> list[Check]:
    """On a quadratic without noise, after the start has been forgotten."""
    checks = []
    for kind, mu_of in KINDS.items():
        alpha = 0.01 if kind == "EMA" else 0.001
        gradients, biases = descend_quadratic(BETA, mu_of(BETA), alpha, 1.0, 1.0, 400)
        bound = bias_bound(BETA, mu_of(BETA), alpha, 1.0, float(np.abs(gradients).max()))
        late = float(np.abs(biases[100:]).max())
        checks.append(Check(f"{kind}, no noise, t > 100: largest |bias|", bound, "<=", late))
    return checks


def noisy_check(noisy: NoisyBias) -> Check:
    """At the time of the largest bias after t=20."""
    at = int(np.argmax(np.where(noisy.times > 20, noisy.bias, -np.inf)))
    what = f"EMA, gradient cos θ, noise σ={NOISY_SIGMA:g}, t={noisy.times[at]:.0f}: bias"
    return Check(what, noisy.bound, "<=", *mean_and_error(noisy.errors[at]))


def early_panel() -> Panel:
    t = np.arange(0, 61)
    return Panel(
        "EMA, constant gradient (L → 0)",
        "time t (iterations)",
        "|bias| of m(t)",
        (
            Curve("exact", t, np.exp(-(1 - BETA) * t), COLOURS["EMA"]),
            Curve("printed bound", t, np.zeros(len(t)), BLACK, "--"),
        ),
    )


def noisy_panel(noisy: NoisyBias) -> Panel:
    shown = slice(100, None, 10)
    times, bias = noisy.times[shown], noisy.bias[shown]
    spread = noisy.errors[shown].std(axis=1) / np.sqrt(noisy.errors.shape[1])
    return Panel(
        "EMA, gradient cos θ, σ=63",
        "time t (iterations)",
        "bias of m(t)",
        (
            Curve("simulated (± 2 s.e.)", times, bias, COLOURS["EMA"], band=2 * spread),
            Curve("printed bound", times, np.full(len(spread), noisy.bound), BLACK, "--"),
        ),
    )
