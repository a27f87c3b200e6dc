"""The printed bound on the sum of the gradients, against the plainest sequences (lem.B.5)."""

import numpy as np

from sgdf_lab.support.palette import BLACK, VERMILION
from sgdf_lab.theory.result import Array, Check, Curve, Panel, Result


def gradient_sum_bound(gradients: Array, largest: float) -> float:
    """The printed bound 2 G_inf |g_{1:T}|_2 on sum_t g_t."""
    return 2 * largest * float(np.linalg.norm(gradients))


def check_gradient_sum(seed: int = 0, effort: float = 1.0) -> Result:
    """Random gradients around 0, constant ones, and a single small one."""
    constant, small = np.ones(100), np.full(1, 0.1)
    centred = np.random.default_rng(seed).uniform(-1, 1, 100)
    key = "g = 1, T=100: Σg"
    sequences = (
        ("uniform on [-1, 1], T=100: Σg", centred, 1.0),
        (key, constant, 1.0),
        ("g = 0.1, T=1: Σg", small, 0.1),
    )
    cauchy_schwarz = Check(
        "g = 1, T=100: Σg against √T‖g‖ (Cauchy-Schwarz)",
        10 * float(np.linalg.norm(constant)),
        "<=",
        float(constant.sum()),
        under="remark",
    )
    return Result(
        name="gradient-sum",
        title="Sum of the gradients",
        label="lem.B.5",
        claim="Σ g_t ≤ 2G∞‖g_{1:T}‖₂.",
        assumptions="|g_t| ≤ G∞",
        checks=(
            *(
                Check(what, gradient_sum_bound(g, largest), "<=", float(g.sum()))
                for what, g, largest in sequences
            ),
            cauchy_schwarz,
        ),
        explanation="For a constant gradient 1 the left is T and the right 2√T: it fails from T=5. "
        "The two sides also scale differently in g, so small gradients break it at T=1. The true "
        "bound is √T‖g‖₂. The induction adds g_T and continues with g_T².",
        panels=(constant_panel(),),
        key=key,
    )


def constant_panel() -> Panel:
    T = np.arange(1, 101)
    return Panel(
        "Constant gradient 1",
        "T",
        "value",
        (
            Curve("Σ g", T, T, VERMILION),
            Curve("printed bound", T, 2 * np.sqrt(T), BLACK, "--"),
        ),
    )
