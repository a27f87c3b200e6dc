"""A comparison's charts as matplotlib figures, for a paper or a slide."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sgdf_lab.optimizers import style
from sgdf_lab.report import wording
from sgdf_lab.report.cells import RunCell
from sgdf_lab.report.curves import (
    drawn_runs,
    first_epoch,
    last_epoch,
    learning_rate_sweeps,
    looks,
    metric_view,
    optimizer_colours,
    seed_values,
    with_finished_runs,
    with_margin,
    y_range,
)
from sgdf_lab.report.rate_views import RateView, rate_view
from sgdf_lab.report.statistics import Comparison
from sgdf_lab.support.figures import STYLE, plain, write
from sgdf_lab.support.palette import Look

LINE_STYLES: dict[str, Any] = {
    "solid": "-",
    "dash": (0, (5, 2)),
    "dot": (0, (1, 1.5)),
    "dashdot": (0, (5, 2, 1, 2)),
    "longdash": (0, (9, 2)),
    "longdashdot": (0, (9, 2, 1, 2)),
}
LEGEND_COLUMNS = 5


def write_all(comparisons: Sequence[Comparison], stem: Path) -> list[Path]:
    """Write every comparison that has curves as PNG and SVG, numbered if there are several.

    Optimizers that ran with several learning rates get a second figure, by learning rate.
    """
    drawn = [comparison for comparison in comparisons if cells_with_curves(comparison)]
    files = []
    for i, comparison in enumerate(drawn, start=1):
        name = stem.name if len(drawn) == 1 else f"{stem.name}-{i}"
        files += write(epochs_figure(comparison), stem.with_name(name))
        if sweeps := learning_rate_sweeps(comparison.cells):
            figure = learning_rate_figure(comparison, sweeps)
            files += write(figure, stem.with_name(f"{name}-lr"))
    return files


def cells_with_curves(comparison: Comparison) -> list[RunCell]:
    """The cells whose metric was measured at least once, without those that were set aside."""
    key = comparison.metric.key
    kept = (cell for cell in comparison.cells if cell.label not in comparison.set_aside)
    return [cell for cell in kept if seed_values(cell, key)[0]]


# --- over the epochs -----------------------------------------------------------------------------


def epochs_figure(comparison: Comparison) -> Figure:
    """The metric over all epochs, and an enlarged view of the last quarter."""
    with rc_context(STYLE):
        figure = Figure(figsize=(9, 4.2), layout="constrained")
        complete, end = figure.subplots(1, 2, width_ratios=(3, 2))
        cells = cells_with_curves(comparison)
        cell_looks = looks(cells)
        for cell in cells:
            for axes in (complete, end):
                draw_curve(axes, cell, comparison.metric.key, cell_looks[cell.label])
        last = last_epoch(cells)
        first = first_epoch(cells)
        set_limits(complete, cells, comparison, first, last)
        after = 1 if comparison.unit == "epoch" else 0  # of steps few may be measured
        set_limits(end, cells, comparison, 3 * last // 4 + after, last)
        complete.set_ylabel(metric_label(comparison))
        figure.suptitle(plain(wording.title(comparison)), fontweight="bold")
        handles, labels = complete.get_legend_handles_labels()
        columns = min(LEGEND_COLUMNS, len(labels))
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    return figure


def draw_curve(axes: Axes, cell: RunCell, key: str, style: Look) -> None:
    """The mean of the seeds as a line, and a band from the lowest to the highest."""
    epochs, columns = seed_values(cell, key)
    values = np.array(columns)
    marker = "o" if len(epochs) == 1 else None
    axes.plot(epochs, values.mean(1), color=style.colour, linestyle=LINE_STYLES[style.dash],
              linewidth=1.3, marker=marker, label=plain(cell.label))  # fmt: skip
    if values.shape[1] > 1:
        axes.fill_between(
            epochs, values.min(1), values.max(1), color=style.colour, alpha=0.15, lw=0
        )


def set_limits(
    axes: Axes, cells: Sequence[RunCell], comparison: Comparison, first: int, last: int
) -> None:
    """Show everything from the `first` epoch or step; over a complete run, not its beginning."""
    key = comparison.metric.key
    values = [
        line[key]
        for cell in with_finished_runs(cells)
        for run in drawn_runs(cell)
        for line in run.valid_epochs
        if line["epoch"] * cell.config.interval >= first and line.get(key) is not None
    ]
    is_complete = first == first_epoch(cells)
    bounds = y_range(cells, metric_view(comparison.metric)) if is_complete else None
    axes.set_xlim(first, max(last, first + 1))
    if bounds or values:
        axes.set_ylim(*(bounds or with_margin(values)))
    axes.set_xlabel(cells[0].config.unit)
    add_grid(axes)


def add_grid(axes: Axes) -> None:
    axes.grid(axis="y", color="#e6e6e6")
    axes.set_axisbelow(True)


def metric_label(comparison: Comparison) -> str:
    metric = comparison.metric
    return metric.words + f", {metric.unit}" * bool(metric.unit)


# --- over the learning rate ----------------------------------------------------------------------


def learning_rate_figure(
    comparison: Comparison, sweeps: Mapping[str, Mapping[float, RunCell]]
) -> Figure:
    """The metric after the last epoch by learning rate: a point per seed, a line for the means.

    A cross beside the points marks a learning rate with which no run finished, a triangle seeds
    that lie outside the axis.
    """
    view = rate_view(sweeps, lambda record: record.final)
    with rc_context(STYLE):
        figure = Figure(figsize=(6.5, 4), layout="constrained")
        axes = figure.subplots()
        colours = optimizer_colours(comparison.cells)
        for optimizer in sweeps:
            draw_rates(axes, optimizer, view, colours[optimizer])
        ticks = sorted({lr for rates in sweeps.values() for lr in rates})
        axes.set_xscale("log")
        axes.set_xticks(ticks, [f"{lr:g}" for lr in ticks])
        axes.minorticks_off()
        axes.set_ylim(*view.bounds)
        signs = "×: no run finished" + ", triangle: outside" * any(view.outside.values())
        axes.set(xlabel=f"learning rate ({signs})", ylabel=metric_label(comparison))
        add_grid(axes)
        axes.legend(frameon=False)
        title = f"{wording.title(comparison)}: after the last {comparison.unit}"
        figure.suptitle(plain(title), fontweight="bold")
    return figure


def draw_rates(axes: Axes, optimizer: str, view: RateView, colour: str) -> None:
    finals = view.points[optimizer]
    means = [float(np.mean(values)) for values in finals.values()]
    dash = LINE_STYLES[style(optimizer).dash]
    axes.plot([*finals], means, color=colour, linestyle=dash, label=plain(optimizer))
    points = [(lr, value) for lr, values in finals.items() for value in values]
    axes.scatter([lr for lr, _ in points], [value for _, value in points], color=colour, s=18)
    triangle = "^" if view.is_top else "v"
    for rates, marker in ((view.unfinished[optimizer], "x"), (view.outside[optimizer], triangle)):
        if rates:
            heights = [view.height[optimizer]] * len(rates)
            axes.scatter([*rates], heights, color=colour, marker=marker, s=24)
