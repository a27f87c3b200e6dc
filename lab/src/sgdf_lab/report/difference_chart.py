"""The differences from the reference with their intervals: a forest plot.

The words of a row stand above its interval and not beside the axis, so that it fits a phone.
"""

import statistics
import textwrap
from collections.abc import Sequence

from sgdf_lab.report import wording
from sgdf_lab.report.curves import optimizer_colours, short
from sgdf_lab.report.drawing import Chart, Json, base_layout, plain
from sgdf_lab.report.numbers import PairedDifference
from sgdf_lab.report.statistics import Comparison, ComparisonRow
from sgdf_lab.report.verdict import RULE
from sgdf_lab.support.palette import AXIS, INK, PAPER

ROW, TEXT, FRAME = 33, 17, 112  # pixels of a row, of a line of words in it, of everything else
LINE = 42  # characters that fit a phone
REACH = 4  # an interval this many times as wide as most does not stretch the axis further,
# nor does a difference that is twice as many times as large as most


def difference_charts(comparison: Comparison) -> list[Chart]:
    """A row for each setting that was not set aside, if any was run with the reference's seeds."""
    rows = [
        row
        for row in comparison.rows
        if row.paired and row.paired.n and row.label not in comparison.set_aside
    ]
    if not rows:
        return []
    metric = comparison.result
    low, high = bounds([row.paired for row in rows if row.paired])
    data: list[Json] = []
    words: list[Json] = []
    colours = optimizer_colours(comparison.cells)
    for i, row in enumerate(rows):
        data += traces(row, -i, (low, high), colours[row.optimizer], metric.digits)
        words.append(row_words(row, -i, metric.digits))
    unit = "points" if metric.unit == "%" else metric.unit
    title = f"difference in final {metric.words}" + f", {unit}" * bool(unit)
    layout = base_layout({}, "<br>".join(map(plain, textwrap.wrap(title, LINE))))
    layout["xaxis"]["title"]["font"] = {"size": 14}
    layout["yaxis"] |= {
        "range": [0.5 - len(rows), 0.95], "showticklabels": False, "showgrid": False, "ticks": "",
        "fixedrange": True,
    }  # fmt: skip
    layout["xaxis"] |= {"range": [low, high], "showgrid": True, "fixedrange": True}
    layout["margin"] = {"l": 10, "r": 10, "t": 30, "b": 66}
    layout["showlegend"] = False
    layout["shapes"] = [
        {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": 0, "x1": 0,
         "line": {"width": 1.5, "color": AXIS}}
    ]  # fmt: skip
    layout["annotations"] = words + sides(metric.lower_is_better)
    caption = difference_caption(comparison, rows, (low, high))
    lines = max(text["text"].count("<br>") + 1 for text in words)
    height = FRAME + (ROW + TEXT * lines) * len(rows)
    heading = f"Differences from {comparison.reference}"
    return [Chart("differences", heading, caption, data, layout, height)]


def bounds(differences: Sequence[PairedDifference]) -> tuple[float, float]:
    """The range of the axis: zero, the means and the intervals, without what is far out."""
    widths = [d.half_width for d in differences if d.half_width is not None]
    far = REACH * statistics.median(widths) if widths else 0.0
    known = [(d.mean or 0.0, min(d.half_width or 0.0, far)) for d in differences]
    typical = statistics.median(max(abs(mean), reach) for mean, reach in known)
    ends = [0.0]
    for mean, reach in known:
        if abs(mean) <= 2 * REACH * typical:
            ends += [mean - reach, mean + reach]
    margin = 0.06 * (max(ends) - min(ends)) or 1.0
    return short(min(ends) - margin), short(max(ends) + margin)


def interval(difference: PairedDifference) -> tuple[float, float]:
    """Its ends; both are the mean where there is none."""
    mean = difference.mean or 0.0
    return (
        mean if difference.low is None else difference.low,
        mean if difference.high is None else difference.high,
    )


def traces(
    row: ComparisonRow, y: int, ends: tuple[float, float], colour: str, digits: int
) -> list[Json]:
    """The mean with its interval, and an arrow where that leaves the axis."""
    difference = row.paired
    assert difference is not None
    assert difference.mean is not None
    has_interval = difference.half_width is not None
    words = f"{plain(row.label)}: {wording.paired(difference, digits)}"
    point: Json = {
        "type": "scatter",
        "mode": "markers",
        "name": plain(row.label),
        "x": [short(difference.mean)],
        "y": [y],
        "marker": {
            "color": colour, "size": 11, "symbol": "circle" if has_interval else "circle-open"
        },
        "hovertemplate": f"{words}<extra></extra>",
    }  # fmt: skip
    if has_interval:
        point["error_x"] = {
            "type": "data", "array": [short(difference.half_width or 0)], "thickness": 2.5,
            "width": 6, "color": colour,
        }  # fmt: skip
    low, high = ends
    least, most = interval(difference)
    arrows = [(low, "triangle-left")] * (least < low)
    arrows += [(high, "triangle-right")] * (most > high)
    return [point] + [
        {
            "type": "scatter", "mode": "markers", "x": [x], "y": [y], "cliponaxis": False,
            "marker": {"color": colour, "size": 11, "symbol": symbol}, "hoverinfo": "skip",
        }
        for x, symbol in arrows
    ]  # fmt: skip


def row_words(row: ComparisonRow, y: int, digits: int) -> Json:
    assert row.paired is not None
    numbers = wording.against_reference(row, digits)
    if row.paired.half_width is None and row.paired.mean is not None:
        numbers = f"{wording.signed(row.paired.mean, digits)}, {numbers}"
    label = [f"<b>{plain(line)}</b>" for line in textwrap.wrap(row.label, LINE)]
    fits = len(f"{row.label}  {numbers}") <= LINE
    lines = [f"{label[0]}  {numbers}"] if fits else [*label, numbers]
    return {
        "text": "<br>".join(lines), "x": 0, "xref": "paper", "xanchor": "left", "align": "left",
        "y": y + 0.2, "yanchor": "bottom", "showarrow": False, "font": {"size": 12, "color": INK},
        "bgcolor": PAPER,
    }  # fmt: skip


def sides(lower_is_better: bool) -> list[Json]:
    """Which side is the better one, above the rows."""
    left, right = ("better", "worse") if lower_is_better else ("worse", "better")
    places = ((f"← {left}", 0, "left"), (f"{right} →", 1, "right"))
    return [
        {
            "text": text, "x": x, "xref": "paper", "xanchor": anchor, "y": 1, "yref": "paper",
            "yanchor": "bottom", "showarrow": False, "font": {"size": 13, "color": INK},
        }
        for text, x, anchor in places
    ]  # fmt: skip


def difference_caption(
    comparison: Comparison, rows: Sequence[ComparisonRow], ends: tuple[float, float]
) -> str:
    known = [row.paired for row in rows if row.paired]
    sentences = [
        f"Mean difference from {comparison.reference} in the same seeds, with its 95 % interval. "
        f"Ahead and behind: {RULE}."
    ]
    if any(difference.half_width is None for difference in known):
        sentences.append("Open circles have no interval, and say little.")
    if any(interval(d)[0] < ends[0] or interval(d)[1] > ends[1] for d in known):
        sentences.append("A triangle at the edge: it reaches beyond the axis.")
    return " ".join(sentences)
