"""What a chart over the learning rate shows: points, the range of its axis, and what lies outside.

Rates with which no run finished have a mark beyond the points, on the worse side, and so have
seeds that are `curves.hopeless`: they would stretch the axis until the others are one line.
"""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sgdf_lab.report.cells import RunCell
from sgdf_lab.report.curves import drawn_runs, hopeless, short, with_margin
from sgdf_lab.runs.records import RunRecord

Sweeps = Mapping[str, Mapping[float, RunCell]]  # by optimizer and learning rate
Rates = dict[float, list[float]]


@dataclass(frozen=True)
class RateView:
    """The values by optimizer and learning rate; `height` is where an optimizer's marks are."""

    points: dict[str, Rates]
    outside: dict[str, Rates]  # the seeds whose values are beyond the axis
    unfinished: dict[str, list[float]]
    height: dict[str, float]
    bounds: tuple[float, float]
    is_top: bool  # the marks are above the points: lower is better


def rate_view(sweeps: Sweeps, value: Callable[[RunRecord], float]) -> RateView:
    points = {
        optimizer: {
            lr: [value(record) for record in cell.finished.values()]
            for lr, cell in rates.items()
            if cell.finished
        }
        for optimizer, rates in sweeps.items()
    }
    unfinished = {
        optimizer: [lr for lr, cell in rates.items() if not cell.finished]
        for optimizer, rates in sweeps.items()
    }
    lost = hopeless_points(sweeps, points)
    known = kept_values(points, lost, measured_values(sweeps), lower_is_better(sweeps))
    outside = {optimizer: values_beyond(known, rates) for optimizer, rates in points.items()}
    marked = [name for name in sweeps if outside[name] or unfinished[name]]
    step = 0.05 * (max(known) - min(known)) or 1.0
    is_top = lower_is_better(sweeps)
    edge, sign = (max(known), 1) if is_top else (min(known), -1)
    height = {name: edge + sign * row * step for row, name in enumerate(marked, start=1)}
    bounds = with_margin([*known, *height.values()])
    return RateView(
        points, outside, unfinished, height, (short(bounds[0]), short(bounds[1])), is_top
    )


def values_beyond(known: list[float], rates: Rates) -> Rates:
    low, high = min(known), max(known)
    beyond = {lr: [v for v in values if not low <= v <= high] for lr, values in rates.items()}
    return {lr: values for lr, values in beyond.items() if values}


def lower_is_better(sweeps: Sweeps) -> bool:
    cell = next(cell for rates in sweeps.values() for cell in rates.values())
    return cell.task.metric.lower_is_better


def measured_values(sweeps: Sweeps) -> list[float]:
    """The metric of all finished runs, after every epoch."""
    return [
        line[run.metric.key]
        for rates in sweeps.values()
        for cell in rates.values()
        if cell.finished
        for run in drawn_runs(cell)
        for line in run.valid_epochs
        if line.get(run.metric.key) is not None
    ]


def hopeless_points(sweeps: Sweeps, points: Mapping[str, Rates]) -> set[tuple[str, float]]:
    means = {
        (optimizer, lr): statistics.fmean(values)
        for optimizer, rates in points.items()
        for lr, values in rates.items()
    }
    lower = lower_is_better(sweeps)
    return hopeless(means, measured_values(sweeps), lower_is_better=lower)


def kept_values(
    points: Mapping[str, Rates],
    lost: set[tuple[str, float]],
    measured: list[float],
    lower: bool,
) -> list[float]:
    """The means inside the axis, and the values of their seeds; a seed that failed is left out."""
    inside = [
        values
        for optimizer, rates in points.items()
        for lr, values in rates.items()
        if (optimizer, lr) not in lost
    ]
    seeds = dict(enumerate(value for values in inside for value in values))
    failed = hopeless(seeds, measured, lower_is_better=lower)
    kept = [value for i, value in seeds.items() if i not in failed]
    return kept + list(map(statistics.fmean, inside)) or [0.0]
