"""A step in plain torch, one tensor at a time, by `sgdf.filter.direction`.

It can do all that the faster kernels cannot: any layout, 8-bit state without a compiler, autograd
through the step.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sgdf.filter import LARGEST_8_BIT_UPDATE, Moments, direction, momentum
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
from sgdf.kernels.work import (
    ESTIMATE,
    MOMENTUM,
    Moment,
    Rule,
    Scalar,
    Work,
    as_real,
    check_consistent,
    compute_dtype,
    lr_on_device_of,
    number_range,
    step_and_namespace,
)

PURPOSES = (FOR_TREND, FOR_VARIANCE, FOR_SECOND_MOMENT)


def step(work: Work) -> None:
    """One step of a group."""
    rule = work.rule
    columns = (work.m, work.s, work.v)
    if not torch.compiler.is_compiling():
        check_consistent(work.params, work.grads, columns, range(len(work.params)))
    for i, param in enumerate(work.params):
        p = as_real(param)
        dtype, rate = compute_dtype(p), lr_on_device_of(p, rule.lr)
        g = as_real(work.grads[i]).to(dtype)
        if work.scale is not None:
            g = g / work.scale.squeeze().to(g.device)
        # A copy under autograd only: the step overwrites p, which the backward pass may still need.
        weights = p.to(dtype, copy=torch.is_grad_enabled())
        weights, g = _with_decay(weights, g, rate, rule)
        stored = Moments(*[column and column[i] for column in columns])
        before = Moments(*[moment if moment is None else _load(moment, dtype) for moment in stored])
        random = None
        if rule.kind == MOMENTUM:
            update = momentum(g, before.m, rule.settings.betas[0], rule.settings.gain_scale)
            after = Moments(update)
        else:
            assert work.steps is not None
            work.steps[i].add_(1)
            t, _ = step_and_namespace(work.steps[i], rule, dtype)
            in_8_bits = isinstance(stored.m, Quantized)
            update, after = direction(
                g,
                before,
                t,
                rule.settings,
                rule.denominator,
                largest_update=LARGEST_8_BIT_UPDATE if in_8_bits else None,
                numbers=number_range(dtype),
                xp=torch,
            )
            random = RandomBits(rule.rounding_seed, i, t, in_8_bits)
        new_p = update if rule.kind == ESTIMATE else weights - rate * update

        for moment, value, purpose in zip(stored, after, PURPOSES, strict=True):
            if moment is not None:
                _store(moment, value, random, purpose)
        if rule.stochastic_rounding and p.dtype == torch.bfloat16 and random is not None:
            new_p = round_to_bfloat16(new_p, random.bits(FOR_PARAMETER, p))
        p.copy_(new_p)


def _with_decay(weights: Tensor, g: Tensor, lr: Scalar, rule: Rule) -> tuple[Tensor, Tensor]:
    """Parameter and gradient, with weight decay in one of them."""
    if rule.maximize:
        g = -g
    if rule.weight_decay and rule.decoupled:
        weights = weights * (1 - lr * rule.weight_decay)
    elif rule.weight_decay:
        g = g + rule.weight_decay * weights
    return weights, g


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


def _store(moment: Moment, value: Tensor, random: RandomBits | None, purpose: int) -> None:
    if isinstance(moment, Quantized):
        assert random is not None
        quantize_(moment, value, random.bits(purpose, moment.codes))
        return
    moment = as_real(moment)
    if moment.dtype == torch.bfloat16 and random is not None:
        value = round_to_bfloat16(value.float(), random.bits(purpose, moment))
    moment.copy_(value)


def _load(moment: Moment, dtype: torch.dtype) -> Tensor:
    if isinstance(moment, Quantized):
        return dequantize(moment).to(dtype)
    return as_real(moment).to(dtype)
