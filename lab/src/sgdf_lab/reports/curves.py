"""What figures draw: the runs, their values by epoch or learning rate, ranges and line styles."""

import math
import statistics
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sgdf_lab import optimizers
from sgdf_lab.reports.cells import RunCell
from sgdf_lab.reports.numbers import validation_words
from sgdf_lab.runs.records import RunRecord
from sgdf_lab.support.palette import DASHES, ON_DARK, Look
from sgdf_lab.tasks import Metric

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class CurveView:
    """A measurement of every epoch."""

    title: str  # of the axis
    key: str
    unit: str = ""
    logarithmic: bool = False
    lower_is_better: bool | None = None  # None: neither is

    @property
    def axis_title(self) -> str:
        return with_unit(self.title, self.unit)


def with_unit(words: str, unit: str) -> str:
    return f"{words}, {unit}" if unit else words


def metric_view(metric: Metric) -> CurveView:
    return CurveView(metric.words, metric.key, metric.unit, lower_is_better=metric.lower_is_better)


def curve_views(cell: RunCell) -> list[CurveView]:
    """Everything that may be drawn over the epochs of a task."""
    metrics = cell.task.metrics
    first = metrics[0]
    words, lower = validation_words(first), first.lower_is_better
    return [
        *map(metric_view, metrics),
        CurveView(words, cell.task.validation_key, first.unit, lower_is_better=lower),
        CurveView("training accuracy", "train_accuracy", "%", lower_is_better=False),
        CurveView("training loss", "train_loss", logarithmic=True, lower_is_better=True),
        CurveView("test loss", "test_loss", logarithmic=True, lower_is_better=True),
        CurveView("validation loss", "val_loss", logarithmic=True, lower_is_better=True),
        CurveView("gradient norm", "gradient_norm", logarithmic=True),
        CurveView("norm of the step direction", "direction_norm", logarithmic=True),
    ]


def looks(labels: Mapping[str, str]) -> dict[str, Look]:
    """By label: the optimizer's colour, and a different dash for each of its labels.

    Args:
        labels: with the name of the optimizer of each.
    """
    found: dict[str, Look] = {}
    so_far: Counter[str] = Counter()
    colours = optimizer_colours(labels.values())
    for label, name in labels.items():
        dash = DASHES.index(optimizers.style(name).dash) + so_far[name]
        so_far[name] += 1
        found[label] = Look(colours[name], DASHES[dash % len(DASHES)])
    return found


def optimizer_colours(names: Iterable[str]) -> dict[str, str]:
    """Each optimizer's own colour; of two with the same, the second gets a free one, if any is."""
    own = {name: optimizers.style(name).colour for name in names}
    free = [colour for colour in ON_DARK if colour not in own.values()]
    colours: dict[str, str] = {}
    for name, colour in own.items():
        is_taken = colour in colours.values()
        colours[name] = free.pop() if is_taken and free else colour
    return colours


# --- over the epochs -----------------------------------------------------------------------------


def drawn_runs(cell: RunCell) -> list[RunRecord]:
    """The finished runs, or if there are none the epochs of the others."""
    return list(cell.finished.values()) or [r for r in cell.records if r.valid_lines]


def measured(cells: Iterable[RunCell], key: str, since: int = 0) -> list[float]:
    """All values of the drawn runs, from a place on."""
    return [
        value
        for cell in cells
        for run in drawn_runs(cell)
        for place, value in run.by_place(key).items()
        if place >= since
    ]


def seed_values(cell: RunCell, key: str) -> tuple[list[int], list[list[float]]]:
    """The epochs or steps after which all drawn runs were measured, and the values of the seeds."""
    places, columns = [], []
    for lines in zip(*(run.valid_lines for run in drawn_runs(cell)), strict=False):
        values = [value for line in lines if (value := line.get(key)) is not None]
        if len(values) == len(lines):
            places.append(cell.config.place_of(lines[0]))
            columns.append(values)
    return places, columns


def last_place(cells: Sequence[RunCell]) -> int:
    """The last epoch or step that was measured."""
    runs = (run for cell in cells for run in drawn_runs(cell) if run.valid_lines)
    return max((run.config.place_of(run.valid_lines[-1]) for run in runs), default=0)


def first_place(cells: Sequence[RunCell]) -> int:
    return min(cell.config.interval for cell in cells)


def y_range(cells: Sequence[RunCell], view: CurveView) -> tuple[float, float] | None:
    """The range after the first tenth of the epochs, where cells differ; None: draw everything.

    Neither runs that diverged, nor cells that hardly learned, nor single bad epochs widen it.
    """
    able = with_finished_runs(cells)
    lost = hopeless_cells(able, view)
    if view.logarithmic and not lost:
        return None
    able = [cell for cell in able if cell.label not in lost]
    values = [
        line[view.key]
        for cell in able
        for run in drawn_runs(cell)
        for line in run.valid_lines[0 if view.logarithmic else len(run.valid_lines) // 10 :]
        if line.get(view.key) is not None
    ]
    if view.lower_is_better is not None:  # one bad epoch in a long run: the worst hundredth
        values = sorted(values, reverse=view.lower_is_better)[len(values) // 100 :]
    values += [end for cell in able if (end := last_mean(cell, view.key)) is not None]
    if not values:
        return None
    if not view.logarithmic:
        return with_margin(values)
    low, high = with_margin([math.log10(value) for value in values])
    return 10**low, 10**high


def hopeless_cells(cells: Sequence[RunCell], view: CurveView) -> set[str]:
    """The labels of the cells that are `hopeless` after their last epoch."""
    if view.lower_is_better is None:
        return set()
    ends = {cell.label: last for cell in cells if (last := last_mean(cell, view.key)) is not None}
    found = [v for cell in cells for values in seed_values(cell, view.key)[1] for v in values]
    return hopeless(ends, found, lower_is_better=view.lower_is_better)


def last_mean(cell: RunCell, key: str) -> float | None:
    """The mean over the seeds where the cell's line ends."""
    _, columns = seed_values(cell, key)
    return statistics.fmean(columns[-1]) if columns else None


def hopeless(
    ends: Mapping[Key, float], measured: Sequence[float], *, lower_is_better: bool
) -> set[Key]:
    """Those that gained less than a quarter of what the best gained on the worst value measured.

    Only where they would stretch an axis over the others by a third or more.

    >>> finals = {"a": 97.0, "b": 95.0, "c": 8.89}
    >>> hopeless(finals, [8.89, 60.0, 97.0], lower_is_better=False)
    {'c'}
    >>> hopeless({"a": 97.0, "b": 95.0, "c": 91.0}, [60.0, 97.0], lower_is_better=False)
    set()
    """
    if not ends:
        return set()
    worst = (max if lower_is_better else min)(measured)
    best = (min if lower_is_better else max)(ends.values())
    lost = {key for key, end in ends.items() if abs(end - worst) < abs(best - worst) / 4}
    kept = [end for key, end in ends.items() if key not in lost]
    if not kept or max(kept) - min(kept) > 0.75 * (max(ends.values()) - min(ends.values())):
        return set()
    return lost


def with_finished_runs(cells: Sequence[RunCell]) -> Sequence[RunCell]:
    """The cells that have a finished run, or all if none has."""
    return [cell for cell in cells if cell.finished] or cells


def with_margin(values: Sequence[float]) -> tuple[float, float]:
    margin = 0.04 * (max(values) - min(values)) or 1.0
    return min(values) - margin, max(values) + margin


# --- over the learning rate ----------------------------------------------------------------------


def learning_rate_sweeps(cells: Sequence[RunCell]) -> dict[str, dict[float, RunCell]]:
    """The cells, by learning rate, of every optimizer that ran with several learning rates."""
    by_optimizer: dict[str, dict[float, list[RunCell]]] = {}
    for cell in cells:
        lr = cell.learning_rate
        if lr is not None and lr > 0 and cell.records:
            by_optimizer.setdefault(cell.optimizer, {}).setdefault(lr, []).append(cell)
    # Two cells at one learning rate differ in another setting, and a line would mix both.
    return {
        optimizer: {lr: cells_at[0] for lr, cells_at in sorted(rates.items())}
        for optimizer, rates in by_optimizer.items()
        if len(rates) > 1 and all(len(cells_at) == 1 for cells_at in rates.values())
    }


Sweeps = Mapping[str, Mapping[float, RunCell]]  # by optimizer and learning rate
Rates = dict[float, list[float]]


@dataclass(frozen=True)
class RateView:
    """The final values by optimizer and learning rate; `height` is where its marks are.

    Rates with which no run finished have a mark beyond the points, on the worse side, and so have
    seeds that are `hopeless`: they would stretch the axis until the others are one line.
    """

    points: dict[str, Rates]
    outside: dict[str, Rates]  # the seeds whose values are beyond the axis
    unfinished: dict[str, list[float]]
    height: dict[str, float]
    bounds: tuple[float, float]
    is_top: bool  # the marks are above the points: lower is better


def rate_view(sweeps: Sweeps) -> RateView:
    points = {
        optimizer: {
            lr: [record.final for record in cell.finished.values()]
            for lr, cell in rates.items()
            if cell.finished
        }
        for optimizer, rates in sweeps.items()
    }
    unfinished = {
        optimizer: [lr for lr, cell in rates.items() if not cell.finished]
        for optimizer, rates in sweeps.items()
    }
    known, is_top = values_inside(sweeps, points)
    low, high = min(known), max(known)
    outside = {
        optimizer: {
            lr: beyond
            for lr, values in rates.items()
            if (beyond := [v for v in values if not low <= v <= high])
        }
        for optimizer, rates in points.items()
    }
    marked = [name for name in sweeps if outside[name] or unfinished[name]]
    step = 0.05 * (high - low) or 1.0
    edge, sign = (high, 1) if is_top else (low, -1)
    height = {name: edge + sign * row * step for row, name in enumerate(marked, start=1)}
    bounds = with_margin([*known, *height.values()])
    return RateView(points, outside, unfinished, height, bounds, is_top)


def values_inside(sweeps: Sweeps, points: Mapping[str, Rates]) -> tuple[list[float], bool]:
    """The values that decide the axis, without hopeless rates and seeds; is lower better?"""
    cells = [cell for rates in sweeps.values() for cell in rates.values()]
    lower = cells[0].task.metric.lower_is_better
    found = measured((cell for cell in cells if cell.finished), cells[0].task.metric.key)
    by_rate = {(name, lr): v for name, rates in points.items() for lr, v in rates.items()}
    means = {key: statistics.fmean(values) for key, values in by_rate.items()}
    lost = hopeless(means, found, lower_is_better=lower)
    seeds = dict(enumerate(v for key, values in by_rate.items() if key not in lost for v in values))
    failed = hopeless(seeds, found, lower_is_better=lower)
    kept = [value for i, value in seeds.items() if i not in failed]
    return kept + [mean for key, mean in means.items() if key not in lost] or [0.0], lower
