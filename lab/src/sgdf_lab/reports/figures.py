"""A comparison drawn: for the page, which shows each figure by itself, and for files.

Every figure is SVG of matplotlib, in both colour schemes; words appear where a reader points.
"""

import statistics
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from sgdf_lab.reports import wording
from sgdf_lab.reports.cells import RunCell
from sgdf_lab.reports.comparison import Comparison
from sgdf_lab.reports.curves import (
    CurveView,
    curve_views,
    drawn_runs,
    first_place,
    last_mean,
    last_place,
    learning_rate_sweeps,
    looks,
    measured,
    metric_view,
    optimizer_colours,
    rate_view,
    seed_values,
    with_finished_runs,
    with_margin,
    with_unit,
    y_range,
)
from sgdf_lab.support.figures import LINE_STYLES, STYLE, hover, plain, write
from sgdf_lab.support.palette import AXIS, GREY, GRID, INK, PAPER, Look

SMALL = (5.4, 3.3)  # inches: as wide as a phone, with letters that can be read there
LEGEND_COLUMNS = 5
TICKS = 5  # of learning rates that fit beside each other
LABEL = 30  # letters of a line beside an axis
FAR = 4.0  # times the median: a difference so far out has an arrow instead of stretching the axis


class Chart(NamedTuple):
    """A figure of the page, and a sentence below it where it needs one."""

    title: str
    figure: Figure
    caption: str = ""


def charts(comparison: Comparison) -> Iterator[Chart]:
    """Everything over the epochs that was measured, without the settings that were not chosen."""
    cells = [cell for cell in shown_cells(comparison) if drawn_runs(cell)]
    if not cells:
        return
    cell_looks = cell_looks_of(cells)
    seen = set[str]()
    for view in curve_views(cells[0]):
        if view.key in seen or not (values := measured(cells, view.key)):
            continue
        seen.add(view.key)
        # The loss of a critic may be negative, which a logarithmic axis cannot show.
        view = replace(view, logarithmic=view.logarithmic and min(values) > 0)
        yield curve_chart(cells, view, cell_looks)
    if comparison.unit == "step" and any(times_of(cell, comparison.metric.key) for cell in cells):
        yield time_chart(cells, metric_view(comparison.metric), cell_looks)


def rates_charts(comparison: Comparison) -> Iterator[Chart]:
    if learning_rate_sweeps(comparison.cells):
        title = f"{capitalized(comparison.metric.words)} by learning rate"
        with rc_context(STYLE):
            figure = Figure(figsize=SMALL, layout="constrained")
            draw_rates(figure.subplots(), comparison)
        yield Chart(title, figure, "A line for the means, a point for each seed.")


def write_all(comparisons: Sequence[Comparison], stem: Path) -> list[Path]:
    """Write every comparison that has curves as PNG and SVG, numbered if there are several.

    Optimizers that ran with several learning rates get a second figure, by learning rate.
    """
    drawn = [comparison for comparison in comparisons if cells_with_curves(comparison)]
    files = []
    for i, comparison in enumerate(drawn, start=1):
        name = stem.name if len(drawn) == 1 else f"{stem.name}-{i}"
        files += write(epochs_figure(comparison), stem.with_name(name))
        if learning_rate_sweeps(comparison.cells):
            files += write(learning_rate_figure(comparison), stem.with_name(f"{name}-lr"))
    return files


def shown_cells(comparison: Comparison) -> list[RunCell]:
    return [cell for cell in comparison.cells if cell.label not in comparison.set_aside]


def cells_with_curves(comparison: Comparison) -> list[RunCell]:
    """The cells whose metric was measured at least once, without those that were set aside."""
    key = comparison.metric.key
    return [cell for cell in shown_cells(comparison) if seed_values(cell, key)[0]]


def cell_looks_of(cells: Sequence[RunCell]) -> dict[str, Look]:
    return looks({cell.label: cell.optimizer for cell in cells})


def capitalized(words: str) -> str:
    return words[:1].upper() + words[1:]


# --- differences ---------------------------------------------------------------------------------


class Interval(NamedTuple):
    """A mean difference with its 95 % interval, where there is one."""

    label: str
    mean: float
    low: float | None
    high: float | None
    verdict: str
    colour: str

    @property
    def ends(self) -> tuple[float, float]:
        return (
            self.mean if self.low is None else self.low,
            self.mean if self.high is None else self.high,
        )


def difference_chart(comparison: Comparison) -> Chart | None:
    """A row for each setting that was not set aside and was run with the reference's seeds."""
    colours = optimizer_colours(cell.optimizer for cell in comparison.cells)
    metric = comparison.result
    rows = [
        Interval(row.label, d.mean, d.low, d.high, row.verdict, colours[row.optimizer])
        for row in comparison.rows
        if (d := row.paired) and d.mean is not None and row.label not in comparison.set_aside
    ]
    if not rows:
        return None
    unit = "points" if metric.unit == "%" else metric.unit
    words = with_unit(f"difference in final {metric.words}", unit)
    figure = differences_figure(
        rows[::-1], words, lower_is_better=metric.lower_is_better, digits=metric.digits,
        width=SMALL[0],
    )  # fmt: skip
    caption = (
        f"Mean difference from {comparison.reference} in the same seeds, with its 95 % interval: "
        f"full where it is ahead or behind ({wording.RULE}), hollow elsewhere."
    )
    return Chart(f"Differences from {comparison.reference}", figure, caption)


def differences_figure(
    rows: Sequence[Interval], words: str, *, lower_is_better: bool, digits: int, width: float = 7
) -> Figure:
    """The rows from below, each with its label beside the axis."""
    labels = [plain(textwrap.fill(row.label, LABEL)) for row in rows]
    lines = sum(max(1.5, label.count("\n") + 1) for label in labels)
    longest = max((len(line) for label in labels for line in label.split("\n")), default=0)
    title = f"{words} ({'left' if lower_is_better else 'right'} is better)"
    with rc_context(STYLE):
        figure = Figure(figsize=(width, 1.2 + 0.18 * lines), layout="constrained")
        axes = figure.subplots()
        draw_intervals(axes, dict(enumerate(rows)), digits)
        axes.set_ylim(-0.7, len(rows) - 0.3)
        axes.set_yticks(range(len(rows)), labels)
        axes.set_xlabel(plain(textwrap.fill(title, max(20, int(11 * width) - longest))))
    return figure


def draw_intervals(axes: Axes, rows: Mapping[int, Interval], digits: int) -> None:
    """By height a point and a line; for what is far out, an arrow at the edge and the number."""
    low, high = axis_edges([*rows.values()])
    for height, row in rows.items():
        fill = row.colour if row.verdict else PAPER
        ends = "" if row.low is None else f" [{row.ends[0]:+.{digits}f}, {row.ends[1]:+.{digits}f}]"
        words = f"{row.label}: {row.mean:+.{digits}f}{ends} {row.verdict}".strip()
        if low <= row.mean <= high:
            axes.plot(row.ends, [height] * 2, color=row.colour, lw=2, solid_capstyle="butt")
            x, marker = row.mean, "o"
        else:
            is_right, margin = row.mean > high, 0.02 * (high - low)
            x, marker = (high - margin, ">") if is_right else (low + margin, "<")
            axes.text(x + (-margin if is_right else margin), height,
                      wording.signed(row.mean, digits), va="center", fontsize=8, color=INK,
                      ha="right" if is_right else "left")  # fmt: skip
        (point,) = axes.plot([x], [height], marker=marker, color=row.colour, markersize=6,
                             markerfacecolor=fill)  # fmt: skip
        hover(point, words)
    axes.axvline(0, color=AXIS, lw=1.2, zorder=1)
    axes.set_xlim(low, high)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=GRID)
    axes.set_axisbelow(True)


def axis_edges(rows: Sequence[Interval]) -> tuple[float, float]:
    """Zero and all intervals, without those that are far out."""
    if not rows:
        return -1.0, 1.0
    extents = [max(map(abs, row.ends)) for row in rows]
    limit = FAR * statistics.median(extents)
    near = [row.ends for row, extent in zip(rows, extents, strict=True) if extent <= limit]
    low = min(0.0, *(ends[0] for ends in near))
    high = max(0.0, *(ends[1] for ends in near))
    margin = 0.06 * (high - low) or 1.0
    return low - margin, high + margin


# --- over the epochs -----------------------------------------------------------------------------


def curve_chart(cells: Sequence[RunCell], view: CurveView, cell_looks: Mapping[str, Look]) -> Chart:
    """One measurement of all cells."""
    with rc_context(STYLE):
        figure = Figure(figsize=SMALL, layout="constrained")
        axes = figure.subplots()
        for cell in cells:
            draw_curve(axes, cell, view, cell_looks[cell.label])
        first, last = first_place(cells), last_place(cells)
        axes.set_xlim(*((first, last) if last > first else (0, 2 * last)))
        bounds = y_range(cells, view)
        outside = mark_outside(axes, cells, view, bounds, cell_looks) if bounds else False
        mark_drops(axes, cells)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        label_axes(axes, cells[0].config.unit, view)
    caption = "A triangle at the edge: that line ends outside, far from the others." * outside
    return Chart(capitalized(view.title), figure, caption)


def epochs_figure(comparison: Comparison) -> Figure:
    """The metric over all epochs, and an enlarged view of the last quarter."""
    view = metric_view(comparison.metric)
    with rc_context(STYLE):
        figure = Figure(figsize=(9, 4.2), layout="constrained")
        complete, end = figure.subplots(1, 2, width_ratios=(3, 2))
        cells = cells_with_curves(comparison)
        cell_looks = cell_looks_of(cells)
        for cell in cells:
            for axes in (complete, end):
                draw_curve(axes, cell, view, cell_looks[cell.label])
        first, last = first_place(cells), last_place(cells)
        set_limits(complete, cells, view, first, last)
        after = 1 if comparison.unit == "epoch" else 0  # of steps few may be measured
        set_limits(end, cells, view, 3 * last // 4 + after, last)
        for axes in (complete, end):
            label_axes(axes, comparison.unit, view)
        end.set_ylabel("")
        figure.suptitle(plain(wording.title(comparison)), fontweight="bold")
        handles, labels = complete.get_legend_handles_labels()
        columns = min(LEGEND_COLUMNS, len(labels))
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    return figure


def draw_curve(axes: Axes, cell: RunCell, view: CurveView, look: Look) -> None:
    """The mean of the seeds as a line, and a band from the lowest to the highest."""
    epochs, columns = seed_values(cell, view.key)
    if epochs:
        draw_line(axes, epochs, columns, cell.label, view, look)
    if epochs and len(columns[0]) > 1:
        low, high = ([of(values) for values in columns] for of in (min, max))
        axes.fill_between(epochs, low, high, color=look.colour, alpha=0.15, lw=0)


def draw_line(
    axes: Axes,
    x: Sequence[float],
    columns: Sequence[Sequence[float]],
    label: str,
    view: CurveView,
    look: Look,
) -> None:
    means = [statistics.fmean(values) for values in columns]
    marker = "o" if len(means) == 1 else None
    (line,) = axes.plot(x, means, color=look.colour, linestyle=LINE_STYLES[look.dash],
                        linewidth=1.3, marker=marker, label=plain(label))  # fmt: skip
    hover(line, f"{label}: ends at {means[-1]:.4g} {view.unit}".strip())


def set_limits(
    axes: Axes, cells: Sequence[RunCell], view: CurveView, first: int, last: int
) -> None:
    """Show everything from the `first` epoch or step; over a complete run, not its beginning."""
    values = measured(with_finished_runs(cells), view.key, since=first)
    bounds = y_range(cells, view) if first == first_place(cells) else None
    axes.set_xlim(first, max(last, first + 1))
    if bounds or values:
        axes.set_ylim(*(bounds or with_margin(values)))


def mark_outside(
    axes: Axes,
    cells: Sequence[RunCell],
    view: CurveView,
    bounds: tuple[float, float],
    cell_looks: Mapping[str, Look],
) -> bool:
    """A triangle at the edge for each cell whose line ends beyond the bounds; is there any?"""
    low, high = bounds
    axes.set_ylim(low, high)
    ends = {cell.label: end for cell in cells if (end := last_mean(cell, view.key)) is not None}
    outside = {label: end for label, end in ends.items() if not low <= end <= high}
    first, last = first_place(cells), last_place(cells)
    for i, (label, end) in enumerate(outside.items()):
        x = last - (i % 20) * 0.03 * (last - first)  # side by side
        (mark,) = axes.plot(
            [x], [low if end < low else high], "v" if end < low else "^", markersize=7,
            color=cell_looks[label].colour, clip_on=False,
        )  # fmt: skip
        hover(mark, f"{label}: ends at {end:.4g} {view.unit}".strip())
    return bool(outside)


def mark_drops(axes: Axes, cells: Sequence[RunCell]) -> None:
    """A dotted line where the learning rate of a step schedule drops, with words where they fit."""
    drops: dict[float, float] = {}
    for config in (cell.config for cell in cells):
        if config.schedule == "step" and config.drop != 1:
            reached = [m for m in config.milestones if m < config.epochs]
            drops |= {config.at(m) + 0.5: config.drop for m in reached}
    end = -1.0
    for x in sorted(drops):
        axes.axvline(x, color=GREY, lw=1, linestyle=":", zorder=0)
        if end < 0 or x - end >= last_place(cells) / 5:
            axes.annotate(f"lr × {drops[x]:g}", (x, 1), xycoords=("data", "axes fraction"),
                          ha="center", va="bottom", fontsize=8, color=GREY)  # fmt: skip
            end = x


def time_chart(cells: Sequence[RunCell], view: CurveView, cell_looks: Mapping[str, Look]) -> Chart:
    """The metric over wall time, for tasks that count steps: a step of one may cost more."""
    with rc_context(STYLE):
        figure = Figure(figsize=SMALL, layout="constrained")
        axes = figure.subplots()
        for cell in cells:
            if times := times_of(cell, view.key):
                columns = seed_values(cell, view.key)[1]
                draw_line(axes, times, columns, cell.label, view, cell_looks[cell.label])
        if bounds := y_range(cells, view):
            axes.set_ylim(*bounds)
        label_axes(axes, "seconds", view)
    caption = (
        "Times include compilation and evaluations; runs that shared a device slowed each other."
    )
    return Chart(f"{capitalized(view.title)} by time", figure, caption)


def times_of(cell: RunCell, key: str) -> list[float]:
    """The mean time of each evaluation; none if one of them is not known."""
    times = []
    for step in seed_values(cell, key)[0]:
        seconds = [run.seconds_to(step) for run in drawn_runs(cell)]
        known = [value for value in seconds if value is not None]
        if len(known) < len(seconds):
            return []
        times.append(statistics.fmean(known))
    return times


def label_axes(axes: Axes, x: str, view: CurveView) -> None:
    if view.logarithmic:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(plain(x))
    axes.set_ylabel(plain(view.axis_title))
    axes.grid(axis="y", color=GRID)
    axes.set_axisbelow(True)


# --- over the learning rate ----------------------------------------------------------------------


def learning_rate_figure(comparison: Comparison) -> Figure:
    with rc_context(STYLE):
        figure = Figure(figsize=(6.5, 4), layout="constrained")
        draw_rates(figure.subplots(), comparison)
        title = f"{wording.title(comparison)}: after the last {comparison.unit}"
        figure.suptitle(plain(title), fontweight="bold")
    return figure


def draw_rates(axes: Axes, comparison: Comparison) -> None:
    """The metric after the last epoch by learning rate: a point per seed, a line for the means.

    A cross beside the points marks a learning rate with which no run finished, a triangle seeds
    that lie outside the axis.
    """
    sweeps = learning_rate_sweeps(comparison.cells)
    view, metric = rate_view(sweeps), metric_view(comparison.metric)
    for optimizer, look in looks({name: name for name in sweeps}).items():
        finals = view.points[optimizer]
        means = [statistics.fmean(values) for values in finals.values()]
        axes.plot([*finals], means, color=look.colour, linestyle=LINE_STYLES[look.dash],
                  label=plain(optimizer))  # fmt: skip
        for lr, values in finals.items():
            points = axes.scatter([lr] * len(values), values, color=look.colour, s=18)
            shown = ", ".join(f"{value:.4g}" for value in values)
            hover(points, f"{optimizer}, lr {lr:g}: {shown} {metric.unit}".strip())
        height = view.height.get(optimizer, 0.0)
        triangle = "^" if view.is_top else "v"
        lost = dict.fromkeys(view.unfinished[optimizer], "no run finished")
        far = {lr: ", ".join(f"{v:.4g}" for v in vs) for lr, vs in view.outside[optimizer].items()}
        for words, marker in ((lost, "x"), (far, triangle)):
            for lr, shown in words.items():
                mark = axes.scatter([lr], [height], color=look.colour, marker=marker, s=24)
                hover(mark, f"{optimizer}, lr {lr:g}: {shown}")
    ticks = sorted({lr for rates in sweeps.values() for lr in rates})
    axes.set_xscale("log")
    if len(ticks) <= TICKS:
        axes.set_xticks(ticks, [f"{lr:g}" for lr in ticks])
    else:
        axes.xaxis.set_major_locator(LogLocator(numticks=TICKS))
        axes.xaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.set_ylim(*view.bounds)
    signs = "×: no run finished" * any(view.unfinished.values())
    signs += ", " * bool(signs and any(view.outside.values()))
    signs += "triangle: outside" * any(view.outside.values())
    label_axes(axes, "learning rate" + f" ({signs})" * bool(signs), metric)
    axes.legend(frameon=False)
