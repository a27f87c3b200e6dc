"""What every kernel computes in, and how far the kernels may differ from one another.

A step computes in `compute_dtype(param)`, whatever the dtypes of parameters, gradients and state.
It rounds once, when it stores, and never writes to a gradient.

All kernels evaluate the formulas of `sgdf.filter`, but they do not all round alike:

- +, -, * and / are correctly rounded everywhere (IEEE 754). `loop` runs them one at a time and
  `cpu.cpp` is compiled without contraction to FMA, so these two give the same bits as long as
  nothing else is involved: all moments, and the parameters of SGDF with `gain_power=1` and of
  Momentum.
- Square roots are correctly rounded in `cpu.cpp`. torch takes them from a vector math library
  that may return the next float; how often depends on the CPU (one root in five on some). Powers
  are 1 or 2 units off in either. So parameters of FilterAdam, and of SGDF with another
  `gain_power`, differ between `loop` and `cpu.cpp` by a few units in the last place of the terms
  they are the sum of.
- `foreach` uses torch's lerp, addcmul and add with a factor. With AVX2 or AVX-512 torch contracts
  these to FMA (`ATEN_CPU_CAPABILITY` chooses), so everything there is a few units off.
- Triton contracts to FMA on a GPU and computes the bias corrections in float32.

Where a value is rounded at random, or stored in 8 bits, a difference of a few units in the last
place decides a rounding now and then: the stored values are then neighbours. One kernel on one
machine always repeats itself, so a resumed run continues exactly.
"""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from sgdf.filter import (
    FLOAT32,
    FLOAT64,
    Denominator,
    FilterSettings,
    largest_gradient,
    moment_names,
)
from sgdf.kernels.quantized import Quantized

Scalar: TypeAlias = float | Tensor
Moment: TypeAlias = Tensor | Quantized


def compute_dtype(tensor: Tensor) -> torch.dtype:
    """float64 for float64 tensors, float32 for all others; for complex ones, of their parts."""
    return torch.float64 if tensor.dtype in (torch.float64, torch.complex128) else torch.float32


def positive_eps(eps: float, dtype: torch.dtype) -> float:
    """eps, or the smallest normal number of `dtype` if that is larger.

    With eps = 0 a gradient that is always 0 would give 0/0.
    """
    return max(eps, torch.finfo(dtype).tiny)


def gradient_bound(beta2: float, dtype: torch.dtype) -> float:
    """`filter.largest_gradient` in the dtype to compute in."""
    return float(largest_gradient(beta2, FLOAT64 if dtype == torch.float64 else FLOAT32))


def columns_of(
    moments: Sequence[Any], settings: FilterSettings, denominator: Denominator | None
) -> tuple[Any, Any, Any]:
    """The columns of m, s and v among the moments that are kept; None for one that is not."""
    kept = dict(zip(moment_names(settings, denominator), moments, strict=True))
    return kept["exp_avg"], kept.get("exp_var"), kept.get("exp_avg_sq")


def as_real(tensor: Tensor) -> Tensor:
    """A complex tensor as pairs of real numbers."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def lr_beside(lr: Scalar, tensor: Tensor) -> Scalar:
    """lr as a number, or as a 0-dim tensor on the device and in the dtype to compute in."""
    if not isinstance(lr, Tensor):
        return lr
    return lr.squeeze().to(tensor.device, compute_dtype(tensor), non_blocking=True)


def increment(steps: list[Tensor]) -> None:
    """Add 1 to every step counter."""
    if not torch.compiler.is_compiling() and steps[0].is_cpu:
        # On the CPU foreach wraps a Python 1 into a new tensor for every counter: wrap it once.
        torch._foreach_add_(steps, torch.tensor(1.0), alpha=1.0)
    else:
        torch._foreach_add_(steps, 1)


def step_value(step: Tensor, on_device: bool, dtype: torch.dtype) -> tuple[Scalar, Any]:
    """The step as a number, or left on its device as a tensor, and the namespace for either."""
    if on_device:
        return step.to(dtype), torch
    return step.item(), math
