"""The metric over wall time, for tasks that count steps: a step of one optimizer may cost more."""

import statistics
from collections.abc import Container, Sequence

from sgdf_lab.report.cells import RunCell
from sgdf_lab.report.curves import (
    CurveView,
    drawn_runs,
    looks,
    metric_view,
    seed_values,
    short,
    y_range,
)
from sgdf_lab.report.drawing import Chart, Json, base_layout, plain, y_axis
from sgdf_lab.support.palette import Look

CAPTION = (
    "Mean over seeds, of the metric and of the time at each evaluation. The time includes "
    "compilation and evaluations; runs that shared a device slowed each other down."
)


def time_charts(cells: Sequence[RunCell], set_aside: Container[str] = ()) -> list[Chart]:
    """The chart over time, if the task counts steps and the times of the runs are known."""
    drawn = [cell for cell in cells if drawn_runs(cell)]
    if not drawn or drawn[0].config.unit != "step":
        return []
    metric = drawn[0].task.metric
    view = metric_view(metric)
    cell_looks = looks(drawn, set_aside)
    data = [
        line | {"visible": "legendonly" if cell.label in set_aside else True}
        for cell in drawn
        for line in time_line(cell, view, cell_looks[cell.label])
    ]
    if not data:
        return []
    layout = base_layout(y_axis(view, y_range(drawn, view)), "seconds")
    return [Chart("time", f"{metric.title} by time", CAPTION, data, layout)]


def time_line(cell: RunCell, view: CurveView, style: Look) -> list[Json]:
    """The cell's line, unless the time of an evaluation is missing."""
    steps, columns = seed_values(cell, view.key)
    times = []
    for step in steps:
        seconds = [run.seconds_to(step // cell.config.interval) for run in drawn_runs(cell)]
        known = [value for value in seconds if value is not None]
        if len(known) < len(seconds):
            return []
        times.append(statistics.fmean(known))
    if not steps:
        return []
    return [
        {
            "type": "scatter",
            "mode": "lines" if len(steps) > 1 else "markers",
            "x": [short(seconds) for seconds in times],
            "y": [short(statistics.fmean(values)) for values in columns],
            "name": plain(cell.label),
            "line": {"color": style.colour, "dash": style.dash, "width": 1.8},
            "customdata": steps,
            "hovertemplate": f"%{{x}} s, step %{{customdata}}: %{{y}}{view.unit}",
        }
    ]
