"""What all charts share: a chart as the plain dictionaries that plotly draws, axes, buttons.

A `Chart` is built without plotly; `plotly.graph_objects.Figure(chart.data, chart.layout)` turns it
into a plotly figure. The page draws its buttons and legend itself: see `assets/page.js`.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sgdf_lab.report.curves import CurveView
from sgdf_lab.report.labels import visible
from sgdf_lab.support.palette import AXIS, GRID, INK, ON_DARK, PAGE_ON_DARK, PAPER

Json = dict[str, Any]


@dataclass(frozen=True)
class Chart:
    """A chart and the sentences below it."""

    name: str
    title: str
    caption: str
    data: list[Json]
    layout: Json
    height: int | None = None  # in pixels; None: what the page gives every chart


def dark_colours() -> dict[str, str]:
    """Every colour of the charts with its counterpart on a dark page."""
    bands = {translucent(light): translucent(dark) for light, dark in ON_DARK.items()}
    return ON_DARK | PAGE_ON_DARK | bands


def base_layout(y: Json, x_title: str) -> Json:
    axis = {
        "gridcolor": GRID,
        "linecolor": AXIS,
        "ticks": "outside",
        "tickcolor": AXIS,
        "zeroline": False,
        "automargin": True,
    }
    return {
        "font": {"size": 14, "color": INK},
        "paper_bgcolor": PAPER,
        "plot_bgcolor": PAPER,
        "margin": {"l": 60, "r": 16, "t": 66, "b": 48},
        "hovermode": "closest",
        "hoverlabel": {"namelength": -1, "font": {"size": 13}},
        "showlegend": True,
        "legend": {
            "orientation": "h",
            "xref": "container",
            "yref": "container",
            "y": 0,
            "yanchor": "bottom",
            "x": 0,
            "xanchor": "left",
            "itemwidth": 40,
            "font": {"size": 13},
        },
        "xaxis": axis | {"title": {"text": x_title, "standoff": 8}, "showgrid": False},
        "yaxis": axis | y,
    }


def y_axis(view: CurveView, bounds: list[float] | None) -> Json:
    name = view.title or view.key.replace("train_", "training_").replace("_", " ")
    return {
        "title": {"text": name + f",{view.unit}" * bool(view.unit), "standoff": 10},
        "type": "log" if view.logarithmic else "linear",
        "range": bounds,
        "autorange": bounds is None,
    }


def buttons(choices: Sequence[tuple[str, Json, Json]]) -> list[Json]:
    """A row of buttons; each has a label and what it changes in the traces and in the layout."""
    return [
        {
            "type": "buttons",
            "direction": "right",
            "x": 0,
            "xanchor": "left",
            "y": 1.02,
            "yanchor": "bottom",
            "pad": {"b": 18},
            "bgcolor": PAPER,
            "bordercolor": AXIS,
            "font": {"size": 13},
            "buttons": [
                {"label": label, "method": "update", "args": [traces, layout]}
                for label, traces, layout in choices
            ],
        }
    ]


def plain(text: str) -> str:
    """Escape the text: plotly would read <b> or <a href> as markup."""
    return html.escape(visible(text), quote=False)


def translucent(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.15)"
