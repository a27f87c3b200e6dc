"""What charts and figures draw: the runs, values, ranges and line styles, for any library."""

import math
import statistics
from collections.abc import Container, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sgdf_lab import optimizers
from sgdf_lab.report.cells import RunCell
from sgdf_lab.runs.records import RunRecord
from sgdf_lab.support.palette import DASHES, ON_DARK, Look
from sgdf_lab.tasks import Metric

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class CurveView:
    """A measurement of every epoch, as one button of a chart shows it."""

    button: str
    key: str
    unit: str = ""
    logarithmic: bool = False
    title: str = ""  # of the axis, if not the key
    lower_is_better: bool | None = None  # None: neither is


def metric_view(metric: Metric) -> CurveView:
    unit = f" {metric.unit}".rstrip()
    return CurveView(metric.words.removesuffix(" accuracy"), metric.key, unit,
                     title=metric.words, lower_is_better=metric.lower_is_better)  # fmt: skip


def validation_view(metric: Metric) -> CurveView:
    """The same metric on held-out training images."""
    key = metric.key.removeprefix("test_")
    words = f"validation {metric.words.removeprefix('test ')}"
    return CurveView("validation", f"validation_{key}", f" {metric.unit}".rstrip(), title=words,
                     lower_is_better=metric.lower_is_better)  # fmt: skip


def looks(cells: Sequence[RunCell], set_aside: Container[str] = ()) -> dict[str, Look]:
    """By label: the optimizer's colour, and a different dash for each of its cells."""
    by_label: dict[str, Look] = {}
    cells_so_far: dict[str, int] = {}
    colours = optimizer_colours(cells)
    for cell in sorted(cells, key=lambda cell: cell.label in set_aside):
        own = optimizers.style(cell.optimizer)
        number = cells_so_far.setdefault(cell.optimizer, 0)
        cells_so_far[cell.optimizer] += 1
        dash = DASHES[(DASHES.index(own.dash) + number) % len(DASHES)]
        by_label[cell.label] = Look(colours[cell.optimizer], dash)
    return by_label


def optimizer_colours(cells: Sequence[RunCell]) -> dict[str, str]:
    """Each optimizer's own colour; of two with the same, the second gets a free one, if any is."""
    names = list(dict.fromkeys(cell.optimizer for cell in cells))
    own = {name: optimizers.style(name).colour for name in names}
    free = [colour for colour in ON_DARK if colour not in own.values()]
    colours: dict[str, str] = {}
    for name in names:
        is_taken = own[name] in colours.values()
        colours[name] = free.pop() if is_taken and free else own[name]
    return colours


# --- over the epochs -----------------------------------------------------------------------------


def drawn_runs(cell: RunCell) -> list[RunRecord]:
    """The finished runs, or if there are none the epochs of the others."""
    return list(cell.finished.values()) or [r for r in cell.records if r.valid_epochs]


def seed_values(cell: RunCell, key: str) -> tuple[list[int], list[list[float]]]:
    """The epochs or steps after which all drawn runs were measured, and the values of the seeds."""
    epochs, columns = [], []
    for lines in zip(*(run.valid_epochs for run in drawn_runs(cell)), strict=False):
        values = [value for line in lines if (value := line.get(key)) is not None]
        if len(values) == len(lines):
            epochs.append(lines[0]["epoch"] * cell.config.interval)
            columns.append(values)
    return epochs, columns


def last_epoch(cells: Sequence[RunCell]) -> int:
    """The last epoch or step that was measured."""
    return max(
        len(run.valid_epochs) * cell.config.interval for cell in cells for run in drawn_runs(cell)
    )


def first_epoch(cells: Sequence[RunCell]) -> int:
    return min(cell.config.interval for cell in cells)


def y_range(cells: Sequence[RunCell], view: CurveView) -> list[float] | None:
    """The range after the first tenth of the epochs, where cells differ; None: draw everything.

    Neither runs that diverged, nor cells that hardly learned, nor single bad epochs widen it. Of
    a logarithmic axis it is a range of exponents.
    """
    able = with_finished_runs(cells)
    lost = hopeless_cells(able, view)
    if view.logarithmic and not lost:
        return None
    values = [
        line[view.key]
        for cell in able
        if cell.label not in lost
        for run in drawn_runs(cell)
        for line in run.valid_epochs[0 if view.logarithmic else len(run.valid_epochs) // 10 :]
        if line.get(view.key) is not None
    ]
    values = without_spikes(values, view.lower_is_better)
    values += [end for cell in able if cell.label not in lost
               if (end := last_mean(cell, view.key)) is not None]  # fmt: skip
    if view.logarithmic:
        values = [math.log10(value) for value in values]
    return [short(bound) for bound in with_margin(values)] if values else None


def without_spikes(values: Sequence[float], lower_is_better: bool | None) -> list[float]:
    """Without the worst hundredth: one bad epoch in a long run."""
    if lower_is_better is None:
        return list(values)
    return sorted(values, reverse=lower_is_better)[len(values) // 100 :]


def hopeless_cells(cells: Sequence[RunCell], view: CurveView) -> set[str]:
    """The labels of the cells that are `hopeless` after their last epoch."""
    if view.lower_is_better is None:
        return set()
    ends = {cell.label: last for cell in cells if (last := last_mean(cell, view.key)) is not None}
    measured = [value for cell in cells for values in seed_values(cell, view.key)[1]
                for value in values]  # fmt: skip
    return hopeless(ends, measured, lower_is_better=view.lower_is_better)


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


def short(value: float) -> float:
    """Four significant digits: more than a screen can show."""
    return float(f"{value:.4g}")


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
