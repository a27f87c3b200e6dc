"""CUDA: the optimizers' updates as one Triton launch over all tensors of a kind.

The step counters, the learning rate (if it is a tensor) and GradScaler's scale are read on the
device, so nothing waits for the GPU and a CUDA graph can hold the complete step. What a launch
needs to know about the tensors is in a table on the device: see `plan`.
"""

import functools
import importlib.util
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sgdf.filter import FilterSettings
from sgdf.kernels import loop
from sgdf.kernels.arithmetic import Moment, Scalar, positive_eps
from sgdf.kernels.plan import BLOCK, BLOCKS, Launch, Plan, triton_dtype
from sgdf.kernels.rounding import GOLDEN

SUPPORTED = (torch.float32, torch.bfloat16, torch.float16)


@functools.cache
def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def suits(params: Sequence[Tensor]) -> bool:
    """Whether these kernels can update all of the parameters."""
    return (
        not torch.compiler.is_compiling()
        and len(params) > 0
        and has_triton()
        and all(p.is_cuda and p.dtype in SUPPORTED for p in params)
    )


def filter_fused(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    steps: Sequence[Tensor],
    exp_avgs: Sequence[Moment],
    exp_vars: Sequence[Moment],
    exp_avg_sqs: Sequence[Moment] = (),
    *,
    plan: Plan,
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
    """One step of SGDF or, with second moments, FilterAdam; `plan` was made for these columns."""
    from sgdf.kernels import triton_filter as device

    moments = [exp_avgs, exp_vars] + ([exp_avg_sqs] if exp_avg_sqs else [])
    of_filter = {**_filter_arguments(settings), "ADAM": len(moments) == 3}
    plan.advance(found_inf)
    for launch in plan.launches:
        arguments = {
            **_table_arguments(launch),
            **_descent_arguments(launch, lr, weight_decay, decoupled_weight_decay, maximize),
            **_scaler_arguments(launch, grad_scale, found_inf),
            **of_filter,
            "STOCHASTIC": stochastic_rounding and launch.p_dtype == torch.bfloat16,
        }
        if launch.quantized:
            arguments |= {"WHOLE_ROWS": launch.whole_rows, "BLOCKS": BLOCKS, "num_warps": 1}
            device.filter_kernel_8bit[(launch.blocks,)](**arguments)
        else:
            arguments |= {"S": launch.s_dtype, "BLOCK": BLOCK, "num_warps": 4}
            device.filter_kernel[(launch.blocks,)](**arguments)
    for i in plan.strided if not _skipped(found_inf) else ():
        loop.filter_loop(
            [params[i]],
            _unscaled([grads[i]], grad_scale),
            [steps[i]],
            *([column[i]] for column in moments),
            settings=settings,
            lr=lr,
            weight_decay=weight_decay,
            decoupled_weight_decay=decoupled_weight_decay,
            maximize=maximize,
            capturable=True,
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
    plan: Plan,
    lr: Scalar,
    beta: float,
    mu: float,
    weight_decay: float,
    decoupled_weight_decay: bool,
    maximize: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    """One step of Momentum; `plan` was made for these columns."""
    from sgdf.kernels import triton_filter as device

    for launch in plan.launches:
        device.momentum_kernel[(launch.blocks,)](
            **_table_arguments(launch),
            **_descent_arguments(launch, lr, weight_decay, decoupled_weight_decay, maximize),
            **_scaler_arguments(launch, grad_scale, found_inf),
            beta=beta,
            mu=mu,
            S=launch.s_dtype,
            BLOCK=BLOCK,
            num_warps=4,
        )
    if plan.strided and not _skipped(found_inf):
        rows = [[column[i] for i in plan.strided] for column in (params, grads, buffers)]
        rows[1] = _unscaled(rows[1], grad_scale)
        loop.momentum_loop(
            *rows,
            lr=lr,
            beta=beta,
            mu=mu,
            weight_decay=weight_decay,
            decoupled_weight_decay=decoupled_weight_decay,
            maximize=maximize,
        )


def _skipped(found_inf: Tensor | None) -> bool:
    return found_inf is not None and bool(found_inf)


def _unscaled(grads: list[Tensor], scale: Tensor | None) -> list[Tensor]:
    return grads if scale is None else [g.float() / scale for g in grads]


# --- the arguments of a launch ----------------------------------------------------------------


def _filter_arguments(settings: FilterSettings) -> dict[str, Any]:
    (beta1, beta2), eps, gain_scale, gain_power, correction = settings
    return {
        "log_beta1": math.log(beta1) if beta1 > 0 else -math.inf,
        "log_beta2": math.log(beta2) if beta2 > 0 else -math.inf,
        "factor": (1 - beta1) / (1 + beta1),
        "beta1": beta1,
        "beta2": beta2,
        "rest1": 1 - beta1,
        "rest2": 1 - beta2,
        "eps": positive_eps(eps, torch.float32),
        "adam_eps": eps,
        "scale": gain_scale,
        "power": gain_power,
        "POWER": {1: 0, 0.5: 1}.get(gain_power, 2),
        "CORRECTION": correction,
    }


def _table_arguments(launch: Launch) -> dict[str, Any]:
    return {
        "table": launch.table,
        "grads": launch.grad_table,
        "block_tensor": launch.block_tensor,
        "n": launch.n,
        "P": triton_dtype(launch.p_dtype),
        "G": launch.g_dtype,
        "ALIGNED": launch.aligned,
    }


def _descent_arguments(
    launch: Launch, lr: Scalar, weight_decay: float, decoupled: bool, maximize: bool
) -> dict[str, Any]:
    on_device = isinstance(lr, Tensor) and lr.device.type == "cuda"
    return {
        "lr_at": lr if on_device else launch.placeholder,
        "lr": 0.0 if on_device else float(lr),
        "weight_decay": weight_decay,
        "DECAY": weight_decay != 0,
        "DECOUPLED": decoupled,
        "MAXIMIZE": maximize,
        "LR_ON_DEVICE": on_device,
    }


def _scaler_arguments(
    launch: Launch, grad_scale: Tensor | None, found_inf: Tensor | None
) -> dict[str, Any]:
    """GradScaler's scale, and whether it found an infinity: both are read on the device."""
    unused = launch.placeholder
    return {
        "grad_scale": unused if grad_scale is None else grad_scale.to(launch.device),
        "found_inf": unused if found_inf is None else found_inf.to(launch.device),
        "SCALED": grad_scale is not None,
        "SKIP_INF": found_inf is not None,
    }
