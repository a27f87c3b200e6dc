"""The memory bandwidth of a plain copy, the limit that a step is compared with."""

from collections.abc import Sequence
from statistics import median
from typing import Any

import torch

from sgdf_lab.bench.timing import Budget, TimedSeries, Timing, columns, interquartile_range

COPY_BYTES = {"cpu": 2**28, "cuda": 2**30}  # far more than any cache holds


def copy_series(budget: Budget) -> TimedSeries:
    """A copy, timed as often as anything is."""
    source = torch.ones(COPY_BYTES[budget.device] // 4, device=budget.device)
    target = torch.empty_like(source)
    series = TimedSeries.plan(lambda: target.copy_(source), budget)
    series.rounds = budget.repeats
    return series


def copy_rate(ms: float, device: str) -> float:
    """GB/s of a copy, which reads and writes."""
    return 2 * COPY_BYTES[device] / ms / 1e6


def copy_summary(timings: Sequence[Timing], device: str) -> dict[str, Any]:
    return {
        "bytes": COPY_BYTES[device],
        "gb_per_s": copy_rate(median(timing.ms for timing in timings), device),
        "gb_per_s_iqr": interquartile_range([copy_rate(timing.ms, device) for timing in timings]),
        "timings": columns(timings),
    }
