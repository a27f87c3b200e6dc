"""The optimizers' updates in torch's foreach functions, a list of tensors at a time.

`filter_foreach` updates SGDF and, with a denominator, FilterAdam.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from sgdf.filter import (
    Denominator,
    FilterSettings,
    moment_names,
    one_minus_power,
    second_moment_weights,
)
from sgdf.kernels.arithmetic import (
    Scalar,
    as_real,
    compute_dtype,
    gradient_bound,
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
    *moments: Sequence[Tensor],
    settings: FilterSettings,
    denominator: Denominator | None = None,
    lr: Scalar,
    weight_decay: float,
    decoupled_weight_decay: bool,
    maximize: bool,
    capturable: bool,
) -> None:
    """One step of SGDF or, with a denominator, FilterAdam."""
    names = moment_names(settings, denominator)
    for p, g, t, *stored in _grouped([params, grads, steps, *moments]):
        dtype = compute_dtype(p[0])
        rate = lr_beside(lr, p[0])
        weights = _in_dtype(p, dtype)
        g = _decayed_gradients(g, weights, weight_decay, decoupled_weight_decay, maximize)
        g = _clipped(g, gradient_bound(settings.betas[1], dtype))
        computed = [_in_dtype(moment, dtype) for moment in stored]
        moment = dict(zip(names, computed, strict=True))

        increment(t)
        times = [step_value(step, capturable, dtype) for step in t]
        update = _estimate(g, moment["exp_avg"], moment.get("exp_var"), times, settings)
        if denominator is not None:
            v_hat = _second_moments(g, moment, times, settings.betas, denominator.second_moment)
            torch._foreach_sqrt_(v_hat)
            torch._foreach_add_(v_hat, denominator.eps)
            torch._foreach_div_(update, v_hat)
        _apply(weights, update, rate, weight_decay if decoupled_weight_decay else 0)
        for before, after in zip([p, *stored], [weights, *computed], strict=True):
            _store(before, after)


def estimate_foreach(
    grads: Sequence[Tensor],
    steps: Sequence[Tensor],
    *moments: Sequence[Tensor],
    settings: FilterSettings,
) -> None:
    """The filter alone: overwrite every gradient with its estimate g^."""
    for g, t, *stored in _grouped([grads, steps, *moments]):
        dtype = compute_dtype(g[0])
        computed = [_in_dtype(moment, dtype) for moment in stored]
        m, s = computed if len(computed) == 2 else (computed[0], None)
        increment(t)
        times = [step_value(step, not step.is_cpu, dtype) for step in t]
        clipped = _clipped(_in_dtype(g, dtype), gradient_bound(settings.betas[1], dtype))
        estimate = _estimate(clipped, m, s, times, settings)
        torch._foreach_copy_(g, estimate)
        for before, after in zip(stored, computed, strict=True):
            _store(before, after)


def _estimate(
    g: list[Tensor],
    m: list[Tensor],
    s: list[Tensor] | None,
    times: Times,
    settings: FilterSettings,
) -> list[Tensor]:
    """`wiener_filter` of lists: update m and s in place, return g^."""
    beta1, beta2 = settings.betas
    scalars = [settings.corrections(t, xp) for t, xp in times]

    torch._foreach_lerp_(m, g, 1 - beta1)
    if s is not None:
        residual = torch._foreach_sub(g, m)
        torch._foreach_mul_(s, beta2)
        torch._foreach_addcmul_(s, residual, residual, 1 - beta2)

    estimate = list(torch._foreach_div(m, [c.trend for c in scalars]))
    residual = torch._foreach_sub(g, estimate)
    if settings.constant_gain or s is None:
        torch._foreach_add_(estimate, residual, alpha=settings.gain_scale)
        return estimate
    gain = torch._foreach_mul(s, [c.fluctuation for c in scalars])
    denominator = torch._foreach_mul(residual, residual)
    torch._foreach_add_(denominator, gain)
    torch._foreach_add_(denominator, positive_eps(settings.eps, m[0].dtype))
    torch._foreach_div_(gain, denominator)
    if settings.gain_power != 1:
        torch._foreach_pow_(gain, settings.gain_power)
    torch._foreach_addcmul_(estimate, gain, residual, settings.gain_scale)
    return estimate


def _second_moments(
    g: list[Tensor],
    moment: dict[str, list[Tensor]],
    times: Times,
    betas: tuple[float, float],
    kind: str,
) -> list[Tensor]:
    """v^ of `kind`, as new tensors; a separate v is updated in place."""
    if kind == "separate":
        v = moment["exp_avg_sq"]
        torch._foreach_mul_(v, betas[1])
        torch._foreach_addcmul_(v, g, g, 1 - betas[1])
        return list(torch._foreach_div(v, [one_minus_power(betas[1], t, xp) for t, xp in times]))
    weights = [second_moment_weights(t, *betas, kind, xp) for t, xp in times]
    v_hat = list(torch._foreach_mul(moment["exp_var"], [w.of_s for w in weights]))
    if kind == "derived":
        # The weight first, as in the statement: m^2 alone would underflow sooner.
        squares = torch._foreach_mul(moment["exp_avg"], [w.of_m for w in weights])
        torch._foreach_mul_(squares, moment["exp_avg"])
        torch._foreach_add_(v_hat, squares)
    return v_hat


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


def _clipped(grads: list[Tensor], largest: float) -> list[Tensor]:
    """The gradients as `filter.direction` clips them, in new memory."""
    clipped = list(torch._foreach_clamp_max(grads, largest))
    torch._foreach_clamp_min_(clipped, -largest)
    return clipped


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
