"""Devices, norms that are right to the last digits, and arithmetic in full precision."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from sgdf_lab.support.errors import UserError, unknown


def find_device(name: str | torch.device | None) -> torch.device:
    """The device of that name, which has to exist; by default a GPU if there is one."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise unknown("device", str(name), ("cpu", "cuda")) from None
    if device.type not in ("cpu", "cuda"):
        raise unknown("device", str(name), ("cpu", "cuda"))
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"there is no device {name} here: try --device cpu")
    return device


def joint_norm(tensors: Iterable[Tensor]) -> Tensor:
    """The 2-norm of all elements together: a float64 scalar on the tensors' device.

    Squares are summed in float64. torch's float32 norm loses digits on a CPU: 4e-4 of the norm of
    11 million numbers, 1 % of that of 100 million. Shards of one tensor count as the whole tensor.

    >>> joint_norm([torch.tensor([3.0]), torch.tensor([[4.0]])]).item()
    5.0
    """
    values = [torch.view_as_real(t) if t.is_complex() else t for t in tensors]
    if not values:
        return torch.zeros((), dtype=torch.float64)
    if any(hasattr(v, "full_tensor") for v in values):  # DTensor's _foreach_norm takes no dtype
        norms = [torch.linalg.vector_norm(v, dtype=torch.float64) for v in values]
    else:
        norms = list(torch._foreach_norm(values, 2, dtype=torch.float64))
    norm: Any = torch.stack(norms).norm()
    whole: Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    return whole


def column_norms(vectors: Tensor) -> Tensor:
    """The 2-norm of a vector, or of every column of a matrix, in float64."""
    norms: Tensor = torch.linalg.vector_norm(vectors, dim=0, dtype=torch.float64)
    return norms


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """No TF32 or bfloat16 in products of float32, and convolutions that repeat their results."""
    products = torch.get_float32_matmul_precision()
    cudnn: Any = torch.backends.cudnn if torch.cuda.is_available() else None
    try:
        torch.set_float32_matmul_precision("highest")
        if cudnn:
            flags = cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark
            cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark = False, True, False
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        if cudnn:
            cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark = flags
