"""The state of a parameter: creating it, reading it, and taking local shards."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sgdf.kernels.quantized import (
    FLOOR,
    Quantized,
    blocks_per_row,
    dequantize,
    memory_order,
    quantizable,
)
from sgdf.kernels.work import compute_dtype, is_fake

#: The entry beside moments in 8 bits with the order of their dimensions in memory.
ORDER = "memory_order"


def only_creates_state(groups: list[dict[str, Any]]) -> bool:
    """True for a dummy first step (lr 0, all gradients 0), which trainers take to create the state.

    torch's distributed checkpoints take such a step too. It must not count:
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


def moment_in(state: Mapping[str, Any], key: str) -> Tensor | Quantized:
    """A moment from a parameter's state, as it is stored."""
    scale = state.get(f"{key}_scale")
    return state[key] if scale is None else Quantized(state[key], scale)


def read_moment(state: Mapping[str, Any], key: str) -> Tensor:
    """A moment from a parameter's state as a tensor of numbers, in float32 if it is in 8 bits.

    Examples:
        >>> from sgdf import SGDF
        >>> p = torch.ones(16, 256, requires_grad=True)
        >>> optimizer = SGDF([p], state_dtype=torch.int8)
        >>> p.grad = torch.ones(16, 256)
        >>> optimizer.step()
        >>> optimizer.state[p]["exp_avg"].dtype, read_moment(optimizer.state[p], "exp_avg").dtype
        (torch.int8, torch.float32)
    """
    moment = moment_in(state, key)
    return dequantize(moment) if isinstance(moment, Quantized) else moment


def is_8_bit(codes: Any, scale: Any, p: Tensor) -> bool:
    """Whether these two entries of a state are a moment of p in 8 bits: codes and their scales."""
    return (
        isinstance(codes, Tensor)
        and isinstance(scale, Tensor)
        and codes.dtype in FLOOR
        and codes.shape == p.shape
        and p.dim() > 1
        and scale.shape == (p.shape[0], blocks_per_row(p))
    )


def new_moment(p: Tensor, key: str, requested: torch.dtype | None) -> dict[str, Tensor]:
    """Zeros for a moment of p, laid out like p, as entries of its state."""
    if requested != torch.int8 or not quantizable(p):
        dtype = state_dtype(p, requested)
        return {key: torch.zeros_like(p, dtype=dtype, memory_format=torch.preserve_format)}
    # Averages of gradients have a sign; variances and second moments do not.
    code = torch.int8 if key in ("exp_avg", "exp_avg_slow") else torch.uint8
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
        ORDER: torch.tensor(memory_order(p), dtype=torch.uint8, device="cpu"),
    }


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
