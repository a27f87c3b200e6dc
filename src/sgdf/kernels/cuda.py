"""CUDA: a step as one Triton launch over all tensors of a kind.

The step counters, the learning rate (if it is a tensor) and GradScaler's scale are read on the
device, so nothing waits for the GPU and a CUDA graph can hold the complete step. What a launch
needs to know about the tensors is in a table on the device: see `plan`.
"""

import functools
import importlib.util
import math
from typing import Any

import torch
from torch import Tensor

from sgdf.filter import FLOAT32, largest_gradient
from sgdf.kernels import loop
from sgdf.kernels.plan import BLOCK, BLOCKS, Launch, Plan, triton_dtype
from sgdf.kernels.work import ESTIMATE, FILTER, MOMENTUM, Rule, Work

#: Constants of triton_filter.py: by kind, by `gain_power` (any other: 2) and by second moment.
KINDS = {FILTER: 0, ESTIMATE: 1, MOMENTUM: 2}
GAIN = {1: 0, 0.5: 1, 0: 3}
SECOND = {None: 0, "separate": 1, "derived": 2, "fluctuation": 3}
STAGES = 2  # with 8-bit state, a block is loaded while the one before it is computed
SUPPORTED = (torch.float32, torch.bfloat16, torch.float16)
DEVICES = ("cuda",)  # tests add the CPU, to interpret Triton there


@functools.cache
def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def suits(params: list[Tensor]) -> bool:
    """Whether these kernels can update all of the parameters."""
    return (
        not torch.compiler.is_compiling()
        and len(params) > 0
        and params[0].device.type in DEVICES
        and has_triton()
        and all(p.device.type == params[0].device.type and p.dtype in SUPPORTED for p in params)
    )


def step(work: Work) -> None:
    """One step of a group; `work.plan` has the tables of its tensors."""
    from sgdf.kernels import triton_filter as device

    rule, plan = work.rule, work.plan
    assert isinstance(plan, Plan)
    written = work.grads if rule.kind == ESTIMATE else work.params
    arguments = _arguments(rule)
    try:
        plan.advance(work.found_inf)
        for launch in plan.launches:
            device.update_kernel[(launch.blocks,)](
                **arguments,
                **_launch_arguments(launch),
                **_device_numbers(launch, rule.lr, work.scale, work.found_inf),
                STOCHASTIC=rule.stochastic_rounding and launch.p_dtype == torch.bfloat16,
            )
            # An estimate of a copy of a gradient: there are none, or one for each.
            for i, copy in zip(launch.indices, launch.copies, strict=False):
                if rule.kind == ESTIMATE and copy is not work.grads[i]:
                    work.grads[i].copy_(copy)
        # Tell autograd that these are no longer the values it saved: the launches do not. The host
        # counts versions, so a CUDA graph may be capturing; its replays do not count.
        torch.autograd.graph.increment_version(written)
        skipped = work.found_inf is not None and bool(plan.strided) and bool(work.found_inf)
        for i in plan.strided if not skipped else ():
            loop.step(work.row(i))
    finally:
        plan.release()


# --- the arguments of a launch ----------------------------------------------------------------


def _arguments(rule: Rule) -> dict[str, Any]:
    """What the rule decides, for every launch of a step."""
    settings = rule.settings
    beta1, beta2 = settings.betas
    kind, adam_eps = rule.denominator or (None, 0.0)
    return {
        "weight_decay": rule.weight_decay,
        "log_beta1": _log(beta1),
        "log_beta2": _log(beta2),
        **_geometric_arguments(beta1, beta2),
        "factor": (1 - beta1) / (1 + beta1),
        "beta1": beta1,
        "beta2": beta2,
        "rest1": 1 - beta1,
        "rest2": 1 - beta2,
        "largest": float(largest_gradient(beta2, FLOAT32)),
        "gain_eps": max(settings.eps, FLOAT32.smallest),
        "adam_eps": adam_eps,
        "gain_scale": settings.gain_scale,
        "gain_power": settings.gain_power,
        "KIND": KINDS[rule.kind],
        "GAIN": GAIN.get(settings.gain_power, 2),
        "SECOND": SECOND[kind],
        "CORRECTION": settings.correction,
        "BIAS_CORRECTION": settings.bias_correction,
        "DECAY": rule.weight_decay != 0,
        "DECOUPLED": rule.decoupled,
        "MAXIMIZE": rule.maximize,
    }


def _geometric_arguments(beta1: float, beta2: float) -> dict[str, float]:
    """The geometric sum in `filter.second_moment_weights`, whose factors are b2 and b1^2."""
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


def _launch_arguments(launch: Launch) -> dict[str, Any]:
    """The tables, the storage formats, and how a launch is cut into programs."""
    return {
        "table": launch.table,
        "grads": launch.grad_table,
        "block_tensor": launch.block_tensor,
        "n": launch.n,
        "P": triton_dtype(launch.p_dtype),
        "G": launch.g_dtype,
        "M": launch.m_dtype,
        "S": launch.s_dtype,
        "ALIGNED": launch.aligned,
        "WHOLE_ROWS": launch.whole_rows and launch.quantized,
        "BLOCK": BLOCK,
        "BLOCKS": BLOCKS,
        "STAGES": STAGES,
        "num_warps": 1 if launch.quantized else 4,
    }


def _device_numbers(
    launch: Launch, lr: float | Tensor, grad_scale: Tensor | None, found_inf: Tensor | None
) -> dict[str, Any]:
    """The learning rate and GradScaler's numbers; what is on the device is read there."""
    unused = launch.placeholder
    on_device = isinstance(lr, Tensor) and lr.device.type == "cuda"
    return {
        "lr_at": lr if on_device else unused,
        "lr": 0.0 if on_device else float(lr),
        "LR_ON_DEVICE": on_device,
        "grad_scale": unused if grad_scale is None else grad_scale.to(launch.device),
        "found_inf": unused if found_inf is None else found_inf.to(launch.device),
        "SCALED": grad_scale is not None,
        "SKIP_INF": found_inf is not None,
    }
