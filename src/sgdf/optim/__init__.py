"""The optimizers, and the filter as a part for any other optimizer."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from sgdf.filter import FilterSettings
from sgdf.kernels.arithmetic import compute_dtype
from sgdf.kernels.changes import wait_until_compiled
from sgdf.kernels.quantized import Quantized, dequantize
from sgdf.optim.filter_adam import FilterAdam, FilterAdamW
from sgdf.optim.groups import param_groups
from sgdf.optim.in_backward import step_in_backward
from sgdf.optim.momentum import Momentum
from sgdf.optim.sgdf import SGDF
from sgdf.optim.state import moment_in
from sgdf.optim.wiener_filter import WienerFilter

__all__ = [
    "SGDF",
    "FilterAdam",
    "FilterAdamW",
    "Momentum",
    "WienerFilter",
    "compute_dtype",
    "filter_settings",
    "param_groups",
    "read_moment",
    "step_in_backward",
    "wait_until_compiled",
]


def filter_settings(group: Mapping[str, Any]) -> FilterSettings:
    """The filter's settings among those of a parameter group."""
    return FilterSettings.of(group)


def read_moment(state: Mapping[str, Any], key: str) -> Tensor:
    """A moment from a parameter's state as a tensor of numbers, in float32 if it is in 8 bits."""
    moment = moment_in(dict(state), key)
    return dequantize(moment) if isinstance(moment, Quantized) else moment
