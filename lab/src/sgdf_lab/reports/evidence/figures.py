"""A summary as figures: paired differences, expected best of k trials, validation by rate."""

import math
import re
import statistics
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from sgdf_lab.reports.curves import looks, optimizer_colours, with_unit
from sgdf_lab.reports.evidence import Summary
from sgdf_lab.reports.evidence.tables import ranked
from sgdf_lab.reports.figures import Interval, differences_figure
from sgdf_lab.support.figures import LINE_STYLES, STYLE, plain, write_svg
from sgdf_lab.support.palette import AXIS, GRID, INK

MARKERS = "osD^vP*X<>hp"
COLUMNS = 4  # of panels
FEW = 3  # trials, whose expected best is still inside the figure
IN_ONE = 6  # contestants whose curves fit into one panel
LETTERS = 9  # of a title in an inch
LABEL_HEIGHT = 0.18  # inches, of a line of small text
FILTERED = ("sgdf", "filter-", "wiener-")  # how the names of optimizers with the filter begin
Json = Mapping[str, Any]


def write_all(summary: Summary, out: Path) -> list[Path]:
    """Write every figure that there are numbers for."""
    return [write_svg(figure, out / name) for name, figure in figures(summary)]


def figures(summary: Summary) -> Iterator[tuple[str, Figure]]:
    optimizers = {c["label"]: c["optimizer"] for c in summary["contestants"]}
    counts = Counter(optimizers[c["reference"]] for c in summary["comparisons"])
    for comparison in summary["comparisons"]:
        if any(row["low"] is not None for row in comparison["rows"]):
            label = comparison["reference"]
            own = optimizers[label] if counts[optimizers[label]] == 1 else label
            name = re.sub(r"[^\w.-]", "_", own)
            yield f"differences-{name}", differences_to(summary, comparison)
    if any(len(c["expected_best"]) > 1 for c in summary["contestants"]):
        yield "best-of-k", best_figure(summary)
    if any(trial["value"] is not None for c in summary["contestants"] for trial in c["trials"]):
        yield "rates", rates_figure(summary)


def colours_of(summary: Summary) -> dict[str, str]:
    """By label: the optimizer's colour."""
    colours = optimizer_colours(c["optimizer"] for c in summary["contestants"])
    return {c["label"]: colours[c["optimizer"]] for c in summary["contestants"]}


def add_title(figure: Figure, title: str) -> None:
    """In as many lines as it takes."""
    width = int(LETTERS * figure.get_figwidth())
    figure.suptitle(plain(textwrap.fill(title, width)), fontweight="bold", fontsize=11)


# --- differences ---------------------------------------------------------------------------------


def differences_to(summary: Summary, comparison: Json) -> Figure:
    """The mean difference of every contestant to the reference, the best one at the top."""
    order = [c["label"] for c in ranked(summary)]
    rows = [row for row in comparison["rows"] if row["low"] is not None]
    rows.sort(key=lambda row: order.index(row["contestant"]), reverse=True)
    colours, metric = colours_of(summary), summary["metric"]
    intervals = [
        Interval(
            row["contestant"] + "*" * bool(row["lost"]), row["mean"], row["low"], row["high"],
            row["verdict"], colours[row["contestant"]],
        )
        for row in rows
    ]  # fmt: skip
    minus = f"{metric['words']} minus that of {comparison['reference']}"
    words = with_unit(minus, metric["unit"])
    figure = differences_figure(
        intervals, words, lower_is_better=metric["lower_is_better"], digits=metric["digits"]
    )
    add_title(figure, summary["title"])
    return figure


# --- the expected best ---------------------------------------------------------------------------


def best_figure(summary: Summary) -> Figure:
    """The expected best of k trials; of many contestants, those with the filter beside the others.

    References are then in both panels. Labels stand at the ends of the lines, in their order.
    """
    references = {comparison["reference"] for comparison in summary["comparisons"]}
    drawn = [c for c in summary["contestants"] if len(c["expected_best"]) > 1]
    with_filter = [c for c in drawn if c["optimizer"].startswith(FILTERED)]
    others = [c for c in drawn if c not in with_filter]
    panels = {"": drawn}
    if len(drawn) > IN_ONE and with_filter and others:
        beside = [c for c in drawn if c in with_filter or c["label"] in references]
        panels = {"without the filter": others, "with the filter": beside}
    longest = max(map(len, panels.values()))
    with rc_context(STYLE):
        size = (5.2 * len(panels), max(3.6, 1.3 + 1.3 * LABEL_HEIGHT * longest))
        figure = Figure(figsize=size, layout="constrained")
        looks = line_looks(summary)
        bottom, top = best_limits(summary, drawn)
        all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (name, members) in zip(all_axes, panels.items(), strict=True):
            axes.set_ylim(bottom, top)
            draw_best(axes, members, looks, references, size[1] - 1.2)
            axes.set_title(name, fontsize=10, fontweight="normal")
        words = f"expected best {summary['validation']['words']}"
        all_axes[0].set_ylabel(plain(with_unit(words, summary["metric"]["unit"])))
        add_title(figure, summary["title"])
    return figure


def line_looks(summary: Summary) -> dict[str, dict[str, Any]]:
    """Contestants of one optimizer have its colour, and different dashes and markers."""
    seen: Counter[str] = Counter()
    found: dict[str, dict[str, Any]] = {}
    own = looks({c["label"]: c["optimizer"] for c in summary["contestants"]})
    for contestant in summary["contestants"]:
        look, name = own[contestant["label"]], contestant["optimizer"]
        found[contestant["label"]] = {
            "color": look.colour,
            "linestyle": LINE_STYLES[look.dash],
            "marker": MARKERS[seen[name] % len(MARKERS)],
        }
        seen[name] += 1
    return found


def best_limits(summary: Summary, drawn: Sequence[Json]) -> tuple[float, float]:
    """From the best to what a half of the contestants expects of a few trials, and a bit more.

    What is worse, for example a first trial at a learning rate far too large, is outside.
    """
    lower = summary["metric"]["lower_is_better"]
    ends = [c["expected_best"][-1] for c in drawn]
    starts = [c["expected_best"][min(FEW, len(c["expected_best"])) - 1] for c in drawn]
    best = min(ends) if lower else max(ends)
    worst = statistics.median(starts)
    furthest = max(ends) if lower else min(ends)
    reach = max(abs(worst - best), 1.15 * abs(furthest - best)) or 1.0
    return beyond(best, 0.06 * reach, 1.02 * reach, lower_is_better=lower)


def beyond(
    best: float, better: float, worse: float, *, lower_is_better: bool
) -> tuple[float, float]:
    """The limits of an axis, so far on the better side of the best and on the worse one."""
    return (best - better, best + worse) if lower_is_better else (best - worse, best + better)


def draw_best(
    axes: Axes, members: Sequence[Json], looks: Json, references: set[str], inches: float
) -> None:
    """Lines and their labels; `inches` is the height of the axes."""
    trials = max(len(c["expected_best"]) for c in members)
    for contestant in members:
        counts = range(1, len(contestant["expected_best"]) + 1)
        width = 2.2 if contestant["label"] in references else 1.3
        axes.plot(counts, contestant["expected_best"], lw=width, markersize=3.5,
                  **looks[contestant["label"]])  # fmt: skip
    bottom, top = axes.get_ylim()
    ends = {c["label"]: c["expected_best"][-1] for c in members}
    gap = LABEL_HEIGHT * (top - bottom) / inches
    for label, height in spread_out(ends, gap, bottom, top).items():
        last = len(next(c for c in members if c["label"] == label)["expected_best"])
        axes.annotate(
            plain(label), (last, ends[label]), (trials + 0.06 * trials, height), fontsize=8,
            va="center", color=INK, annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": looks[label]["color"], "lw": 0.7,
                        "shrinkA": 0, "shrinkB": 2},
        )  # fmt: skip
    axes.set_xlim(0.9, trials + 0.02 * trials)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes.set_xlabel("trials")
    axes.grid(axis="y", color=GRID)
    axes.set_axisbelow(True)


def spread_out(
    heights: Mapping[str, float], gap: float, bottom: float, top: float
) -> dict[str, float]:
    """Move labels apart, as little as possible, until no two are nearer than `gap`.

    Less i times the gap, the i-th has to be no lower than the one before: groups that are not in
    order move to their mean.

    >>> spread_out({"a": 4.0, "b": 4.0, "c": 8.0}, 1.0, 0.0, 9.0)
    {'a': 3.5, 'b': 4.5, 'c': 8.0}
    >>> spread_out({"a": 8.9, "b": 9.5}, 1.0, 0.0, 9.0)
    {'a': 8.0, 'b': 9.0}
    """
    order = sorted(heights, key=lambda label: heights[label])
    groups: list[list[float]] = []
    for i, label in enumerate(order):
        groups.append([heights[label] - i * gap])
        while len(groups) > 1 and statistics.fmean(groups[-2]) > statistics.fmean(groups[-1]):
            groups[-2:] = [groups[-2] + groups[-1]]
    levels = [statistics.fmean(group) for group in groups for _ in group]
    highest = max(bottom, top - gap * (len(order) - 1))
    return {
        label: min(max(level, bottom), highest) + i * gap
        for i, (label, level) in enumerate(zip(order, levels, strict=True))
    }


# --- by learning rate ----------------------------------------------------------------------------


def rates_figure(summary: Summary) -> Figure:
    """All trials by learning rate, a panel for each contestant: the chosen one ringed.

    A cross at the worse end: diverged or failed. A triangle there: finished, but outside.
    """
    contestants = ranked(summary)
    columns = min(COLUMNS, len(contestants))
    rows = math.ceil(len(contestants) / columns)
    colours = colours_of(summary)
    with rc_context(STYLE):
        figure = Figure(figsize=(max(6.5, 2.4 * columns), 1.2 + 1.75 * rows), layout="constrained")
        panels = figure.subplots(rows, columns, sharey=True, squeeze=False)
        bounds = rate_limits(summary)
        for i, axes in enumerate(panels.flat):
            if i >= len(contestants):
                axes.set_visible(False)
                continue
            draw_trials(axes, contestants[i], colours[contestants[i]["label"]], bounds, summary)
        signs = "ring: chosen, ×: diverged or failed, triangle: outside, line: best of all"
        figure.supxlabel(f"learning rate ({signs})", fontsize=9)
        words = f"final {summary['validation']['words']}"
        figure.supylabel(plain(with_unit(words, summary["metric"]["unit"])), fontsize=9)
        add_title(figure, summary["title"])
    return figure


def rate_limits(summary: Summary) -> tuple[float, float]:
    """From the best trial of all to a bit beyond the middle ones."""
    lower = summary["metric"]["lower_is_better"]
    values = [t["value"] for c in summary["contestants"] for t in c["trials"]]
    known = sorted((v for v in values if v is not None), reverse=not lower)
    best, bests = known[0], [c["chosen"]["value"] for c in summary["contestants"] if c["chosen"]]
    furthest = max(bests) if lower else min(bests)
    reach = max(2 * abs(statistics.median(known) - best), 1.3 * abs(furthest - best)) or 1.0
    reach = min(reach, 1.05 * abs(known[-1] - best) or 1.0)
    return beyond(best, 0.1 * reach, 1.15 * reach, lower_is_better=lower)


def draw_trials(
    axes: Axes, contestant: Json, colour: str, bounds: tuple[float, float], summary: Summary
) -> None:
    lower = summary["metric"]["lower_is_better"]
    bottom, top = bounds
    edge = top - 0.06 * (top - bottom) if lower else bottom + 0.06 * (top - bottom)
    for trial in contestant["trials"]:
        rate, value = trial["settings"]["lr"], trial["value"]
        if value is not None and bottom <= value <= top:
            axes.plot([rate], [value], "o", color=colour, markersize=4)
        elif value is not None:
            axes.plot([rate], [edge], "^" if lower else "v", color=colour, markersize=5)
        elif trial["status"] in ("diverged", "failed"):
            axes.plot([rate], [edge], "x", color=colour, markersize=5)
    if contestant["chosen"]:
        rate, value = contestant["chosen"]["settings"]["lr"], contestant["chosen"]["value"]
        axes.plot([rate], [value], "o", markersize=9, markerfacecolor="none", color=colour)
    values = [t["value"] for c in summary["contestants"] for t in c["trials"]]
    known = [value for value in values if value is not None]
    axes.axhline(min(known) if lower else max(known), color=AXIS, lw=0.8, zorder=0)
    axes.set_xscale("log")
    axes.set_ylim(bottom, top)
    rates = [trial["settings"]["lr"] for trial in contestant["trials"]]
    axes.set_xlim(min(rates) / 1.5, max(rates) * 1.5)
    axes.xaxis.set_major_locator(LogLocator(numticks=4))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(labelsize=8)
    axes.set_title(plain(contestant["label"].replace(", ", "\n", 1)), fontsize=8.5,
                   fontweight="normal")  # fmt: skip
    axes.grid(axis="y", color=GRID)
    axes.set_axisbelow(True)
