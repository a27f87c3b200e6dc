"""The printed bound on the variance of momentum (thm:bias_variance_momentum)."""

import numpy as np

from sgdf_lab.support.palette import BLACK
from sgdf_lab.theory.momentum.diffusion import diffusion_variance, simulate_diffusion
from sgdf_lab.theory.momentum.unified_momentum import COLOURS, KINDS, momentum_variance
from sgdf_lab.theory.result import Array, Check, Curve, Panel, Result, variance_and_error

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
    return Result(
        name="variance-bound",
        title="Bound on the variance of momentum",
        label="thm:bias_variance_momentum",
        claim="The variance of m is at most μ²(σ² + G²)/(2(1-β)).",
        assumptions="gradient bounded by G (so of variance at most G²) and Lipschitz, noise of "
        "variance σ² independent over time",
        checks=(*fixed_gradient_checks(), leaving),
        explanation="The SDE's noise part is exact. But (i) the iteration's own variance is "
        "μ²σ²/(1-β²), 2/(1+β) times the SDE's, so where G² < σ²(1-β)/(1+β) it exceeds the bound "
        "(at β=0, plain SGD: σ² against (σ²+G²)/2); (ii) the proof treats the gradients' own "
        "fluctuation as white, yet gradients along a run are correlated, and then it adds up to "
        "μ²Var(∇f)/(1-β)², up to 2/(1-β) times the printed term.",
        panels=(fixed_gradient_panel(), leaving_panel(times[::10], ms[::10], bound)),
        key=what,
    )


def fixed_gradient_checks() -> list[Check]:
    """Of the SDE and of the iteration, both exact."""
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


def fixed_gradient_panel() -> Panel:
    betas = np.linspace(0, 0.99, 100)
    return Panel(
        "Fixed gradient, EMA, G→0",
        "β",
        "variance of m / σ²",
        (
            Curve("iteration, exact", betas, (1 - betas) / (1 + betas), COLOURS["EMA"]),
            Curve("printed bound", betas, (1 - betas) / 2, BLACK, "--"),
        ),
    )


def leaving_panel(times: Array, ms: Array, bound: float) -> Panel:
    return Panel(
        "SDE leaving a maximum, EMA, β=0.9",
        "time t (iterations)",
        "variance of m(t)",
        (
            Curve("simulated", times, ms.var(axis=1), COLOURS["EMA"]),
            Curve("printed bound", times, np.full(len(times), bound), BLACK, "--"),
        ),
    )
