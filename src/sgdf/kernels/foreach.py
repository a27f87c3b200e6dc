"""The optimizers' updates in torch's foreach functions, a list of tensors at a time.

`filter_foreach` updates SGDF and, if second moments are passed, FilterAdam.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from sgdf.filter import FilterSettings, one_minus_power
from sgdf.kernels.arithmetic import (
    Scalar,
    as_real,
    compute_dtype,
    increment,
    lr_beside,
    positive_eps,
    step_value,
)

#: Steps as `step_value` returns them: numbers or tensors, and their namespace.
Times: TypeAlias = list[tuple[Scalar, Any]]


def filter_foreach(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    steps: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_vars: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor] = (),
    *,
    settings: FilterSettings,
    lr: Scalar,
    weight_decay: float,
    decoupled_weight_decay: bool,
    maximize: bool,
    capturable: bool,
) -> None:
    """One step of SGDF or, with second moments, FilterAdam."""
    adam = len(exp_avg_sqs) > 0
    columns = [params, grads, steps, exp_avgs, exp_vars] + ([exp_avg_sqs] if adam else [])
    for p, g, t, *moments in _grouped(columns):
        dtype = compute_dtype(p[0])
        rate = lr_beside(lr, p[0])
        weights = _in_dtype(p, dtype)
        g = _decayed_gradients(g, weights, weight_decay, decoupled_weight_decay, maximize)
        m, s, *v = [_in_dtype(moment, dtype) for moment in moments]

        increment(t)
        times = [step_value(step, capturable, dtype) for step in t]
        update = _estimate(g, m, s, times, settings)
        if adam:
            _precondition(update, g, v[0], times, settings.betas[1], settings.eps)
        _apply(weights, update, rate, weight_decay if decoupled_weight_decay else 0)
        for stored, computed in zip([p, *moments], [weights, m, s, *v], strict=True):
            _store(stored, computed)


def estimate_foreach(
    grads: Sequence[Tensor],
    steps: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_vars: Sequence[Tensor],
    *,
    settings: FilterSettings,
) -> None:
    """The filter alone: overwrite every gradient with its estimate g^."""
    for g, t, *moments in _grouped([grads, steps, exp_avgs, exp_vars]):
        dtype = compute_dtype(g[0])
        m, s = [_in_dtype(moment, dtype) for moment in moments]
        increment(t)
        times = [step_value(step, not step.is_cpu, dtype) for step in t]
        estimate = _estimate(_in_dtype(g, dtype), m, s, times, settings)
        torch._foreach_copy_(g, estimate)
        for stored, computed in zip(moments, [m, s], strict=True):
            _store(stored, computed)


def _estimate(
    g: list[Tensor],
    m: list[Tensor],
    s: list[Tensor],
    times: Times,
    settings: FilterSettings,
) -> list[Tensor]:
    """`wiener_filter` of lists: update m and s in place, return g^."""
    beta1, beta2 = settings.betas
    scalars = [settings.corrections(t, xp) for t, xp in times]

    torch._foreach_lerp_(m, g, 1 - beta1)
    residual = torch._foreach_sub(g, m)
    torch._foreach_mul_(s, beta2)
    torch._foreach_addcmul_(s, residual, residual, 1 - beta2)

    estimate = list(torch._foreach_div(m, [c.trend for c in scalars]))
    residual = torch._foreach_sub(g, estimate)
    gain = torch._foreach_mul(s, [c.fluctuation for c in scalars])
    denominator = torch._foreach_mul(residual, residual)
    torch._foreach_add_(denominator, gain)
    torch._foreach_add_(denominator, positive_eps(settings.eps, m[0].dtype))
    torch._foreach_div_(gain, denominator)
    if settings.gain_power != 1:
        torch._foreach_pow_(gain, settings.gain_power)
    torch._foreach_addcmul_(estimate, gain, residual, settings.gain_scale)
    return estimate


def _precondition(
    update: list[Tensor],
    g: list[Tensor],
    v: list[Tensor],
    times: Times,
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
    """One step of Momentum."""
    for p, g, buffer in _grouped([params, grads, buffers]):
        dtype = compute_dtype(p[0])
        rate = lr_beside(lr, p[0])
        weights, m = _in_dtype(p, dtype), _in_dtype(buffer, dtype)
        g = _decayed_gradients(g, weights, weight_decay, decoupled_weight_decay, maximize)
        torch._foreach_mul_(m, beta)
        torch._foreach_add_(m, g, alpha=mu)
        _store(buffer, m)
        # _apply scales the update by a tensor lr in place, and m is the state.
        update = [t.clone() for t in m] if isinstance(rate, Tensor) else m
        _apply(weights, update, rate, weight_decay if decoupled_weight_decay else 0)
        _store(p, weights)


def _grouped(columns: list[Sequence[Tensor]]) -> Iterable[tuple[list[Tensor], ...]]:
    """The columns grouped by device and dtypes, complex numbers as pairs.

    torch's own grouping requires the state to have the parameter's dtype; ours may have another.
    """
    rows = [tuple(as_real(tensor) for tensor in row) for row in zip(*columns, strict=True)]
    groups: dict[Any, list[tuple[Tensor, ...]]] = {}
    for row in rows:
        groups.setdefault((row[0].device, *(t.dtype for t in row)), []).append(row)
    for group in groups.values():
        yield tuple(list(column) for column in zip(*group, strict=True))


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
    """weights <- (1 - lr decay) weights - lr update. A tensor lr is multiplied into `update`."""
    if decoupled_weight_decay:
        torch._foreach_mul_(weights, 1 - lr * decoupled_weight_decay)
    if isinstance(lr, Tensor):
        torch._foreach_mul_(update, lr)
        torch._foreach_sub_(weights, update)
    else:
        torch._foreach_add_(weights, update, alpha=-lr)
