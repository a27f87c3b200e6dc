"""The correction factor as the variance of m_t (proof_correction)."""

import numpy as np

from sgdf_lab.support.palette import BLACK, PURPLE, VERMILION
from sgdf_lab.theory.estimation.averages import corrected_mean_factor, correction_factor
from sgdf_lab.theory.filtering import BETA1
from sgdf_lab.theory.result import Check, Curve, Panel, Result, variance_and_error


def simulated_variances(seed: int, effort: float) -> dict[int, tuple[float, float]]:
    """Var m_t / sigma^2 at some t, with its standard error."""
    rng = np.random.default_rng(seed)
    samples = int(100_000 * effort)
    m, variances = np.zeros(samples), {}
    for t in range(1, 51):
        m = BETA1 * m + (1 - BETA1) * rng.normal(size=samples)
        if t in (1, 5, 20, 50):
            variances[t] = variance_and_error(m)
    return variances


def check_correction_factor(seed: int = 0, effort: float = 1.0) -> Result:
    """The printed factor beside simulated variances."""
    variances = simulated_variances(seed, effort)
    checks = tuple(
        Check(f"Var mₜ / σ² at t={t}", float(correction_factor(t, BETA1)), "=", *variance)
        for t, variance in variances.items()
    )
    return Result(
        name="correction-factor",
        title="The correction factor",
        label="proof_correction",
        claim="The moving average mₜ of independent gradients of variance σ² has the variance "
        "σ²(1-β₁)(1-β₁^2t)/(1+β₁).",
        assumptions="gradients independent and of one variance",
        checks=checks,
        explanation="Exact at every t for mₜ. It is not the variance of m̂ₜ = mₜ/(1-β₁^t), which "
        "the gain needs: see the next statement.",
        panels=(variance_panel(variances),),
    )


def variance_panel(variances: dict[int, tuple[float, float]]) -> Panel:
    steps = np.arange(1, 51)
    simulated = [value for value, _ in variances.values()]
    return Panel(
        "Variance of the average, β₁=0.9",
        "step t",
        "variance / σ²",
        (
            Curve("mₜ: the printed factor", steps, correction_factor(steps, BETA1), BLACK),
            Curve("mₜ, simulated", list(variances), simulated, VERMILION, "o"),
            Curve("m̂ₜ, exact", steps, corrected_mean_factor(steps, BETA1), PURPLE, "--"),
        ),
        logy=True,
    )
