"""The descent inequality of a smooth function (non-assume)."""

import numpy as np

from sgdf_lab.support.palette import BLACK, BLUE
from sgdf_lab.theory.nonconvex.problems import Wells
from sgdf_lab.theory.result import Array, Check, Curve, Panel, Result


def smoothness_bound(L: float, slope: Array, theta: Array, before: Array, after: Array) -> Array:
    """The printed bound on f(xi_{t+1}) - f(xi_t) for an L-smooth f."""
    step = after - before
    distance = ((before - theta) ** 2).sum(-1)
    return np.asarray(L / 2 * distance + L * (step**2).sum(-1) + (slope * step).sum(-1))


def check_smoothness(seed: int = 0, effort: float = 1.0) -> Result:
    """The smallest slack at random points of a function that is smooth and not convex."""
    wells = Wells()
    rng = np.random.default_rng(seed)
    theta, before, after = 2 * rng.normal(size=(3, int(40_000 * effort), 2))
    rise = wells.value(after) - wells.value(before)
    bound = smoothness_bound(wells.L, wells.gradient(theta), theta, before, after)
    slack = float((bound - rise).min())
    return Result(
        name="smoothness",
        title="Descent inequality of a smooth function",
        label="non-assume",
        claim="f(ξₜ₊₁) - f(ξₜ) is at most (L/2)|ξₜ - θₜ|² + L|ξₜ₊₁ - ξₜ|² + ⟨∇f(θₜ), ξₜ₊₁ - ξₜ⟩.",
        assumptions="f is L-smooth",
        checks=(Check("least slack over random triples of points", 0.0, ">=", slack),),
        explanation="Holds at all of the random triples, convex or not.",
        panels=(bound_panel(wells),),
    )


def bound_panel(wells: Wells) -> Panel:
    line = np.linspace(-3, 3, 121)[:, None]
    at, point = np.array([[0.5]]), np.array([[1.0]])
    bound = smoothness_bound(wells.L, wells.gradient(point), point, at, line)
    return Panel(
        "f = θ²/(1+θ²), from ξ=0.5, θ=1",
        "ξₜ₊₁",
        "change of f",
        (
            Curve("f(ξₜ₊₁) − f(ξₜ)", line[:, 0], wells.value(line) - wells.value(at), BLUE),
            Curve("printed bound", line[:, 0], bound, BLACK, "--"),
        ),
        ylim=(-1, 6),
    )
