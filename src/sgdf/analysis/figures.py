"""Pictures of what the instruments measured, as matplotlib figures.

Each takes results by label, in one figure and on the same axes. A label begins with the name of an
optimizer, as in "sgdf" or "sgdf, seed 1", which gives it the optimizer's colour.
"""

import math
import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter

from sgdf.analysis.hessian import BELL, Spectrum
from sgdf.analysis.landscape import Surface, TrainingPath
from sgdf.support import palette
from sgdf.support.figures import STYLE, plain

DASHES = ("-", "--", ":", "-.")
SURFACE_COLOURS = "viridis"


def colour(label: str) -> str:
    return palette.colour(label.partition(",")[0].strip().lower())


def narrow(label: str, width: int = 22) -> str:
    """On as many lines as fit above a small panel; a new one begins after a comma if it can."""
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
    """Room for `count` pictures, row by row."""
    columns = columns_for(count)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(max(columns * width, 5.5), rows * height + 0.7), layout=layout)
    axes = [figure.add_subplot(rows, columns, i + 1, **kind) for i in range(count)]
    return figure, axes


# --- the Hessian ---------------------------------------------------------------------------------


def eigenvalues(spectra: Mapping[str, Spectrum]) -> Figure:
    """A histogram of the largest eigenvalues for each, with the largest and the trace in words."""
    values = np.concatenate([s.eigenvalues for s in spectra.values()])
    in_logarithms = bool(values.min() > 0 and values.max() > 30 * values.min())
    bins = edges(values, in_logarithms)
    with rc_context(STYLE):
        figure, axes = panels(len(spectra), 3.2, 2.5)
        tallest = max(np.histogram(s.eigenvalues, bins)[0].max() for s in spectra.values())
        for number, (ax, (label, found)) in enumerate(zip(axes, spectra.items(), strict=True)):
            ax.hist(found.eigenvalues, bins, color=colour(label), edgecolor="white", linewidth=0.4)
            ax.set_title(narrow(label), loc="left", color=colour(label))
            ax.set(ylim=(0, 1.45 * tallest), xlim=(bins[0], bins[-1]), xlabel="eigenvalue")
            if number % columns_for(len(axes)) == 0:
                ax.set_ylabel("number")
            ax.yaxis.set_major_locator(MaxNLocator(4, integer=True))
            if in_logarithms:
                ax.set_xscale("log")
                ax.xaxis.set_minor_formatter(NullFormatter())
            ax.text(0.98, 0.97, in_words(found), transform=ax.transAxes, ha="right", va="top")
        first = next(iter(spectra.values()))
        count = len(first.eigenvalues)
        title = f"The {count} largest eigenvalues of the Hessian"
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
        figure.supxlabel(conditions(first.images, first.mode), fontsize=8, color=palette.GREY)
    return figure


def edges(values: Any, in_logarithms: bool, count: int = 40) -> Any:
    low, high = float(values.min()), float(values.max())
    if in_logarithms:
        return np.geomspace(low / 1.05, high * 1.05, count + 1)
    low = min(low, 0.0)  # from zero on, so that lengths compare
    more = 0.03 * (high - low) or 1.0
    return np.linspace(low - (more if low < 0 else 0), high + more, count + 1)


def in_words(found: Spectrum) -> str:
    error = found.trace_standard_error
    trace = f"trace {found.trace:.4g}" + (f" ± {error:.2g}" if error else "")
    return f"{trace}\n$\\lambda_{{\\mathrm{{max}}}}$ {found.largest:.4g}"


def conditions(images: int, mode: str) -> str:
    return f"mean loss over {images} images; {mode}"


def density(spectra: Mapping[str, Spectrum]) -> Figure:
    """The density of all eigenvalues, on a logarithmic scale: most at zero, few far beyond."""
    with rc_context(STYLE):
        figure, (ax,) = panels(1, 7, 3.8)
        for label, found, dash in dashed(spectra):
            if found.grid is None or found.density is None:
                raise ValueError(f"{label} was measured without its density")
            # A hundredth of the height that one eigenvalue alone has is nothing.
            one = 1 / found.parameters / (BELL * np.ptp(found.grid))
            seen = np.where(found.density > 0.01 * one, found.density, np.nan)
            ax.plot(found.grid, seen, dash, color=colour(label), lw=1.2, label=plain(label))
        largest = [found.largest for found in spectra.values()]
        if max(largest) > 10 * min(largest) > 0:  # equal steps near zero, equal ratios beyond
            ax.set_xscale("symlog", linthresh=10.0 ** math.floor(math.log10(min(largest))))
        ax.set(yscale="log", xlabel="eigenvalue", ylabel="density")
        ax.axvline(0, color=palette.GREY, lw=0.6, zorder=0)
        ax.legend(frameon=False)
        ax.set_title("Density of the Hessian's eigenvalues", loc="left")
        first = next(iter(spectra.values()))
        figure.supxlabel(conditions(first.images, first.mode), fontsize=8, color=palette.GREY)
    return figure


def dashed(results: Mapping[str, Any]) -> list[tuple[str, Any, str]]:
    """With a line style that tells results of one colour apart."""
    seen: dict[str, int] = {}
    lines = []
    for label, result in results.items():
        number = seen.setdefault(colour(label), 0)
        seen[colour(label)] += 1
        lines.append((label, result, DASHES[number % len(DASHES)]))
    return lines


# --- the landscape -------------------------------------------------------------------------------


def profiles(surfaces: Mapping[str, Surface]) -> Figure:
    """The loss along a line for each, in one picture."""
    with rc_context(STYLE):
        figure, (ax,) = panels(1, 7.5, 3.8)
        for label, found, dash in dashed(surfaces):
            values = np.where(np.isfinite(found.values), found.values, np.nan)
            ax.plot(found.axes[0], values, dash, color=colour(label), label=plain(label))
        if spread(surfaces) > 30:
            ax.set_yscale("log")
        ax.set(xlabel="step, in units of the weights' own size", ylabel="loss")
        ax.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
        ax.set_title("Loss along a random direction", loc="left")
        under(figure, surfaces)
    return figure


def contours(surfaces: Mapping[str, Surface]) -> Figure:
    """The loss in a plane for each, as lines of equal height at the same heights."""
    norm, levels = heights(surfaces)
    with rc_context(STYLE):
        figure, axes = panels(len(surfaces), 3.4, 2.9, aspect="equal", adjustable="box")
        for ax, (label, found) in zip(axes, surfaces.items(), strict=True):
            filled = draw_contours(ax, found, norm, levels)
            ax.plot(0, 0, "+", color="white", markersize=9, markeredgewidth=1.5)
            ax.set_title(narrow(label), loc="left", color=colour(label))
            ax.set(xlabel="second direction", ylabel="first direction")
        bar(figure, filled, axes, norm)
        under(figure, surfaces)
    return figure


def path_contours(found: Surface, path: TrainingPath, label: str = "path") -> Figure:
    """The way of a training over the loss in its principal plane."""
    norm, levels = heights({label: found})
    with rc_context(STYLE):
        figure, (ax,) = panels(1, 6, 4.5)
        filled = draw_contours(ax, found, norm, levels)
        across, up = path.points[:, 1], path.points[:, 0]
        ax.plot(across, up, "-", color="white", lw=3.5)
        ax.plot(across, up, "o-", color=colour(label), ms=4, mec="white", mew=0.6, lw=1.8)
        ax.plot(0, 0, "*", color=colour(label), ms=13, mec="white", label="the end")
        first, second = (f"{100 * part:.0f} %" for part in path.explained)
        ax.set(ylabel=f"first principal direction ({first} of the squared distance)")
        ax.set(xlabel=f"second principal direction ({second})")
        ax.set_title(narrow(label), loc="left", color=colour(label))
        bar(figure, filled, [ax], norm)
        under(figure, {label: found})
    return figure


def relief(surfaces: Mapping[str, Surface]) -> Figure:
    """The loss in a plane for each, in three dimensions and at the same scale."""
    norm, levels = heights(surfaces)
    in_logarithms = isinstance(norm, LogNorm)
    low, high = levels[0], levels[-1]
    with rc_context(STYLE):
        # The automatic layout takes no account of what lies outside a box in perspective.
        figure, axes = panels(len(surfaces), 3.8, 3.4, layout=None, projection="3d")
        for ax, (label, found) in zip(axes, surfaces.items(), strict=True):
            height = np.clip(np.nan_to_num(found.values, nan=high, posinf=high), low, high)
            x, y = np.meshgrid(found.axes[1], found.axes[0])
            z = np.log10(height) if in_logarithms else height
            limits = (math.log10(low), math.log10(high)) if in_logarithms else (low, high)
            ax.plot_surface(
                *(x, y, z), cmap=SURFACE_COLOURS, vmin=limits[0], vmax=limits[1], rstride=1,
                cstride=1, linewidth=0.15, edgecolor=(1, 1, 1, 0.25), antialiased=True,
            )  # fmt: skip
            ax.set_zlim(*limits)
            powers = in_logarithms and math.floor(limits[1]) > math.ceil(limits[0])
            ax.zaxis.set_major_locator(MaxNLocator(4, integer=powers))
            if in_logarithms:
                ax.zaxis.set_major_formatter(lambda power, _: f"{10**power:.2g}")
            ax.set_title(narrow(label), color=colour(label), y=0.97)
            ax.set(xlabel="second direction", ylabel="first direction", zlabel="loss")
            ax.view_init(elev=32, azim=-58)
            ax.set_box_aspect(None, zoom=0.9)  # the label of the height needs room
        figure.subplots_adjust(0.0, 0.08, 0.97, 0.93, wspace=0.05, hspace=0.2)
        under(figure, surfaces)
    return figure


def draw_contours(ax: Axes, found: Surface, norm: Normalize, levels: Any) -> Any:
    if found.values.ndim != 2 or min(found.values.shape) < 2:
        raise ValueError("contours need a surface of two dimensions, and of size 2 or more")
    values = np.clip(np.nan_to_num(found.values, nan=np.inf), levels[0], levels[-1])
    place = found.axes[1], found.axes[0]
    filled = ax.contourf(*place, values, levels, norm=norm, cmap=SURFACE_COLOURS)
    ax.contour(*place, values, levels[::2], colors="white", linewidths=0.5, alpha=0.7)
    return filled


def bar(figure: Figure, filled: Any, axes: list[Axes], norm: Normalize) -> None:
    shown = figure.colorbar(filled, ax=axes, label="loss", format="%.3g", shrink=0.85)
    assert norm.vmin is not None
    assert norm.vmax is not None
    if isinstance(norm, LogNorm):  # 1, 2 and 5 are read more easily than equal parts of the range
        decades = 10.0 ** np.arange(math.floor(math.log10(norm.vmin)), math.log10(norm.vmax) + 1)
        round_ones = np.outer(decades, (1, 2, 5) if len(decades) < 5 else (1,)).ravel()
        shown.set_ticks(list(round_ones[(round_ones >= norm.vmin) & (round_ones <= norm.vmax)]))


def finite(surfaces: Mapping[str, Surface]) -> Any:
    values = np.concatenate([s.values.ravel() for s in surfaces.values()])
    return values[np.isfinite(values)]


def spread(surfaces: Mapping[str, Surface]) -> float:
    values = finite(surfaces)
    return float(values.max() / values.min()) if values.min() > 0 else 0.0


def heights(surfaces: Mapping[str, Surface]) -> tuple[Normalize, Any]:
    """Levels that all share; in equal ratios where the loss ranges over orders of magnitude."""
    values = finite(surfaces)
    if not len(values):
        raise ValueError("no value of these surfaces is finite")
    low, high = float(values.min()), float(values.max())
    if spread(surfaces) > 30:
        return LogNorm(low, high), np.geomspace(low, high, 25)
    if high <= low:
        high = low + (abs(low) or 1.0) * 1e-3
    return Normalize(low, high), np.linspace(low, high, 25)


def under(figure: Figure, surfaces: Mapping[str, Surface]) -> None:
    first = next(iter(surfaces.values()))
    figure.supxlabel(conditions(first.images, first.mode), fontsize=8, color=palette.GREY)
