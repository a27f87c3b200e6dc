"""A comparison's curves as a figure for a paper or a slide, by matplotlib."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sgdf.analysis.figures import STYLE, plain, write
from sgdf.report.figures import curves_of, styles, y_range
from sgdf.report.figures import view_of as view_of_metric
from sgdf.report.records import Cell
from sgdf.report.tables import Comparison

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
    """PNG and SVG of every comparison that has curves, numbered if there are several."""
    drawn = [c for c in comparisons if any(map(curves_of, c.cells))]
    files = []
    for i, comparison in enumerate(drawn, start=1):
        name = stem.name if len(drawn) == 1 else f"{stem.name}-{i}"
        files += write(curves(comparison), stem.with_name(name))
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
        unit = f", {comparison.metric.unit}" * bool(comparison.metric.unit)
        whole.set_ylabel(f"{comparison.metric.words}{unit}")
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
    lines = (line for cell in cells for run in curves_of(cell) for line in run.whole)
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
