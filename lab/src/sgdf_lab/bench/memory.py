"""Memory: what a contestant needs, what is free, who fits together, and what a step allocates."""

import contextlib
import gc
import math
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sgdf_lab.bench.bandwidth import COPY_BYTES
from sgdf_lab.bench.contestants import Contestant, Stepper
from sgdf_lab.bench.shapes import Shape, elements
from sgdf_lab.bench.timing import Budget

GIB = 2**30
USABLE = {"cpu": 0.8, "cuda": 0.92}  # of the free memory: fragments and other programs need some


def needed_bytes(contestants: Sequence[Contestant], shapes: Sequence[Shape], device: str) -> float:
    """An estimate of the memory of contestants that exist at the same time."""
    params_and_grads = sum(2 * dtype.itemsize for dtype in {c.dtype for c in contestants})
    per_parameter = params_and_grads + sum(c.state for c in contestants)
    workspace = max(c.workspace(shapes) for c in contestants)
    return per_parameter * elements(shapes) + workspace + 2 * COPY_BYTES[device]


def groups_that_fit(
    contestants: Sequence[Contestant],
    shapes: Sequence[Shape],
    budget: Budget,
    first: Collection[str] = (),
) -> list[list[Contestant]]:
    """Divide the contestants into few groups, each of which fits into memory.

    The names in `first` come first, then the fused ones, so that those most worth comparing share
    a group. Those that do not fit even alone are left out.
    """

    def rank(contestant: Contestant) -> tuple[bool, bool]:
        return contestant.name not in first, not contestant.fused

    groups: list[list[Contestant]] = []
    for contestant in sorted(contestants, key=rank):
        for group in (*groups, []):
            if needed_bytes([*group, contestant], shapes, budget.device) <= budget.memory:
                if not group:
                    groups.append(group)
                group.append(contestant)
                break
    return groups


def too_large(needed: float, budget: Budget) -> str:
    return f"needs about {needed / GIB:.1f} GiB, {budget.memory / GIB:.1f} GiB may be used"


def free_bytes(device: str) -> float:
    """Memory that may be used; infinite if the system does not say."""
    if device == "cuda":
        return USABLE[device] * torch.cuda.mem_get_info()[0]
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return USABLE[device] * 1024 * int(line.split()[1])
    with contextlib.suppress(AttributeError, OSError, ValueError):
        return USABLE[device] * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return math.inf


def release(device: str) -> None:
    """Free the memory of optimizers that are no longer needed."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def state_bytes(optimizer: Stepper) -> int:
    """The size of the optimizer's state, without the step counters, which are negligible."""
    return sum(
        tensor_bytes(value)
        for state in optimizer.state.values()
        for key, value in state.items()
        if key != "step" and isinstance(value, Tensor)
    )


def tensor_bytes(tensor: Any) -> int:
    """The size of a tensor, or of those inside: torchao's 8-bit tensors have a dtype of 32 bits."""
    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        return sum(tensor_bytes(getattr(tensor, name)) for name in names)
    return int(tensor.numel() * tensor.element_size())


def extra_bytes(step: Callable[[], object], device: str) -> int | None:
    """The peak of what a step allocates; None on CPUs, where torch does not count it."""
    if device != "cuda":
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before
