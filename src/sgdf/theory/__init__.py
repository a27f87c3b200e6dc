"""The paper's statements, checked: each a formula as printed and a simulation that tests it.

    from sgdf.theory import statements
    print(statements()["wiener-gain"]().verdict)

A statement is a function of a seed and an effort (1 for the full size, less for a quick look)
that gives a `Result`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sgdf.theory.result import Result

__all__ = ["statements"]


def statements() -> "dict[str, Callable[..., Result]]":
    """Every statement by name, in the paper's order."""
    from sgdf.theory import convex, estimation, momentum, nonconvex

    return {
        "unified-momentum": momentum.unified_momentum,
        "mse-decomposition": estimation.mean_squared_error,
        "sde": momentum.diffusion_of_momentum,
        "sde-solution": momentum.solution_of_the_diffusion,
        "bias-bound": momentum.bias_of_momentum,
        "variance-bound": momentum.variance_of_momentum,
        "wiener-gain": estimation.wiener_gain_optimality,
        "correction-factor": estimation.correction_of_m,
        "variance-estimate": estimation.estimate_of_the_variance,
        "gaussian-fusion": estimation.gaussian_fusion,
        "tangent": convex.tangent_below,
        "gradient-sum": convex.sum_of_gradients,
        "average-squares": convex.sum_of_squared_averages,
        "unbiased-estimate": estimation.unbiased_estimate,
        "gain-above-half": estimation.gain_above_half,
        "convex-regret": convex.convex_regret,
        "smoothness": nonconvex.smoothness,
        "estimate-bound": nonconvex.bounded_estimate,
        "step-sums": nonconvex.sums_of_steps,
        "nonconvex-rate": nonconvex.rate,
    }
