"""The metric against the learning rate."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from sgdf_lab.optimizers import style
from sgdf_lab.report.cells import RunCell
from sgdf_lab.report.curves import learning_rate_sweeps, optimizer_colours, short
from sgdf_lab.report.drawing import Chart, Json, base_layout, buttons, plain
from sgdf_lab.report.rate_views import RateView, rate_view
from sgdf_lab.runs.records import RunRecord

VIEWS: dict[str, Callable[[RunRecord], float]] = {
    "final": lambda record: record.final,
    "best": lambda record: record.best,
}


def learning_rate_charts(cells: Sequence[RunCell]) -> list[Chart]:
    """The metric against the learning rate, if any optimizer ran with several."""
    sweeps = learning_rate_sweeps(cells)
    if not sweeps:
        return []
    metric = cells[0].task.metric
    unit = f" {metric.unit}".rstrip()
    colours = optimizer_colours(cells)
    views = {button: rate_view(sweeps, value) for button, value in VIEWS.items()}
    data: list[Json] = []
    owners: list[str] = []
    for button, view in views.items():
        traces = rate_traces(view, colours, unit)
        data += [trace | {"visible": button == "final"} for trace in traces]
        owners += [button] * len(traces)
    title = metric.words + f",{unit}" * bool(unit)
    axis = {"title": {"text": title, "standoff": 10}, "range": list(views["final"].bounds)}
    layout = base_layout(axis, "learning rate")
    ticks = sorted({lr for rates in sweeps.values() for lr in rates})
    layout["xaxis"] |= {
        "type": "log", "tickvals": ticks, "ticktext": [f"{lr:g}" for lr in ticks], "tickangle": 0
    }  # fmt: skip
    layout["updatemenus"] = buttons(
        [
            (
                button,
                {"visible": [owner == button for owner in owners]},
                {"yaxis.range": list(view.bounds)},
            )
            for button, view in views.items()
        ]
    )
    caption = rates_caption(views.values(), "top" if metric.lower_is_better else "bottom")
    return [Chart("learning-rate", f"{metric.title} by learning rate", caption, data, layout)]


def rates_caption(views: Iterable[RateView], edge: str) -> str:
    views = list(views)
    caption = "Mean over the finished seeds, with the lowest and the highest."
    if any(rates for view in views for rates in view.outside.values()):
        caption += (
            f" A triangle at the {edge}: a seed lies outside the axis, far from the others; point "
            "at it to read its value."
        )
    if any(rates for view in views for rates in view.unfinished.values()):
        caption += f" A cross at the {edge}: no run finished with this learning rate."
    return caption


def rate_traces(view: RateView, colours: Mapping[str, str], unit: str) -> list[Json]:
    """Each optimizer's line, and the marks of rates that failed or lie outside the axis."""
    traces = []
    for optimizer, rates in view.points.items():
        colour = colours[optimizer]
        traces.append(rate_line(optimizer, rates, colour, unit))
        if lost := view.unfinished[optimizer]:
            words = ["no run finished"] * len(lost)
            traces.append(marks(optimizer, lost, words, view.height[optimizer], colour, "x"))
        if outside := view.outside[optimizer]:
            words = [f"{', '.join(f'{short(v):g}' for v in vs)}{unit}" for vs in outside.values()]
            height = view.height[optimizer]
            symbol = "triangle-up" if view.is_top else "triangle-down"
            traces.append(marks(optimizer, [*outside], words, height, colour, symbol))
    return traces


def rate_line(
    optimizer: str, points: Mapping[float, Sequence[float]], colour: str, unit: str
) -> Json:
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
        "line": {"color": colour, "dash": style(optimizer).dash, "width": 2},
        "hovertemplate": f"lr %{{x}}: %{{y}}{unit}",
    }


def marks(
    optimizer: str,
    rates: Sequence[float],
    words: Sequence[str],
    height: float,
    colour: str,
    symbol: str,
) -> Json:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": list(rates),
        "y": [short(height)] * len(rates),
        "text": list(words),
        "marker": {"color": colour, "size": 10, "symbol": symbol},
        "legendgroup": plain(optimizer),
        "name": plain(optimizer),
        "showlegend": False,
        "hovertemplate": "lr %{x}: %{text}",
    }
