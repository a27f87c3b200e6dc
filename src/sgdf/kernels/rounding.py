"""Random bits for stochastic rounding, and rounding to bfloat16 with them.

State in few bits is always rounded at random. With b2 = 0.999 a variance changes by a thousandth
per step, less than half the distance of two numbers in bfloat16 or in 8 bits: rounded to nearest,
it would never decay. Momentum, which counts no steps, rounds to nearest: it forgets more per step.

The bits are a hash of (seed, tensor, step, element, purpose), not a stream: all kernels draw the
same bits, a resumed run draws those it would have drawn, and a captured CUDA graph draws new ones
at each replay because the step is on the device. This is the torch version; C++ and Triton repeat
it.
"""

from typing import Any

import torch
from torch import Tensor

GOLDEN = 0x9E3779B9
MULTIPLIERS = (0x7FEB352D, 0x846CA68B)
#: What the bits are for: odd factors, so that each use of an element has bits of its own.
FOR_TREND, FOR_VARIANCE, FOR_SECOND_MOMENT = 1, 0xC2B2AE35, 0x27D4EB2F
FOR_PARAMETER = 0x85EBCA6B
FOR_ODD = 0x9E3779B1  #: a further factor, for elements of odd index
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


def random_bits(key: Any, purpose: int, index: Tensor) -> Tensor:
    """32 random bits for the elements of these indices, as int64; use the high ones.

    A product's high bits depend on all bits of its factors, so the last step of `mix`, which is
    for the low ones, is left out: one draw serves two neighbours and all purposes, and costs a
    factor for each.
    """
    drawn = _half_mixed((((index >> 1) * GOLDEN) & _32_BITS) ^ key)
    even = MULTIPLIERS[1] * purpose & _32_BITS
    factor = torch.where(index % 2 == 0, even, even * FOR_ODD & _32_BITS)
    return (drawn * factor) & _32_BITS


def round_to_bfloat16(x: Tensor, bits: Tensor) -> Tensor:
    """Round float32 to bfloat16 stochastically, by the high 16 of `bits`; the mean is x.

    The random bits are added to the 16 bits that do not fit, and the carry decides.
    """
    raised = ((x.view(torch.int32) + (bits >> 16).to(torch.int32)) & -0x10000).view(x.dtype)
    return torch.where(x.isfinite(), raised, x).to(torch.bfloat16)
