"""Whether the tensors of a parameter belong together, before a kernel takes their addresses.

A kernel that works with addresses would read or write the memory of others if a moment were
smaller than its parameter, and crash if it were on another device or had no memory at all.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from sgdf.kernels.quantized import Quantized, blocks_per_row


def has_memory(t: Tensor) -> bool:
    """False for meta and fake tensors, whose address is 0."""
    return t.data_ptr() != 0 or not t.numel()


def parts(moment: Any) -> tuple[Tensor, ...]:
    """The tensors of a moment: itself, or its codes and their scales."""
    return tuple(moment) if isinstance(moment, Quantized) else (moment,)


def check_consistent(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    moments: Sequence[Sequence[Any]],
    indices: Iterable[int],
) -> None:
    """Raise an error if a gradient or a moment has not its parameter's device and shape."""
    for i in indices:
        p = params[i]
        shape, device = p.shape, p.device
        for t in (grads[i], *(column[i] for column in moments)):
            if isinstance(t, Quantized):
                if t.scale.device != device or t.scale.shape != (shape[0], blocks_per_row(p)):
                    raise _error(p, "the scale of an 8-bit moment", t.scale)
                t = t.codes
            if t.device != device or t.shape != shape:
                raise _error(p, "a gradient" if t is grads[i] else "a moment", t)


def _error(p: Tensor, what: str, found: Tensor) -> RuntimeError:
    return RuntimeError(
        f"Expected the gradient and the state of a parameter of shape {tuple(p.shape)} on "
        f"{p.device} to match it, but found {what} of shape {tuple(found.shape)} on {found.device}"
    )
