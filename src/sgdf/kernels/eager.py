"""The optimizers' updates in plain torch: tensor by tensor, or a whole list with foreach.

`filter_*` serves SGDF and, where second moments are passed, FilterAdam. Both paths compute in
`compute_dtype(param)`, whatever dtypes parameters, gradients and state are stored in, round
once when they store, and never write to a gradient.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from sgdf.filter import bias_corrections, one_minus_power, wiener_filter
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

Scalar: TypeAlias = float | Tensor
Moment: TypeAlias = Tensor | Quantized


def compute_dtype(tensor: Tensor) -> torch.dtype:
    """float64 for what has it, float32 for everything below."""
    return torch.float64 if tensor.dtype in (torch.float64, torch.complex128) else torch.float32


def _rate(lr: Scalar, like: Tensor) -> Scalar:
    """lr as a number, or as a 0-dim tensor to compute with beside `like`."""
    if not isinstance(lr, Tensor):
        return lr
    return lr.squeeze().to(like.device, compute_dtype(like), non_blocking=True)


def positive_eps(eps: float, dtype: torch.dtype) -> float:
    """eps, but never 0 in `dtype`: a gradient that is always 0 must not make 0/0."""
    return max(eps, torch.finfo(dtype).tiny)


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _step_value(step: Tensor, on_device: bool, dtype: torch.dtype) -> tuple[Scalar, Any]:
    """The step as a number, or left on its device as a tensor, and the namespace it lives in."""
    if on_device:
        return step.to(dtype), torch
    return step.item(), math


# --- tensor by tensor -------------------------------------------------------------------------


def filter_loop(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    steps: Sequence[Tensor],
    exp_avgs: Sequence[Moment],
    exp_vars: Sequence[Moment],
    exp_avg_sqs: Sequence[Moment] = (),
    *,
    lr: Scalar,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    gain_scale: float,
    gain_power: float,
    correction: bool,
    decoupled_weight_decay: bool,
    maximize: bool,
    capturable: bool,
    differentiable: bool,
    stochastic_rounding: bool = False,
    rounding_seed: int = 0,
) -> None:
    beta1, beta2 = betas
    for i, param in enumerate(params):
        p, g = _real(param), _real(grads[i])
        dtype, rate = compute_dtype(p), _rate(lr, p)
        steps[i].add_(1)
        t, xp = _step_value(steps[i], capturable or differentiable, dtype)

        weights, g = _decay(p, g, rate, weight_decay, decoupled_weight_decay, maximize)
        update, new_m, new_s = wiener_filter(
            g,
            _loaded(exp_avgs[i], dtype),
            _loaded(exp_vars[i], dtype),
            bias_corrections(t, beta1, beta2, correction, xp),
            beta1=beta1,
            beta2=beta2,
            eps=positive_eps(eps, dtype),
            gain_scale=gain_scale,
            gain_power=gain_power,
        )
        if exp_avg_sqs:
            new_v = beta2 * _loaded(exp_avg_sqs[i], dtype) + (1 - beta2) * g * g
            update = update / ((new_v / one_minus_power(beta2, t, xp)).sqrt() + eps)
        new_p = weights - rate * update

        random = Random(rounding_seed, i, t)
        _put(exp_avgs[i], new_m, random, FOR_MOMENTS)
        _put(exp_vars[i], new_s, random, FOR_MOMENTS, shift=12)
        if exp_avg_sqs:
            _put(exp_avg_sqs[i], new_v, random, FOR_SECOND_MOMENT)
        if stochastic_rounding and p.dtype == torch.bfloat16:
            new_p = round_to_bfloat16(new_p, random.bits(FOR_PARAMETER, p))
        p.copy_(new_p)


@dataclass(frozen=True)
class Random:
    """The random bits of one tensor at one step."""

    seed: int
    index: int
    step: Scalar

    def bits(self, purpose: int, like: Tensor) -> Tensor:
        """32 bits an element, laid out like `like`."""
        key = step_key(tensor_seed(self.seed, self.index), self.step)
        out = torch.empty_like(like, dtype=torch.int64)
        in_memory_order(out).copy_(random_bits(key, purpose, like))
        return out


def in_memory_order(t: Tensor) -> Tensor:
    """The elements of a dense tensor as a vector, without a copy."""
    return t.as_strided((t.numel(),), (1,))


def _put(moment: Moment, value: Tensor, random: Random, purpose: int, shift: int = 0) -> None:
    if isinstance(moment, Quantized):
        quantize_(moment, value, random.bits(purpose, moment.codes) >> shift)
    else:
        _real(moment).copy_(value)


def _loaded(moment: Moment, dtype: torch.dtype) -> Tensor:
    if isinstance(moment, Quantized):
        return dequantize(moment).to(dtype)
    return _real(moment).to(dtype)


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
    for i, param in enumerate(params):
        p, g, m = _real(param), _real(grads[i]), _real(buffers[i])
        rate = _rate(lr, p)
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


# --- a list at a time -------------------------------------------------------------------------


def filter_foreach(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    steps: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_vars: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor] = (),
    *,
    lr: Scalar,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    gain_scale: float,
    gain_power: float,
    correction: bool,
    decoupled_weight_decay: bool,
    maximize: bool,
    capturable: bool,
) -> None:
    adam = len(exp_avg_sqs) > 0
    columns = [params, grads, steps, exp_avgs, exp_vars] + ([exp_avg_sqs] if adam else [])
    for p, g, t, *moments in _alike(columns):
        dtype = compute_dtype(p[0])
        rate = _rate(lr, p[0])
        weights = _in_dtype(p, dtype)
        g = _decayed_gradients(g, weights, weight_decay, decoupled_weight_decay, maximize)
        m, s, *v = [_in_dtype(moment, dtype) for moment in moments]

        _increment(t)
        times = [_step_value(step, capturable, dtype) for step in t]
        update = _estimate(g, m, s, times, betas, eps, gain_scale, gain_power, correction)
        if adam:
            _precondition(update, g, v[0], times, betas[1], eps)
        _apply(weights, update, rate, weight_decay if decoupled_weight_decay else 0)
        for stored, computed in zip([p, *moments], [weights, m, s, *v], strict=True):
            _store(stored, computed)


def estimate_foreach(
    grads: Sequence[Tensor],
    steps: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_vars: Sequence[Tensor],
    *,
    betas: tuple[float, float],
    eps: float,
    gain_scale: float,
    gain_power: float,
    correction: bool,
) -> None:
    """The filter alone: every gradient is overwritten by its estimate g^."""
    for g, t, *moments in _alike([grads, steps, exp_avgs, exp_vars]):
        dtype = compute_dtype(g[0])
        m, s = [_in_dtype(moment, dtype) for moment in moments]
        _increment(t)
        times = [_step_value(step, not step.is_cpu, dtype) for step in t]
        estimate = _estimate(
            _in_dtype(g, dtype), m, s, times, betas, eps, gain_scale, gain_power, correction
        )
        torch._foreach_copy_(g, estimate)
        for stored, computed in zip(moments, [m, s], strict=True):
            _store(stored, computed)


def _estimate(
    g: list[Tensor],
    m: list[Tensor],
    s: list[Tensor],
    times: list[tuple[Scalar, Any]],
    betas: tuple[float, float],
    eps: float,
    gain_scale: float,
    gain_power: float,
    correction: bool,
) -> list[Tensor]:
    """`wiener_filter` of lists: updates m and s in place, returns g^."""
    beta1, beta2 = betas
    scalars = [bias_corrections(t, beta1, beta2, correction, xp) for t, xp in times]

    torch._foreach_lerp_(m, g, 1 - beta1)
    residual = torch._foreach_sub(g, m)
    torch._foreach_mul_(s, beta2)
    torch._foreach_addcmul_(s, residual, residual, 1 - beta2)

    estimate = list(torch._foreach_div(m, [c.trend for c in scalars]))
    residual = torch._foreach_sub(g, estimate)
    gain = torch._foreach_mul(s, [c.fluctuation for c in scalars])
    denominator = torch._foreach_mul(residual, residual)
    torch._foreach_add_(denominator, gain)
    torch._foreach_add_(denominator, positive_eps(eps, m[0].dtype))
    torch._foreach_div_(gain, denominator)
    if gain_power != 1:
        torch._foreach_pow_(gain, gain_power)
    torch._foreach_addcmul_(estimate, gain, residual, gain_scale)
    return estimate


def _precondition(
    update: list[Tensor],
    g: list[Tensor],
    v: list[Tensor],
    times: list[tuple[Scalar, Any]],
    beta2: float,
    eps: float,
) -> None:
    """Adam's second half: update <- update / (sqrt(v^) + eps)."""
    torch._foreach_mul_(v, beta2)
    torch._foreach_addcmul_(v, g, g, 1 - beta2)
    root = torch._foreach_div(v, [one_minus_power(beta2, t, xp) for t, xp in times])
    torch._foreach_sqrt_(root)
    torch._foreach_add_(root, eps)
    torch._foreach_div_(update, root)


def momentum_foreach(
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
    for p, g, buffer in _alike([params, grads, buffers]):
        dtype = compute_dtype(p[0])
        rate = _rate(lr, p[0])
        weights, m = _in_dtype(p, dtype), _in_dtype(buffer, dtype)
        g = _decayed_gradients(g, weights, weight_decay, decoupled_weight_decay, maximize)
        torch._foreach_mul_(m, beta)
        torch._foreach_add_(m, g, alpha=mu)
        _store(buffer, m)
        # _apply scales the update by a tensor lr in place, and m is the state.
        update = [t.clone() for t in m] if isinstance(rate, Tensor) else m
        _apply(weights, update, rate, weight_decay if decoupled_weight_decay else 0)
        _store(p, weights)


def _alike(columns: list[Sequence[Tensor]]) -> Iterable[tuple[list[Tensor], ...]]:
    """The columns cut into runs of one device and one dtype each, complex numbers as pairs.

    torch's own grouping insists that the state has the parameter's dtype, which ours need not.
    """
    rows = [tuple(_real(tensor) for tensor in row) for row in zip(*columns, strict=True)]
    groups: dict[Any, list[tuple[Tensor, ...]]] = {}
    for row in rows:
        groups.setdefault((row[0].device, *(t.dtype for t in row)), []).append(row)
    for group in groups.values():
        yield tuple(list(column) for column in zip(*group, strict=True))


def _increment(steps: list[Tensor]) -> None:
    if not torch.compiler.is_compiling() and steps[0].is_cpu:
        # On the CPU foreach wraps a Python 1 into a new tensor for every step; wrap it once.
        torch._foreach_add_(steps, torch.tensor(1.0), alpha=1.0)
    else:
        torch._foreach_add_(steps, 1)


def _in_dtype(tensors: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    return [tensor.to(dtype) for tensor in tensors]


def _store(stored: list[Tensor], computed: list[Tensor]) -> None:
    if stored[0].dtype != computed[0].dtype:
        torch._foreach_copy_(stored, computed)


def _decayed_gradients(
    grads: list[Tensor],
    weights: list[Tensor],
    weight_decay: float,
    decoupled: bool,
    maximize: bool,
) -> list[Tensor]:
    grads = _in_dtype(grads, weights[0].dtype)
    if maximize:
        grads = list(torch._foreach_neg(grads))
    if weight_decay and not decoupled:
        grads = list(torch._foreach_add(grads, weights, alpha=weight_decay))
    return grads


def _apply(
    weights: list[Tensor], update: list[Tensor], lr: Scalar, decoupled_weight_decay: float
) -> None:
    """weights <- (1 - lr decay) weights - lr update; a tensor lr overwrites the update."""
    if decoupled_weight_decay:
        torch._foreach_mul_(weights, 1 - lr * decoupled_weight_decay)
    if isinstance(lr, Tensor):
        torch._foreach_mul_(update, lr)
        torch._foreach_sub_(weights, update)
    else:
        torch._foreach_add_(weights, update, alpha=-lr)
