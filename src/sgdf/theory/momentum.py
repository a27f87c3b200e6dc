"""Momentum m <- beta m + mu g: its moments, its diffusion, and the printed bounds on both.

Section 2 and Appendix A. EMA is mu = 1 - beta, CM is mu = 1. Time is counted in iterations and
kappa stands for 1 - beta throughout.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from sgdf.support.palette import BLACK, BLUE, GREEN, VERMILION, colour
from sgdf.theory.result import (
    Array,
    Check,
    Curve,
    Panel,
    Result,
    exponent,
    mean_and_error,
    variance_and_error,
)

EMA, CM = colour("sgd-ema"), colour("sgd-cm")
KINDS: dict[str, Callable[[float], float]] = {"EMA": lambda beta: 1 - beta, "CM": lambda beta: 1.0}


# Formulas


def momentum_mean(gradients: Array, beta: float, mu: float) -> Array:
    """E m_t = mu sum_i beta^(t-i) grad_i for t = 1, 2, ... (def:unify_momentum, m_0 = 0)."""
    means, m = np.empty(len(gradients)), 0.0
    for t, gradient in enumerate(gradients):
        m = beta * m + mu * gradient
        means[t] = m
    return means


def momentum_variance(t: Any, beta: float, mu: float, sigma: float) -> Any:
    """Var m_t = mu^2 sigma^2 (1 - beta^2t) / (1 - beta^2), whatever the deterministic gradient."""
    return mu**2 * sigma**2 * (1 - beta ** (2 * t)) / (1 - beta**2)


def bias_bound(beta: float, mu: float, alpha: float, L: float, G: float) -> float:
    """The printed bound on |Bias m| (its square is printed), thm:bias_variance_momentum.

    Printed assumptions: the gradient is bounded by G and L-Lipschitz, mu >= 1 - beta.
    """
    return mu * alpha * L * G / (1 - beta) ** 2 + (mu / (1 - beta) - 1) * G


def variance_bound(beta: float, mu: float, sigma: float, G: float) -> float:
    """The printed bound on Var m, thm:bias_variance_momentum, under the same assumptions."""
    return mu**2 * (sigma**2 + G**2) / (2 * (1 - beta))


def diffusion_mean(t: Any, beta: float, mu: float, gradient: float) -> Any:
    """E m(t) of the printed solution for a constant gradient (lem:unify_momentum_solution)."""
    return mu * gradient * (1 - np.exp(-(1 - beta) * t)) / (1 - beta)


def diffusion_variance(t: Any, beta: float, mu: float, sigma: float) -> Any:
    """Var m(t) of the printed solution for a gradient without randomness of its own."""
    return mu**2 * sigma**2 * (1 - np.exp(-2 * (1 - beta) * t)) / (2 * (1 - beta))


def linear_moments(
    drift: Array, noise: Array, start: Array, times: Array
) -> tuple[list[Array], list[Array]]:
    """Mean and covariance of dx = A x dt + B dW at each time, by diagonalising A."""
    values, vectors = np.linalg.eig(drift)
    inverse = np.linalg.inv(vectors)
    spread = inverse @ noise @ noise.T @ inverse.T
    sums = values[:, None] + values[None, :]
    means, covariances = [], []
    for t in times:
        means.append((vectors @ np.diag(np.exp(values * t)) @ inverse @ start).real)
        inner = spread * np.expm1(sums * t) / sums
        covariances.append((vectors @ inner @ vectors.T).real)
    return means, covariances


# Simulations


def simulate_momentum(
    gradients: Array, beta: float, mu: float, sigma: float, paths: int, rng: np.random.Generator
) -> Array:
    """m_T of `paths` independent runs over the given true gradients."""
    m = np.zeros(paths)
    for gradient in gradients:
        m = beta * m + mu * (gradient + sigma * rng.normal(size=paths))
    return m


def simulate_diffusion(
    gradient: Callable[[Array], Array],
    *,
    beta: float,
    mu: float,
    sigma: float,
    alpha: float,
    theta: float,
    time: float,
    dt: float,
    paths: int,
    rng: np.random.Generator,
) -> tuple[Array, Array, Array]:
    """Euler-Maruyama for the printed SDE: (times, m, theta), a row a time."""
    steps = round(time / dt)
    m, position = np.zeros(paths), np.full(paths, theta)
    ms, thetas = np.empty((steps + 1, paths)), np.empty((steps + 1, paths))
    ms[0], thetas[0] = m, position
    for n in range(steps):
        kick = mu * sigma * np.sqrt(dt) * rng.normal(size=paths)
        slope = gradient(position)
        position = position - alpha * m * dt
        m = m + (-(1 - beta) * m + mu * slope) * dt + kick
        ms[n + 1], thetas[n + 1] = m, position
    return np.linspace(0, steps * dt, steps + 1), ms, thetas


def weighted_past(slopes: Array, beta: float, mu: float, dt: float) -> Array:
    """The gradients' part of m(t), by the same Euler scheme."""
    m = np.zeros_like(slopes)
    for n in range(len(slopes) - 1):
        m[n + 1] = m[n] + (-(1 - beta) * m[n] + mu * slopes[n]) * dt
    return m


# Statements


def unified_momentum(seed: int = 0, effort: float = 1.0) -> Result:
    """The definition: what m_t estimates, for a constant and for a drifting gradient."""
    rng = np.random.default_rng(seed)
    beta, sigma, T, paths = 0.9, 1.0, 60, int(40_000 * effort)
    signals = {"constant": np.ones(T), "drifting": 1 - 0.02 * np.arange(T)}
    checks, curves = [], []
    for kind, mu_of in KINDS.items():
        mu = mu_of(beta)
        for shape, gradients in signals.items():
            m = simulate_momentum(gradients, beta, mu, sigma, paths, rng)
            mean, mean_error = mean_and_error(m)
            variance, variance_error = variance_and_error(m)
            exact = momentum_mean(gradients, beta, mu)
            checks += [
                Check(f"{kind}, {shape}: mean at t={T}", exact[-1], "=", mean, mean_error),
                Check(
                    f"{kind}, {shape}: variance at t={T}",
                    momentum_variance(T, beta, mu, sigma),
                    "=",
                    variance,
                    variance_error,
                ),
            ]
            curves.append(
                Curve(
                    f"{kind}, {shape}",
                    np.arange(1, T + 1),
                    exact - gradients,
                    colour("sgd-ema" if kind == "EMA" else "sgd-cm"),
                    "-" if shape == "constant" else "--",
                )
            )
    return Result(
        name="unified-momentum",
        title="Unified momentum: mean and variance",
        label="def:unify_momentum",
        claim="m ← βm + μg averages past gradients: EMA (μ=1-β) keeps their scale, CM (μ=1) sums "
        "them. We state its exact moments, on which the bounds below are judged.",
        assumptions="gradients with independent noise of variance σ², m₀ = 0",
        checks=tuple(checks),
        explanation="E m = μ Σ β^(t-i) ∇f_i and Var m = μ²σ²(1-β^2t)/(1-β²), as simulated. EMA "
        "lags a drift of c a step by cβ/(1-β); CM is 1/(1-β) times as large, so as an "
        "estimate of the gradient it is off by its scale before anything else.",
        panels=(
            Panel("Bias of m, β=0.9", "step t", "E m − ∇f", tuple(curves), ylim=(-1.5, 14)),
            Panel(
                "Standard deviation, σ=1",
                "step t",
                "standard deviation of m",
                tuple(
                    Curve(
                        kind,
                        np.arange(1, T + 1),
                        np.sqrt(momentum_variance(np.arange(1, T + 1), beta, mu_of(beta), sigma)),
                        EMA if kind == "EMA" else CM,
                    )
                    for kind, mu_of in KINDS.items()
                ),
                logy=True,
            ),
        ),
    )


def bias_of_momentum(seed: int = 0, effort: float = 1.0) -> Result:
    """The bias bound: without noise and late it holds; early, and with strong noise, it breaks."""
    beta = 0.9
    checks = []
    for kind, mu_of in KINDS.items():
        # On a quadratic followed without noise, after the start has been forgotten.
        alpha = 0.01 if kind == "EMA" else 0.001
        gradients, biases = descend(beta, mu_of(beta), alpha, 1.0, 1.0, 400)
        bound = bias_bound(beta, mu_of(beta), alpha, 1.0, float(np.abs(gradients).max()))
        late = float(np.abs(biases[100:]).max())
        checks.append(Check(f"{kind}, no noise, t > 100: largest |bias|", bound, "<=", late))
    # For a constant gradient any L will do, which leaves EMA a bound near 0 at every t.
    early = Check(
        "EMA, constant gradient 1, no noise, t=10: |bias| of m(t)",
        bias_bound(beta, 1 - beta, 0.005, 1e-3, 1.0),
        "<=",
        abs(float(diffusion_mean(10, beta, 1 - beta, 1.0)) - 1),
    )
    noisy, noisy_panel = bias_in_noise(seed, effort)
    t = np.arange(0, 61)
    return Result(
        name="bias-bound",
        title="Bound on the bias of momentum",
        label="thm:bias_variance_momentum",
        claim="The bias of m as an estimate of the gradient is at most "
        "μαLG/(1-β)² + (μ/(1-β) - 1)G at any time.",
        assumptions="gradient bounded by G and L-Lipschitz, μ ≥ 1-β, m(0) = 0",
        checks=(*checks, early, noisy),
        explanation="The proof turns |μ(1-e^(-(1-β)t))/(1-β) - 1| into the same without bars. For "
        "EMA that is negative at every finite t, so the bound misses the start-up bias "
        "Ge^(-(1-β)t) (Adam's bias correction removes it). It also takes E|m| ≤ G, which noise "
        "breaks: σ=63G carries θ across the gradient's bumps faster than any drift. Without noise "
        "and after some 1/(1-β) steps the bound holds. At β=0 it reads αLG where the true bias is "
        "0, and as β → 1 it diverges where EMA's bias cannot pass 2G.",
        panels=(
            Panel(
                "EMA, constant gradient (L → 0)",
                "time t (iterations)",
                "|bias| of m(t)",
                (
                    Curve("exact", t, np.exp(-(1 - beta) * t), EMA),
                    Curve("printed bound", t, np.zeros(len(t)), BLACK, "--"),
                ),
            ),
            noisy_panel,
        ),
        key=early.what,
    )


def bias_in_noise(seed: int, effort: float) -> tuple[Check, Panel]:
    """Noise moves the parameters further than the gradient does: E|m| <= G is not true."""
    beta, alpha, sigma = 0.9, 0.005, 63.0
    times, _, thetas = simulate_diffusion(
        np.cos,  # bounded by G = 1, Lipschitz with L = 1
        beta=beta,
        mu=1 - beta,
        sigma=sigma,
        alpha=alpha,
        theta=0.0,
        time=60,
        dt=0.1,
        paths=max(1000, int(10_000 * effort)),
        rng=np.random.default_rng(seed),
    )
    slopes = np.cos(thetas)
    # The noise's own part of m has mean 0: leaving it out shows the bias under less noise.
    errors = weighted_past(slopes, beta, 1 - beta, times[1]) - slopes
    bias = errors.mean(axis=1)
    at = int(np.argmax(np.where(times > 20, bias, -np.inf)))
    bound = bias_bound(beta, 1 - beta, alpha, 1.0, 1.0)
    what = f"EMA, gradient cos θ, noise σ={sigma:g}, t={times[at]:.0f}: bias"
    shown = slice(100, None, 10)
    spread = errors[shown].std(axis=1) / np.sqrt(errors.shape[1])
    panel = Panel(
        "EMA, gradient cos θ, σ=63",
        "time t (iterations)",
        "bias of m(t)",
        (
            Curve("simulated (± 2 s.e.)", times[shown], bias[shown], EMA, band=2 * spread),
            Curve("printed bound", times[shown], np.full(len(spread), bound), BLACK, "--"),
        ),
    )
    return Check(what, bound, "<=", *mean_and_error(errors[at])), panel


def descend(
    beta: float, mu: float, alpha: float, L: float, theta: float, steps: int
) -> tuple[Array, Array]:
    """Momentum on L theta^2 / 2 without noise: the gradients, and m minus the next gradient."""
    m, gradients, biases = 0.0, np.empty(steps), np.empty(steps)
    for t in range(steps):
        gradients[t] = L * theta
        m = beta * m + mu * gradients[t]
        biases[t] = m - gradients[t]
        theta -= alpha * m
    return gradients, biases


def variance_of_momentum(seed: int = 0, effort: float = 1.0) -> Result:
    """The variance bound: right for the diffusion of white noise, wrong elsewhere."""
    rng = np.random.default_rng(seed)
    sigma, G = 1.0, 0.1
    checks = []
    for kind, mu_of in KINDS.items():
        mu = mu_of(0.9)
        checks.append(
            Check(
                f"{kind}, SDE, fixed gradient, β=0.9: variance",
                variance_bound(0.9, mu, sigma, G),
                "<=",
                float(diffusion_variance(1e3, 0.9, mu, sigma)),
            )
        )
    checks += [
        Check(
            f"iteration, CM, fixed gradient {G}, β={beta:g}: variance",
            variance_bound(beta, 1.0, sigma, G),
            "<=",
            float(momentum_variance(1000, beta, 1.0, sigma)),
        )
        for beta in (0.0, 0.9)
    ]
    # A gradient that differs between runs but not along a run adds up like a constant.
    times, ms, _ = simulate_diffusion(
        lambda theta: -np.tanh(theta),
        beta=0.9,
        mu=0.1,
        sigma=sigma,
        alpha=0.1,
        theta=0.0,
        time=200,
        dt=0.2,
        paths=max(500, int(4000 * effort)),
        rng=rng,
    )
    value, error = variance_and_error(ms[-1])
    saddle = variance_bound(0.9, 0.1, sigma, 1.0)
    leaving = "SDE, EMA leaving the top of f = -log cosh θ, t=200: variance"
    checks.append(Check(leaving, saddle, "<=", value, error))
    betas = np.linspace(0, 0.99, 100)
    return Result(
        name="variance-bound",
        title="Bound on the variance of momentum",
        label="thm:bias_variance_momentum",
        claim="The variance of m is at most μ²(σ² + G²)/(2(1-β)).",
        assumptions="gradient bounded by G (so of variance at most G²) and Lipschitz, noise of "
        "variance σ² independent over time",
        checks=tuple(checks),
        explanation="The SDE's noise part is exact. But (i) the iteration's own variance is "
        "μ²σ²/(1-β²), 2/(1+β) times the SDE's, so where G² < σ²(1-β)/(1+β) it passes the bound "
        "(at β=0, plain SGD: σ² against (σ²+G²)/2); (ii) the proof treats the gradients' own "
        "fluctuation as white, yet gradients along a run are correlated, and then it adds up to "
        "μ²Var(∇f)/(1-β)², up to 2/(1-β) times the printed term.",
        panels=(
            Panel(
                "Fixed gradient, EMA, G→0",
                "β",
                "variance of m / σ²",
                (
                    Curve("iteration, exact", betas, (1 - betas) / (1 + betas), EMA),
                    Curve("printed bound", betas, (1 - betas) / 2, BLACK, "--"),
                ),
            ),
            Panel(
                "SDE leaving a maximum, EMA, β=0.9",
                "time t (iterations)",
                "variance of m(t)",
                (
                    Curve("simulated", times[::10], ms[::10].var(axis=1), EMA),
                    Curve(
                        "printed bound", times[::10], np.full(len(times[::10]), saddle), BLACK, "--"
                    ),
                ),
            ),
        ),
        key=leaving,
    )


def diffusion_of_momentum(seed: int = 0, effort: float = 1.0) -> Result:
    """The SDE as the limit of the iteration: in which parameter?"""
    what = "variance of m, iteration / SDE"
    checks = [
        Check(f"θ²/2, β=0.5, γα={alpha:g}: {what}", 1.0, "=", variance_ratio(0.5, alpha))
        for alpha in (1e-2, 1e-4, 1e-6)
    ]
    beta = 1 - 1e-3
    checks.append(
        Check(
            f"θ²/2, β=0.999, γα=1e-6: {what}",
            1.0,
            "=",
            variance_ratio(beta, 1e-6),
            under="condition",
            tolerance=1e-3,
        )
    )
    kappas = np.array([0.3, 0.1, 0.03, 0.01, 0.003])
    gaps = [variance_ratio(1 - kappa, 1e-6) - 1 for kappa in kappas]
    order = exponent(kappas, np.array(gaps))
    checks.append(
        Check("order in 1-β of the gap between the two", 1.0, "=", order, 0.0, "condition", 0.05)
    )
    # With t_n = n γα, as the proof has it, m would hardly have begun to move.
    alpha, steps = 0.01, 100
    checks.append(
        Check(
            "β=0.9, γα=0.01, 100 iterations: E m / ∇f, time counted as n·γα",
            float(diffusion_mean(steps * alpha, 0.9, 0.1, 1.0)),
            "=",
            float(momentum_mean(np.ones(steps), 0.9, 0.1)[-1]),
        )
    )
    t = np.arange(0, 41)
    return Result(
        name="sde",
        title="Momentum as an SDE",
        label="lem:unify_momentum_sde",
        claim="For a small learning rate γα the iteration is the SDE "
        "dm = [-(1-β)m + μ∇f]dt + μσ dW, dθ = -γα m dt.",
        assumptions="γα small; μ in [0, 1) in the lemma, which leaves out CM's μ = 1",
        checks=tuple(checks),
        condition="1-β is small too, and a unit of time is one iteration (not γα of one)",
        explanation="The learning rate does not enter m while the gradient stands still: the "
        "iteration's variance is 2/(1+β) times the SDE's for every γα. The two agree as 1-β → 0 "
        "with time counted in iterations, the gap being (1-β)/2 to first order. The proof's time "
        "nγα would slow m down by 1/(γα).",
        panels=(
            Panel(
                "Mean, constant gradient 1, EMA",
                "iterations",
                "E m",
                tuple(
                    curve
                    for beta, shade in ((0.5, BLUE), (0.9, VERMILION))
                    for curve in (
                        Curve(f"iteration, β={beta}", t[::2], (1 - beta**t)[::2], shade, "o"),
                        Curve(f"SDE, β={beta}", t, diffusion_mean(t, beta, 1 - beta, 1), shade),
                    )
                ),
            ),
            Panel(
                "Variance, long after the start",
                "1-β",
                "variance: iteration / SDE − 1",
                (
                    Curve("exact, any γα", kappas, gaps, EMA, "o-"),
                    Curve("(1-β)/2", kappas, kappas / 2, BLACK, "--"),
                ),
                logx=True,
                logy=True,
            ),
        ),
    )


def variance_ratio(beta: float, alpha: float) -> float:
    """Var m on theta^2 / 2, the iteration's over the SDE's, after five times 1 / (1 - beta)."""
    mu, steps = 1 - beta, round(5 / (1 - beta))
    covariance = iterated_covariance(beta, mu, alpha, steps)
    drift, noise = quadratic_system(mu, alpha)
    _, printed = linear_moments(drift, noise, np.zeros(2), np.array([float(steps)]))
    return float(covariance[0, 0] / printed[0][0, 0])


def iterated_covariance(beta: float, mu: float, alpha: float, steps: int) -> Array:
    """The covariance of (m, theta) after some iterations on theta^2 / 2 in noise of variance 1."""
    keep = np.array([[beta, mu], [-alpha * beta, 1 - alpha * mu]])
    kick = np.array([[mu], [-alpha * mu]])
    covariance = np.zeros((2, 2))
    for _ in range(steps):
        covariance = keep @ covariance @ keep.T + kick @ kick.T
    return covariance


def quadratic_system(kappa: float, alpha: float) -> tuple[Array, Array]:
    """Drift and noise of (m, theta) for EMA on theta^2 / 2 in noise of variance 1."""
    return np.array([[-kappa, kappa], [-alpha, 0.0]]), np.array([[kappa], [0.0]])


def solution_of_the_diffusion(seed: int = 0, effort: float = 1.0) -> Result:
    """The printed solution: the Euler scheme must come to it as its step shrinks."""
    constant, constant_panel = constant_gradient_solution()
    coupled, coupled_panel = quadratic_solution(seed, effort)
    return Result(
        name="sde-solution",
        title="Solution of the SDE",
        label="lem:unify_momentum_solution",
        claim="m(t) is the exponentially weighted integral of past gradients and of past noise.",
        assumptions="m(0) = 0, θ(0) given; θ stands on both sides, so it is an implicit solution",
        checks=(*constant, *coupled),
        explanation="The Euler scheme's mean and variance come to the printed ones at first order "
        "in its step, and on a quadratic, where θ and m drive each other, its simulated moments "
        "are those of the matrix exponential.",
        panels=(constant_panel, coupled_panel),
    )


def constant_gradient_solution() -> tuple[list[Check], Panel]:
    """The Euler scheme's moments at t=20, exact for each step size, beside the printed ones."""
    beta, mu, sigma, time = 0.9, 0.1, 1.0, 20.0
    steps = np.array([1.0, 0.5, 0.25, 0.125, 0.0625])
    printed = np.array(
        [diffusion_mean(time, beta, mu, 1.0), diffusion_variance(time, beta, mu, sigma)]
    )
    euler = np.array([euler_moments(dt, time, beta, mu, sigma) for dt in steps])
    gaps = np.abs(euler - printed)
    # Two steps of the scheme cancel its first order: what is left must be close to the formula.
    limit = 2 * euler[-1] - euler[-2]
    checks = []
    for i, what in enumerate(("mean", "variance")):
        order, dt_to_0 = f"order in dt of the Euler scheme's {what}", f"{what} at t=20, dt → 0"
        checks += [
            Check(order, 1.0, "=", exponent(steps, gaps[:, i]), tolerance=0.05),
            Check(f"constant gradient: {dt_to_0}", printed[i], "=", limit[i], tolerance=1e-4),
        ]
    panel = Panel(
        "Constant gradient: error at t=20",
        "step dt of the Euler scheme",
        "distance from the printed value",
        (
            Curve("mean", steps, gaps[:, 0], EMA, "o-"),
            Curve("variance", steps, gaps[:, 1], GREEN, "o-"),
            Curve("slope 1", steps, steps * gaps[0, 0], BLACK, ":"),
        ),
        logx=True,
        logy=True,
    )
    return checks, panel


def quadratic_solution(seed: int, effort: float) -> tuple[list[Check], Panel]:
    """The coupled case: on theta^2 / 2 the printed solution is a matrix exponential."""
    alpha, kappa = 0.05, 0.1
    times, ms, thetas = simulate_diffusion(
        lambda theta: theta,
        beta=1 - kappa,
        mu=kappa,
        sigma=1.0,
        alpha=alpha,
        theta=1.0,
        time=60,
        dt=0.05,
        paths=max(500, int(4000 * effort)),
        rng=np.random.default_rng(seed),
    )
    drift, noise = quadratic_system(kappa, alpha)
    means, covariances = linear_moments(drift, noise, np.array([0.0, 1.0]), times)
    checks: list[Check] = []
    curves: list[Curve] = []
    shown = slice(0, None, 40)
    for what, values, i, shade in (("m", ms, 0, EMA), ("θ", thetas, 1, BLUE)):
        mean, spread = [row[i] for row in means], [row[i, i] for row in covariances]
        at = f"of {what} at t=60"
        # The tolerances are the scheme's own error at this step.
        measured, squared = mean_and_error(values[-1]), variance_and_error(values[-1])
        checks += [
            Check(f"quadratic: mean {at}", mean[-1], "=", *measured, tolerance=2e-3),
            Check(f"quadratic: variance {at}", spread[-1], "=", *squared, tolerance=5e-4),
        ]
        simulated = values.mean(axis=1)[shown]
        curves += [
            Curve(f"{what}, printed solution", times, mean, shade, band=np.sqrt(spread)),
            Curve(f"{what}, simulated", times[shown], simulated, shade, "o"),
        ]
    title = "Quadratic, EMA, α=0.05"
    return checks, Panel(title, "time t (iterations)", "mean ± standard deviation", tuple(curves))


def euler_moments(
    dt: float, time: float, beta: float, mu: float, sigma: float
) -> tuple[float, float]:
    """The Euler scheme's exact mean and variance of m(time), for a constant gradient of 1."""
    keep, steps = 1 - (1 - beta) * dt, round(time / dt)
    mean = mu * dt * (1 - keep**steps) / (1 - keep)
    return mean, mu**2 * sigma**2 * dt * (1 - keep ** (2 * steps)) / (1 - keep**2)
