"""Figures of what the instruments measured, drawn with matplotlib.

Each takes results by label and shows them in one figure, on the same axes. A label begins with the
name of an optimizer, as in "sgdf" or "sgdf, seed 1", which gives it the optimizer's colour.
"""

import math
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from sgdf_lab import optimizers
from sgdf_lab.instruments.estimators import EstimatorErrors
from sgdf_lab.instruments.evaluation import Array
from sgdf_lab.instruments.hessian import KERNEL_WIDTH, Spectrum
from sgdf_lab.instruments.landscape import Surface, TrainingPath
from sgdf_lab.instruments.probe import ProbeRecord
from sgdf_lab.instruments.sampling import Histogram
from sgdf_lab.support import palette
from sgdf_lab.support.figures import STYLE, plain, write

__all__ = [
    "contours",
    "density",
    "distributions",
    "eigenvalues",
    "errors_by_epoch",
    "errors_by_step",
    "gains",
    "norms",
    "path_contours",
    "profiles",
    "relief",
    "write",
]

# --- panels, colours, line styles and labels ------------------------------------------------------

DASHES = ("-", "--", ":", "-.")


def colour(label: str) -> str:
    """The colour of the optimizer that the label begins with."""
    return optimizers.style(label.partition(",")[0].strip().lower()).colour


def dashes(labels: Iterable[str]) -> dict[str, str]:
    """A line style for each label, different for labels of the same colour."""
    styles: dict[str, str] = {}
    for label in labels:
        used = [dash for other, dash in styles.items() if colour(other) == colour(label)]
        styles[label] = DASHES[len(used) % len(DASHES)]
    return styles


def narrow(label: str, width: int = 22) -> str:
    """The label in lines that fit above a small panel, broken after commas if possible."""
    lines: list[str] = []
    for part in label.split(", "):
        if lines and len(lines[-1]) + len(part) + 2 <= width:
            lines[-1] += f", {part}"
        else:
            lines.append(part)
    return plain(",\n".join(textwrap.fill(line, width) for line in lines))


def columns_for(count: int) -> int:
    return count if count <= 3 else math.ceil(count / math.ceil(count / 4))


def panels(
    count: int, width: float, height: float, layout: Any = "constrained", **kind: Any
) -> tuple[Figure, list[Any]]:
    """A figure with `count` panels, row by row."""
    columns = columns_for(count)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(max(columns * width, 5.5), rows * height + 0.7), layout=layout)
    axes = [figure.add_subplot(rows, columns, i + 1, **kind) for i in range(count)]
    return figure, axes


def state_conditions(figure: Figure, results: Mapping[str, Spectrum | Surface]) -> Figure:
    """Say below the figure how its losses were evaluated."""
    first = next(iter(results.values()))
    conditions = f"mean loss over {first.images} images; {first.mode}"
    figure.supxlabel(conditions, fontsize=8, color=palette.GREY)
    return figure


def legend_below(figure: Figure, axes: Any, columns: int, **text: Any) -> None:
    handles = axes.get_legend_handles_labels()
    figure.legend(*handles, ncols=columns, loc="outside lower center", frameon=False, **text)


# --- Hessian spectra ------------------------------------------------------------------------------


@rc_context(STYLE)
def eigenvalues(spectra: Mapping[str, Spectrum]) -> Figure:
    """A histogram of the largest eigenvalues for each, with the largest and the trace as text."""
    values = np.concatenate([s.eigenvalues for s in spectra.values()])
    logarithmic = bool(values.min() > 0 and values.max() > 30 * values.min())
    bins = bin_edges(values, logarithmic)
    figure, axes = panels(len(spectra), 3.2, 2.5)
    tallest = max(np.histogram(s.eigenvalues, bins)[0].max() for s in spectra.values())
    for number, (ax, (label, spectrum)) in enumerate(zip(axes, spectra.items(), strict=True)):
        ax.hist(spectrum.eigenvalues, bins, color=colour(label), edgecolor="white", linewidth=0.4)
        ax.set_title(narrow(label), loc="left", color=colour(label))
        ax.set(ylim=(0, 1.45 * tallest), xlim=(bins[0], bins[-1]), xlabel="eigenvalue")
        if number % columns_for(len(axes)) == 0:
            ax.set_ylabel("number")
        ax.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        if logarithmic:
            ax.set_xscale("log")
            ax.xaxis.set_minor_formatter(NullFormatter())
        ax.text(0.98, 0.97, caption(spectrum), transform=ax.transAxes, ha="right", va="top")
    count = len(next(iter(spectra.values())).eigenvalues)
    title = f"The {count} largest eigenvalues of the Hessian"
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    return state_conditions(figure, spectra)


def bin_edges(values: Any, logarithmic: bool, count: int = 40) -> Any:
    low, high = float(values.min()), float(values.max())
    if logarithmic:
        return np.geomspace(low / 1.05, high * 1.05, count + 1)
    low = min(low, 0.0)  # from zero on, so that lengths compare
    more = 0.03 * (high - low) or 1.0
    return np.linspace(low - (more if low < 0 else 0), high + more, count + 1)


def caption(spectrum: Spectrum) -> str:
    error = spectrum.trace_standard_error
    trace = f"trace {spectrum.trace:.4g}" + (f" ± {error:.2g}" if error else "")
    return f"{trace}\n$\\lambda_{{\\mathrm{{max}}}}$ {spectrum.largest:.4g}"


@rc_context(STYLE)
def density(spectra: Mapping[str, Spectrum]) -> Figure:
    """The density of all eigenvalues on a logarithmic scale: most are near zero, few far away."""
    figure, (ax,) = panels(1, 7, 3.8)
    for label, dash in dashes(spectra).items():
        spectrum = spectra[label]
        if spectrum.grid is None or spectrum.density is None:
            raise ValueError(f"{label} was measured without its density")
        # Nothing is drawn below a hundredth of the height of a single eigenvalue.
        one = 1 / spectrum.parameters / (KERNEL_WIDTH * np.ptp(spectrum.grid))
        seen = np.where(spectrum.density > 0.01 * one, spectrum.density, np.nan)
        ax.plot(spectrum.grid, seen, dash, color=colour(label), lw=1.2, label=plain(label))
    largest = [spectrum.largest for spectrum in spectra.values()]
    if max(largest) > 10 * min(largest) > 0:  # linear near zero
        ax.set_xscale("symlog", linthresh=10.0 ** math.floor(math.log10(min(largest))))
    ax.set(yscale="log", xlabel="eigenvalue", ylabel="density")
    ax.axvline(0, color=palette.GREY, lw=0.6, zorder=0)
    ax.legend(frameon=False)
    ax.set_title("Density of the Hessian's eigenvalues", loc="left")
    return state_conditions(figure, spectra)


# --- loss landscapes, and the path of a run -------------------------------------------------------

COLOUR_MAP = "viridis"


@rc_context(STYLE)
def profiles(surfaces: Mapping[str, Surface]) -> Figure:
    """The loss along a line for each, in one panel."""
    figure, (ax,) = panels(1, 7.5, 3.8)
    for label, dash in dashes(surfaces).items():
        surface = surfaces[label]
        values = np.where(np.isfinite(surface.values), surface.values, np.nan)
        ax.plot(surface.axes[0], values, dash, color=colour(label), label=plain(label))
    if ratio_of_extremes(surfaces) > 30:
        ax.set_yscale("log")
    ax.set(xlabel="step, in units of the weights' own size", ylabel="loss")
    ax.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    ax.set_title("Loss along a random direction", loc="left")
    return state_conditions(figure, surfaces)


@rc_context(STYLE)
def contours(surfaces: Mapping[str, Surface]) -> Figure:
    """The loss in a plane for each, as contour lines at the same levels."""
    norm, levels = shared_levels(surfaces)
    figure, axes = panels(len(surfaces), 3.4, 2.9, aspect="equal", adjustable="box")
    for ax, (label, surface) in zip(axes, surfaces.items(), strict=True):
        filled = draw_contours(ax, surface, norm, levels)
        ax.plot(0, 0, "+", color="white", markersize=9, markeredgewidth=1.5)
        ax.set_title(narrow(label), loc="left", color=colour(label))
        ax.set(xlabel="second direction", ylabel="first direction")
    add_colour_bar(figure, filled, axes, norm)
    return state_conditions(figure, surfaces)


@rc_context(STYLE)
def path_contours(surface: Surface, path: TrainingPath, label: str = "path") -> Figure:
    """The path of a run over the loss in its principal plane."""
    norm, levels = shared_levels({label: surface})
    figure, (ax,) = panels(1, 6, 4.5)
    filled = draw_contours(ax, surface, norm, levels)
    across, up = path.points[:, 1], path.points[:, 0]
    ax.plot(across, up, "-", color="white", lw=3.5)
    ax.plot(across, up, "o-", color=colour(label), ms=4, mec="white", mew=0.6, lw=1.8)
    ax.plot(0, 0, "*", color=colour(label), ms=13, mec="white", label="the end")
    first, second = (f"{100 * part:.0f} %" for part in path.explained)
    ax.set(ylabel=f"first principal direction ({first} of the squared distance)")
    ax.set(xlabel=f"second principal direction ({second})")
    ax.set_title(narrow(label), loc="left", color=colour(label))
    add_colour_bar(figure, filled, [ax], norm)
    return state_conditions(figure, {label: surface})


@rc_context(STYLE)
def relief(surfaces: Mapping[str, Surface]) -> Figure:
    """The loss in a plane for each, in three dimensions and on the same scale."""
    norm, levels = shared_levels(surfaces)
    logarithmic = isinstance(norm, LogNorm)
    low, high = levels[0], levels[-1]
    # The automatic layout ignores the axis labels of a box in perspective.
    figure, axes = panels(len(surfaces), 3.8, 3.4, layout=None, projection="3d")
    for ax, (label, surface) in zip(axes, surfaces.items(), strict=True):
        height = np.clip(np.nan_to_num(surface.values, nan=high, posinf=high), low, high)
        x, y = np.meshgrid(surface.axes[1], surface.axes[0])
        z = np.log10(height) if logarithmic else height
        limits = (math.log10(low), math.log10(high)) if logarithmic else (low, high)
        ax.plot_surface(
            *(x, y, z), cmap=COLOUR_MAP, vmin=limits[0], vmax=limits[1], rstride=1,
            cstride=1, linewidth=0.15, edgecolor=(1, 1, 1, 0.25), antialiased=True,
        )  # fmt: skip
        ax.set_zlim(*limits)
        powers = logarithmic and math.floor(limits[1]) > math.ceil(limits[0])
        ax.zaxis.set_major_locator(MaxNLocator(4, integer=powers))
        if logarithmic:
            ax.zaxis.set_major_formatter(lambda power, _: f"{10**power:.2g}")
        ax.set_title(narrow(label), color=colour(label), y=0.97)
        ax.set(xlabel="second direction", ylabel="first direction", zlabel="loss")
        ax.view_init(elev=32, azim=-58)
        ax.set_box_aspect(None, zoom=0.9)  # room for the z label
    figure.subplots_adjust(0.0, 0.08, 0.97, 0.93, wspace=0.05, hspace=0.2)
    return state_conditions(figure, surfaces)


def draw_contours(ax: Axes, surface: Surface, norm: Normalize, levels: Any) -> Any:
    if surface.values.ndim != 2 or min(surface.values.shape) < 2:
        raise ValueError("contours need a surface of two dimensions, and of size 2 or more")
    values = np.clip(np.nan_to_num(surface.values, nan=np.inf), levels[0], levels[-1])
    place = surface.axes[1], surface.axes[0]
    filled = ax.contourf(*place, values, levels, norm=norm, cmap=COLOUR_MAP)
    ax.contour(*place, values, levels[::2], colors="white", linewidths=0.5, alpha=0.7)
    return filled


def add_colour_bar(figure: Figure, filled: Any, axes: list[Axes], norm: Normalize) -> None:
    shown = figure.colorbar(filled, ax=axes, label="loss", format="%.3g", shrink=0.85)
    assert norm.vmin is not None
    assert norm.vmax is not None
    if isinstance(norm, LogNorm):  # round ticks
        decades = 10.0 ** np.arange(math.floor(math.log10(norm.vmin)), math.log10(norm.vmax) + 1)
        ticks = np.outer(decades, (1, 2, 5) if len(decades) < 5 else (1,)).ravel()
        shown.set_ticks(list(ticks[(ticks >= norm.vmin) & (ticks <= norm.vmax)]))


def finite_values(surfaces: Mapping[str, Surface]) -> Any:
    values = np.concatenate([s.values.ravel() for s in surfaces.values()])
    return values[np.isfinite(values)]


def ratio_of_extremes(surfaces: Mapping[str, Surface]) -> float:
    values = finite_values(surfaces)
    return float(values.max() / values.min()) if values.min() > 0 else 0.0


def shared_levels(surfaces: Mapping[str, Surface]) -> tuple[Normalize, Any]:
    """Levels for all surfaces; logarithmic if the loss ranges over orders of magnitude."""
    values = finite_values(surfaces)
    if not len(values):
        raise ValueError("no value of these surfaces is finite")
    low, high = float(values.min()), float(values.max())
    if ratio_of_extremes(surfaces) > 30:
        return LogNorm(low, high), np.geomspace(low, high, 25)
    if high <= low:
        high = low + (abs(low) or 1.0) * 1e-3
    return Normalize(low, high), np.linspace(low, high, 25)


# --- gradients under a probe: distributions, norms, gains of layers -------------------------------

SHOWN = 0.98  # share of the values inside the axes, for the widest distribution
BARS = 81


# --- distributions -------------------------------------------------------------------------------


@rc_context(STYLE)
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


@rc_context(STYLE)
def norms(records: Mapping[str, ProbeRecord]) -> Figure:
    """The 2-norm of the raw and of the estimated gradient over the steps."""
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


@rc_context(STYLE)
def gains(records: Mapping[str, ProbeRecord]) -> Figure | None:
    """The mean gain K of every layer over the steps; None if no optimizer has a filter."""
    shown = {name: r for name, r in records.items() if any(row.gain for row in r.rows)}
    if not shown:
        return None
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


# --- errors of gradient estimates ----------------------------------------------------------------

PARTS = {"bias2": "squared bias", "variance": "variance", "mse": "mean squared error"}
NOT_COMPARED = ("g", "sgd-cm")  # with the average: their errors are far larger
ESTIMATOR_LOOKS = {  # of the estimators: label, colour, dash
    "g": ("g, raw", palette.BLACK, "-"),
    "sgd-cm": ("SGD-CM", palette.SKY, "-"),
    "sgd-ema": ("SGD-EMA = (1 - β) SGD-CM", palette.PURPLE, "-"),
    "ema": ("EMA, bias-corrected", palette.BLUE, "--"),
    "sgdf": ("SGDF (2K)", palette.VERMILION, "-"),
    "sgdf-k": ("SGDF with K", palette.ORANGE, "--"),
    "sgdf-root": ("SGDF with √K", palette.BROWN, ":"),
}
SIGNAL: dict[str, Any] = {"color": palette.GREY, "linewidth": 5, "alpha": 0.3, "zorder": 0}


@rc_context(STYLE)
def errors_by_step(errors: EstimatorErrors) -> Figure:
    """Squared bias, variance, their sum, and that sum relative to the moving average's.

    Bands are standard errors. Lines break where a value is within two standard errors of 0. The
    grey line is the signal: the error of estimating 0.
    """
    figure, axes, names, compared = error_panels(errors)
    steps = [m.step for m in errors.measurements]
    parts = [part for m in errors.measurements for part in m.errors.values()]
    high = 2 * max(part.mse.value for part in parts)
    # Down to the smallest variance, but at most seven orders of magnitude.
    ends = max(min(part.variance.value for part in parts) / 2, high / 1e7), high
    for ax, (part, title) in zip(axes[:3], PARTS.items(), strict=True):
        for name in names:
            label, shade, dash = ESTIMATOR_LOOKS[name]
            values = [getattr(m.errors[name], part) for m in errors.measurements]
            middle = np.array([v.value if v.value > 2 * v.error else np.nan for v in values])
            spread = np.array([v.error for v in values])
            ax.plot(steps, middle, dash, color=shade, label=label, linewidth=1.5)
            band = steps, middle - spread, middle + spread
            ax.fill_between(*band, color=shade, alpha=0.15, linewidth=0)
        signal = [m.signal for m in errors.measurements]
        ax.plot(steps, signal, label="|g*|², the signal", **SIGNAL)
        ax.set(yscale="log", xlabel="step", title=title, ylim=ends)
        ax.label_outer()
    axes[0].set_ylabel("mean over coordinates")
    if compared:
        draw_ratios(axes[3], errors, compared)
    legend_below(figure, axes[0], 4, fontsize=9)
    return figure


def error_panels(
    errors: EstimatorErrors, more: str = ""
) -> tuple[Figure, list[Axes], list[str], list[str]]:
    """A panel for each of the PARTS, and one more for the estimators that are compared.

    These are shown relative to the average, if that was measured. Returned with the names of all.
    """
    names = list(errors.measurements[0].errors)
    compared = [name for name in names if name not in NOT_COMPARED] if "ema" in names else []
    figure, axes = panels(4 if compared else 3, 3.1, 3.6)
    figure.suptitle(
        f"Estimates of the gradient along {errors.optimizer}, batch {errors.batch} of "
        f"{errors.images} images{more}"
    )
    return figure, axes, names, compared


def draw_ratios(ax: Axes, errors: EstimatorErrors, names: list[str]) -> None:
    """Mean squared errors relative to the average's; the axis fits those of the filter."""
    steps = [m.step for m in errors.measurements]
    reach = 1.05
    for name in names:
        _, shade, dash = ESTIMATOR_LOOKS[name]
        ratios = [m.errors[name].mse.value / m.errors["ema"].mse.value for m in errors.measurements]
        ax.plot(steps, ratios, dash, color=shade, linewidth=1.5)
        if name.startswith("sgdf"):
            reach = max(reach, *ratios, *(1 / ratio for ratio in ratios))
    ends = reach**-1.1, reach**1.1  # logarithmic: twice the error is as far from 1 as half of it
    ax.set(yscale="log", ylim=ends, xlabel="step", title="error / EMA's")
    ticks = np.geomspace(1 / reach, reach, 5)
    ax.set_yticks(ticks, [f"{tick:.2g}" for tick in ticks])
    ax.minorticks_off()


@rc_context(STYLE)
def errors_by_epoch(by_epoch: Mapping[int, EstimatorErrors]) -> Figure:
    """The errors from several epochs on, each summed over its measured steps but the first.

    The axes reach down to the smallest variance: a squared bias far below cannot be measured. The
    ratios have two standard errors.
    """
    epochs = sorted(by_epoch)
    ordered = [by_epoch[epoch] for epoch in epochs]
    figure, axes, names, compared = error_panels(
        next(iter(by_epoch.values())), ", from several epochs on"
    )

    def shares(name: str, part: str) -> list[float]:
        return [errors.share(name, part, errors.after_the_first) for errors in ordered]

    low = min(min(shares(name, "variance")) for name in names) / 2
    for ax, (part, title) in zip(axes[:3], PARTS.items(), strict=True):
        if ax is not axes[0]:
            ax.sharey(axes[0])
        for name in names:
            label, shade, dash = ESTIMATOR_LOOKS[name]
            visible = [value if value > low else np.nan for value in shares(name, part)]
            ax.plot(epochs, visible, dash, color=shade, marker="o", ms=3.5, lw=1.5, label=label)
        ax.axhline(1, label="the signal", **SIGNAL)
        ax.set(yscale="log", xlabel="epoch", title=title)
        ax.label_outer()
    axes[0].set_ylabel("over the signal |g*|²")
    for name in compared:
        _, shade, dash = ESTIMATOR_LOOKS[name]
        ratios = [errors.ratio(name, since=errors.after_the_first) for errors in ordered]
        axes[3].errorbar(
            epochs, [r.value for r in ratios], [2 * r.error for r in ratios],
            color=shade, linestyle=dash, marker="o", ms=3.5, lw=1.5, capsize=2,
        )  # fmt: skip
        axes[3].set(xlabel="epoch", title="error / EMA's (± 2 se)")
    legend_below(figure, axes[0], 4, fontsize=9)
    return figure
