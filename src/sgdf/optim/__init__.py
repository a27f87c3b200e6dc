"""The optimizers, and the filter as a part for any other optimizer.

For programs that look inside an optimizer: `filter_settings` reads the filter's settings of a
parameter group, `read_moment` a moment of a parameter's state (`is_8_bit` tells its format),
`compute_dtype` says what a step of a parameter computes in, `STATE_DTYPES` what `state_dtype` may
be, `require` raises torch.optim's error for a setting that is not valid, and
`wait_until_compiled` waits for what the first step on CUDA compiles in the background.
"""

from sgdf.kernels.plan import wait_until_compiled
from sgdf.kernels.work import compute_dtype
from sgdf.optim.filter_adam import FilterAdam, FilterAdamW
from sgdf.optim.filter_matrix import FilterMuon, FilterSOAP
from sgdf.optim.groups import param_groups
from sgdf.optim.in_backward import step_in_backward
from sgdf.optim.momentum import Momentum
from sgdf.optim.settings import STATE_DTYPES, filter_settings, require
from sgdf.optim.sgdf import SGDF
from sgdf.optim.state import is_8_bit, read_moment
from sgdf.optim.wiener_filter import WienerFilter

__all__ = [
    "SGDF",
    "STATE_DTYPES",
    "FilterAdam",
    "FilterAdamW",
    "FilterMuon",
    "FilterSOAP",
    "Momentum",
    "WienerFilter",
    "compute_dtype",
    "filter_settings",
    "is_8_bit",
    "param_groups",
    "read_moment",
    "require",
    "step_in_backward",
    "wait_until_compiled",
]
