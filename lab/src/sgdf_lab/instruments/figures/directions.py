"""Figures of what benchmarks/why.py measured: errors, gains and tried steps through a training.

Each takes the record as it is in the JSON file.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sgdf_lab.instruments.direction_tables import METRICS, Record
from sgdf_lab.instruments.figures.layout import legend_below
from sgdf_lab.support import palette
from sgdf_lab.support.figures import STYLE

LOOKS = {  # of the estimates: label, colour, dash
    "K": ("K", palette.ORANGE, "-"),
    "2K": ("2K", palette.VERMILION, "-"),
    "half": ("constant (1 - β₁)/2", palette.SKY, "--"),
    "nesterov": ("constant 1 - β₁ (Nesterov)", palette.GREEN, "--"),
}
BY_TIME = (palette.SKY, palette.BLUE, palette.PURPLE, palette.WINE, palette.BLACK)


def all_figures(record: Record) -> dict[str, Figure]:
    """By the name of the file."""
    return {
        "why-errors": errors(record),
        "why-best-gain": best_gain(record),
        "why-steps": steps(record),
        "why-gains": gains(record),
    }


def steps_of(record: Record) -> list[str]:
    return [str(point["step"]) for point in record["points"]]


def draw_by_step(
    ax: Axes, record: Record, values: Mapping[str, Sequence[Mapping[str, float]]]
) -> None:
    """A line per estimate over the measured steps, evenly spaced, with two standard errors."""
    places = np.arange(len(record["points"]))
    for i, (name, numbers) in enumerate(values.items()):
        label, shade, dash = LOOKS[name]
        beside = places + 0.06 * (i - (len(values) - 1) / 2)  # so that bars do not hide each other
        ax.errorbar(
            beside, [n["value"] for n in numbers], [2 * n["error"] for n in numbers],
            color=shade, linestyle=dash, marker="o", ms=4, lw=1.5, capsize=2, label=label,
        )  # fmt: skip
    ax.set_xticks(places, steps_of(record))
    ax.set_xlabel("step")


# --- errors ---------------------------------------------------------------------------------------


def errors(record: Record) -> Figure:
    """What the error of m^ is made of, and the errors of the others relative to it."""
    with rc_context(STYLE):
        figure = Figure(figsize=(7, 6.4), layout="constrained")
        parts = [figure.add_subplot(2, 2, i) for i in (1, 2)]
        ratios = [figure.add_subplot(2, 2, 3)]
        ratios.append(figure.add_subplot(2, 2, 4, sharey=ratios[0]))
        for ax, metric in zip(parts, METRICS, strict=True):
            draw_parts(ax, record, metric)
        for ax, metric in zip(ratios, METRICS, strict=True):
            by_name = {name: [p[metric][name]["ratio"] for p in record["points"]] for name in LOOKS}
            ax.axhline(1, color=palette.GREY, linewidth=1)
            draw_by_step(ax, record, by_name)
        parts[0].set_ylabel("squared error of m^, in %")
        parts[0].legend(frameon=True, framealpha=1, fontsize=9, loc="lower left")
        ratios[0].set_ylabel("squared error / m^'s")
        ratios[1].tick_params(labelleft=False)
        legend_below(figure, ratios[0], 2, fontsize=9)
    return figure


def draw_parts(ax: Axes, record: Record, metric: str) -> None:
    """Squared bias and variance of m^, in percent of their sum."""
    rows = [point[metric]["average"] for point in record["points"]]
    bias = np.array([100 * row["bias2"]["value"] / row["mse"]["value"] for row in rows])
    bias = bias.clip(0, 100)  # its estimate may be negative where there is none
    places = np.arange(len(rows))
    ax.bar(places, bias, color=palette.BLUE, width=0.6, label="lag (squared bias)")
    ax.bar(places, 100 - bias, 0.6, bias, color=palette.ORANGE, label="noise (variance)")
    ax.set_xticks(places, steps_of(record))
    ax.set(title=METRICS[metric], ylim=(0, 100))


# --- gains ----------------------------------------------------------------------------------------


PROFILES = (  # panels: what the bins are made of, before or after the division, axis, title
    ("residual", "plain", "|g - m^| in standard deviations", METRICS["plain"]),
    ("residual", "adam", "|g - m^| in standard deviations", METRICS["adam"]),
    ("gradient", "adam", "|g| / √v^", METRICS["adam"]),
    ("signal", "adam", "|true gradient| / noise", METRICS["adam"]),
)


def best_gain(record: Record) -> Figure:
    """K and the gain that would be best, by what the coordinates are like."""
    with rc_context(STYLE):
        figure = Figure(figsize=(7, 6.6), layout="constrained")
        axes = figure.subplots(2, 2, sharey=True)
        for ax, (kind, metric, label, title) in zip(axes.flat, PROFILES, strict=True):
            by_point = [point["gain_by"][kind][metric] for point in record["points"]]
            draw_profiles(ax, by_point, [point["step"] for point in record["points"]])
            ax.set(xscale="log", xlabel=label, title=title)
            ax.set_xticks([0.1, 0.3, 1, 3], ["0.1", "0.3", "1", "3"])
            ax.minorticks_off()
        for ax in axes[:, 0]:
            ax.set_ylabel("gain")
        axes[0, 0].set_ylim(*heights(record))
        legend_below(figure, axes[0, 0], 2, fontsize=9)
    return figure


def draw_profiles(ax: Axes, by_point: Sequence[Any], steps: Sequence[int]) -> None:
    """The best gain at each point, with two standard errors, and K."""
    for shade, bins, step in zip(BY_TIME, by_point, steps, strict=False):
        ax.errorbar(
            [centre(one) for one in bins], [one["best"]["value"] for one in bins],
            [2 * one["best"]["error"] for one in bins],
            color=shade, marker="o", ms=3.5, lw=1.5, capsize=2, label=f"best gain, step {step}",
        )  # fmt: skip
    for bins in by_point:  # K by residual is the same at all points, by others nearly so
        places, gains = [centre(one) for one in bins], [one["gain"] for one in bins]
        label = "K" if bins is by_point[0] else None
        ax.plot(places, gains, "--", color=palette.ORANGE, lw=1.5, label=label)
    ax.axhline(0, color=palette.GREY, linewidth=1)


def heights(record: Record) -> tuple[float, float]:
    """The ends of the axis: around all gains, whatever their error bars."""
    bins = [
        one
        for point in record["points"]
        for kind, metric, *_ in PROFILES
        for one in point["gain_by"][kind][metric]
    ]
    values = [0.0, 1.0, *(one["best"]["value"] for one in bins)]
    return min(values) - 0.15, max(values) + 0.15


def centre(one: Mapping[str, Any]) -> float:
    """Of a bin, on a logarithmic axis; the first begins at 0 and the last has no end."""
    low, high = one["low"], one["high"]
    if not low:
        return float(high) / 2
    return float(np.sqrt(low * high)) if high else 1.3 * float(low)


def gains(record: Record) -> Figure:
    """Quantiles of K by kind of layer, through the training and by depth."""
    points = record["points"]
    kinds = list(dict.fromkeys(part["kind"] for part in points[0]["gains"]))
    with rc_context(STYLE):
        figure = Figure(figsize=(7, 0.55 * len(kinds) + 2), layout="constrained")
        by_kind, by_depth = figure.subplots(1, 2, width_ratios=(3, 2), sharey=True, sharex=True)
        for i, (shade, point) in enumerate(zip(BY_TIME, points, strict=False)):
            shift = 0.16 * (i - (len(points) - 1) / 2)
            for place, kind in enumerate(kinds):
                rows = [part["quantiles"] for part in point["gains"] if part["kind"] == kind]
                draw_box(by_kind, np.mean(rows, axis=0), place + shift, shade)
            by_kind.plot([], [], "o", color=shade, label=f"step {point['step']}")
        draw_depths(by_depth, points[-1]["gains"], kinds)
        by_kind.set(xlabel="K: median, middle half, middle 90 %", ylim=(len(kinds) - 0.5, -0.5))
        by_kind.set_yticks(range(len(kinds)), kinds)
        by_kind.tick_params(left=False)
        by_depth.set(xlabel=f"medians by block, step {points[-1]['step']}")
        by_depth.tick_params(left=False)
        by_kind.set(xlim=(0, 1.03), xticks=(0, 0.5, 1))
        legend_below(figure, by_kind, 4, fontsize=9)
    return figure


def draw_box(ax: Axes, quantiles: Any, place: float, shade: str) -> None:
    low, quarter, median, three_quarters, high = quantiles
    ax.plot([low, high], [place] * 2, color=shade, linewidth=1, solid_capstyle="butt")
    ax.plot([quarter, three_quarters], [place] * 2, color=shade, linewidth=4, alpha=0.6)
    ax.plot(median, place, "o", color=shade, markersize=4.5)


def draw_depths(ax: Axes, parts: Sequence[Mapping[str, Any]], kinds: list[str]) -> None:
    """A dot per layer, from the first block at the top of its row to the last."""
    for place, kind in enumerate(kinds):
        rows = [part for part in parts if part["kind"] == kind]
        deepest = max((part["depth"] or 0) for part in rows)
        for part in rows:
            depth = part["depth"] or deepest + 1  # the last norm follows all blocks
            below = 0.6 * (depth - 1) / max(deepest, 1) - 0.3 if deepest else 0.0
            ax.plot(part["quantiles"][2], place + below, "o", color=palette.BLUE, markersize=3.5)


# --- steps ----------------------------------------------------------------------------------------


def steps(record: Record) -> Figure:
    """The lead of steps over equally long ones along m^, in percent of what m^ promises."""
    with rc_context(STYLE):
        figure = Figure(figsize=(7, 6.2), layout="constrained")
        axes = figure.subplots(2, 2, sharex=True)
        for row, (key, part, length) in zip(axes, lengths_of(record), strict=True):
            for ax, (metric, title) in zip(row, METRICS.items(), strict=True):
                ax.axhline(0, color=palette.GREY, linewidth=1)
                draw_by_step(ax, record, leads(record, metric, key, part))
                ax.set(title=f"{title},\n{length}", xlabel="")
            row[0].set_ylabel("lead on a step along m^, %")
        for ax in axes[1]:
            ax.set_xlabel("step")
        legend_below(figure, axes[0, 0], 2, fontsize=9)
    return figure


def lengths_of(record: Record) -> list[tuple[str, float, str]]:
    part = record["points"][0]["steps"]["plain"]["average"]["tried"]["part"]
    return [("short lead", part, f"{part:g} of the real length"), ("lead", 1.0, "real length")]


def leads(record: Record, metric: str, key: str, part: float) -> dict[str, list[dict[str, float]]]:
    """By estimate and point, in percent of the first-order decrease of m^'s step."""

    def percent(point: Mapping[str, Any], name: str) -> dict[str, float]:
        rows = point["steps"][metric]
        scale = 100 / (part * abs(rows["average"]["slope"]))
        return {which: scale * number for which, number in rows[name][key].items()}

    return {name: [percent(point, name) for point in record["points"]] for name in LOOKS}
