"""The optimizers' updates in plain torch, one tensor at a time.

`filter_loop` updates SGDF and, with a denominator, FilterAdam. It can do all that the faster
kernels cannot: any layout, 8-bit state without a compiler, autograd through the step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sgdf.filter import (
    FLOAT32,
    FLOAT64,
    Denominator,
    FilterSettings,
    Moments,
    direction,
)
from sgdf.kernels.arithmetic import (
    Moment,
    Scalar,
    as_real,
    columns_of,
    compute_dtype,
    lr_beside,
    step_value,
)
from sgdf.kernels.quantized import Quantized, dequantize, padded_index, quantize_
from sgdf.kernels.rounding import (
    FOR_PARAMETER,
    FOR_SECOND_MOMENT,
    FOR_TREND,
    FOR_VARIANCE,
    random_bits,
    round_to_bfloat16,
    step_key,
    tensor_seed,
)


def filter_loop(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    steps: Sequence[Tensor],
    *moments: Sequence[Moment],
    settings: FilterSettings,
    denominator: Denominator | None = None,
    lr: Scalar,
    weight_decay: float,
    decoupled_weight_decay: bool,
    maximize: bool,
    capturable: bool,
    differentiable: bool,
    stochastic_rounding: bool = False,
    rounding_seed: int = 0,
) -> None:
    """One step of SGDF or, with a denominator, FilterAdam."""
    columns = columns_of(moments, settings, denominator)
    for i, param in enumerate(params):
        p, g = as_real(param), as_real(grads[i])
        dtype, rate = compute_dtype(p), lr_beside(lr, p)
        steps[i].add_(1)
        t, _ = step_value(steps[i], capturable or differentiable, dtype)
        stored = [column and column[i] for column in columns]
        random = RandomBits(rounding_seed, i, t, isinstance(stored[0], Quantized))

        weights, g = _decay(p, g, rate, weight_decay, decoupled_weight_decay, maximize)
        update, new = _update(g, stored, t, settings, denominator)
        new_p = weights - rate * update

        _store_moments(stored, new, random)
        if stochastic_rounding and p.dtype == torch.bfloat16:
            new_p = round_to_bfloat16(new_p, random.bits(FOR_PARAMETER, p))
        p.copy_(new_p)


def estimate_loop(
    grads: Sequence[Tensor],
    steps: Sequence[Tensor],
    *moments: Sequence[Moment],
    settings: FilterSettings,
    rounding_seed: int = 0,
) -> None:
    """The filter alone: overwrite every gradient with its estimate g^."""
    columns = columns_of(moments, settings, None)
    for i, grad in enumerate(grads):
        g = as_real(grad)
        dtype = compute_dtype(g)
        steps[i].add_(1)
        t, _ = step_value(steps[i], not steps[i].is_cpu, dtype)
        stored = [column and column[i] for column in columns]
        g_hat, new = _update(g.to(dtype), stored, t, settings, None)
        random = RandomBits(rounding_seed, i, t, isinstance(stored[0], Quantized))
        _store_moments(stored, new, random)
        g.copy_(g_hat)


def _update(
    g: Tensor,
    stored: Sequence[Moment | None],
    t: Scalar,
    settings: FilterSettings,
    denominator: Denominator | None,
) -> tuple[Tensor, list[Tensor | None]]:
    """What lr is multiplied with, and the new moments."""
    moments = Moments(*(None if moment is None else _load(moment, g.dtype) for moment in stored))
    numbers = FLOAT64 if g.dtype == torch.float64 else FLOAT32
    update, new = direction(g, moments, t, settings, denominator, numbers=numbers, xp=torch)
    return update, list(new)


@dataclass(frozen=True)
class RandomBits:
    """The random bits of one tensor at one step."""

    seed: int
    index: int
    step: Scalar
    in_blocks: bool = False  # whether any state of the tensor is in 8 bits

    def bits(self, purpose: int, like: Tensor) -> Tensor:
        """32 bits per element, laid out like `like`."""
        key = step_key(tensor_seed(self.seed, self.index), self.step)
        out = torch.empty_like(like, dtype=torch.int64)
        index = torch.arange(like.numel(), device=like.device)
        if self.in_blocks and like.numel():
            index = padded_index(index, like)
        in_memory_order(out).copy_(random_bits(key, purpose, index))
        return out


def in_memory_order(t: Tensor) -> Tensor:
    """The elements of a dense tensor as a vector, without a copy."""
    return t.as_strided((t.numel(),), (1,))


def _store_moments(
    stored: Sequence[Moment | None], new: Sequence[Tensor | None], random: RandomBits
) -> None:
    purposes = (FOR_TREND, FOR_VARIANCE, FOR_SECOND_MOMENT)
    for moment, value, purpose in zip(stored, new, purposes, strict=True):
        if moment is not None and value is not None:
            _store(moment, value, random, purpose)


def _store(moment: Moment, value: Tensor, random: RandomBits, purpose: int) -> None:
    if isinstance(moment, Quantized):
        quantize_(moment, value, random.bits(purpose, moment.codes))
    else:
        as_real(moment).copy_(value)


def _load(moment: Moment, dtype: torch.dtype) -> Tensor:
    if isinstance(moment, Quantized):
        return dequantize(moment).to(dtype)
    return as_real(moment).to(dtype)


def momentum_loop(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    buffers: Sequence[Tensor],
    *,
    lr: Scalar,
    beta: float,
    mu: float,
    weight_decay: float,
    decoupled_weight_decay: bool,
    maximize: bool,
) -> None:
    """One step of Momentum."""
    for i, param in enumerate(params):
        p, g, m = as_real(param), as_real(grads[i]), as_real(buffers[i])
        rate = lr_beside(lr, p)
        weights, g = _decay(p, g, rate, weight_decay, decoupled_weight_decay, maximize)
        new_m = beta * m.to(g.dtype) + mu * g
        m.copy_(new_m)
        p.copy_(weights - rate * new_m)


def _decay(
    p: Tensor, g: Tensor, lr: Scalar, weight_decay: float, decoupled: bool, maximize: bool
) -> tuple[Tensor, Tensor]:
    """Parameter and gradient in the dtype to compute in, with weight decay in one of them."""
    dtype = compute_dtype(p)
    # A copy under autograd only: the step overwrites p, which the backward pass may still need.
    weights = p.to(dtype, copy=torch.is_grad_enabled())
    g = g.to(dtype)
    if maximize:
        g = -g
    if weight_decay and decoupled:
        weights = weights * (1 - lr * weight_decay)
    elif weight_decay:
        g = g + weight_decay * weights
    return weights, g
