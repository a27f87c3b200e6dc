"""Draw the panels of a statement with matplotlib."""

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sgdf_lab.support import figures as shared
from sgdf_lab.support.palette import GREY
from sgdf_lab.theory.result import Panel, Result

STYLE: dict[Any, Any] = shared.STYLE | {
    "axes.titlesize": 10,
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
}
#: Symbols that the font renders badly, as formulas.
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
    """Draw the panels side by side."""
    with rc_context(STYLE):
        figure = Figure(figsize=(4.6 * len(panels), 3.3))
        row = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, panel in zip(row, panels, strict=True):
            draw_panel(axes, panel)
        return figure


def draw_panel(axes: Axes, panel: Panel) -> None:
    for curve in panel.curves:
        label = with_formulas(curve.label)
        axes.plot(curve.x, curve.y, curve.style, color=curve.colour, label=label)
        if curve.band is not None:
            low = [y - b for y, b in zip(curve.y, curve.band, strict=True)]
            high = [y + b for y, b in zip(curve.y, curve.band, strict=True)]
            axes.fill_between(curve.x, low, high, color=curve.colour, alpha=0.18, linewidth=0)
    axes.set_title(with_formulas(panel.title))
    axes.set(xlabel=with_formulas(panel.xlabel), ylabel=with_formulas(panel.ylabel))
    if panel.logx:
        axes.set_xscale("log")
    if panel.logy:
        axes.set_yscale("log")
    if panel.ylim:
        axes.set_ylim(*panel.ylim)
    axes.legend()


def with_formulas(label: str) -> str:
    return PATTERN.sub(lambda symbol: FORMULAS[symbol[0]], shared.plain(label))


def svg(panel: Panel) -> bytes:
    """One panel as an SVG image, to be embedded in a page."""
    figure, target = draw([panel]), io.BytesIO()
    with rc_context(STYLE):
        figure.savefig(target, format="svg", metadata={"Date": None})
    return target.getvalue()


def write(result: Result, folder: Path) -> list[Path]:
    """Write all panels of a statement as one PNG and one SVG."""
    figure = draw(result.panels)
    with rc_context(STYLE):
        figure.draw_without_rendering()
    figure.set_layout_engine("none")  # the layout is done; to compute it again would take long
    return shared.write(figure, folder / result.name)
