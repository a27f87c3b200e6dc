"""The optimizers' updates in plain torch, one tensor at a time.

`filter_loop` updates SGDF and, if second moments are passed, FilterAdam. It can do all that the
faster kernels cannot: any layout, 8-bit state without a compiler, autograd through the step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sgdf.filter import FilterSettings, one_minus_power, wiener_filter
from sgdf.kernels.arithmetic import (
    Moment,
    Scalar,
    as_real,
    compute_dtype,
    lr_beside,
    positive_eps,
    step_value,
)
from sgdf.kernels.quantized import Quantized, dequantize, quantize_
from sgdf.kernels.rounding import (
    FOR_MOMENTS,
    FOR_PARAMETER,
    FOR_SECOND_MOMENT,
    random_bits,
    round_to_bfloat16,
    step_key,
    tensor_seed,
)


def filter_loop(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    steps: Sequence[Tensor],
    exp_avgs: Sequence[Moment],
    exp_vars: Sequence[Moment],
    exp_avg_sqs: Sequence[Moment] = (),
    *,
    settings: FilterSettings,
    lr: Scalar,
    weight_decay: float,
    decoupled_weight_decay: bool,
    maximize: bool,
    capturable: bool,
    differentiable: bool,
    stochastic_rounding: bool = False,
    rounding_seed: int = 0,
) -> None:
    """One step of SGDF or, with second moments, FilterAdam."""
    beta1, beta2 = settings.betas
    for i, param in enumerate(params):
        p, g = as_real(param), as_real(grads[i])
        dtype, rate = compute_dtype(p), lr_beside(lr, p)
        steps[i].add_(1)
        t, xp = step_value(steps[i], capturable or differentiable, dtype)

        weights, g = _decay(p, g, rate, weight_decay, decoupled_weight_decay, maximize)
        update, new_m, new_s = wiener_filter(
            g,
            _load(exp_avgs[i], dtype),
            _load(exp_vars[i], dtype),
            settings.corrections(t, xp),
            beta1=beta1,
            beta2=beta2,
            eps=positive_eps(settings.eps, dtype),
            gain_scale=settings.gain_scale,
            gain_power=settings.gain_power,
        )
        if exp_avg_sqs:
            new_v = beta2 * _load(exp_avg_sqs[i], dtype) + (1 - beta2) * g * g
            update = update / ((new_v / one_minus_power(beta2, t, xp)).sqrt() + settings.eps)
        new_p = weights - rate * update

        random = RandomBits(rounding_seed, i, t)
        _store(exp_avgs[i], new_m, random, FOR_MOMENTS)
        _store(exp_vars[i], new_s, random, FOR_MOMENTS, shift=12)
        if exp_avg_sqs:
            _store(exp_avg_sqs[i], new_v, random, FOR_SECOND_MOMENT)
        if stochastic_rounding and p.dtype == torch.bfloat16:
            new_p = round_to_bfloat16(new_p, random.bits(FOR_PARAMETER, p))
        p.copy_(new_p)


@dataclass(frozen=True)
class RandomBits:
    """The random bits of one tensor at one step."""

    seed: int
    index: int
    step: Scalar

    def bits(self, purpose: int, like: Tensor) -> Tensor:
        """32 bits per element, laid out like `like`."""
        key = step_key(tensor_seed(self.seed, self.index), self.step)
        out = torch.empty_like(like, dtype=torch.int64)
        in_memory_order(out).copy_(random_bits(key, purpose, like))
        return out


def in_memory_order(t: Tensor) -> Tensor:
    """The elements of a dense tensor as a vector, without a copy."""
    return t.as_strided((t.numel(),), (1,))


def _store(moment: Moment, value: Tensor, random: RandomBits, purpose: int, shift: int = 0) -> None:
    if isinstance(moment, Quantized):
        quantize_(moment, value, random.bits(purpose, moment.codes) >> shift)
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
