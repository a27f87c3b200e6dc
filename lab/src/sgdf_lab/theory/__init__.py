"""The paper's statements, checked: each a formula as printed and a simulation that tests it.

    from sgdf_lab.theory import statements
    print(statements()["wiener-gain"]().verdict)

A statement is a function of a seed and an effort (1 for the full size, less for a quick look)
that returns a `Result`. The statement `wiener-gain` is in a file wiener_gain.py, in the folder of
its part of the paper.
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
    from sgdf_lab.theory.convex.average_squares import check_average_squares
    from sgdf_lab.theory.convex.convex_regret import check_convex_regret
    from sgdf_lab.theory.convex.gradient_sum import check_gradient_sum
    from sgdf_lab.theory.convex.tangent import check_tangent
    from sgdf_lab.theory.estimation.correction_factor import check_correction_factor
    from sgdf_lab.theory.estimation.gain_above_half import check_gain_above_half
    from sgdf_lab.theory.estimation.gaussian_fusion import check_gaussian_fusion
    from sgdf_lab.theory.estimation.mse_decomposition import check_mse_decomposition
    from sgdf_lab.theory.estimation.unbiased_estimate import check_unbiased_estimate
    from sgdf_lab.theory.estimation.variance_estimate import check_variance_estimate
    from sgdf_lab.theory.estimation.wiener_gain import check_wiener_gain
    from sgdf_lab.theory.momentum.bias_bound import check_bias_bound
    from sgdf_lab.theory.momentum.sde import check_sde
    from sgdf_lab.theory.momentum.sde_solution import check_sde_solution
    from sgdf_lab.theory.momentum.unified_momentum import check_unified_momentum
    from sgdf_lab.theory.momentum.variance_bound import check_variance_bound
    from sgdf_lab.theory.nonconvex.estimate_bound import check_estimate_bound
    from sgdf_lab.theory.nonconvex.nonconvex_rate import check_nonconvex_rate
    from sgdf_lab.theory.nonconvex.smoothness import check_smoothness
    from sgdf_lab.theory.nonconvex.step_sums import check_step_sums

    return {
        "unified-momentum": check_unified_momentum,
        "mse-decomposition": check_mse_decomposition,
        "sde": check_sde,
        "sde-solution": check_sde_solution,
        "bias-bound": check_bias_bound,
        "variance-bound": check_variance_bound,
        "wiener-gain": check_wiener_gain,
        "correction-factor": check_correction_factor,
        "variance-estimate": check_variance_estimate,
        "gaussian-fusion": check_gaussian_fusion,
        "tangent": check_tangent,
        "gradient-sum": check_gradient_sum,
        "average-squares": check_average_squares,
        "unbiased-estimate": check_unbiased_estimate,
        "gain-above-half": check_gain_above_half,
        "convex-regret": check_convex_regret,
        "smoothness": check_smoothness,
        "estimate-bound": check_estimate_bound,
        "step-sums": check_step_sums,
        "nonconvex-rate": check_nonconvex_rate,
    }
