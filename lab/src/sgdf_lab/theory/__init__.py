"""The paper's statements, checked: each a formula as printed and a simulation that tests it.

    from sgdf_lab.theory import (
        convex,
        estimate,
        momentum,
        momentum_bounds,
        nonconvex,
        optimal_gain,
    )
    print(statements()["wiener-gain"]().verdict)

A statement is a function of a seed and an effort (1 for the full size, less for a quick look)
that returns a `Result`. The statement `wiener-gain` is the function `check_wiener_gain`, in the
file of its part of the paper.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sgdf_lab.theory.result import Result

__all__ = ["statements"]


def statements() -> "dict[str, Callable[..., Result]]":
    """Every statement by name, in the paper's order.

    Returns:
        Functions of a seed and an effort that return a `Result`.

    Examples:
        >>> from sgdf_lab.theory import statements
        >>> statements()["correction-factor"]().verdict
        'holds'
    """
    from sgdf_lab.theory import (
        convex,
        estimate,
        momentum,
        momentum_bounds,
        nonconvex,
        optimal_gain,
    )

    return {
        "unified-momentum": momentum.check_unified_momentum,
        "mse-decomposition": momentum_bounds.check_mse_decomposition,
        "sde": momentum.check_sde,
        "sde-solution": momentum.check_sde_solution,
        "bias-bound": momentum_bounds.check_bias_bound,
        "variance-bound": momentum_bounds.check_variance_bound,
        "wiener-gain": optimal_gain.check_wiener_gain,
        "correction-factor": optimal_gain.check_correction_factor,
        "variance-estimate": optimal_gain.check_variance_estimate,
        "gaussian-fusion": estimate.check_gaussian_fusion,
        "tangent": convex.check_tangent,
        "gradient-sum": convex.check_gradient_sum,
        "average-squares": convex.check_average_squares,
        "unbiased-estimate": estimate.check_unbiased_estimate,
        "gain-above-half": estimate.check_gain_above_half,
        "convex-regret": convex.check_convex_regret,
        "smoothness": nonconvex.check_smoothness,
        "estimate-bound": nonconvex.check_estimate_bound,
        "step-sums": nonconvex.check_step_sums,
        "nonconvex-rate": nonconvex.check_nonconvex_rate,
    }
