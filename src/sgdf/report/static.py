"""A comparison's charts as figures for a paper or a slide, by matplotlib."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sgdf.report.figures import came_to_an_end, curves_of, style, styles, swept_rates, y_range
from sgdf.report.figures import view_of as view_of_metric
from sgdf.report.records import Cell
from sgdf.report.tables import Comparison
from sgdf.support.figures import STYLE, plain, write

DASHES: dict[str, Any] = {
    "solid": "-",
    "dash": (0, (5, 2)),
    "dot": (0, (1, 1.5)),
    "dashdot": (0, (5, 2, 1, 2)),
    "longdash": (0, (9, 2)),
    "longdashdot": (0, (9, 2, 1, 2)),
}
LEGEND_COLUMNS = 5


def write_all(comparisons: list[Comparison], stem: Path) -> list[Path]:
    """PNG and SVG of every comparison that has curves, numbered if there are several.

    Where optimizers were run with several learning rates, a figure more is about these.
    """
    drawn = [c for c in comparisons if any(map(curves_of, c.cells))]
    files = []
    for i, comparison in enumerate(drawn, start=1):
        name = stem.name if len(drawn) == 1 else f"{stem.name}-{i}"
        files += write(curves(comparison), stem.with_name(name))
        if swept := swept_rates(comparison.cells):
            figure = learning_rates(comparison, swept)
            files += write(figure, stem.with_name(f"{name}-lr"))
    return files


def curves(comparison: Comparison) -> Figure:
    """The metric over the epochs, and closer the last quarter of them."""
    with rc_context(STYLE):
        figure = Figure(figsize=(9, 4.2), layout="constrained")
        whole, end = figure.subplots(1, 2, width_ratios=(3, 2))
        shown = [
            c for c in comparison.cells if curves_of(c) and c.label not in comparison.set_aside
        ]
        look = styles(shown, ())
        for cell in shown:
            for axes in (whole, end):
                draw(axes, cell, comparison.metric.key, *look[cell.label])
        last = max(len(run.whole) for cell in shown for run in curves_of(cell))
        limits(whole, shown, comparison, 1, last)
        limits(end, shown, comparison, 3 * last // 4 + 1, last)
        whole.set_ylabel(axis_words(comparison))
        figure.suptitle(plain(comparison.title), fontweight="bold")
        handles, labels = whole.get_legend_handles_labels()
        columns = min(LEGEND_COLUMNS, len(labels))
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    return figure


def draw(axes: Axes, cell: Cell, key: str, colour: str, dash: str) -> None:
    """The mean of the seeds, and from the lowest to the highest a band."""
    lines = zip(*(run.whole for run in curves_of(cell)), strict=False)
    rows = [(now[0]["epoch"], [line.get(key) for line in now]) for now in lines]
    known = [(epoch, values) for epoch, values in rows if None not in values]
    epochs = [epoch for epoch, _ in known]
    values = np.array([values for _, values in known], dtype=float).reshape(len(known), -1)
    marker = "o" if len(epochs) == 1 else None
    axes.plot(epochs, values.mean(1), color=colour, linestyle=DASHES[dash], linewidth=1.3,
              marker=marker, label=plain(cell.label))  # fmt: skip
    if values.shape[1] > 1:
        axes.fill_between(epochs, values.min(1), values.max(1), color=colour, alpha=0.15, lw=0)


def limits(axes: Axes, cells: list[Cell], comparison: Comparison, first: int, last: int) -> None:
    """All that these epochs have, but for the beginning of a whole run, where all are alike."""
    key = comparison.metric.key
    ended = came_to_an_end(cells)
    lines = (line for cell in ended for run in curves_of(cell) for line in run.whole)
    seen = [line[key] for line in lines if line["epoch"] >= first and line.get(key) is not None]
    bounds = y_range(cells, view_of_metric(comparison.metric)) if first == 1 else None
    if bounds is None and seen:
        margin = 0.04 * (max(seen) - min(seen)) or 1.0
        bounds = [min(seen) - margin, max(seen) + margin]
    axes.set_xlim(first, max(last, first + 1))
    if bounds:
        axes.set_ylim(*bounds)
    axes.set_xlabel("epoch")
    axes.grid(axis="y", color="#e6e6e6")
    axes.set_axisbelow(True)


def axis_words(comparison: Comparison) -> str:
    unit = f", {comparison.metric.unit}" * bool(comparison.metric.unit)
    return f"{comparison.metric.words}{unit}"


def learning_rates(comparison: Comparison, swept: dict[str, dict[float, Cell]]) -> Figure:
    """The metric after the last epoch by learning rate: every seed a point, a line their means.

    A cross below: no run came to its end.
    """
    with rc_context(STYLE):
        figure = Figure(figsize=(6.5, 4), layout="constrained")
        axes = figure.subplots()
        for optimizer, rates in swept.items():
            colour, dash = style(optimizer)
            found = {
                lr: [run.final for run in cell.finished.values()]
                for lr, cell in rates.items()
                if cell.finished
            }
            means = [float(np.mean(values)) for values in found.values()]
            axes.plot([*found], means, color=colour, linestyle=DASHES[dash], label=plain(optimizer))
            points = [(lr, value) for lr, values in found.items() for value in values]
            axes.scatter(
                [lr for lr, _ in points], [value for _, value in points], color=colour, s=18
            )
        low, high = axes.get_ylim()
        for number, (optimizer, rates) in enumerate(swept.items(), start=1):
            lost = [lr for lr, cell in rates.items() if not cell.finished]
            foot = low - 0.05 * (high - low) * number
            axes.scatter(lost, [foot] * len(lost), color=style(optimizer)[0], marker="x", s=24)
        ticks = sorted({lr for rates in swept.values() for lr in rates})
        axes.set_xscale("log")
        axes.set_xticks(ticks, [f"{lr:g}" for lr in ticks])
        axes.minorticks_off()
        axes.set(xlabel="learning rate (×: no run came to its end)", ylabel=axis_words(comparison))
        axes.grid(axis="y", color="#e6e6e6")
        axes.set_axisbelow(True)
        axes.legend(frameon=False)
        figure.suptitle(plain(f"{comparison.title}: after the last epoch"), fontweight="bold")
    return figure
