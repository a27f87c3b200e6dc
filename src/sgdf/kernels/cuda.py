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

from sgdf.filter import Denominator, FilterSettings
from sgdf.kernels import loop
from sgdf.kernels.arithmetic import Moment, Scalar, gradient_bound, positive_eps
from sgdf.kernels.plan import BLOCK, BLOCKS, Launch, Plan, triton_dtype
from sgdf.kernels.rounding import GOLDEN

#: Constants of triton_filter.py, by `gain_power` (any other: 2) and by second moment.
GAIN = {1: 0, 0.5: 1, 0: 3}
SECOND = {None: 0, "separate": 1, "derived": 2, "fluctuation": 3}
STAGES = 2  # the 8-bit kernel loads a block while it computes the one before
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
    *moments: Sequence[Moment],
    plan: Plan,
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
    """One step of SGDF or, with a denominator, FilterAdam; the plan was made for these columns."""
    of_filter = _filter_arguments(settings, denominator)
    plan.advance(found_inf)
    for launch in plan.launches:
        _launch_filter(
            launch,
            **_descent_arguments(launch, lr, weight_decay, decoupled_weight_decay, maximize),
            **_scaler_arguments(launch, grad_scale, found_inf),
            **of_filter,
            ESTIMATE=False,
            STOCHASTIC=stochastic_rounding and launch.p_dtype == torch.bfloat16,
        )
    _increment_versions(params)
    for i in plan.strided if not _skipped(found_inf) else ():
        loop.filter_loop(
            [params[i]],
            _unscaled([grads[i]], grad_scale),
            [steps[i]],
            *([column[i]] for column in moments),
            settings=settings,
            denominator=denominator,
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


def estimate_fused(
    grads: Sequence[Tensor],
    steps: Sequence[Tensor],
    *moments: Sequence[Moment],
    plan: Plan,
    settings: FilterSettings,
    rounding_seed: int = 0,
    found_inf: Tensor | None = None,
) -> None:
    """The filter alone: overwrite every gradient with its estimate g^."""
    of_filter = _filter_arguments(settings, None)
    plan.advance(found_inf)
    for launch in plan.launches:
        _launch_filter(
            launch,
            **_descent_arguments(launch, 0.0, 0.0, False, False),
            **_scaler_arguments(launch, None, found_inf),
            **of_filter,
            ESTIMATE=True,
            STOCHASTIC=False,
        )
        for i, copy in zip(launch.indices, launch.copies, strict=False):  # none, or one for each
            if copy is not grads[i]:
                grads[i].copy_(copy)
    _increment_versions(grads)
    for i in plan.strided if not _skipped(found_inf) else ():
        loop.estimate_loop(
            [grads[i]],
            [steps[i]],
            *([column[i]] for column in moments),
            settings=settings,
            rounding_seed=rounding_seed + i * GOLDEN,  # as in filter_fused
        )


def _launch_filter(launch: Launch, **arguments: Any) -> None:
    from sgdf.kernels import triton_filter as device

    arguments |= _table_arguments(launch)
    if launch.quantized:
        arguments |= {
            "WHOLE_ROWS": launch.whole_rows,
            "BLOCKS": BLOCKS,
            "STAGES": STAGES,
            "num_warps": 1,
        }
        device.filter_kernel_8bit[(launch.blocks,)](**arguments)
    else:
        arguments |= {"S": launch.s_dtype, "BLOCK": BLOCK, "num_warps": 4}
        device.filter_kernel[(launch.blocks,)](**arguments)


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
    _increment_versions(params)
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


def _increment_versions(written: Sequence[Tensor]) -> None:
    """Tell autograd that these are no longer the values it saved: the launches do not.

    The host counts versions, so a CUDA graph may be capturing; its replays do not count.
    """
    torch.autograd.graph.increment_version(written)


def _skipped(found_inf: Tensor | None) -> bool:
    return found_inf is not None and bool(found_inf)


def _unscaled(grads: list[Tensor], scale: Tensor | None) -> list[Tensor]:
    return grads if scale is None else [g.float() / scale for g in grads]


# --- the arguments of a launch ----------------------------------------------------------------


def _filter_arguments(settings: FilterSettings, denominator: Denominator | None) -> dict[str, Any]:
    beta1, beta2 = settings.betas
    kind, adam_eps = denominator or (None, 0.0)
    return {
        "log_beta1": _log(beta1),
        "log_beta2": _log(beta2),
        **_geometric_arguments(beta1, beta2),
        "factor": (1 - beta1) / (1 + beta1),
        "beta1": beta1,
        "beta2": beta2,
        "rest1": 1 - beta1,
        "rest2": 1 - beta2,
        "largest": gradient_bound(beta2, torch.float32),
        "gain_eps": positive_eps(settings.eps, torch.float32),
        "adam_eps": adam_eps,
        "scale": settings.gain_scale,
        "power": settings.gain_power,
        "GAIN": GAIN.get(settings.gain_power, 2),
        "SECOND": SECOND[kind],
        "CORRECTION": settings.correction,
        "BIAS_CORRECTION": settings.bias_correction,
    }


def _geometric_arguments(beta1: float, beta2: float) -> dict[str, float]:
    """Of the geometric sum in `filter.second_moment_weights`, whose factors are b2 and b1^2."""
    high, low = max(beta2, beta1 * beta1), min(beta2, beta1 * beta1)
    log_ratio = _log(low / high) if high else -math.inf
    log_ratio = min(log_ratio, -1e-7)  # of equal factors: the sum's relative error is t * 5e-8
    return {
        "log_high": _log(high),
        "log_ratio": log_ratio,
        "inverse_gap": -1 / math.expm1(log_ratio),
    }


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf


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
