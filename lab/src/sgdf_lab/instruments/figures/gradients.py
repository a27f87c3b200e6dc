"""Figures of gradients under a probe: distributions, norms, and the gain of every layer."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from sgdf_lab.instruments.evaluation import Array
from sgdf_lab.instruments.figures.layout import colour, dashes, legend_below, panels
from sgdf_lab.instruments.probe import ProbeRecord
from sgdf_lab.instruments.sampling import Histogram
from sgdf_lab.support import palette
from sgdf_lab.support.figures import STYLE, plain

SHOWN = 0.98  # share of the values inside the axes, for the widest distribution
BARS = 81


# --- distributions -------------------------------------------------------------------------------


def distributions(records: Mapping[str, ProbeRecord]) -> Figure:
    """A panel for each: raw and estimated gradients over the first steps, on the same axes.

    Bars are histograms, lines are kernel densities. The density axis is logarithmic.
    """
    pairs = {name: (r.raw, r.estimated) for name, r in records.items() if r.raw and r.estimated}
    if not pairs:
        raise ValueError("no record has a histogram: no first step was sampled")
    # A direction, as of Adam, is not a gradient: the axes need not fit it.
    fitted = [n for n in pairs if records[n].estimate != "direction"]
    shown = [h for name in pairs for h in pairs[name][: 2 if name in fitted else 1] if h]
    reach = max(quantile(histogram, SHOWN) for histogram in shown)
    edges = np.linspace(-reach, reach, BARS + 1)
    with rc_context(STYLE):
        figure, axes = panels(len(pairs), 3.2, 2.9)
        tops = []
        for ax, (label, (raw, estimated)) in zip(axes, pairs.items(), strict=True):
            assert raw is not None
            assert estimated is not None
            tops.append(draw_distribution(ax, raw, palette.GREY, "raw", edges))
            tops.append(draw_distribution(ax, estimated, colour(label), "estimated", edges))
            ax.set_title(plain(label), loc="left", color=colour(label))
            ax.set(yscale="log", xlim=(-reach, reach), xlabel="gradient value")
            ax.xaxis.set_major_locator(MaxNLocator(5, symmetric=True))
            ax.ticklabel_format(axis="x", style="sci", scilimits=(-2, 3))
            ax.legend(frameon=False, fontsize=8, loc="upper right")
        for ax in axes:
            ax.set(ylim=(max(tops) / 1e4, max(tops) * 60), ylabel="density")
            ax.label_outer()
        steps = {record.first for record in records.values()}
        figure.suptitle(f"Gradients over the first {' or '.join(map(str, sorted(steps)))} steps")
    return figure


def draw_distribution(ax: Axes, histogram: Histogram, shade: str, name: str, edges: Array) -> float:
    """Draw bars and a line; return the height of the tallest bar."""
    counts = np.diff(histogram.cumulative(edges))
    heights = counts / np.diff(edges) / max(histogram.total, 1)
    label = f"{name}, std {histogram.std:.2g}"
    ax.stairs(heights, edges, fill=True, color=shade, alpha=0.3)
    grid = np.linspace(edges[0], edges[-1], 401)
    ax.plot(grid, histogram.density(grid), color=shade, linewidth=1.4, label=label)
    return float(heights.max())


def quantile(histogram: Histogram, part: float) -> float:
    """The magnitude that this part of all values does not exceed."""
    sizes = histogram.edges[len(histogram.counts) // 2 + 1 :]
    inside = histogram.cumulative(sizes) - histogram.cumulative(-sizes)
    first = int(np.searchsorted(inside, part * histogram.total))
    return float(sizes[min(first, len(sizes) - 1)])


# --- over the steps ------------------------------------------------------------------------------


def norms(records: Mapping[str, ProbeRecord]) -> Figure:
    """The 2-norm of the raw and of the estimated gradient over the steps."""
    with rc_context(STYLE):
        figure, axes = panels(2, 4.2, 3.2)
        axes[1].sharey(axes[0])
        for ax, key, title in (
            (axes[0], "raw_norm", "raw gradient"),
            (axes[1], "estimated_norm", "estimated gradient"),
        ):
            for label, dash in dashes(records).items():
                record = records[label]
                steps = [row.step + 1 for row in record.rows]
                sizes = np.array([getattr(row, key) for row in record.rows], dtype=float)
                look = {"color": colour(label), "label": plain(label), "linewidth": 1.4}
                ax.plot(steps, sizes, dash, **look)
            ax.set(yscale="log", xlabel="step", title=title)
        axes[0].set_ylabel("2-norm")
        axes[0].yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes[0].yaxis.set_major_formatter("{x:g}")
        axes[0].yaxis.set_minor_formatter(NullFormatter())
        legend_below(figure, axes[0], 6)
    return figure


def gains(records: Mapping[str, ProbeRecord]) -> Figure | None:
    """The mean gain K of every layer over the steps; None if no optimizer has a filter."""
    shown = {name: r for name, r in records.items() if any(row.gain for row in r.rows)}
    if not shown:
        return None
    with rc_context(STYLE):
        layers = max(len(record.layers) for record in shown.values())
        figure, axes = panels(len(shown), 6.5, max(2.2, 0.22 * layers + 1))
        for ax, (label, record) in zip(axes, shown.items(), strict=True):
            mesh = draw_gains(ax, record)
            ax.set_title(f"{plain(label)}: gain K, mean of the layer", loc="left")
            figure.colorbar(mesh, ax=ax, pad=0.02, ticks=(0, 0.05, 0.2, 0.5, 1), label="K")
    return figure


def draw_gains(ax: Axes, record: ProbeRecord) -> Any:
    rows = [row for row in record.rows if row.gain]
    table = np.array(
        [[np.nan if layer is None else layer[0] for layer in row.gain or ()] for row in rows]
    ).T
    steps = np.array([row.step + 1 for row in rows], dtype=float)
    wide = np.diff(steps).min() if len(steps) > 1 else 1.0
    edges = np.append(steps - wide / 2, steps[-1] + wide / 2)
    norm = PowerNorm(0.5, 0, 1)  # most gains are small
    mesh = ax.pcolormesh(edges, np.arange(len(table) + 1), table, cmap="viridis", norm=norm)
    ax.set_yticks(np.arange(len(table)) + 0.5, [plain(layer["name"]) for layer in record.layers])
    ax.tick_params(axis="y", labelsize=8, length=0)
    ax.invert_yaxis()
    ax.set_xlabel("step")
    return mesh
