"""Measure the contestants on one list of parameters.

The contestants are timed in turns, with a plain copy of memory among them, so that a machine
that warms up or slows down affects all of them alike. They share parameters and gradients, each
has its own state, and the learning rate is too small to move anything.
"""

import math
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any

from torch import Tensor

from sgdf_lab.bench.bandwidth import copy_rate, copy_series, copy_summary
from sgdf_lab.bench.contestants import Contestant, Stepper
from sgdf_lab.bench.costs import StepCost, compare_with_torch, moved_bytes
from sgdf_lab.bench.memory import (
    extra_bytes,
    groups_that_fit,
    needed_bytes,
    release,
    state_bytes,
    too_large,
)
from sgdf_lab.bench.shapes import LISTS, Shape, elements, random_parameters
from sgdf_lab.bench.timing import (
    Budget,
    TimedSeries,
    Timing,
    seconds_of_other_programs,
    time_steps,
)

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
                queue.append([contestant])  # the estimate was too low: try it again alone
        release(budget.device)
    compare_with_torch(list(costs.values()))
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
    params = {dtype: random_parameters(shapes, dtype, budget.device) for dtype in dtypes}
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
    series = TimedSeries.plan(optimizer.step, budget)
    cost.implementation = getattr(optimizer, "implementation", None)
    count, width = sum(p.numel() for p in params), params[0].element_size()
    cost.state_bytes = state_bytes(optimizer) / count
    cost.moved_bytes = moved_bytes(contestant, width, cost.state_bytes)
    cost.extra_memory_bytes_in_all = extra_bytes(optimizer.step, budget.device)
    if cost.extra_memory_bytes_in_all is not None:
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
