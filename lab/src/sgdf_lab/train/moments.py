"""The state of one parameter from a checkpoint, in the memory layout and shards of this process."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from sgdf.kernels.quantized import FLOOR, Quantized, blocks_per_row, dequantize
from sgdf_lab.train.distributed import scattered


def restored_moments(saved: Mapping[str, Any], p: Tensor) -> dict[str, Any]:
    """What an optimizer of this process loads for p.

    Blocks of 8-bit moments follow the order of their elements in memory. Weights are in another
    order if they are sharded, so moments that were saved in the other one are decoded; the
    optimizer encodes them again.
    """
    moments = dict(saved)
    for key, codes in saved.items():
        scale: Any = saved.get(f"{key}_scale")
        if not is_8_bit(codes, scale, p):
            continue
        if order(codes) != order(p):
            moments[key] = dequantize(Quantized(codes, scale))
            del moments[f"{key}_scale"]
        else:  # one row of scales for each row of the parameter
            moments[f"{key}_scale"] = scattered(scale, p, rows=True)
    return {key: scattered(value, p) for key, value in moments.items()}


def is_8_bit(codes: Any, scale: Any, p: Tensor) -> bool:
    """Whether it is a moment of p in 8 bits, with its scales."""
    return (
        isinstance(codes, Tensor)
        and isinstance(scale, Tensor)
        and codes.dtype in FLOOR
        and codes.shape == p.shape
        and p.dim() > 1
        and scale.shape == (p.shape[0], blocks_per_row(p))
    )


def order(t: Tensor) -> list[int]:
    """The strides that decide which element is where: those of dimensions with several elements."""
    return [stride for stride, size in zip(t.stride(), t.shape, strict=True) if size > 1]
