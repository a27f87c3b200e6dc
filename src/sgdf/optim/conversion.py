"""Make a moment from the others, when an optimizer continues with other settings.

Adam keeps m and v, FilterAdam m, s and v or m and s alone. The relation between them is
`filter.second_moment`: v^ = of_m m^2 + of_s s.
"""

from typing import Any

import torch
from torch import Tensor

from sgdf.filter import one_minus_power, second_moment, second_moment_weights
from sgdf.kernels.quantized import Quantized, dequantize
from sgdf.optim.state import moment_in


def made_moment(key: str, state: dict[str, Any], betas: tuple[float, float]) -> Tensor | None:
    """The missing moment `key` of a parameter, in float32 or float64; None if it cannot be made."""
    needed = {"exp_avg_sq": "exp_var", "exp_var": "exp_avg_sq"}.get(key)
    if needed is None or not {"exp_avg", needed, "step"} <= state.keys():
        return None
    t = float(state["step"])  # waits for the device, so only where a moment can be made
    if t < 1:
        return None
    m, other = (_dense(moment_in(state, name)) for name in ("exp_avg", needed))
    if key == "exp_avg_sq":
        return _per_part(_second_moment, m, other, t, betas)
    return _per_part(_fluctuation, m, other, t, betas)


def _second_moment(m: Tensor, s: Tensor, t: float, betas: tuple[float, float]) -> Tensor:
    """The v whose v^ is the one derived from m and s."""
    weights = second_moment_weights(t, *betas, "derived")
    return second_moment(m, s, weights) * one_minus_power(betas[1], t)


def _fluctuation(m: Tensor, v: Tensor, t: float, betas: tuple[float, float]) -> Tensor:
    """The s with which m and s give the v^ of v; 0 where m^2 alone is larger."""
    beta1, beta2 = betas
    if t == 1 or beta1 == 0:  # one gradient: m is (1-b1) g, and s is (1-b2) (b1 g)^2
        return (1 - beta2) * (beta1 / (1 - beta1)) ** 2 * m * m
    of_m, of_s = second_moment_weights(t, beta1, beta2, "derived")
    return ((v / one_minus_power(beta2, t) - of_m * m * m) / of_s).clamp(min=0)


def _per_part(function: Any, m: Tensor, other: Tensor, t: float, betas: Any) -> Tensor:
    """Real and imaginary parts have moments of their own."""
    if not m.is_complex():
        return function(m, other, t, betas)  # type: ignore[no-any-return]
    parts = (torch.view_as_real(x.contiguous()) for x in (m, other))
    return torch.view_as_complex(function(*parts, t, betas))


def _dense(moment: Any) -> Tensor:
    """A moment in at least float32; 8-bit codes of a DTensor as a DTensor."""
    if not isinstance(moment, Quantized):
        wide = moment.dtype in (torch.float64, torch.complex128) or moment.is_complex()
        return moment if wide else moment.float()  # type: ignore[no-any-return]
    codes: Any = moment.codes
    if not hasattr(codes, "to_local"):
        return dequantize(moment)
    from torch.distributed.tensor import DTensor

    local = Quantized(codes.to_local(), moment.scale.to_local())  # type: ignore[attr-defined]
    return DTensor.from_local(
        dequantize(local),
        codes.device_mesh,
        codes.placements,
        shape=codes.shape,
        stride=codes.stride(),
    )
