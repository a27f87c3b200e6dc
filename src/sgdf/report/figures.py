"""Charts of a comparison, as the plain dictionaries that plotly draws.

A `Figure` needs no plotly to be made; `plotly.graph_objects.Figure(figure.data, figure.layout)`
makes it one of plotly's own.
"""

import hashlib
import html
import statistics
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sgdf.lab import tasks
from sgdf.lab.tasks import Metric
from sgdf.report.records import Cell, Record, learning_rate, visible
from sgdf.support.palette import GREY
from sgdf.support.palette import colour as colour_of

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")

# Relatives share a colour or a dash, never both.
DASH = {
    "sgdf": "solid",
    "sgd": "dash",
    "sgd-cm": "dashdot",
    "sgd-ema": "dot",
    "adam": "dot",
    "adamw": "longdash",
    "filter-adam": "dash",
    "filter-adamw": "longdash",
    "radam": "dashdot",
    "adabelief": "longdash",
    "adabound": "solid",
    "msvag": "dashdot",
    "lion": "dash",
    "sophia-g": "dot",
    "yogi": "dashdot",
    "padam": "dash",
    "eadam": "dash",
    "rmsprop": "solid",
    "fromage": "dash",
}

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', Arial, sans-serif"


@dataclass(frozen=True)
class Figure:
    """A chart and the sentence below it."""

    name: str
    title: str
    caption: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]


@dataclass(frozen=True)
class View:
    """One button of a chart: a measurement of every epoch."""

    button: str
    key: str
    unit: str = ""
    logarithmic: bool = False
    title: str = ""  # of the axis, if not the key


TRAINING = View("training", "train_accuracy", " %")
VALIDATION = View("validation", "validation_accuracy", " %")
LOSSES = (
    View("training", "train_loss", logarithmic=True),
    View("test", "test_loss", logarithmic=True),
)
NORMS = (
    View("gradient", "gradient_norm", logarithmic=True),
    View("step direction", "direction_norm", logarithmic=True),
)


def style(optimizer: str) -> tuple[str, str]:
    """An optimizer's colour and dash; an unknown name always gets the same ones."""
    digest = hashlib.sha256(optimizer.encode(errors="replace")).digest()
    return colour_of(optimizer), DASH.get(optimizer, DASHES[digest[1] % len(DASHES)])


def styles(cells: Sequence[Cell], set_aside: Container[str]) -> dict[str, tuple[str, str]]:
    """By label: the optimizer's colour, and a dash of its own for each of its cells."""
    given: dict[str, tuple[str, str]] = {}
    seen: dict[str, int] = {}
    for cell in sorted(cells, key=lambda cell: cell.label in set_aside):
        colour, dash = style(cell.optimizer)
        turn = seen[cell.optimizer] = seen.get(cell.optimizer, -1) + 1
        given[cell.label] = colour, DASHES[(DASHES.index(dash) + turn) % len(DASHES)]
    return given


def figures(cells: Sequence[Cell], set_aside: Container[str] = ()) -> list[Figure]:
    """All charts that these cells of one task and model have the numbers for.

    The cells with the labels `set_aside` wait in the legend.
    """
    drawn = [cell for cell in cells if curves_of(cell)]
    if not drawn:
        return []
    metrics = tasks.find(cells[0].config.task).metrics
    title = metrics[0].title.replace("Test accuracy", "Accuracy")
    views = [*map(view_of, metrics), VALIDATION, TRAINING]
    charts: list[tuple[str, str, Sequence[View]]] = [
        ("metric", title, views),
        ("loss", "Loss", LOSSES),
        ("norms", "Norm, mean over the steps of an epoch", NORMS),
    ]
    made = []
    for name, title, possible in charts:
        if shown := [
            as_drawn(view, values) for view in possible if (values := all_of(drawn, view))
        ]:
            made.append(over_epochs(name, title, shown, drawn, set_aside))
    return made + sensitivity(cells)


def view_of(metric: Metric) -> View:
    unit = f" {metric.unit}".rstrip()
    return View(metric.words.removesuffix(" accuracy"), metric.key, unit, title=metric.words)


def all_of(cells: Sequence[Cell], view: View) -> list[float]:
    lines = (line for cell in cells for run in curves_of(cell) for line in run.whole)
    return [line[view.key] for line in lines if line.get(view.key) is not None]


def as_drawn(view: View, values: Sequence[float]) -> View:
    """The loss of a critic may be negative, for which a logarithm has no place."""
    return replace(view, logarithmic=view.logarithmic and min(values) > 0)


# --- over the epochs -----------------------------------------------------------------------------


def over_epochs(
    name: str,
    title: str,
    views: Sequence[View],
    cells: Sequence[Cell],
    set_aside: Container[str],
) -> Figure:
    """The mean of each cell as a line, its seeds' range as a band, a button for each view."""
    look = styles(cells, set_aside)
    data: list[dict[str, Any]] = []
    shown: list[tuple[View, bool | str]] = []  # of each trace: in which view, and how
    for view in views:
        for cell in cells:
            traces = band_and_line(cell, view, *look[cell.label])
            data += traces
            shown += [(view, "legendonly" if cell.label in set_aside else True)] * len(traces)
    bounds = {view.key: y_range(cells, view) for view in views}
    choices = [
        (
            view.button,
            {"visible": [how if owner is view else False for owner, how in shown]},
            {f"yaxis.{k}": v for k, v in y_axis(view, bounds[view.key]).items()},
        )
        for view in views
    ]
    for trace, visibility in zip(data, choices[0][1]["visible"], strict=True):
        trace["visible"] = visibility
    layout = base_layout(y_axis(views[0], bounds[views[0].key]), "epoch")
    last = max(len(run.whole) for cell in cells for run in curves_of(cell))
    layout["xaxis"]["range"] = [1, last] if last > 1 else [0, 2]
    layout["shapes"], layout["annotations"] = drops(cells)
    layout["updatemenus"] = buttons(choices) if len(choices) > 1 else []
    sentences = ["Mean over seeds; the band is the range from the lowest seed to the highest."]
    if layout["shapes"]:
        sentences.append("Dotted: the learning rate drops.")
    if any(bounds.values()):
        sentences.append("The first epochs may lie outside: drag to zoom, double-click to see all.")
    if any(cell.label in set_aside for cell in cells):
        sentences.append(
            "Settings that were not chosen are hidden: a click in the legend shows one."
        )
    if any(not cell.finished for cell in cells):
        sentences.append("Cells without a finished run are drawn as far as all of their runs came.")
    return Figure(name, title, " ".join(sentences), data, layout)


def curves_of(cell: Cell) -> list[Record]:
    """The finished runs, or else what there is of the others."""
    return list(cell.finished.values()) or [record for record in cell.records if record.whole]


def band_and_line(cell: Cell, view: View, colour: str, dash: str) -> list[dict[str, Any]]:
    runs = curves_of(cell)
    epochs, columns = [], []
    for lines in zip(*(run.whole for run in runs), strict=False):
        values = [line.get(view.key) for line in lines]
        if None not in values:
            epochs.append(lines[0]["epoch"])
            columns.append(values)
    if not epochs:
        return []
    # The legend shows the line; hiding a cell there hides both.
    shared = {"x": epochs, "type": "scatter", "mode": "lines", "legendgroup": plain(cell.label)}
    if len(epochs) == 1:
        shared["mode"] = "markers"
    line = shared | {
        "y": [short(statistics.fmean(values)) for values in columns],
        "name": plain(cell.label),
        "line": {"color": colour, "dash": dash, "width": 1.8},
        "hovertemplate": f"epoch %{{x}}: %{{y}}{view.unit}",
    }
    if len(runs) < 2:
        return [line]
    edges = [[short(extreme(values)) for values in columns] for extreme in (max, min)]
    band = shared | {
        "x": epochs + epochs[::-1],
        "y": edges[0] + edges[1][::-1],
        "line": {"width": 0},
        "fill": "toself",
        "fillcolor": translucent(colour),
        "hoverinfo": "skip",
        "showlegend": False,
    }
    return [band, line]


def y_range(cells: Sequence[Cell], view: View) -> list[float] | None:
    """Of accuracies, what comes after the first tenth of the epochs: where cells differ.

    One that ran away leaves the others their room.
    """
    if view.logarithmic:
        return None
    values = [
        line[view.key]
        for cell in came_to_an_end(cells)
        for run in curves_of(cell)
        for line in run.whole[len(run.whole) // 10 :]
        if line.get(view.key) is not None
    ]
    if not values:
        return None
    margin = 0.04 * (max(values) - min(values)) or 1.0
    return [short(min(values) - margin), short(max(values) + margin)]


def came_to_an_end(cells: Sequence[Cell]) -> Sequence[Cell]:
    """Those with a finished run, if there are any."""
    return [cell for cell in cells if cell.finished] or cells


def drops(cells: Sequence[Cell]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A dotted line where the learning rate of a stepwise schedule drops."""
    found: dict[int, float] = {}
    for config in (cell.config for cell in cells):
        if config.schedule == "step" and config.drop != 1:
            found |= {m: config.drop for m in config.milestones if m < config.epochs}
    lines = [
        {
            "type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": m + 0.5, "x1": m + 0.5,
            "line": {"dash": "dot", "width": 1, "color": GREY},
        }
        for m in found
    ]  # fmt: skip
    words = [
        {
            "text": f"lr × {drop:g}", "x": m + 0.5, "y": 1, "yref": "paper", "xanchor": "center",
            "yanchor": "bottom", "showarrow": False, "font": {"size": 12, "color": GREY},
        }
        for m, drop in found.items()
    ]  # fmt: skip
    return lines, words


# --- over the learning rate ----------------------------------------------------------------------


def swept_rates(cells: Sequence[Cell]) -> dict[str, dict[float, Cell]]:
    """The cells of every optimizer that was run with several learning rates, by these."""
    by_optimizer: dict[str, dict[float, list[Cell]]] = {}
    for cell in cells:
        lr = learning_rate(cell.config)
        if lr is not None and lr > 0 and cell.records:
            by_optimizer.setdefault(cell.optimizer, {}).setdefault(lr, []).append(cell)
    # With two cells at one learning rate something else differs too, and a line would mix both.
    return {
        optimizer: {lr: found[0] for lr, found in sorted(rates.items())}
        for optimizer, rates in by_optimizer.items()
        if len(rates) > 1 and all(len(found) == 1 for found in rates.values())
    }


def sensitivity(cells: Sequence[Cell]) -> list[Figure]:
    """The metric against the learning rate, where an optimizer was run with several."""
    swept = swept_rates(cells)
    if not swept:
        return []
    metric = tasks.find(cells[0].config.task).metric
    unit = f" {metric.unit}".rstrip()
    views: list[tuple[str, Callable[[Record], float]]] = [
        ("final", lambda record: record.final),
        ("best", lambda record: record.best),
    ]
    data: list[dict[str, Any]] = []
    owners: list[str] = []
    for button, value in views:
        for optimizer, rates in swept.items():
            line = rate_line(optimizer, rates, value) | {
                "hovertemplate": f"lr %{{x}}: %{{y}}{unit}"
            }
            traces = [line, *crosses(optimizer, rates, swept, value)]
            data += [trace | {"visible": button == "final"} for trace in traces]
            owners += [button] * len(traces)
    title = metric.words + f",{unit}" * bool(unit)
    layout = base_layout({"title": {"text": title, "standoff": 10}}, "learning rate")
    ticks = sorted({lr for rates in swept.values() for lr in rates})
    layout["xaxis"] |= {"type": "log", "tickvals": ticks, "ticktext": [f"{lr:g}" for lr in ticks]}
    layout["updatemenus"] = buttons(
        [(button, {"visible": [owner == button for owner in owners]}, {}) for button, _ in views]
    )
    caption = (
        "Mean over the seeds that finished, with the lowest and the highest. A cross at the foot: "
        "no run finished with this learning rate."
    )
    heading = f"{metric.title} by learning rate"
    return [Figure("learning-rate", heading, caption, data, layout)]


def rate_line(
    optimizer: str, rates: Mapping[float, Cell], value: Callable[[Record], float]
) -> dict[str, Any]:
    colour, dash = style(optimizer)
    points = {
        lr: [value(record) for record in cell.finished.values()]
        for lr, cell in rates.items()
        if cell.finished
    }
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
    }


def crosses(
    optimizer: str,
    rates: Mapping[float, Cell],
    swept: Mapping[str, Mapping[float, Cell]],
    value: Callable[[Record], float],
) -> list[dict[str, Any]]:
    """Marks, below all points of the chart, where no run came to its end."""
    lost = [lr for lr, cell in rates.items() if not cell.finished]
    cells = (cell for of_one in swept.values() for cell in of_one.values())
    foot = min((value(run) for cell in cells for run in cell.finished.values()), default=0.0)
    cross = {
        "type": "scatter",
        "mode": "markers",
        "x": lost,
        "y": [short(foot)] * len(lost),
        "marker": {"color": style(optimizer)[0], "size": 10, "symbol": "x"},
        "legendgroup": plain(optimizer),
        "name": plain(optimizer),
        "showlegend": False,
        "hovertemplate": "lr %{x}: no run finished",
    }
    return [cross] if lost else []


# --- what all charts share -----------------------------------------------------------------------


def base_layout(y: dict[str, Any], x_title: str) -> dict[str, Any]:
    axis = {
        "gridcolor": "#e6e6e6",
        "linecolor": "#888",
        "ticks": "outside",
        "tickcolor": "#888",
        "zeroline": False,
        "automargin": True,
    }
    return {
        "font": {"family": FONT, "size": 14, "color": "#222"},
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


def y_axis(view: View, bounds: list[float] | None) -> dict[str, Any]:
    name = view.title or view.key.replace("train_", "training_").replace("_", " ")
    title = name + (", %" if view.unit else "")
    return {
        "title": {"text": title, "standoff": 10},
        "type": "log" if view.logarithmic else "linear",
        "range": bounds,
        "autorange": bounds is None,
    }


def buttons(choices: Sequence[tuple[str, dict[str, Any], dict[str, Any]]]) -> list[dict[str, Any]]:
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
    """Text that plotly shows as it is: it would take <b> or <a href> for its own markup."""
    return html.escape(visible(text), quote=False)


def short(value: float) -> float:
    """Four significant digits are more than a screen can show."""
    return float(f"{value:.4g}")


def translucent(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.15)"
