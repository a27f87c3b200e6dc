"""Figures of loss landscapes and of the path of a training."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sgdf_lab.instruments.figures.layout import colour, dashes, narrow, panels, state_conditions
from sgdf_lab.instruments.landscape import Surface, TrainingPath
from sgdf_lab.support.figures import STYLE, plain

COLOUR_MAP = "viridis"


def profiles(surfaces: Mapping[str, Surface]) -> Figure:
    """The loss along a line for each, in one panel."""
    with rc_context(STYLE):
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
        first = next(iter(surfaces.values()))
        state_conditions(figure, first.images, first.mode)
    return figure


def contours(surfaces: Mapping[str, Surface]) -> Figure:
    """The loss in a plane for each, as contour lines at the same levels."""
    norm, levels = shared_levels(surfaces)
    with rc_context(STYLE):
        figure, axes = panels(len(surfaces), 3.4, 2.9, aspect="equal", adjustable="box")
        for ax, (label, surface) in zip(axes, surfaces.items(), strict=True):
            filled = draw_contours(ax, surface, norm, levels)
            ax.plot(0, 0, "+", color="white", markersize=9, markeredgewidth=1.5)
            ax.set_title(narrow(label), loc="left", color=colour(label))
            ax.set(xlabel="second direction", ylabel="first direction")
        add_colour_bar(figure, filled, axes, norm)
        first = next(iter(surfaces.values()))
        state_conditions(figure, first.images, first.mode)
    return figure


def path_contours(surface: Surface, path: TrainingPath, label: str = "path") -> Figure:
    """The path of a training over the loss in its principal plane."""
    norm, levels = shared_levels({label: surface})
    with rc_context(STYLE):
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
        state_conditions(figure, surface.images, surface.mode)
    return figure


def relief(surfaces: Mapping[str, Surface]) -> Figure:
    """The loss in a plane for each, in three dimensions and on the same scale."""
    norm, levels = shared_levels(surfaces)
    logarithmic = isinstance(norm, LogNorm)
    low, high = levels[0], levels[-1]
    with rc_context(STYLE):
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
        first = next(iter(surfaces.values()))
        state_conditions(figure, first.images, first.mode)
    return figure


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
