"""The error of an estimate: bias and variance, and the printed bounds on those of momentum.

Section 2 and Appendix A.
"""

import math
from typing import NamedTuple

import numpy as np

from sgdf_lab.support.palette import BLACK, PURPLE, SKY, VERMILION
from sgdf_lab.theory.filtering import BETA1, SimulatedFilter
from sgdf_lab.theory.momentum import (
    COLOURS,
    KINDS,
    diffusion_mean,
    diffusion_variance,
    momentum_variance,
    simulate_diffusion,
)
from sgdf_lab.theory.result import (
    Array,
    Check,
    Curve,
    Curves,
    Result,
    mean_and_error,
    stated,
    variance_and_error,
)

# --- MSE = bias^2 + variance, for each estimator of a drifting gradient (lem:bias_variance)

DRIFT_STEPS = 60
DRIFTING = 3 - 0.05 * np.arange(DRIFT_STEPS)
ESTIMATOR_COLOURS = {"EMA": PURPLE, "CM": SKY, "SGDF": VERMILION}


class EstimatorRun(NamedTuple):
    """Squared bias and variance at each step, from one half of the runs, and the last estimates."""

    parts: list[tuple[float, float]]
    last: Array


def run_estimators(samples: int, rng: np.random.Generator) -> dict[str, EstimatorRun]:
    sgdf = SimulatedFilter()
    ema, cm = np.zeros(samples), np.zeros(samples)
    parts: dict[str, list[tuple[float, float]]] = {name: [] for name in ESTIMATOR_COLOURS}
    for gradient in DRIFTING:
        g = gradient + rng.normal(size=samples)
        ema, cm = BETA1 * ema + (1 - BETA1) * g, BETA1 * cm + g
        estimates = {"EMA": ema, "CM": cm, "SGDF": sgdf(g)}
        for name, estimate in estimates.items():
            half = estimate[: samples // 2]
            parts[name].append((float((half.mean() - gradient) ** 2), float(half.var())))
    return {name: EstimatorRun(parts[name], estimates[name]) for name in ESTIMATOR_COLOURS}


def check_mse_decomposition(seed: int = 0, effort: float = 1.0) -> Result:
    """The two sides of the identity, from different runs: within the same runs it is algebra."""
    rng = np.random.default_rng(seed)
    samples = int(20_000 * effort)
    runs = run_estimators(samples, rng)
    checks = [
        *(identity_check(name, run) for name, run in runs.items()),
        fresh_gradient_check(runs["SGDF"], rng),
        descent_check(samples, rng),
    ]
    return stated(
        "mse-decomposition",
        checks,
        parts_panel(0, runs),
        parts_panel(1, runs),
    )


def identity_check(name: str, run: EstimatorRun) -> Check:
    mse, error = mean_and_error((run.last[len(run.last) // 2 :] - DRIFTING[-1]) ** 2)
    what = f"{name}, drifting gradient: MSE against bias² + variance"
    return Check(what, sum(run.parts[-1]), "=", mse, error * math.sqrt(2))


def fresh_gradient_check(run: EstimatorRun, rng: np.random.Generator) -> Check:
    """Compared with another noisy gradient, the error contains its noise."""
    fresh = DRIFTING[-1] + rng.normal(size=len(run.last))
    mse, error = mean_and_error((run.last - fresh) ** 2)
    what = "SGDF, against a fresh noisy gradient: bias² + variance + σ²"
    return Check(what, sum(run.parts[-1]) + 1, "=", mse, error * math.sqrt(2))


def descent_check(samples: int, rng: np.random.Generator) -> Check:
    """The two sides of the identity while the filter descends theta^2 / 2."""
    theta, sgdf = np.full(samples, 3.0), SimulatedFilter()
    for _ in range(60):
        gradient = theta
        estimate = sgdf(gradient + rng.normal(size=samples))
        theta = theta - 0.5 * estimate
    mse, error = mean_and_error((estimate - gradient) ** 2)
    printed = float((estimate.mean() - gradient.mean()) ** 2 + estimate.var())
    what = "SGDF while descending θ²/2 (lr 0.5): MSE against bias² + variance"
    return Check(what, printed, "=", mse, error, "remark")


def parts_panel(part: int, runs: dict[str, EstimatorRun]) -> Curves:
    steps = np.arange(1, DRIFT_STEPS + 1)
    curves = tuple(
        Curve(name, steps, [parts[part] for parts in run.parts], ESTIMATOR_COLOURS[name])
        for name, run in runs.items()
    )
    return curves


# --- The printed bound on the bias of momentum (thm:bias_variance_momentum)

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
    t = np.arange(0, 61)
    shown = slice(100, None, 10)
    times, bias = noisy.times[shown], noisy.bias[shown]
    spread = noisy.errors[shown].std(axis=1) / np.sqrt(noisy.errors.shape[1])
    return stated(
        "bias-bound",
        (*late_checks(), early, noisy_check(noisy)),
        (
            Curve("exact", t, np.exp(-(1 - BETA) * t), COLOURS["EMA"]),
            Curve("printed bound", t, np.zeros(len(t)), BLACK, "--"),
        ),
        (
            Curve("simulated (± 2 s.e.)", times, bias, COLOURS["EMA"], band=2 * spread),
            Curve("printed bound", times, np.full(len(spread), noisy.bound), BLACK, "--"),
        ),
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


# --- The printed bound on the variance of momentum (thm:bias_variance_momentum)

SIGMA, G = 1.0, 0.1


def variance_bound(beta: float, mu: float, sigma: float, G: float) -> float:
    """The printed bound on Var m, under the assumptions of the bias bound."""
    return mu**2 * (sigma**2 + G**2) / (2 * (1 - beta))


def leave_maximum(seed: int, effort: float) -> tuple[Array, Array]:
    """(times, m) of EMA's SDE that starts at the top of -log cosh theta.

    The gradient differs between the runs but not along a run, so it adds up like a constant.
    """
    times, ms, _ = simulate_diffusion(
        lambda theta: -np.tanh(theta),
        beta=0.9,
        mu=0.1,
        sigma=SIGMA,
        alpha=0.1,
        theta=0.0,
        time=200,
        dt=0.2,
        paths=max(500, int(4000 * effort)),
        rng=np.random.default_rng(seed),
    )
    return times, ms


def check_variance_bound(seed: int = 0, effort: float = 1.0) -> Result:
    """The bound is right for the diffusion of white noise, wrong elsewhere."""
    times, ms = leave_maximum(seed, effort)
    bound = variance_bound(0.9, 0.1, SIGMA, 1.0)
    what = "SDE, EMA leaving the top of f = -log cosh θ, t=200: variance"
    leaving = Check(what, bound, "<=", *variance_and_error(ms[-1]))
    betas = np.linspace(0, 0.99, 100)
    return stated(
        "variance-bound",
        (*fixed_gradient_checks(), leaving),
        (
            Curve("iteration, exact", betas, (1 - betas) / (1 + betas), COLOURS["EMA"]),
            Curve("printed bound", betas, (1 - betas) / 2, BLACK, "--"),
        ),
        (
            Curve("simulated", times[::10], ms[::10].var(axis=1), COLOURS["EMA"]),
            Curve("printed bound", times[::10], np.full(len(times[::10]), bound), BLACK, "--"),
        ),
        key=what,
    )


def fixed_gradient_checks() -> list[Check]:
    """The variances of the SDE and of the iteration, both exact."""
    diffusion = [
        Check(
            f"{kind}, SDE, fixed gradient, β=0.9: variance",
            variance_bound(0.9, mu_of(0.9), SIGMA, G),
            "<=",
            float(diffusion_variance(1e3, 0.9, mu_of(0.9), SIGMA)),
        )
        for kind, mu_of in KINDS.items()
    ]
    iteration = [
        Check(
            f"iteration, CM, fixed gradient {G}, β={beta:g}: variance",
            variance_bound(beta, 1.0, SIGMA, G),
            "<=",
            float(momentum_variance(1000, beta, 1.0, SIGMA)),
        )
        for beta in (0.0, 0.9)
    ]
    return [*diffusion, *iteration]
