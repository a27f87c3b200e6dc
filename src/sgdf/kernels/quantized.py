"""Moments in 8 bits: a code per element and a float32 scale per block of a row.

A moment of shape (rows, ...) is cut, row by row, into blocks of `BLOCK` elements in memory
order. Blocks never cross rows, so a shard of rows has the codes it would have in the full tensor:
scales have shape (rows, blocks per row) and shard like the parameter. A state keeps the order of
its dimensions in memory beside them (`memory_order`): what stores tensors without strides, as
safetensors does, would give every element of a channels_last weight the scale of another block.

The codes are small floats: a value, as a fraction t in [0, 1] of its block's largest, is stored as
the leading bits (exponent and 3 of the mantissa) of t + floor. Above `floor` the levels are an
eighth of a power of two apart, below it they are evenly spaced down to an exact 0. `exp_avg` has a
sign and floor 2^-15; `exp_var` and `exp_avg_sq` have floor 2^-31, to keep small variances.
Codes of powers (t^(1/4), t^(1/8)) are a little finer where a block is even and coarser where it is
not, and cost twice the arithmetic (benchmarks/codes.py measures them).

Rounding is stochastic (`rounding` says why): 20 random bits are added to the 20 bits that do not
fit, and the carry decides, so the mean is exact.

This is the torch version, for the loop and for checkpoints; C++ and Triton repeat these lines.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

BLOCK = 256
DROPPED = 20  # bits of a float32 mantissa that a code does not keep
FLOOR = {torch.int8: 2.0**-15, torch.uint8: 2.0**-31}
SMALLEST = 4096  # elements; below, 8 bits save next to nothing
SHORTEST_ROW = 128  # elements; below, the scales would take too much memory


class Quantized(NamedTuple):
    """Codes in the parameter's shape (int8 if signed, else uint8) and their blocks' scales."""

    codes: Tensor
    scale: Tensor


def quantizable(p: Tensor) -> bool:
    """Whether 8 bits save memory for p, and its rows are consecutive in memory."""
    if p.dim() < 2 or p.is_complex() or p.numel() < SMALLEST:
        return False
    row = p.numel() // p.shape[0]
    placements = getattr(p, "placements", ())
    return (
        row >= SHORTEST_ROW
        and p.stride(0) == row
        and dense(p)
        and all(placement.is_replicate() or placement.is_shard(0) for placement in placements)
    )


def dense(p: Tensor) -> bool:
    """Whether p has no gaps in memory, in any order of its dimensions."""
    expected = 1
    for stride, size in sorted(zip(p.stride(), p.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def memory_order(t: Tensor) -> tuple[int, ...]:
    """The dimensions of a tensor whose rows are consecutive, the outermost first: rows are."""
    inner = range(1, t.dim())
    strides = t.stride()
    return (0, *sorted(inner, key=lambda d: (-strides[d] if t.shape[d] != 1 else 0, d)))


def laid_out(codes: Tensor, order: tuple[int, ...]) -> Tensor:
    """Codes that were stored without their strides, laid out again as their scales count them."""
    if memory_order(codes) == order and dense(codes):
        return codes
    back = [order.index(d) for d in range(len(order))]
    return codes.permute(order).contiguous().permute(back)


def blocks_per_row(p: Tensor) -> int:
    return -(-(p.numel() // p.shape[0]) // BLOCK) if p.numel() else 0


def has_format(p: Tensor, moment: Quantized) -> bool:
    """Whether codes and scales have the dtypes and sizes that the kernels read for p."""
    codes, scale = moment
    return (
        p.dim() > 0
        and codes.dtype in FLOOR
        and scale.dtype == torch.float32
        and scale.is_contiguous()
        and scale.shape == (p.shape[0], blocks_per_row(p))
    )


def padded_index(index: Tensor, t: Tensor) -> Tensor:
    """Where the elements would be if every row were a whole number of blocks: BLOCK per block."""
    length = t.stride(0)
    return index // length * (blocks_per_row(t) * BLOCK) + index % length


def flat_rows(t: Tensor) -> Tensor:
    """(rows, elements per row) in memory order, without a copy."""
    return t.as_strided((t.shape[0], t.stride(0)), (t.stride(0), 1))


def dequantize(moment: Quantized) -> Tensor:
    """The moment in float32, laid out like its codes."""
    codes, scale = moment
    out = torch.empty_like(codes, dtype=torch.float32)
    if codes.numel():
        c = _blocks(flat_rows(codes).int())
        floor = FLOOR[codes.dtype]
        t = ((c.abs() + _code_of(floor)) << DROPPED).view(torch.float32) - floor
        values = torch.where(c < 0, -t, t) * scale[..., None]
        flat_rows(out).copy_(values.flatten(1)[:, : codes.stride(0)])
    return out


def quantize_(moment: Quantized, x: Tensor, bits: Tensor | None = None) -> None:
    """Store x, rounded by the high 20 of the 32 random `bits` of each element; None: to nearest."""
    codes, scale = moment
    if not codes.numel():
        return
    if x.stride() != codes.stride():
        x = torch.empty_like(codes, dtype=torch.float32).copy_(x)
    values = _blocks(flat_rows(x).float())
    largest = values.abs().amax(-1)
    scale.copy_(largest)
    floor = FLOOR[codes.dtype]
    tiny = torch.finfo(torch.float32).tiny  # a block of zeros divides by it
    t = values.abs() * (1 / largest.clamp(min=tiny))[..., None] + floor
    carry: int | Tensor = 1 << (DROPPED - 1)
    if bits is not None:
        carry = _blocks(flat_rows(bits) >> (32 - DROPPED)).int()
    c = ((t.view(torch.int32) + carry) >> DROPPED) - _code_of(floor)
    c = torch.where(values < 0, -c, c)
    flat_rows(codes).copy_(c.flatten(1)[:, : codes.stride(0)])


def _code_of(floor: float) -> int:
    """The leading bits of `floor`, which is a power of two: the code of 0."""
    return (127 + int(math.log2(floor))) << (23 - DROPPED)


def _blocks(rows: Tensor) -> Tensor:
    """(rows, n) as (rows, blocks, BLOCK), the last block padded with zeros."""
    return torch.nn.functional.pad(rows, (0, -rows.shape[1] % BLOCK)).unflatten(1, (-1, BLOCK))
