"""The optimizers, and the filter as a part for any other optimizer."""

from sgdf.optim.filter_adam import FilterAdam, FilterAdamW
from sgdf.optim.groups import param_groups
from sgdf.optim.in_backward import step_in_backward
from sgdf.optim.momentum import Momentum
from sgdf.optim.sgdf import SGDF
from sgdf.optim.wiener_filter import WienerFilter

__all__ = [
    "SGDF",
    "FilterAdam",
    "FilterAdamW",
    "Momentum",
    "WienerFilter",
    "param_groups",
    "step_in_backward",
]
