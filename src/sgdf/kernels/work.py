"""One step of one parameter group, as every kernel receives it: `step(work)`.

A step computes in `compute_dtype(param)`, whatever the dtypes of parameters, gradients and state.
It rounds once, when it stores, and never writes to a gradient.

All kernels evaluate `sgdf.filter.direction`, but they do not all round alike:

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

Where a value is rounded at random, as state in bfloat16 and in 8 bits is, a difference of a few
units in the last place decides a rounding now and then: the stored values are then neighbours. One
kernel on one machine always repeats itself, so a resumed run continues exactly.
"""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import Parameter

from sgdf.filter import (
    FLOAT32,
    FLOAT64,
    Denominator,
    FilterSettings,
    NumberRange,
    moment_names,
)
from sgdf.kernels.quantized import Quantized, blocks_per_row
from sgdf.kernels.rounding import GOLDEN

Scalar: TypeAlias = float | Tensor
Moment: TypeAlias = Tensor | Quantized

#: What a step does: descend along the direction, overwrite gradients with g^, or Momentum's rule.
FILTER, ESTIMATE, MOMENTUM = "filter", "estimate", "momentum"


class Rule(NamedTuple):
    """What a step computes: the settings of a parameter group, read once."""

    kind: str  #: FILTER, ESTIMATE or MOMENTUM
    settings: FilterSettings  #: for Momentum, beta is betas[0] and mu is gain_scale
    denominator: Denominator | None = None
    lr: Scalar = 0.0
    weight_decay: float = 0.0
    decoupled: bool = False
    maximize: bool = False
    capturable: bool = False
    differentiable: bool = False
    stochastic_rounding: bool = False
    rounding_seed: int = 0

    @property
    def moments(self) -> tuple[str, ...]:
        """The moments in a parameter's state."""
        if self.kind == MOMENTUM:
            return ("momentum_buffer",)
        return moment_names(self.settings, self.denominator)


class Work(NamedTuple):
    """One step of one group; the lists have an entry for every parameter with a gradient."""

    rule: Rule
    path: str  #: the kernels that do it: "loop", "foreach", "cpu" or "cuda"
    params: list[Any]  #: what is written: for an ESTIMATE the gradients, but on CUDA the parameters
    grads: list[Any]
    steps: list[Any] | None  #: step counters; Momentum has none
    m: list[Any]
    s: list[Any] | None = None
    v: list[Any] | None = None
    scale: Tensor | None = None  #: GradScaler's, by which gradients are divided
    found_inf: Tensor | None = None  #: GradScaler's: not 0 if the step has to be skipped
    plan: Any = None  #: on CUDA, the `plan.Plan` with the tables of these tensors

    def row(self, i: int) -> "Work":
        """The work on one parameter, for the loop: it draws the random bits of its own index."""
        written = self.grads if self.rule.kind == ESTIMATE else self.params
        return Work(
            self.rule._replace(rounding_seed=self.rule.rounding_seed + i * GOLDEN),
            "loop",
            [written[i]],
            [self.grads[i]],
            self.steps and [self.steps[i]],
            [self.m[i]],
            self.s and [self.s[i]],
            self.v and [self.v[i]],
            self.scale,
        )


def compute_dtype(tensor: Tensor) -> torch.dtype:
    """float64 for float64 tensors, float32 for all others; for complex ones, of their parts."""
    return torch.float64 if tensor.dtype in (torch.float64, torch.complex128) else torch.float32


def number_range(dtype: torch.dtype) -> NumberRange:
    """The range of the numbers that a step computes with."""
    return FLOAT64 if dtype == torch.float64 else FLOAT32


def as_real(tensor: Tensor) -> Tensor:
    """A complex tensor as pairs of real numbers."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def lr_on_device_of(tensor: Tensor, lr: Scalar) -> Scalar:
    """lr as a number, or as a 0-dim tensor on the device and in the dtype to compute in."""
    if not isinstance(lr, Tensor):
        return lr
    return lr.squeeze().to(tensor.device, compute_dtype(tensor), non_blocking=True)


def increment(steps: list[Tensor]) -> None:
    """Add 1 to every step counter."""
    if not torch.compiler.is_compiling() and steps[0].is_cpu:
        # On the CPU foreach wraps a Python 1 into a new tensor for every counter: wrap it once.
        torch._foreach_add_(steps, torch.tensor(1.0, device="cpu"), alpha=1.0)
    else:
        torch._foreach_add_(steps, 1)


def step_and_namespace(step: Tensor, rule: Rule, dtype: torch.dtype) -> tuple[Scalar, Any]:
    """The step as a number, or left on its device as a tensor, and the namespace for either."""
    if rule.capturable or rule.differentiable or not step.is_cpu:
        return step.to(dtype), torch
    return step.item(), math


# --- whether the tensors of a parameter belong together -----------------------------------------
# A kernel that works with addresses would read or write the memory of others if a moment were
# smaller than its parameter, and crash if it were on another device or had no memory at all.


PLAIN = (Tensor, Parameter)


def is_fake(p: Tensor) -> bool:
    """Whether p has a shape, but no memory: no kernel that takes addresses can update it."""
    return not torch.compiler.is_compiling() and type(p) not in PLAIN and isinstance(p, FakeTensor)


def has_memory(t: Tensor) -> bool:
    """False for meta and fake tensors, whose address is 0."""
    return t.data_ptr() != 0 or not t.numel()


def parts(moment: Moment) -> tuple[Tensor, ...]:
    """The tensors of a moment: itself, or its codes and their scales."""
    return tuple(moment) if isinstance(moment, Quantized) else (moment,)


def check_consistent(
    params: list[Any], grads: list[Any], moments: Iterable[Any], indices: Iterable[int]
) -> None:
    """Raise an error if a gradient or a moment has not its parameter's device and shape.

    Args:
        params: the parameters.
        grads: their gradients.
        moments: a list for each moment, with an entry for every parameter; None is skipped.
        indices: of the parameters to check.
    """
    columns = [column for column in moments if column is not None]
    for i in indices:
        p = params[i]
        shape, device = p.shape, p.device
        for t in (grads[i], *(column[i] for column in columns)):
            if isinstance(t, Quantized):
                if t.scale.device != device or t.scale.shape != (shape[0], blocks_per_row(p)):
                    raise _error(p, "the scale of an 8-bit moment", t.scale)
                t = t.codes
            if t.device != device or t.shape != shape:
                raise _error(p, "a gradient" if t is grads[i] else "a moment", t)


def _error(p: Tensor, what: str, found: Tensor) -> RuntimeError:
    return RuntimeError(
        f"Expected the gradient and the state of a parameter of shape {tuple(p.shape)} on "
        f"{p.device} to match it, but found {what} of shape {tuple(found.shape)} on {found.device}"
    )
