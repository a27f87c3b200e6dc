"""A step in torch's foreach functions, a list of tensors at a time, as `sgdf.filter.direction`."""

import operator
from collections.abc import Iterable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from sgdf.filter import FilterSettings, largest_gradient, one_minus_power, second_moment_weights
from sgdf.kernels.loop import PURPOSES, RandomBits
from sgdf.kernels.rounding import round_to_bfloat16
from sgdf.kernels.work import (
    ESTIMATE,
    MOMENTUM,
    Rule,
    Scalar,
    Work,
    as_real,
    check_consistent,
    compute_dtype,
    increment,
    lr_on_device_of,
    number_range,
    step_and_namespace,
)

#: Steps as `step_and_namespace` returns them: numbers or tensors, and their namespace.
Times: TypeAlias = list[tuple[Scalar, Any]]
IS_META = operator.attrgetter("is_meta")


def step(work: Work) -> None:
    """One step of a group.

    To compare all shapes would take too long, and torch's functions refuse most tensors that do
    not fit: there the check only explains their error. They accept meta tensors among others,
    and compute nothing.
    """
    if torch.compiler.is_compiling():
        _step(work)
        return
    moments = (work.m, work.s, work.v)
    tensors = (work.params, work.grads, moments, range(len(work.params)))
    if any(any(map(IS_META, column)) for column in moments if column is not None):
        check_consistent(*tensors)
    try:
        _step(work)
    except RuntimeError:
        check_consistent(*tensors)
        raise


def _step(work: Work) -> None:
    rule = work.rule
    columns = (work.params, work.grads, work.steps, work.m, work.s, work.v)
    for indices, (p, g, t, *stored) in _grouped(columns):
        dtype, rate = compute_dtype(p[0]), lr_on_device_of(p[0], rule.lr)
        weights = _in_dtype(p, dtype)
        g = _decayed_gradients(g, weights, rule)
        moments = [column and _in_dtype(column, dtype) for column in stored]
        if rule.kind == MOMENTUM:
            update = moments[0]
            torch._foreach_mul_(update, rule.settings.betas[0])
            torch._foreach_add_(update, g, alpha=rule.settings.gain_scale)
            if isinstance(rate, Tensor):  # _apply scales the update in place, and m is the state
                update = [m.clone() for m in update]
        else:
            increment(t)
            times = [step_and_namespace(each, rule, dtype) for each in t]
            update = _direction(g, moments, times, rule)
        if rule.kind == ESTIMATE:
            torch._foreach_copy_(p, update)
        else:
            _apply(weights, update, rate, rule.weight_decay if rule.decoupled else 0)
            _store(p, weights)
        for before, after, purpose in zip(stored, moments, PURPOSES, strict=True):
            if before is None or before[0].dtype != torch.bfloat16 or rule.kind == MOMENTUM:
                _store(before, after)
                continue
            for i, moment, value, (time, _) in zip(indices, before, after, times, strict=True):
                bits = RandomBits(rule.rounding_seed, i, time).bits(purpose, moment)
                moment.copy_(round_to_bfloat16(value.float(), bits))


def _direction(g: list[Tensor], moments: list[Any], times: Times, rule: Rule) -> list[Tensor]:
    """`filter.direction` of lists: update the moments in place, return what follows."""
    settings, denominator = rule.settings, rule.denominator
    largest = float(largest_gradient(settings.betas[1], number_range(g[0].dtype)))
    m, s, v = moments
    if denominator is not None:
        g = list(torch._foreach_clamp_max(g, largest))
        torch._foreach_clamp_min_(g, -largest)
    else:
        g = [torch.where(x.abs() > largest, mean, x) for x, mean in zip(g, m, strict=True)]
    if v is not None:
        torch._foreach_mul_(v, settings.betas[1])
        torch._foreach_addcmul_(v, g, g, 1 - settings.betas[1])
    update = _estimate(g, m, s, times, settings)
    if denominator is not None:
        v_hat = _second_moments(moments, times, settings.betas, denominator.second_moment)
        torch._foreach_sqrt_(v_hat)
        torch._foreach_add_(v_hat, denominator.eps)
        torch._foreach_div_(update, v_hat)
    return update


def _estimate(
    g: list[Tensor],
    m: list[Tensor],
    s: list[Tensor] | None,
    times: Times,
    settings: FilterSettings,
) -> list[Tensor]:
    """`wiener_filter` of lists: update m and s in place, return g^; g is overwritten."""
    beta1, beta2 = settings.betas
    scalars = [settings.corrections(t, xp) for t, xp in times]

    torch._foreach_lerp_(m, g, 1 - beta1)
    if s is not None:
        residual = list(torch._foreach_sub(g, m))
        torch._foreach_mul_(s, beta2)
        torch._foreach_addcmul_(s, residual, residual, 1 - beta2)

    estimate = list(torch._foreach_div(m, [c.trend for c in scalars]))
    torch._foreach_sub_(g, estimate)
    residual = g
    if settings.constant_gain or s is None:
        torch._foreach_add_(estimate, residual, alpha=settings.gain_scale)
        return estimate
    gain = torch._foreach_mul(s, [c.fluctuation for c in scalars])
    denominator = torch._foreach_mul(residual, residual)
    torch._foreach_add_(denominator, gain)
    torch._foreach_add_(denominator, max(settings.eps, number_range(m[0].dtype).smallest))
    torch._foreach_div_(gain, denominator)
    if settings.gain_power != 1:
        torch._foreach_pow_(gain, settings.gain_power)
    torch._foreach_addcmul_(estimate, gain, residual, settings.gain_scale)
    return estimate


def _second_moments(
    moments: list[Any], times: Times, betas: tuple[float, float], kind: str
) -> list[Tensor]:
    """v^ of `kind` from the new moments, as new tensors."""
    m, s, v = moments
    if kind == "separate":
        return list(torch._foreach_div(v, [one_minus_power(betas[1], t, xp) for t, xp in times]))
    weights = [second_moment_weights(t, *betas, kind, xp) for t, xp in times]
    v_hat = list(torch._foreach_mul(s, [w.of_s for w in weights]))
    if kind == "derived":
        # The weight first, as in `filter.second_moment`: m^2 by itself would underflow sooner.
        squares = torch._foreach_mul(m, [w.of_m for w in weights])
        torch._foreach_mul_(squares, m)
        torch._foreach_add_(v_hat, squares)
    return v_hat


def _grouped(
    columns: Iterable[list[Tensor] | None],
) -> Iterable[tuple[list[int], list[Any]]]:
    """The columns grouped by device and dtypes, complex numbers as pairs; None stays None.

    With the rows' indices. torch's own grouping requires the state to have the parameter's dtype;
    ours may have another.
    """
    columns = list(columns)
    kept = [k for k, column in enumerate(columns) if column is not None]
    rows = zip(*(column for column in columns if column is not None), strict=True)
    groups: dict[Any, tuple[list[int], list[tuple[Tensor, ...]]]] = {}
    for i, row in enumerate(rows):
        real = tuple(as_real(tensor) for tensor in row)
        kind = (real[0].device, *(t.dtype for t in real))
        indices, group = groups.setdefault(kind, ([], []))
        indices.append(i)
        group.append(real)
    for indices, group in groups.values():
        lists: list[list[Tensor] | None] = [None] * len(columns)
        for k, column in zip(kept, zip(*group, strict=True), strict=True):
            lists[k] = list(column)
        yield indices, lists


def _in_dtype(tensors: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    return [tensor.to(dtype) for tensor in tensors]


def _store(stored: list[Tensor] | None, computed: list[Tensor] | None) -> None:
    if stored is not None and computed is not None and stored[0].dtype != computed[0].dtype:
        torch._foreach_copy_(stored, computed)


def _decayed_gradients(grads: list[Tensor], weights: list[Tensor], rule: Rule) -> list[Tensor]:
    grads = _in_dtype(grads, weights[0].dtype)
    if rule.maximize:
        grads = list(torch._foreach_neg(grads))
    if rule.weight_decay and not rule.decoupled:
        grads = list(torch._foreach_add(grads, weights, alpha=rule.weight_decay))
    return grads


def _apply(weights: list[Tensor], update: list[Tensor], lr: Scalar, decoupled_decay: float) -> None:
    """weights <- (1 - lr decay) weights - lr update. A tensor lr is multiplied into `update`."""
    if decoupled_decay:
        torch._foreach_mul_(weights, 1 - lr * decoupled_decay)
    if isinstance(lr, Tensor):
        torch._foreach_mul_(update, lr)
        torch._foreach_sub_(weights, update)
    else:
        torch._foreach_add_(weights, update, alpha=-lr)
