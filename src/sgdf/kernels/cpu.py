"""CPU: the optimizers' updates as one compiled pass over all tensors (`cpu.cpp`).

All arrays are visited in memory order, so a tensor's parameter, gradient and moments have to be
laid out alike and without gaps. A gradient laid out differently is copied; a tensor with any
other exception is updated by `loop`.
"""

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from sgdf.filter import FilterSettings, one_minus_power
from sgdf.kernels import cpu_library, loop
from sgdf.kernels.arithmetic import Moment, Scalar, compute_dtype, increment
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
MOMENTUM, FILTER, ADAM = range(3)


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
    exp_avgs: Sequence[Moment],
    exp_vars: Sequence[Moment],
    exp_avg_sqs: Sequence[Moment] = (),
    *,
    settings: FilterSettings,
    lr: Scalar,
    weight_decay: float,
    decoupled_weight_decay: bool,
    maximize: bool,
    stochastic_rounding: bool = False,
    rounding_seed: int = 0,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    """One step of SGDF or, with second moments, FilterAdam."""
    if found_inf is not None and found_inf.item():
        return
    moments = [exp_avgs, exp_vars] + ([exp_avg_sqs] if exp_avg_sqs else [])
    rows = _Rows(params, grads, moments)
    times = _advance([steps[i] for i in rows.indices])
    if stochastic_rounding or rows.quantized:
        rows.set_keys(
            step_key(tensor_seed(rounding_seed, i), int(t))
            for i, t in zip(rows.indices, times, strict=True)
        )
    (beta1, beta2), eps, gain_scale, gain_power, _ = settings
    numbers = [beta1, beta2, eps, weight_decay, gain_scale, gain_power, _value(grad_scale)]
    flags = [decoupled_weight_decay, maximize, stochastic_rounding]
    rows.step(
        ADAM if exp_avg_sqs else FILTER,
        _corrections(times, settings),
        array("d", [float(lr), *numbers, *flags]),
    )
    for i in rows.others:
        loop.filter_loop(
            [params[i]],
            [_unscaled(grads[i], params[i], grad_scale)],
            [steps[i]],
            *([column[i]] for column in moments),
            settings=settings,
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
    rows = _Rows(params, grads, [buffers])
    numbers = [beta, 0, 0, weight_decay, mu, 1, _value(grad_scale)]  # in the filter's order
    settings = array("d", [float(lr), *numbers, decoupled_weight_decay, maximize, False])
    rows.step(MOMENTUM, array("d", [0.0] * 3 * len(rows.indices)), settings)
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


def _corrections(times: list[float], settings: FilterSettings) -> "array[float]":
    """`Corrections` of cpu.cpp for every row."""
    by_step: dict[float, tuple[float, ...]] = {}  # most often all tensors are at one step
    corrections = array("d")
    for t in times:
        if t not in by_step:
            by_step[t] = (*settings.corrections(t), one_minus_power(settings.betas[1], t))
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
        moments: Sequence[Sequence[Moment]],
    ) -> None:
        self.indices: list[int] = []
        self.others: list[int] = []
        self.quantized = False
        self.alive: list[Tensor] = []  # all that the table points to
        self.written: list[Tensor] = []
        self.table: list[int] = []
        for i, (param, grad, *state) in enumerate(zip(params, grads, *moments, strict=True)):
            row = self._row(param, grad, state)
            if row is None:
                self.others.append(i)
            else:
                self.indices.append(i)
                self.written.append(param)
                self.table += row
        check_consistent(params, grads, moments, self.others)

    def _row(self, param: Tensor, grad: Tensor, state: list[Any]) -> list[int] | None:
        p, g = param, grad.resolve_neg()
        if p.is_complex():
            p, g = torch.view_as_real(p), torch.view_as_real(g.resolve_conj())
            state = [torch.view_as_real(m) for m in state]
        dtypes = [DTYPES.get(p.dtype), DTYPES.get(g.dtype)]
        if g.shape != p.shape or not (p.is_contiguous() or dense(p)):
            return None
        if not (p.is_cpu and g.is_cpu):
            return None
        strides = p.stride()
        if g.stride() != strides and not _laid_out_like(p, g):
            g = torch.empty_strided(p.shape, p.stride(), dtype=g.dtype).copy_(g)
        addresses, scales, length = [p.data_ptr(), g.data_ptr()], [0, 0, 0], 0
        for k, moment in enumerate(state):
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
        if 0 in addresses and p.numel():  # fake tensors have no memory
            return None
        self.alive += [p, g]
        addresses += [0] * (5 - len(addresses))
        return [*addresses, *scales, p.numel(), length, packed, 0]

    def set_keys(self, keys: Iterable[int]) -> None:
        """Set the key of the random bits of every row."""
        self.table[self.WIDTH - 1 :: self.WIDTH] = keys

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
