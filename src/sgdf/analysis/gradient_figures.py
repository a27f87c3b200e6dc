"""Pictures of gradients: their distributions, norms and gains, and the errors of estimators.

Each takes results by label; a label begins with the name of an optimizer, which gives it its
colour, as in `sgdf.analysis.figures`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from sgdf.analysis.estimators import EstimatorErrors
from sgdf.analysis.figures import DASHES, colour, panels
from sgdf.analysis.gradients import Array, Histogram, Record
from sgdf.support import palette
from sgdf.support.figures import STYLE, plain

SHOWN = 0.98  # of the values lie inside the axes of the widest panel
BARS = 81
FAR_AWAY = ("g", "sgd-cm")  # from the average, as estimators
PARTS = {"bias2": "squared bias", "variance": "variance", "mse": "mean squared error"}
LOOKS = {  # of the estimators: name, colour, dash
    "g": ("g, raw", palette.BLACK, "-"),
    "sgd-cm": ("SGD-CM", palette.colour("sgd-cm"), "-"),
    "sgd-ema": ("SGD-EMA = (1 - β) SGD-CM", palette.colour("sgd-ema"), "-"),
    "ema": ("EMA, bias-corrected", palette.BLUE, "--"),
    "sgdf": ("SGDF (2K)", palette.colour("sgdf"), "-"),
    "sgdf-k": ("SGDF with K", palette.ORANGE, "--"),
    "sgdf-root": ("SGDF with √K", palette.BROWN, ":"),
}


# --- distributions -------------------------------------------------------------------------------


def distributions(records: Mapping[str, Record]) -> Figure:
    """A panel for each: raw and estimated gradients over the first steps, on the same axes.

    Bars count, lines are kernel densities. The density is on a logarithmic axis.
    """
    pairs = {name: (r.raw, r.estimated) for name, r in records.items() if r.raw and r.estimated}
    if not pairs:
        raise ValueError("no record has a histogram: none saw one of its first steps")
    # A direction, as of Adam, is no gradient: it does not decide on the axes.
    alike = [n for n in pairs if records[n].estimate != "direction"]
    shown = [h for name in pairs for h in pairs[name][: 2 if name in alike else 1] if h is not None]
    reach = max(quantile(histogram, SHOWN) for histogram in shown)
    edges = np.linspace(-reach, reach, BARS + 1)
    with rc_context(STYLE):
        figure, axes = panels(len(pairs), 3.2, 2.9)
        tops = []
        for ax, (label, (raw, estimated)) in zip(axes, pairs.items(), strict=True):
            assert raw is not None
            assert estimated is not None
            tops.append(panel(ax, raw, palette.GREY, "raw", edges))
            tops.append(panel(ax, estimated, colour(label), "estimated", edges))
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


def panel(ax: Axes, histogram: Histogram, shade: str, name: str, edges: Array) -> float:
    """Bars and a line; the height of the tallest bar."""
    counts = np.diff(histogram.cumulative(edges))
    heights = counts / np.diff(edges) / max(histogram.total, 1)
    label = f"{name}, std {histogram.std:.2g}"
    ax.stairs(heights, edges, fill=True, color=shade, alpha=0.3)
    grid = np.linspace(edges[0], edges[-1], 401)
    ax.plot(grid, histogram.density(grid), color=shade, linewidth=1.4, label=label)
    return float(heights.max())


def quantile(histogram: Histogram, part: float) -> float:
    """The size that this part of all values does not exceed."""
    sizes = histogram.edges[len(histogram.counts) // 2 + 1 :]
    inside = histogram.cumulative(sizes) - histogram.cumulative(-sizes)
    first = int(np.searchsorted(inside, part * histogram.total))
    return float(sizes[min(first, len(sizes) - 1)])


# --- over the steps ------------------------------------------------------------------------------


def norms(records: Mapping[str, Record]) -> Figure:
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
        figure.legend(*axes[0].get_legend_handles_labels(), ncols=6, loc="outside lower center",
                      frameon=False)  # fmt: skip
    return figure


def dashes(labels: Iterable[str]) -> dict[str, str]:
    """A dash for each, so that no two of one colour look the same."""
    found: dict[str, str] = {}
    for label in labels:
        used = [dash for other, dash in found.items() if colour(other) == colour(label)]
        found[label] = DASHES[len(used) % len(DASHES)]
    return found


def gains(records: Mapping[str, Record]) -> Figure | None:
    """The mean gain K of every layer over the steps; None where no optimizer has a filter."""
    shown = {name: r for name, r in records.items() if any(row.gain for row in r.rows)}
    if not shown:
        return None
    with rc_context(STYLE):
        layers = max(len(record.layers) for record in shown.values())
        figure, axes = panels(len(shown), 6.5, max(2.2, 0.22 * layers + 1))
        for ax, (label, record) in zip(axes, shown.items(), strict=True):
            mesh = gain_panel(ax, record)
            ax.set_title(f"{plain(label)}: gain K, mean of the layer", loc="left")
            figure.colorbar(mesh, ax=ax, pad=0.02, ticks=(0, 0.05, 0.2, 0.5, 1), label="K")
    return figure


def gain_panel(ax: Axes, record: Record) -> Any:
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


# --- errors --------------------------------------------------------------------------------------


def errors(found: EstimatorErrors) -> Figure:
    """Squared bias, variance, their sum, and that sum against the moving average's.

    Bands are standard errors; lines break where a number cannot be told from 0. The grey line is
    the signal, the error of estimating 0.
    """
    steps = [m.step for m in found.measurements]
    names = list(found.measurements[0].errors)
    with rc_context(STYLE):
        figure, axes = panels(4 if "ema" in names else 3, 3.1, 3.6)
        for ax, (part, title) in zip(axes[:3], PARTS.items(), strict=True):
            for name in names:
                draw(ax, found, name, part)
            ax.plot(steps, [m.signal for m in found.measurements], color=palette.GREY, linewidth=5,
                    alpha=0.3, zorder=0, label="|g*|², the signal")  # fmt: skip
            ax.set(yscale="log", xlabel="step", title=title, ylim=bounds(found))
            ax.label_outer()
        axes[0].set_ylabel("mean over coordinates")
        if "ema" in names:
            against_average(axes[-1], found)
        figure.legend(*axes[0].get_legend_handles_labels(), ncols=4, loc="outside lower center",
                      frameon=False, fontsize=9)  # fmt: skip
        figure.suptitle(
            f"Estimates of the gradient along {found.optimizer}, batch {found.batch} of "
            f"{found.images} images"
        )
    return figure


def errors_by_epoch(found: Mapping[int, EstimatorErrors]) -> Figure:
    """The errors at several moments of a training, each summed over its steps but the first.

    The axes go down to the smallest variance: a squared bias far below is none that was seen.
    """
    first = next(iter(found.values()))
    epochs, names = sorted(found), list(first.measurements[0].errors)

    def share(name: str, part: str, epoch: int) -> float:
        return found[epoch].share(name, part, found[epoch].after_the_first)

    low = min(share(name, "variance", epoch) for name in names for epoch in epochs) / 2
    with rc_context(STYLE):
        figure, axes = panels(4 if "ema" in names else 3, 3.1, 3.6)
        for ax in axes[1:3]:
            ax.sharey(axes[0])
        for ax, (part, title) in zip(axes[:3], PARTS.items(), strict=True):
            for name in names:
                label, shade, dash = LOOKS[name]
                shares = [share(name, part, epoch) for epoch in epochs]
                seen = [value if value > low else np.nan for value in shares]
                ax.plot(epochs, seen, dash, color=shade, marker="o", ms=3.5, lw=1.5, label=label)
            ax.axhline(1, color=palette.GREY, linewidth=5, alpha=0.3, zorder=0, label="the signal")
            ax.set(yscale="log", xlabel="epoch", title=title)
            ax.label_outer()
        axes[0].set_ylabel("over the signal |g*|²")
        for name in names if "ema" in names else ():
            if name in FAR_AWAY:
                continue
            _, shade, dash = LOOKS[name]
            ratios = [found[e].ratio(name, since=found[e].after_the_first) for e in epochs]
            axes[3].errorbar(
                epochs, [r.value for r in ratios], [2 * r.error for r in ratios],
                color=shade, linestyle=dash, marker="o", ms=3.5, lw=1.5, capsize=2,
            )  # fmt: skip
            axes[3].set(xlabel="epoch", title="error / EMA's (± 2 se)")
        figure.legend(*axes[0].get_legend_handles_labels(), ncols=4, loc="outside lower center",
                      frameon=False, fontsize=9)  # fmt: skip
        figure.suptitle(
            f"Estimates of the gradient along {first.optimizer}, batch {first.batch} of "
            f"{first.images} images, from several epochs on"
        )
    return figure


def bounds(found: EstimatorErrors) -> tuple[float, float]:
    """Of the axes: down to the smallest variance, unless some estimator has none."""
    errors = [error for m in found.measurements for error in m.errors.values()]
    high = max(error.mse.value for error in errors) * 2
    return max(min(error.variance.value for error in errors) / 2, high / 1e7), high


def against_average(ax: Axes, found: EstimatorErrors) -> None:
    """Mean squared errors over the bias-corrected average's, as near 1 as the filter's are."""
    steps = [m.step for m in found.measurements]
    reach = 1.05
    for name in found.measurements[0].errors:
        if name in FAR_AWAY:
            continue
        _, shade, dash = LOOKS[name]
        ratios = [m.errors[name].mse.value / m.errors["ema"].mse.value for m in found.measurements]
        ax.plot(steps, ratios, dash, color=shade, linewidth=1.5)
        if name.startswith("sgdf"):
            reach = max(reach, *ratios, *(1 / ratio for ratio in ratios))
    ends = reach**-1.1, reach**1.1  # twice the error is as far from the average's as half of it
    ax.set(yscale="log", ylim=ends, xlabel="step", title="error / EMA's")
    ticks = np.geomspace(1 / reach, reach, 5)
    ax.set_yticks(ticks, [f"{tick:.2g}" for tick in ticks])
    ax.minorticks_off()


def draw(ax: Axes, found: EstimatorErrors, name: str, part: str) -> None:
    """A line, broken where the number cannot be told from 0: within two standard errors of it."""
    label, shade, dash = LOOKS[name]
    values = [getattr(m.errors[name], part) for m in found.measurements]
    middle = np.array([v.value if v.value > 2 * v.error else np.nan for v in values])
    spread = np.array([v.error for v in values])
    steps = [m.step for m in found.measurements]
    ax.plot(steps, middle, dash, color=shade, label=label, linewidth=1.5)
    ax.fill_between(steps, middle - spread, middle + spread, color=shade, alpha=0.15, linewidth=0)
