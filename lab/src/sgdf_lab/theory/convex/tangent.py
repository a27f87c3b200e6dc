"""A convex function lies above its tangents (lem.B.4)."""

from collections.abc import Callable

import numpy as np

from sgdf_lab.support.palette import BLUE, GREEN, ORANGE
from sgdf_lab.theory.result import Array, Check, Curve, Panel, Result

#: Convex functions of three variables, each with a (sub)gradient.
FUNCTIONS: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "|θ|²/2": (lambda v: (v**2).sum(-1) / 2, lambda v: v),
    "Σ|θᵢ|": (lambda v: np.abs(v).sum(-1), np.sign),
    "log Σ exp θᵢ": (
        lambda v: np.log(np.exp(v).sum(-1)),
        lambda v: np.exp(v) / np.exp(v).sum(-1, keepdims=True),
    ),
}
COLOURS = dict(zip(FUNCTIONS, (BLUE, GREEN, ORANGE), strict=True))


def tangent_bound(value: Array, slope: Array, step: Array) -> Array:
    """f(x) + grad f(x)^T (y - x), below f(y) for a convex f."""
    return np.asarray(value + np.sum(slope * step, axis=-1))


def gap_above_tangent(name: str, x: Array, y: Array) -> Array:
    """f(y) minus the tangent at x."""
    f, gradient = FUNCTIONS[name]
    return f(y) - tangent_bound(f(x), gradient(x), y - x)


def check_tangent(seed: int = 0, effort: float = 1.0) -> Result:
    """The smallest gap over random pairs of points."""
    rng = np.random.default_rng(seed)
    x, y = 3 * rng.normal(size=(2, int(20_000 * effort), 3))
    least = {name: float(gap_above_tangent(name, x, y).min()) for name in FUNCTIONS}
    return Result(
        name="tangent",
        title="A convex function lies above its tangents",
        label="lem.B.4",
        claim="f(y) ≥ f(x) + ∇f(x)ᵀ(y - x).",
        assumptions="f convex (at a kink, any subgradient)",
        checks=tuple(
            Check(f"{name}: least f(y) - tangent", 0.0, ">=", gap, tolerance=1e-12)
            for name, gap in least.items()
        ),
        explanation="Holds at all of the random pairs.",
        panels=(gap_panel(),),
    )


def gap_panel() -> Panel:
    line = np.linspace(-3, 3, 121)
    along = np.zeros((len(line), 3))
    along[:, 0] = line
    at = np.array([1.0, 0.0, 0.0])
    curves = tuple(
        Curve(name, line, gap_above_tangent(name, at, along), COLOURS[name]) for name in FUNCTIONS
    )
    return Panel("Above the tangent at 1", "θ₁", "f − tangent", curves)
