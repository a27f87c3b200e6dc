"""SGDF: stochastic gradient descent with a Wiener filter in the place of momentum."""

from sgdf.optim import (
    SGDF,
    FilterAdam,
    FilterAdamW,
    Momentum,
    WienerFilter,
    param_groups,
    step_in_backward,
)

__version__ = "0.1.0"
__all__ = [
    "SGDF",
    "FilterAdam",
    "FilterAdamW",
    "Momentum",
    "WienerFilter",
    "param_groups",
    "step_in_backward",
]
