"""The figure of a statement, in one style: matplotlib is needed from here on."""

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sgdf.support.palette import GREY
from sgdf.theory.result import Panel, Result

STYLE: dict[Any, Any] = {
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.7,
    "lines.markersize": 4.5,
    "legend.framealpha": 0.85,
    "legend.edgecolor": "none",
    "legend.fontsize": 8.5,
    "figure.constrained_layout.use": True,
    "svg.hashsalt": "sgdf",  # the same numbers give the same file
}
#: Signs that the font sets badly, as formulas.
FORMULAS = {
    "m̂ₜ₋₁": r"$\hat{m}_{t-1}$",
    "m̂ₜ": r"$\hat{m}_t$",
    "m̂": r"$\hat{m}$",
    "ŝ": r"$\hat{s}$",
    "ĝ": r"$\hat{g}$",
    "mₜ": r"$m_t$",
    "αₜ²": r"$\alpha_t^2$",
    "αₜ": r"$\alpha_t$",
    "ξₜ₊₁": r"$\xi_{t+1}$",
    "ξₜ": r"$\xi_t$",
    "θ₁": r"$\theta_1$",
    "θᵢ": r"$\theta_i$",
    "β₁": r"$\beta_1$",
    "β₂": r"$\beta_2$",
}
PATTERN = re.compile("|".join(map(re.escape, FORMULAS)))


def draw(panels: Sequence[Panel]) -> Figure:
    """The panels side by side."""
    with plt.rc_context(STYLE):
        figure, row = plt.subplots(1, len(panels), figsize=(4.6 * len(panels), 3.3), squeeze=False)
        for axes, panel in zip(row[0], panels, strict=True):
            draw_panel(axes, panel)
        return figure


def draw_panel(axes: Axes, panel: Panel) -> None:
    for curve in panel.curves:
        axes.plot(curve.x, curve.y, curve.style, color=curve.colour, label=sign(curve.label))
        if curve.band is not None:
            low = [y - b for y, b in zip(curve.y, curve.band, strict=True)]
            high = [y + b for y, b in zip(curve.y, curve.band, strict=True)]
            axes.fill_between(curve.x, low, high, color=curve.colour, alpha=0.18, linewidth=0)
    axes.set(title=sign(panel.title), xlabel=sign(panel.xlabel), ylabel=sign(panel.ylabel))
    if panel.logx:
        axes.set_xscale("log")
    if panel.logy:
        axes.set_yscale("log")
    if panel.ylim:
        axes.set_ylim(*panel.ylim)
    axes.legend()


def sign(text: str) -> str:
    return PATTERN.sub(lambda found: FORMULAS[found[0]], text)


def svg(panel: Panel) -> bytes:
    """One panel, for a page."""
    with plt.rc_context(STYLE):
        figure = draw([panel])
        target = io.BytesIO()
        figure.savefig(target, format="svg", metadata={"Date": None})
        plt.close(figure)
    return target.getvalue()


def save(result: Result, folder: Path) -> None:
    """The whole figure as PNG and SVG."""
    with plt.rc_context(STYLE):
        figure = draw(result.panels)
        figure.savefig(folder / f"{result.name}.png", dpi=150)
        figure.set_layout_engine("none")  # keep the layout just found: to find it takes long
        figure.savefig(folder / f"{result.name}.svg", metadata={"Date": None})
        plt.close(figure)
