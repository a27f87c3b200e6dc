"""Charts of a comparison, as the plain dictionaries that plotly draws.

A `Chart` is built without plotly; `plotly.graph_objects.Figure(chart.data, chart.layout)` turns it
into a plotly figure.
"""

import html
import statistics
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sgdf.lab.optimizers import style
from sgdf.report.cells import RunCell
from sgdf.report.curves import (
    CurveView,
    drawn_runs,
    first_epoch,
    last_epoch,
    learning_rate_sweeps,
    looks,
    metric_view,
    seed_values,
    short,
    validation_view,
    y_range,
)
from sgdf.report.labels import visible
from sgdf.report.records import RunRecord
from sgdf.support.palette import GREY, Look

Json = dict[str, Any]


@dataclass(frozen=True)
class Chart:
    """A chart and the sentences below it."""

    name: str
    title: str
    caption: str
    data: list[Json]
    layout: Json


TRAINING = CurveView("training", "train_accuracy", " %")
LOSSES = (
    CurveView("training", "train_loss", logarithmic=True),
    CurveView("test", "test_loss", logarithmic=True),
    CurveView("validation", "val_loss", logarithmic=True, title="validation loss"),
)
NORMS = (
    CurveView("gradient", "gradient_norm", logarithmic=True),
    CurveView("step direction", "direction_norm", logarithmic=True),
)


def all_charts(cells: Sequence[RunCell], set_aside: Container[str] = ()) -> list[Chart]:
    """Every chart for which these cells, of one task and model, have measurements.

    Cells with the labels `set_aside` are hidden until they are clicked in the legend.
    """
    drawn = [cell for cell in cells if drawn_runs(cell)]
    if not drawn:
        return []
    metrics = cells[0].task.metrics
    title = metrics[0].title.replace("Test accuracy", "Accuracy")
    possible: list[tuple[str, str, Sequence[CurveView]]] = [
        ("metric", title, [*map(metric_view, metrics), validation_view(metrics[0]), TRAINING]),
        ("loss", "Loss", LOSSES),
        ("norms", norms_title(cells[0]), NORMS),
    ]
    charts = []
    for name, title, views in possible:
        measured = [(view, values) for view in views if (values := all_values(drawn, view))]
        # The loss of a critic may be negative, which a logarithmic axis cannot show.
        shown = [replace(v, logarithmic=v.logarithmic and min(x) > 0) for v, x in measured]
        if shown:
            charts.append(epochs_chart(name, title, shown, drawn, set_aside))
    return charts + learning_rate_charts(cells)


def norms_title(cell: RunCell) -> str:
    which = "of an epoch" if cell.config.unit == "epoch" else "between evaluations"
    return f"Norm, mean over the steps {which}"


def all_values(cells: Sequence[RunCell], view: CurveView) -> list[float]:
    lines = (line for cell in cells for run in drawn_runs(cell) for line in run.valid_epochs)
    return [line[view.key] for line in lines if line.get(view.key) is not None]


# --- over the epochs -----------------------------------------------------------------------------


def epochs_chart(
    name: str,
    title: str,
    views: Sequence[CurveView],
    cells: Sequence[RunCell],
    set_aside: Container[str],
) -> Chart:
    """The mean of each cell as a line, the range of its seeds as a band, a button per view."""
    data: list[Json] = []
    owners: list[tuple[CurveView, bool | str]] = []  # of each trace: its view, and its visibility
    cell_looks = looks(cells, set_aside)
    for view in views:
        for cell in cells:
            traces = band_and_line(cell, view, cell_looks[cell.label])
            data += traces
            owners += [(view, "legendonly" if cell.label in set_aside else True)] * len(traces)
    axes = [y_axis(view, y_range(cells, view)) for view in views]
    choices = [
        (
            view.button,
            {"visible": [visibility if owner is view else False for owner, visibility in owners]},
            {f"yaxis.{name}": value for name, value in axis.items()},
        )
        for view, axis in zip(views, axes, strict=True)
    ]
    for trace, visibility in zip(data, choices[0][1]["visible"], strict=True):
        trace["visible"] = visibility
    layout = base_layout(axes[0], cells[0].config.unit)
    first, last = first_epoch(cells), last_epoch(cells)
    layout["xaxis"]["range"] = [first, last] if last > first else [0, 2 * last]
    layout["shapes"], layout["annotations"] = learning_rate_drops(cells)
    layout["updatemenus"] = buttons(choices) if len(choices) > 1 else []
    cropped = any(axis["range"] for axis in axes)
    caption = epochs_caption(cells, set_aside, bool(layout["shapes"]), cropped)
    return Chart(name, title, caption, data, layout)


def epochs_caption(
    cells: Sequence[RunCell], set_aside: Container[str], has_drops: bool, cropped: bool
) -> str:
    sentences = ["Mean over seeds; the band is the range from the lowest seed to the highest."]
    if has_drops:
        sentences.append("Dotted: the learning rate drops.")
    if cropped:
        first = f"The first {cells[0].config.unit}s"
        sentences.append(f"{first} may lie outside: drag to zoom, double-click to see all.")
    if any(cell.label in set_aside for cell in cells):
        sentences.append("Settings that were not chosen are hidden: click one in the legend.")
    if any(not cell.finished for cell in cells):
        sentences.append("Cells without a finished run end where the first of their runs stopped.")
    return " ".join(sentences)


def band_and_line(cell: RunCell, view: CurveView, style: Look) -> list[Json]:
    epochs, columns = seed_values(cell, view.key)
    if not epochs:
        return []
    # The legend shows the line; hiding a cell there hides both.
    shared: Json = {
        "x": epochs,
        "type": "scatter",
        "mode": "lines",
        "legendgroup": plain(cell.label),
    }
    if len(epochs) == 1:
        shared |= {"mode": "markers", "cliponaxis": False}  # the point may lie on the edge
    line = shared | {
        "y": [short(statistics.fmean(values)) for values in columns],
        "name": plain(cell.label),
        "line": {"color": style.colour, "dash": style.dash, "width": 1.8},
        "hovertemplate": f"{cell.config.unit} %{{x}}: %{{y}}{view.unit}",
    }
    if len(columns[0]) < 2:
        return [line]
    highest, lowest = ([short(of(values)) for values in columns] for of in (max, min))
    band = shared | {
        "x": epochs + epochs[::-1],
        "y": highest + lowest[::-1],
        "line": {"width": 0},
        "fill": "toself",
        "fillcolor": translucent(style.colour),
        "hoverinfo": "skip",
        "showlegend": False,
    }
    return [band, line]


def learning_rate_drops(cells: Sequence[RunCell]) -> tuple[list[Json], list[Json]]:
    """A dotted line and a label where the learning rate of a step schedule drops."""
    drops: dict[float, float] = {}
    for config in (cell.config for cell in cells):
        if config.schedule == "step" and config.drop != 1:
            reached = [m for m in config.milestones if m < config.epochs]
            drops |= {m * config.interval + 0.5: config.drop for m in reached}
    lines = [
        {
            "type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": x, "x1": x,
            "line": {"dash": "dot", "width": 1, "color": GREY},
        }
        for x in drops
    ]  # fmt: skip
    words = [
        {
            "text": f"lr × {drop:g}", "x": x, "y": 1, "yref": "paper", "xanchor": "center",
            "yanchor": "bottom", "showarrow": False, "font": {"size": 12, "color": GREY},
        }
        for x, drop in drops.items()
    ]  # fmt: skip
    return lines, words


# --- over the learning rate ----------------------------------------------------------------------

Sweeps = Mapping[str, Mapping[float, RunCell]]  # by optimizer and learning rate


def learning_rate_charts(cells: Sequence[RunCell]) -> list[Chart]:
    """The metric against the learning rate, if any optimizer ran with several."""
    sweeps = learning_rate_sweeps(cells)
    if not sweeps:
        return []
    metric = cells[0].task.metric
    unit = f" {metric.unit}".rstrip()
    views: dict[str, Callable[[RunRecord], float]] = {
        "final": lambda record: record.final,
        "best": lambda record: record.best,
    }
    data: list[Json] = []
    owners: list[str] = []
    for button, value in views.items():
        traces = rate_traces(sweeps, value, unit)
        data += [trace | {"visible": button == "final"} for trace in traces]
        owners += [button] * len(traces)
    title = metric.words + f",{unit}" * bool(unit)
    layout = base_layout({"title": {"text": title, "standoff": 10}}, "learning rate")
    ticks = sorted({lr for rates in sweeps.values() for lr in rates})
    layout["xaxis"] |= {"type": "log", "tickvals": ticks, "ticktext": [f"{lr:g}" for lr in ticks]}
    layout["updatemenus"] = buttons(
        [(button, {"visible": [owner == button for owner in owners]}, {}) for button in views]
    )
    caption = "Mean over the finished seeds, with the lowest and the highest."
    if not all(cell.finished for rates in sweeps.values() for cell in rates.values()):
        caption += " A cross at the bottom: no run finished with this learning rate."
    return [Chart("learning-rate", f"{metric.title} by learning rate", caption, data, layout)]


def rate_traces(sweeps: Sweeps, value: Callable[[RunRecord], float], unit: str) -> list[Json]:
    """Each optimizer's line, and below all points a row of crosses where no run finished."""
    points = {
        optimizer: {
            lr: [value(record) for record in cell.finished.values()] for lr, cell in rates.items()
        }
        for optimizer, rates in sweeps.items()
    }
    known = [v for rates in points.values() for values in rates.values() for v in values] or [0.0]
    step = 0.05 * (max(known) - min(known)) or 1.0
    traces = []
    for row, (optimizer, rates) in enumerate(points.items(), start=1):
        traces.append(rate_line(optimizer, {lr: vs for lr, vs in rates.items() if vs}, unit))
        if lost := [lr for lr, values in rates.items() if not values]:
            traces.append(crosses(optimizer, lost, min(known) - row * step))
    return traces


def rate_line(optimizer: str, points: Mapping[float, Sequence[float]], unit: str) -> Json:
    colour, dash = style(optimizer)
    means = {lr: statistics.fmean(values) for lr, values in points.items()}
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": plain(optimizer),
        "legendgroup": plain(optimizer),
        "x": list(means),
        "y": [short(mean) for mean in means.values()],
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [short(max(points[lr]) - mean) for lr, mean in means.items()],
            "arrayminus": [short(mean - min(points[lr])) for lr, mean in means.items()],
            "thickness": 1.2,
            "width": 4,
        },
        "marker": {"color": colour, "size": 8},
        "line": {"color": colour, "dash": dash, "width": 2},
        "hovertemplate": f"lr %{{x}}: %{{y}}{unit}",
    }


def crosses(optimizer: str, rates: Sequence[float], height: float) -> Json:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": list(rates),
        "y": [short(height)] * len(rates),
        "marker": {"color": style(optimizer).colour, "size": 10, "symbol": "x"},
        "legendgroup": plain(optimizer),
        "name": plain(optimizer),
        "showlegend": False,
        "hovertemplate": "lr %{x}: no run finished",
    }


# --- what all charts share -----------------------------------------------------------------------


def base_layout(y: Json, x_title: str) -> Json:
    axis = {
        "gridcolor": "#e6e6e6",
        "linecolor": "#888",
        "ticks": "outside",
        "tickcolor": "#888",
        "zeroline": False,
        "automargin": True,
    }
    return {
        "font": {"size": 14, "color": "#222"},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
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
            "bgcolor": "white",
            "bordercolor": "#bbb",
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
