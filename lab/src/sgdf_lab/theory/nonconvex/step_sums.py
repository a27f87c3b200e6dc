"""The sums of learning rates at the end of the non-convex proof (main_non_convex)."""

from typing import NamedTuple

import numpy as np

from sgdf_lab.support.palette import BLACK, BLUE, GREEN, VERMILION
from sgdf_lab.theory.result import Array, Check, Curve, Panel, Result

ALPHA, TIMES = 0.5, np.array([1, 10, 100, 1000, 10_000, 100_000])
AT_1000 = 3


class StepSums(NamedTuple):
    """The sums of alpha_t and of alpha_t^2 up to each of TIMES, for alpha_t = alpha / sqrt(t)."""

    rates: Array
    squares: Array


def step_sums() -> StepSums:
    rates = ALPHA / np.sqrt(np.arange(1, TIMES[-1] + 1))
    return StepSums(np.cumsum(rates)[TIMES - 1], np.cumsum(rates**2)[TIMES - 1])


def check_step_sums(seed: int = 0, effort: float = 1.0) -> Result:
    """Both sums beside the bounds that the proof uses."""
    sums = step_sums()
    key = "α=0.5, T=1000: Σαₜ against Σαₜ²"
    return Result(
        name="step-sums",
        title="Sums of the learning rates",
        label="main_non_convex (proof, last steps)",
        claim="(C₅+C₆)Σαₜ ≤ (C₅+C₆)Σαₜ², and dividing by Σαₜ gives 2α√T below the line.",
        assumptions="αₜ = α/√t",
        checks=tuple(sum_checks(sums, key)),
        explanation="Σαₜ is always below 2α√T (α√T is safe), so the printed bound is too small by "
        "up to 2. More serious, αₜ ≤ αₜ² needs αₜ ≥ 1, which fails for all t > α². What the proof "
        "shows then holds (C₅+C₆)Σαₜ/Σαₜ = C₅+C₆, a constant: no convergence.",
        panels=(sum_panel(sums),),
        key=key,
    )


def sum_checks(sums: StepSums, key: str) -> list[Check]:
    last = TIMES[-1]
    limit = ALPHA**2 * (1 + np.log(last))
    safe = ALPHA * np.sqrt(last)
    return [
        Check("T=100000: Σαₜ² against α²(1 + log T)", limit, "<=", sums.squares[-1]),
        *(
            Check(f"T={t}: Σαₜ against 2α√T", 2 * ALPHA * np.sqrt(t), ">=", total)
            for t, total in zip(TIMES, sums.rates, strict=True)
            if t in (1, 100, 100_000)
        ),
        Check(key, sums.squares[AT_1000], "<=", sums.rates[AT_1000]),
        Check("T=100000: Σαₜ against α√T", safe, ">=", sums.rates[-1], under="remark"),
    ]


def sum_panel(sums: StepSums) -> Panel:
    return Panel(
        "α = 0.5",
        "T",
        "sum",
        (
            Curve("Σαₜ", TIMES, sums.rates, VERMILION, "o-"),
            Curve("2α√T (printed, below Σαₜ)", TIMES, 2 * ALPHA * np.sqrt(TIMES), BLACK, "--"),
            Curve("Σαₜ² (printed, above Σαₜ)", TIMES, sums.squares, BLUE, "o--"),
            Curve("α√T", TIMES, ALPHA * np.sqrt(TIMES), GREEN, ":"),
        ),
        logx=True,
        logy=True,
    )
