"""Charts over the epochs, and the list of all charts of a comparison."""

import statistics
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

from sgdf_lab.report.cells import RunCell
from sgdf_lab.report.curves import (
    CurveView,
    drawn_runs,
    first_epoch,
    last_epoch,
    last_mean,
    looks,
    metric_view,
    seed_values,
    short,
    validation_view,
    y_range,
)
from sgdf_lab.report.drawing import Chart, Json, base_layout, buttons, plain, translucent, y_axis
from sgdf_lab.report.rate_charts import learning_rate_charts
from sgdf_lab.support.palette import GREY, Look

TRAINING = CurveView("training", "train_accuracy", " %", lower_is_better=False)
LOSS = CurveView("training", "train_loss", logarithmic=True, lower_is_better=True)
LOSSES = (
    LOSS,
    replace(LOSS, button="test", key="test_loss"),
    replace(LOSS, button="validation", key="val_loss", title="validation loss"),
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
    chosen = [cell for cell in cells if cell.label not in set_aside] or cells
    axes = [y_axis(view, y_range(chosen, view)) for view in views]
    for view, axis in zip(views, axes, strict=True):
        marks = edge_marks(cells, view, axis["range"], cell_looks)
        for cell in cells:
            traces = band_and_line(cell, view, cell_looks[cell.label])
            traces += [marks[cell.label]] if cell.label in marks else []
            data += traces
            owners += [(view, "legendonly" if cell.label in set_aside else True)] * len(traces)
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
    caption = epochs_caption(cells, set_aside, layout, data)
    return Chart(name, title, caption, data, layout)


def epochs_caption(
    cells: Sequence[RunCell], set_aside: Container[str], layout: Json, data: Sequence[Json]
) -> str:
    sentences = ["Mean over seeds; the band is the range from the lowest seed to the highest."]
    if layout["shapes"]:
        sentences.append("Dotted: the learning rate drops.")
    if layout["yaxis"]["range"]:
        sentences.append("Early and single bad values may lie outside: double-click to see all.")
    if any(trace.get("marker", {}).get("symbol") in TRIANGLES for trace in data):
        sentences.append("A triangle at the edge: this line ends outside, far from the others.")
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


TRIANGLES = BELOW, ABOVE = "triangle-down", "triangle-up"


def edge_marks(
    cells: Sequence[RunCell],
    view: CurveView,
    bounds: list[float] | None,
    cell_looks: Mapping[str, Look],
) -> dict[str, Json]:
    """By label: a triangle at the edge of the axis, for cells whose line ends beyond it."""
    if bounds is None:
        return {}
    low, high = (10**bound if view.logarithmic else bound for bound in bounds)
    ends = {cell.label: end for cell in cells if (end := last_mean(cell, view.key)) is not None}
    outside = {label: end for label, end in ends.items() if not low <= end <= high}
    first, last = first_epoch(cells), last_epoch(cells)
    return {
        label: {
            "type": "scatter",
            "mode": "markers",
            "x": [short(last - (i % 20) * 0.03 * (last - first))],  # side by side
            "y": [low if end < low else high],
            "marker": {
                "color": cell_looks[label].colour,
                "size": 11,
                "symbol": BELOW if end < low else ABOVE,
            },
            "cliponaxis": False,
            "legendgroup": plain(label),
            "name": plain(label),
            "showlegend": False,
            "hovertemplate": f"ends at {short(end)}{view.unit}",
        }
        for i, (label, end) in enumerate(outside.items())
    }


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
        for x, drop in apart(drops, last_epoch(cells) / 5).items()
    ]  # fmt: skip
    return lines, words


def apart(drops: Mapping[float, float], gap: float) -> dict[float, float]:
    """Those whose labels do not overlap on a phone; the lines of the others have none."""
    kept: dict[float, float] = {}
    for x in sorted(drops):
        if not kept or x - max(kept) >= gap:
            kept[x] = drops[x]
    return kept
