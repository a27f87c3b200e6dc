"""CPU: the optimizers' updates as one compiled pass over all tensors (`cpu.cpp`).

All arrays are visited in memory order, so a tensor's parameter, gradient and moments have to be
laid out alike and without gaps. A gradient laid out differently is copied; a tensor with any
other exception is updated by `loop`.
"""

from array import array
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sgdf.filter import Denominator, FilterSettings, one_minus_power, second_moment_weights
from sgdf.kernels import cpu_library, loop
from sgdf.kernels.arithmetic import Moment, Scalar, columns_of, compute_dtype, increment
from sgdf.kernels.consistency import check_consistent
from sgdf.kernels.quantized import Quantized, blocks_per_row, dense
from sgdf.kernels.rounding import GOLDEN, step_key, tensor_seed

DTYPES = {  # the enum of cpu.cpp
    torch.float32: 0,
    torch.float64: 1,
    torch.bfloat16: 2,
    torch.float16: 3,
}
SIGNED, UNSIGNED = 4, 5
MOMENTUM, FILTER, ESTIMATE = range(3)
CORRECTIONS = 5  # numbers in a `Corrections` of cpu.cpp
SECOND = {None: 0, "separate": 1, "derived": 2, "fluctuation": 2}


def suits(params: Sequence[Tensor]) -> bool:
    """Whether these kernels can update all of the parameters; no warning if they cannot."""
    return (
        not torch.compiler.is_compiling()
        and len(params) > 0
        and all(p.is_cpu and (p.is_floating_point() or p.is_complex()) for p in params)
        and cpu_library.library() is not None
    )


def filter_fused(
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
    stochastic_rounding: bool = False,
    rounding_seed: int = 0,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    """One step of SGDF or, with a denominator, FilterAdam."""
    if found_inf is not None and found_inf.item():
        return
    rows = _Rows(params, grads, columns_of(moments, settings, denominator))
    times = _advance([steps[i] for i in rows.indices])
    if stochastic_rounding or rows.quantized:
        rows.set_keys(rounding_seed, times)
    rows.step(
        FILTER,
        _corrections(times, settings, denominator),
        _numbers(
            settings,
            denominator,
            lr=float(lr),
            weight_decay=weight_decay,
            grad_scale=_value(grad_scale),
            flags=(decoupled_weight_decay, maximize, stochastic_rounding),
        ),
    )
    for i in rows.others:
        loop.filter_loop(
            [params[i]],
            [_unscaled(grads[i], params[i], grad_scale)],
            [steps[i]],
            *([column[i]] for column in moments),
            settings=settings,
            denominator=denominator,
            lr=lr,
            weight_decay=weight_decay,
            decoupled_weight_decay=decoupled_weight_decay,
            maximize=maximize,
            capturable=False,
            differentiable=False,
            stochastic_rounding=stochastic_rounding,
            # The loop sees it as tensor 0 of a list; it has to draw the bits of tensor i.
            rounding_seed=rounding_seed + i * GOLDEN,
        )


def estimate_fused(
    grads: Sequence[Tensor],
    steps: Sequence[Tensor],
    *moments: Sequence[Moment],
    settings: FilterSettings,
    rounding_seed: int = 0,
) -> None:
    """The filter alone: overwrite every gradient with its estimate g^."""
    rows = _Rows(grads, grads, columns_of(moments, settings, None))
    times = _advance([steps[i] for i in rows.indices])
    if rows.quantized:
        rows.set_keys(rounding_seed, times)
    rows.step(ESTIMATE, _corrections(times, settings, None), _numbers(settings, None))
    for i in rows.others:
        loop.estimate_loop(
            [grads[i]],
            [steps[i]],
            *([column[i]] for column in moments),
            settings=settings,
            rounding_seed=rounding_seed + i * GOLDEN,  # as in filter_fused
        )


def momentum_fused(
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
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    """One step of Momentum."""
    if found_inf is not None and found_inf.item():
        return
    rows = _Rows(params, grads, [buffers, None, None])
    numbers = _numbers(
        FilterSettings(betas=(beta, 0), gain_scale=mu),
        None,
        lr=float(lr),
        weight_decay=weight_decay,
        grad_scale=_value(grad_scale),
        flags=(decoupled_weight_decay, maximize, False),
    )
    no_corrections = array("d", [0.0] * CORRECTIONS * len(rows.indices))
    rows.step(MOMENTUM, no_corrections, numbers)
    for i in rows.others:
        loop.momentum_loop(
            [params[i]],
            [_unscaled(grads[i], params[i], grad_scale)],
            [buffers[i]],
            lr=lr,
            beta=beta,
            mu=mu,
            weight_decay=weight_decay,
            decoupled_weight_decay=decoupled_weight_decay,
            maximize=maximize,
        )


def _advance(counters: list[Tensor]) -> list[float]:
    """Increment the step counters and return their values."""
    if counters:
        increment(counters)
    return [step.item() for step in counters]


def _numbers(
    settings: FilterSettings,
    denominator: Denominator | None,
    *,
    lr: float = 0.0,
    weight_decay: float = 0.0,
    grad_scale: float = 1.0,
    flags: tuple[bool, bool, bool] = (False, False, False),
) -> "array[float]":
    """`Settings` of cpu.cpp; the flags are decoupled, maximize and stochastic."""
    (beta1, beta2), gain_eps, gain_scale, gain_power, *_ = settings
    kind, adam_eps = denominator or (None, 0.0)
    numbers = [lr, beta1, beta2, gain_eps, adam_eps, weight_decay, gain_scale, gain_power]
    return array("d", [*numbers, grad_scale, SECOND[kind], *flags])


def _corrections(
    times: list[float], settings: FilterSettings, denominator: Denominator | None
) -> "array[float]":
    """`Corrections` of cpu.cpp for every row."""
    by_step: dict[float, tuple[float, ...]] = {}  # most often all tensors are at one step
    corrections = array("d")
    for t in times:
        if t not in by_step:
            weights: tuple[float, float] = (0.0, 0.0)
            if denominator is not None and denominator.second_moment != "separate":
                weights = second_moment_weights(t, *settings.betas, denominator.second_moment)
            second = one_minus_power(settings.betas[1], t)
            by_step[t] = (*settings.corrections(t), second, *weights)
        corrections.extend(by_step[t])
    return corrections


def _value(scale: Tensor | None) -> float:
    return 1.0 if scale is None else scale.item()


def _unscaled(g: Tensor, p: Tensor, scale: Tensor | None) -> Tensor:
    """The gradient divided by GradScaler's scale, for the loop."""
    if scale is None:
        return g
    dtype = compute_dtype(p)
    return g.to(dtype.to_complex() if g.is_complex() else dtype) / scale.item()


class _Rows:
    """The tensors of one call in the table that `cpu.cpp` reads, and those it cannot update."""

    WIDTH = 12

    def __init__(
        self,
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        moments: Sequence[Sequence[Moment] | None],  # m, s, v; None for one that is not kept
    ) -> None:
        self.indices: list[int] = []
        self.others: list[int] = []
        self.quantized = False
        self.alive: list[Tensor] = []  # all that the table points to
        self.written: list[Tensor] = []
        self.table: list[int] = []
        for i, (param, grad) in enumerate(zip(params, grads, strict=True)):
            row = self._row(param, grad, [column and column[i] for column in moments])
            if row is None:
                self.others.append(i)
            else:
                self.indices.append(i)
                self.written.append(param)
                self.table += row
        kept = [column for column in moments if column is not None]
        check_consistent(params, grads, kept, self.others)

    def _row(self, param: Tensor, grad: Tensor, state: list[Any]) -> list[int] | None:
        p, g = param, grad.resolve_neg()
        if p.is_complex():
            p, g = torch.view_as_real(p), torch.view_as_real(g.resolve_conj())
            state = [m if m is None else torch.view_as_real(m) for m in state]
        dtypes = [DTYPES.get(p.dtype), DTYPES.get(g.dtype)]
        if g.shape != p.shape or not (p.is_contiguous() or dense(p)):
            return None
        if not (p.is_cpu and g.is_cpu):
            return None
        strides = p.stride()
        if g.stride() != strides and not _laid_out_like(p, g):
            g = torch.empty_strided(p.shape, p.stride(), dtype=g.dtype).copy_(g)
        addresses, scales, length, missing = [p.data_ptr(), g.data_ptr()], [0, 0, 0], 0, 0
        for k, moment in enumerate(state):
            if moment is None:
                missing += 1
                addresses.append(0)
                dtypes.append(0)
                continue
            if isinstance(moment, Quantized):
                codes, scale = moment
                if not (scale.is_cpu and _in_rows(p, codes, scale)):
                    return None
                length = p.stride(0) if p.numel() else 0
                scales[k] = scale.data_ptr()
                dtypes.append(SIGNED if codes.dtype == torch.int8 else UNSIGNED)
                self.alive.append(scale)
                self.quantized = True
            else:
                codes = moment
                dtypes.append(DTYPES.get(codes.dtype))
            if not codes.is_cpu or codes.shape != p.shape:
                return None
            if codes.stride() != strides and not _laid_out_like(p, codes):
                return None
            addresses.append(codes.data_ptr())
            self.alive.append(codes)
        packed = 0
        for k, dtype in enumerate(dtypes):
            if dtype is None:
                return None
            packed |= dtype << 4 * k
        # Fake tensors have no memory. A moment that is not kept has address 0, too.
        if p.numel() and addresses.count(0) != missing:
            return None
        self.alive += [p, g]
        return [*addresses, *scales, p.numel(), length, packed, 0]

    def set_keys(self, seed: int, times: list[float]) -> None:
        """Set the key of the random bits of every row."""
        self.table[self.WIDTH - 1 :: self.WIDTH] = [
            step_key(tensor_seed(seed, i), int(t)) for i, t in zip(self.indices, times, strict=True)
        ]

    def step(self, kind: int, corrections: "array[float]", settings: "array[float]") -> None:
        if not self.indices:
            return
        library = cpu_library.library()
        if library is None:
            raise RuntimeError("the fused CPU kernels are not available")
        table = array("Q", self.table)
        columns = [column.buffer_info()[0] for column in (table, corrections, settings)]
        library.sgdf_step(kind, len(self.indices), *columns, torch.get_num_threads())
        # Tell autograd that these are no longer the values it saved.
        torch.autograd.graph.increment_version(self.written)


def _laid_out_like(p: Tensor, t: Tensor) -> bool:
    """Whether two tensors of one shape have the same order of elements in memory."""
    if not p.numel():
        return True
    strides = p.stride(), t.stride()
    return all(n == 1 or a == b for n, a, b in zip(p.shape, *strides, strict=True))


def _in_rows(p: Tensor, codes: Tensor, scale: Tensor) -> bool:
    """Whether the blocks of 8-bit codes are in the order in which `cpu.cpp` counts them."""
    return (
        p.dim() > 0
        and p.stride(0) * p.shape[0] == p.numel()
        and codes.dtype in (torch.int8, torch.uint8)
        and scale.dtype == torch.float32
        and scale.is_contiguous()
        and scale.shape == (p.shape[0], blocks_per_row(p))
    )
