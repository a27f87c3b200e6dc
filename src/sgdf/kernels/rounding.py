"""Random bits for stochastic rounding, and rounding to bfloat16 with them.

The bits are a hash of (seed, tensor, step, element), not a stream: all kernels draw the same bits,
a resumed run draws those it would have drawn, and a captured CUDA graph draws new ones at each
replay because the step is on the device. This is the torch version; C++ and Triton repeat it.
"""

from typing import Any

import torch
from torch import Tensor

GOLDEN = 0x9E3779B9
MULTIPLIERS = (0x7FEB352D, 0x846CA68B)
#: What the bits are for: odd factors, so that each use of an element has bits of its own.
FOR_TREND, FOR_VARIANCE, FOR_SECOND_MOMENT = 1, 0xC2B2AE35, 0x27D4EB2F
FOR_PARAMETER = 0x85EBCA6B
_32_BITS = 0xFFFFFFFF


def mix(x: Any) -> Any:
    """A bijection of 32-bit numbers in which every bit of x affects every bit of the result."""
    x = _half_mixed(x)
    x = (x * MULTIPLIERS[1]) & _32_BITS
    return x ^ (x >> 16)


def _half_mixed(x: Any) -> Any:
    x = x ^ (x >> 16)
    x = (x * MULTIPLIERS[0]) & _32_BITS
    return x ^ (x >> 15)


def tensor_seed(seed: int, index: int) -> int:
    """The seed of the index-th tensor of a group."""
    return int(mix((seed + index * GOLDEN) & _32_BITS))


def step_key(seed: int, step: float | Tensor) -> Any:
    """The key of one tensor at one step; a tensor if the step is one."""
    step = step.to(torch.int64) if isinstance(step, Tensor) else int(step)
    return mix(seed ^ step)


def random_bits(key: Any, purpose: int, like: Tensor) -> Tensor:
    """32 random bits for each element of `like`, in memory order, as int64; use the high ones.

    A product's high bits depend on all bits of its factors, so the last step of `mix`, which is
    for the low ones, is left out: one draw serves all purposes, and costs a factor for each.
    """
    index = torch.arange(like.numel(), device=like.device)
    drawn = _half_mixed(((index * GOLDEN) & _32_BITS) ^ key)
    return (drawn * (MULTIPLIERS[1] * purpose & _32_BITS)) & _32_BITS


def round_to_bfloat16(x: Tensor, bits: Tensor) -> Tensor:
    """Round float32 to bfloat16 stochastically, by the high 16 of `bits`; the mean is x.

    The random bits are added to the 16 bits that do not fit, and the carry decides.
    """
    raised = ((x.view(torch.int32) + (bits >> 16).to(torch.int32)) & -0x10000).view(x.dtype)
    return torch.where(x.isfinite(), raised, x).to(torch.bfloat16)
