"""The state of a parameter: creating it, loading it from a checkpoint, and taking local shards."""

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import Parameter

from sgdf.kernels.arithmetic import compute_dtype
from sgdf.kernels.plan import Columns, Plan, PlanCache, State
from sgdf.kernels.quantized import (
    Quantized,
    blocks_per_row,
    dequantize,
    quantizable,
    quantize_,
)

PLAIN = (Tensor, Parameter)


def is_fake(p: Tensor) -> bool:
    """Whether p has a shape, but no memory: no kernel that takes addresses can update it."""
    return not torch.compiler.is_compiling() and type(p) not in PLAIN and isinstance(p, FakeTensor)


def only_creates_state(groups: list[dict[str, Any]]) -> bool:
    """Whether a first step has the purpose to create state: a rate of 0, and gradients of zeros.

    torch's distributed checkpoints, and trainers with them, make such a step. It must not count:
    with t = 1 and m = 0, the bias corrections of the next steps would be wrong. Gradients are read
    only if the rate is 0, as in the first step of a warm-up, whose gradients are not zeros.
    """
    if torch.compiler.is_compiling() or not all(_is_zero(group.get("lr")) for group in groups):
        return False
    grads = [local(p.grad) for group in groups for p in group["params"] if p.grad is not None]
    if not grads or any(g.is_meta or g.is_sparse or is_fake(g) for g in grads):
        return False
    if grads[0].is_cuda and torch.cuda.is_current_stream_capturing():
        return False  # a graph cannot wait for a value
    return not any(bool(g.any()) for g in grads)


def _is_zero(lr: Any) -> bool:
    """Whether a rate is 0, as far as it can be read without waiting for a device."""
    return bool(lr == 0) if not isinstance(lr, Tensor) or lr.is_cpu else False


def new_step(p: Tensor, on_device: bool) -> Tensor:
    """A step counter at 0: on the CPU, where reading it is cheap, unless a graph may capture it."""
    if on_device:
        return torch.zeros((), dtype=torch.float32, device=p.device)
    wide = torch.get_default_dtype() == torch.float64
    # torch.tensor, not torch.zeros: so it has a value even among fake tensors, as torch's own do.
    return torch.tensor(0.0, dtype=torch.float64 if wide else torch.float32, device="cpu")


def plan_for(
    plans: PlanCache,
    params: list[Tensor],
    settings: tuple[Any, ...],
    columns: Columns,
    state: State,
    *,
    counts_steps: bool = True,
    seed: int = 0,
) -> Plan:
    """A plan for the columns of these parameters: one from the cache, or a new one."""
    plan = plans.find(params, columns)
    if plan is None:
        complete = len(columns[0]) == len(params) and type(params[0]) in PLAIN
        if complete and counts_steps:
            # The counters as slices of one tensor, so that one addition increments them all.
            steps = list(torch.stack(columns[2]).unbind())
            for p, step in zip(params, steps, strict=True):
                state[p]["step"] = step
            columns = (*columns[:2], steps, *columns[3:])
        plan = Plan(columns, counts_steps, seed)
        if complete:
            plan.remember(state)
        plans.add(params, settings, plan)
    return plan


def moment_in(state: dict[str, Any], key: str) -> Tensor | Quantized:
    """A moment from a parameter's state."""
    scale = state.get(f"{key}_scale")
    return state[key] if scale is None else Quantized(state[key], scale)


def new_moment(p: Tensor, key: str, requested: torch.dtype | None) -> dict[str, Tensor]:
    """Zeros for a moment of p, laid out like p, as entries of its state."""
    if requested != torch.int8 or not quantizable(p):
        dtype = state_dtype(p, requested)
        return {key: torch.zeros_like(p, dtype=dtype, memory_format=torch.preserve_format)}
    # The trend has a sign; variances and second moments do not.
    code = torch.int8 if key == "exp_avg" else torch.uint8
    shape = (p.shape[0], blocks_per_row(p))
    if not hasattr(p, "device_mesh"):
        scale = torch.zeros(shape, dtype=torch.float32, device=p.device)
    else:
        from torch.distributed.tensor import zeros

        mesh, placements = p.device_mesh, p.placements  # type: ignore[attr-defined]
        scale = zeros(*shape, dtype=torch.float32, device_mesh=mesh, placements=placements)
    return {
        key: torch.zeros_like(p, dtype=code, memory_format=torch.preserve_format),
        f"{key}_scale": scale,
    }


def loaded_moment(
    p: Tensor, key: str, saved: dict[str, Tensor], requested: torch.dtype | None
) -> dict[str, Tensor]:
    """A copy of a moment of a checkpoint, in the format that `requested` means for p."""
    target, source = new_moment(p, key, requested), moment_in(saved, key)
    ours = moment_in(target, key)
    if isinstance(source, Quantized) and isinstance(ours, Quantized):
        return {name: saved[name].to(p.device, copy=True) for name in target}
    value = dequantize(local(source)) if isinstance(source, Quantized) else source
    if isinstance(ours, Quantized):
        value = torch.empty_like(local(p), dtype=torch.float32).copy_(local(value))
        quantize_(local(ours), value)
        return target
    if isinstance(source, Quantized):
        local(ours).copy_(value)
        return target
    return {key: value.to(device=p.device, dtype=state_dtype(p, requested), copy=True)}


def state_dtype(p: Tensor, requested: torch.dtype | None) -> torch.dtype:
    """The dtype of moments not in 8 bits: `requested`, or p's but at least float32."""
    dtype = compute_dtype(p) if requested in (None, torch.int8) else requested
    return dtype.to_complex() if p.is_complex() else dtype


def local_row(p: Any, g: Any, *state: Any) -> list[Any]:
    """This process's shards. The update is element-wise, so it needs no communication."""
    if hasattr(g, "placements") and g.placements != p.placements:
        g = g.redistribute(placements=p.placements)
    return [local(t) for t in (p, g, *state)]


def local(t: Any) -> Any:
    if isinstance(t, Quantized):
        return Quantized(local(t.codes), local(t.scale))
    return t.to_local() if hasattr(t, "to_local") else t
