"""Timing a step: single timings, series of them, and a plain copy of memory as the limit."""

import contextlib
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

FEWEST_TIMINGS = 3  # of a contestant whose steps exceed its seconds
WARM_UPS = 3  # steps, or fewer if they take long
# Seconds; shorter steps are timed several at once. The queue of a GPU has to fill up first.
SHORTEST_TIMING = {"cpu": 5e-3, "cuda": 60e-3}


@dataclass(frozen=True)
class Budget:
    """How long to measure, on which device, and with how many bytes of memory."""

    device: str
    repeats: int
    seconds: float
    memory: float


@dataclass(frozen=True)
class Timing:
    """Milliseconds per step, averaged over one batch of steps.

    `ms` runs from start to end on the device and includes its waiting for the host; `wall_ms` is
    the same by the host's clock; `host_ms` ends when the host has queued the last step.
    """

    ms: float
    wall_ms: float
    host_ms: float


@dataclass
class TimedSeries:
    """A step that is timed `rounds` times, `batch` steps at once."""

    step: Callable[[], object]
    batch: int
    rounds: int
    timings: list[Timing] = field(default_factory=list)

    @classmethod
    def plan(cls, step: Callable[[], object], budget: Budget) -> "TimedSeries":
        """Warm up, and choose the batch and the rounds that fit the budget."""
        trials: list[float] = []
        while len(trials) < WARM_UPS and sum(trials) <= budget.seconds / 4:
            trials.append(time_steps(step, 1, budget.device).wall_ms / 1e3)
        one = min(trials)
        batch = max(1, math.ceil(SHORTEST_TIMING[budget.device] / max(one, 1e-6)))
        affordable = int(budget.seconds / max(one * batch, 1e-6))
        rounds = max(min(FEWEST_TIMINGS, budget.repeats), affordable)
        return cls(step, batch, min(budget.repeats, rounds))

    def takes_part(self, turn: int, turns: int) -> bool:
        """Spread the rounds evenly over all turns."""
        return (turn + 1) * self.rounds // turns > turn * self.rounds // turns

    @property
    def ms(self) -> float:
        return median(timing.ms for timing in self.timings)


def time_steps(step: Callable[[], object], count: int, device: str) -> Timing:
    if device == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
    start = time.perf_counter()
    if device == "cuda":
        begin.record()
    for _ in range(count):
        step()
    if device == "cuda":
        end.record()
    queued = time.perf_counter()
    if device == "cuda":
        torch.cuda.synchronize()
    wall = 1e3 * (time.perf_counter() - start) / count
    ms = begin.elapsed_time(end) / count if device == "cuda" else wall
    return Timing(ms, wall, 1e3 * (queued - start) / count)


def columns(timings: Sequence[Timing]) -> dict[str, list[float]]:
    """The timings as they are recorded: one list per clock."""
    names = ("ms", "wall_ms", "host_ms")
    return {name: [float(f"{getattr(t, name):.6g}") for t in timings] for name in names}


def interquartile_range(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    first, _, third = quantiles(values, n=4, method="inclusive")
    return third - first


def seconds_of_other_programs() -> float:
    """CPU time that all other programs have used; NaN if the system does not say."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        times = [int(ticks) for ticks in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        busy = sum(times) - times[3] - times[4]  # without idle and iowait
        return busy / os.sysconf("SC_CLK_TCK") - time.process_time()
    return math.nan


# --- bandwidth of a plain copy: the limit of a step -----------------------------------------------

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
