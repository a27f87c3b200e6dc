"""The error of an estimate: bias and variance, and the printed bounds on those of momentum.

Section 2 and Appendix A.
"""

import math

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


def check_mse_decomposition(seed: int = 0, effort: float = 1.0) -> Result:
    """The two sides of the identity, from different runs: within the same runs it is algebra."""
    rng = np.random.default_rng(seed)
    samples = int(20_000 * effort)
    sgdf, ema, cm = SimulatedFilter(), np.zeros(samples), np.zeros(samples)
    parts: dict[str, list[tuple[float, float]]] = {name: [] for name in ESTIMATOR_COLOURS}
    for gradient in DRIFTING:
        g = gradient + rng.normal(size=samples)
        ema, cm = BETA1 * ema + (1 - BETA1) * g, BETA1 * cm + g
        last = {"EMA": ema, "CM": cm, "SGDF": sgdf(g)}
        for name, estimate in last.items():
            half = estimate[: samples // 2]
            parts[name].append((float((half.mean() - gradient) ** 2), float(half.var())))

    def check(what: str, name: str, errors: Array, noise: float = 0.0) -> Check:
        mse, error = mean_and_error(errors**2)
        return Check(what, sum(parts[name][-1]) + noise, "=", mse, error * math.sqrt(2))

    identity = "drifting gradient: MSE against bias² + variance"
    checks = [
        check(f"{name}, {identity}", name, estimate[samples // 2 :] - DRIFTING[-1])
        for name, estimate in last.items()
    ]
    # Compared with another noisy gradient, the error contains its noise.
    fresh = last["SGDF"] - (DRIFTING[-1] + rng.normal(size=samples))
    what = "SGDF, against a fresh noisy gradient: bias² + variance + σ²"
    checks += [check(what, "SGDF", fresh, noise=1.0), descent_check(samples, rng)]
    steps = np.arange(1, DRIFT_STEPS + 1)
    biases, variances = (
        [Curve(n, steps, [p[i] for p in parts[n]], shade) for n, shade in ESTIMATOR_COLOURS.items()]
        for i in range(2)
    )
    return stated("mse-decomposition", checks, biases, variances)


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


def check_bias_bound(seed: int = 0, effort: float = 1.0) -> Result:
    """The bound holds late and without noise; it fails early, and in strong noise."""
    # For a constant gradient any L is valid, so the bound for EMA is near 0 at every t.
    early = Check(
        "EMA, constant gradient 1, no noise, t=10: |bias| of m(t)",
        bias_bound(BETA, 1 - BETA, 0.005, 1e-3, 1.0),
        "<=",
        abs(float(diffusion_mean(10, BETA, 1 - BETA, 1.0)) - 1),
    )
    noisy, in_noise = bias_in_noise(seed, effort)
    t = np.arange(0, 61)
    from_start = (
        Curve("exact", t, np.exp(-(1 - BETA) * t), COLOURS["EMA"]),
        Curve("printed bound", t, np.zeros(len(t)), BLACK, "--"),
    )
    return stated(
        "bias-bound", (*late_checks(), early, noisy), from_start, in_noise, key=early.what
    )


def bias_in_noise(seed: int, effort: float) -> tuple[Check, Curves]:
    """EMA on a bumpy function in strong noise, at the time of the largest bias after t=20.

    Noise moves the parameters further than the gradient does: E|m| <= G does not hold.
    """
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
    slopes, dt = np.cos(thetas), times[1]
    # Only the part of m that comes from the gradients, by the same Euler scheme: the noise's own
    # part has mean 0, and without it the bias has a smaller standard error.
    m = np.zeros_like(slopes)
    for n in range(len(slopes) - 1):
        m[n + 1] = m[n] + (-(1 - BETA) * m[n] + mu * slopes[n]) * dt
    errors = m - slopes
    bias, bound = errors.mean(axis=1), bias_bound(BETA, mu, NOISY_ALPHA, 1.0, 1.0)
    at = int(np.argmax(np.where(times > 20, bias, -np.inf)))
    what = f"EMA, gradient cos θ, noise σ={NOISY_SIGMA:g}, t={times[at]:.0f}: bias"
    shown = slice(100, None, 10)
    spread = errors[shown].std(axis=1) / np.sqrt(errors.shape[1])
    return Check(what, bound, "<=", *mean_and_error(errors[at])), (
        Curve("simulated (± 2 s.e.)", times[shown], bias[shown], COLOURS["EMA"], band=2 * spread),
        Curve("printed bound", times[shown], np.full(len(spread), bound), BLACK, "--"),
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


# --- The printed bound on the variance of momentum (thm:bias_variance_momentum)

SIGMA, G = 1.0, 0.1


def variance_bound(beta: float, mu: float, sigma: float, G: float) -> float:
    """The printed bound on Var m, under the assumptions of the bias bound."""
    return mu**2 * (sigma**2 + G**2) / (2 * (1 - beta))


def check_variance_bound(seed: int = 0, effort: float = 1.0) -> Result:
    """The bound is right for the diffusion of white noise, wrong elsewhere."""
    bound, betas = variance_bound(0.9, 0.1, SIGMA, 1.0), np.linspace(0, 0.99, 100)
    # EMA's SDE from the top of -log cosh theta: the gradient differs between the runs but not
    # along a run, so it adds up like a constant.
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
    what = "SDE, EMA leaving the top of f = -log cosh θ, t=200: variance"
    leaving = Check(what, bound, "<=", *variance_and_error(ms[-1]))
    fixed = (
        Curve("iteration, exact", betas, (1 - betas) / (1 + betas), COLOURS["EMA"]),
        Curve("printed bound", betas, (1 - betas) / 2, BLACK, "--"),
    )
    from_top = (
        Curve("simulated", times[::10], ms[::10].var(axis=1), COLOURS["EMA"]),
        Curve("printed bound", times[::10], np.full(len(times[::10]), bound), BLACK, "--"),
    )
    checks = [*fixed_gradient_checks(), leaving]
    return stated("variance-bound", checks, fixed, from_top, key=what)


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
