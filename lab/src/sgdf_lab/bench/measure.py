"""Measure the contestants on one list of parameters.

The contestants are timed in turns, with a plain copy of memory among them, so that a machine
that warms up or slows down affects all of them alike. They share parameters and gradients, each
has its own state, and the learning rate is too small to move anything.
"""

import contextlib
import gc
import math
import os
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from sgdf import WienerFilter
from sgdf_lab.bench.contestants import (
    FEWEST_TIMINGS,
    LISTS,
    Contestant,
    Shape,
    Stepper,
    dtype_name,
    elements,
)

# --- what is stepped ------------------------------------------------------------------------------


def random_parameters(shapes: Sequence[Shape], dtype: torch.dtype, device: str) -> list[Tensor]:
    """Parameters with gradients, as large as those of a network in training."""
    generator = torch.Generator(device).manual_seed(0)

    def noise(shape: Shape, scale: float) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device).normal_(0, scale, generator=generator)

    params = [noise(shape, 0.02).requires_grad_() for shape in shapes]
    for p in params:
        p.grad = noise(tuple(p.shape), 1e-3)
    return params


class FilterAlone:
    """The filter's own part of a step, to be timed like an optimizer.

    The filter overwrites gradients, and contestants share theirs, so this one filters copies. A
    gradient that never changes is its own estimate: the copies stay as they are, up to rounding.
    """

    def __init__(self, params: list[Tensor], lr: float, **settings: Any) -> None:
        own = [p.detach().requires_grad_() for p in params]
        for p, shared in zip(own, params, strict=True):
            assert shared.grad is not None
            p.grad = shared.grad.clone()
        self.params = own
        self.wiener = WienerFilter(torch.optim.AdamW(own, lr=lr, fused=True), **settings)

    @property
    def state(self) -> dict[Tensor, dict[str, Tensor]]:
        return self.wiener.state

    @property
    def implementation(self) -> str:
        return self.wiener.implementation

    def step(self) -> None:
        self.wiener.filter_gradients()


# --- single timings, and series of them -----------------------------------------------------------

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
    def plan(
        cls, step: Callable[[], object], budget: Budget, fewest: int = FEWEST_TIMINGS
    ) -> "TimedSeries":
        """Warm up, and choose the batch and the rounds that fit the budget."""
        trials: list[float] = []
        while len(trials) < WARM_UPS and sum(trials) <= budget.seconds / 4:
            trials.append(time_steps(step, 1, budget.device).wall_ms / 1e3)
        one = min(trials)
        batch = max(1, math.ceil(SHORTEST_TIMING[budget.device] / max(one, 1e-6)))
        affordable = int(budget.seconds / max(one * batch, 1e-6))
        rounds = max(min(fewest, budget.repeats), affordable)
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
    first, third = np.percentile(values, (25, 75))
    return float(third - first)


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


# --- memory: what is needed, what is free, what a step allocates ----------------------------------

GIB = 2**30
USABLE = {"cpu": 0.8, "cuda": 0.92}  # of the free memory: fragments and other programs need some


def needed_bytes(contestants: Sequence[Contestant], shapes: Sequence[Shape], device: str) -> float:
    """An estimate of the memory of contestants that exist at the same time."""
    params_and_grads = sum(
        2 * getattr(torch, dtype).itemsize for dtype in {c.dtype for c in contestants}
    )
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
    a group. Those that do not fit by themselves are left out.
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
    """The size of the optimizer's state, without what each tensor has once: counters and layout."""
    return sum(
        tensor_bytes(value)
        for state in optimizer.state.values()
        for key, entry in state.items()
        for value in (entry if isinstance(entry, list) else [entry])  # SOAP's factors
        if key not in ("step", "memory_order") and isinstance(value, Tensor)
    )


def tensor_bytes(tensor: Any) -> int:
    """The size of a tensor, or of those inside: torchao's 8-bit tensors have a dtype of 32 bits."""
    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        return sum(tensor_bytes(getattr(tensor, name)) for name in names)
    return int(tensor.numel() * tensor.element_size())


def extra_bytes(step: Callable[[], object], device: str) -> int:
    """The peak of what a step allocates, as torch counts it, and what it keeps for the next."""
    if device != "cuda":
        # Memory is kept by thread: a new one shows it.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(_extra_bytes_on_cpu, step).result()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _extra_bytes_on_cpu(step: Callable[[], object]) -> int:
    *_, kept = _held_bytes(step)
    return kept + max(_held_bytes(step))


def _held_bytes(step: Callable[[], object]) -> list[int]:
    """What is held after each allocation and release of a step: the profiler notes them."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    result: Any = profiler.profiler
    events = [e for e in result.kineto_results.events() if e.name() == "[memory]"]
    return list(
        accumulate((e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())), initial=0)
    )


# --- costs ----------------------------------------------------------------------------------------

DISTURBING_CPUS = 0.25  # busy with other programs: our threads wait for one another, so for those


@dataclass
class StepCost:
    """What was measured of one contestant; bytes are per parameter unless named otherwise.

    The fields are the keys of a row in the JSON record.
    """

    name: str
    optimizer: str
    path: str
    params_dtype: str
    error: str | None = None
    implementation: str | None = None
    state_bytes: float | None = None
    moved_bytes: float | None = None
    ms: float | None = None
    ms_iqr: float | None = None
    gb_per_s: float | None = None
    of_copy: float | None = None
    times_sgd_fused: float | None = None
    times_adamw_fused: float | None = None
    times_muon: float | None = None  # of means: refreshes of bases take turns
    times_soap: float | None = None
    worst_step: float | None = None  # the longest timing, in medians
    extra_memory_bytes_in_all: int | None = None
    extra_memory_percent: float | None = None
    first_step_s: float | None = None
    steps_per_timing: int | None = None
    others_cpus: float | None = None  # CPUs that other programs kept busy meanwhile
    together: int | None = None  # rows with the same number were timed in turns
    timings: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    def of(cls, contestant: Contestant, error: str | None = None) -> "StepCost":
        dtype = dtype_name(contestant.dtype)
        return cls(contestant.name, contestant.optimizer_name, contestant.path, dtype, error)

    def summarize(self, series: TimedSeries, parameters: int, copy_gb_per_s: float) -> None:
        """Fill in the times, and the rate at which memory is read and written."""
        assert self.moved_bytes is not None
        self.ms, self.ms_iqr = series.ms, interquartile_range([t.ms for t in series.timings])
        self.gb_per_s = self.moved_bytes * parameters / series.ms / 1e6
        self.of_copy = self.gb_per_s / copy_gb_per_s
        self.steps_per_timing = series.batch
        self.timings = columns(series.timings)
        self.worst_step = max(timing.ms for timing in series.timings) / series.ms


def moved_bytes(contestant: Contestant, width: int, state_bytes: float) -> float:
    """Bytes that a step has to read and write per parameter, which has `width` bytes itself.

    A step reads g, p and the state, and writes p and the state. A filter without an
    optimizer reads and writes g instead of p.
    """
    tensors = 2 if contestant.filters_alone else 3
    return tensors * width + 2 * state_bytes


def compare_with_torch(costs: Sequence[StepCost]) -> None:
    """Fill in the ratios to torch's fused optimizers on parameters of the same dtype."""
    for cost in costs:
        for rival, ratio in (("SGD", "times_sgd_fused"), ("AdamW", "times_adamw_fused")):
            for other in costs:
                same = (other.optimizer, other.path) == (rival, "fused")
                if same and other.params_dtype == cost.params_dtype and cost.ms and other.ms:
                    setattr(cost, ratio, cost.ms / other.ms)


def compare_with_matrix_steps(costs: Sequence[StepCost]) -> None:
    """Fill in the ratios of mean times to torch's Muon and pytorch_optimizer's SOAP."""
    means = {cost.name: fmean(cost.timings["ms"]) for cost in costs if cost.timings}
    for cost in costs:
        for rival, ratio in (("muon-loop", "times_muon"), ("soap-loop", "times_soap")):
            if cost.name in means and rival in means:
                setattr(cost, ratio, means[cost.name] / means[rival])


def disturbed(device: str, rows: Sequence[dict[str, Any]]) -> bool:
    """Whether other programs kept CPUs busy, which slows down a CPU's steps but hardly a GPU's."""
    return device == "cpu" and any((row["others_cpus"] or 0) > DISTURBING_CPUS for row in rows)


# --- timing in turns ------------------------------------------------------------------------------

#: Called with the current activity at each of the announced steps.
Tick = Callable[[str], None]
#: Announces the work on a list and its number of steps.
Progress = Callable[[str, int], AbstractContextManager[Tick]]


def measure_parameter_list(
    name: str,
    contestants: Sequence[Contestant],
    budget: Budget,
    progress: Progress,
    first: Collection[str] = (),
) -> dict[str, Any]:
    """Measure all contestants, in one group if memory allows, else group after group.

    The names in `first` share a group if they can.
    """
    shapes = LISTS[name].shapes()
    alone = {c: needed_bytes([c], shapes, budget.device) for c in contestants}
    costs = {c.name: StepCost.of(c, too_large(alone[c], budget)) for c in contestants}
    copies: list[Timing] = []
    queue = groups_that_fit(contestants, shapes, budget, first)
    for number, group in enumerate(queue):
        with progress(name, len(group) + budget.repeats) as tick:
            measured, copy = measure_group(group, shapes, budget, tick)
        copies += copy.timings
        for contestant, cost in zip(group, measured, strict=True):
            cost.together = number
            costs[contestant.name] = cost
            if len(group) > 1 and (cost.error or "").startswith("OutOfMemoryError"):
                queue.append([contestant])  # the estimate was too low: try it again by itself
        release(budget.device)
    compare_with_torch(list(costs.values()))
    compare_with_matrix_steps(list(costs.values()))
    return {
        "title": LISTS[name].title,
        "tensors": len(shapes),
        "parameters": elements(shapes),
        "copy": copy_summary(copies, budget.device),
        "rows": [asdict(cost) for cost in costs.values()],
    }


def measure_group(
    contestants: Sequence[Contestant], shapes: Sequence[Shape], budget: Budget, tick: Tick
) -> tuple[list[StepCost], TimedSeries]:
    """Time contestants in turns with one another and with a copy."""
    dtypes = {c.dtype for c in contestants}
    params = {
        dtype: random_parameters(shapes, getattr(torch, dtype), budget.device) for dtype in dtypes
    }
    costs, ready, copy = [], [], copy_series(budget)
    for contestant in contestants:
        tick(f"warming up {contestant.title}")
        try:
            ready.append(prepare(contestant, params[contestant.dtype], budget))
            costs.append(ready[-1][0])
        except Exception as error:  # a contestant that cannot run here must not stop the others
            costs.append(StepCost.of(contestant, first_line(error)))
        if costs[-1].error:
            release(budget.device)
    busy = take_turns([copy, *(series for _, series, _ in ready)], budget, tick)
    for cost, series, _ in ready:
        cost.others_cpus = None if math.isnan(busy) else max(0.0, busy)
        cost.summarize(series, elements(shapes), copy_rate(copy.ms, budget.device))
    copy.step = lambda: None  # drops the references to its tensors
    return costs, copy


def prepare(
    contestant: Contestant, params: list[Tensor], budget: Budget
) -> tuple[StepCost, TimedSeries, Stepper]:
    """Create the optimizer, take its first steps, and measure its memory."""
    cost = StepCost.of(contestant)
    optimizer = contestant.create(params)
    cost.first_step_s = time_steps(optimizer.step, 1, budget.device).wall_ms / 1e3
    series = TimedSeries.plan(optimizer.step, budget, contestant.fewest_timings)
    cost.implementation = getattr(optimizer, "implementation", None)
    count, width = sum(p.numel() for p in params), params[0].element_size()
    cost.state_bytes = state_bytes(optimizer) / count
    cost.moved_bytes = moved_bytes(contestant, width, cost.state_bytes)
    cost.extra_memory_bytes_in_all = max(
        extra_bytes(optimizer.step, budget.device) for _ in range(contestant.period)
    )
    cost.extra_memory_percent = 100 * cost.extra_memory_bytes_in_all / (count * width)
    return cost, series, optimizer


def take_turns(all_series: Sequence[TimedSeries], budget: Budget, tick: Tick) -> float:
    """Fill in the timings, and return how many CPUs other programs kept busy meanwhile."""
    others, start = seconds_of_other_programs(), time.perf_counter()
    for turn in range(budget.repeats):
        tick("measuring")
        for series in all_series:
            if series.takes_part(turn, budget.repeats):
                series.timings.append(time_steps(series.step, series.batch, budget.device))
    return (seconds_of_other_programs() - others) / (time.perf_counter() - start)


def first_line(error: Exception) -> str:
    """The error without the pages that a compiler appends."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
