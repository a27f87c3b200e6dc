"""A warning where the term in the gain's denominator, beside squared gradients, closes the gain."""

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from sgdf.filter import FilterSettings, one_minus_power
from sgdf.kernels.quantized import Quantized, dequantize
from sgdf.kernels.work import as_real, is_fake
from sgdf.optim.state import local, moment_in

#: After how many steps to look at the gain. It costs about a step without a fused kernel.
CHECKED = (20, 200, 2000)
SAMPLE, ROWS = 1024, 16  # elements of a tensor, rows of one in 8 bits
CLOSED = 0.25  # the share of the gain that is left


def warn_if_closed(
    name: str, groups: Iterable[tuple[FilterSettings, list[Any]]], state: Any, stacklevel: int
) -> bool:
    """Warn if eps leaves less than a quarter of the gain in one of the groups; whether it does.

    A stream that is being captured cannot be asked, nor meta and fake tensors, without values.
    """
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return False
    for settings, params in groups:
        if settings.constant_gain or float(settings.eps) == 0:
            continue
        with_values = [p for p in params if p in state and not p.is_meta and not is_fake(p)]
        states = [state[p] for p in with_values if "exp_var" in state[p]]
        left = share_left(settings, states) if states else 1.0
        if left < CLOSED:
            warnings.warn(
                f"{name}: gradients are so small that the term of {float(settings.eps):g} in the "
                f"gain's denominator leaves about {left:.0%} of the filter. With gain_eps=0 it "
                "would not depend on the magnitude of gradients",
                stacklevel=stacklevel + 1,
            )
            return True
    return False


@torch.no_grad()
def share_left(settings: FilterSettings, states: list[dict[str, Any]]) -> float:
    """The mean of x / (x + eps), where x is the mean of (g - m)^2, over a sample of all elements.

    K's denominator is about x + eps. Where the gradient is always 0 there is nothing to filter.
    """
    unbiased = one_minus_power(float(settings.betas[1]), max(float(states[0]["step"]), 1.0))
    samples = [_sample(moment_in(state, "exp_var")) for state in states]
    x = torch.cat([sample.to(samples[0].device) for sample in samples]) / unbiased
    x = x[x > 0]
    return float((x / (x + float(settings.eps))).mean()) if x.numel() else 1.0


def _sample(moment: Any) -> Tensor:
    moment = local(moment)
    if isinstance(moment, Quantized):
        moment = dequantize(Quantized(moment.codes[:ROWS], moment.scale[:ROWS]))
    flat = as_real(moment.detach()).reshape(-1)
    return flat[:: max(1, flat.numel() // SAMPLE)].float()
