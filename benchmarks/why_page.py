"""The page docs/why.md, made from the record of benchmarks/why.py: its tables and its figures.

The page keeps tables between two comments, ``<!-- NAME -->`` and ``<!-- end of NAME -->``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sgdf_lab.instruments.figures import legend_below
from sgdf_lab.support import palette
from sgdf_lab.support.figures import STYLE
from sgdf_lab.support.pages import markdown_table
from why_directions import TriedSteps, mean_of

Record = Mapping[str, Any]
Point = Mapping[str, Any]
Number = Mapping[str, Any]  # value and error; None where there is none

LABELS = {
    "average": "m^",
    "K": "K",
    "2K": "2K",
    "K-eps": "K, `gain_eps=1e-8`",
    "half": "constant (1 - β₁)/2",
    "nesterov": "constant 1 - β₁",
    "gradient": "g, raw",
}
OTHERS = [name for name in LABELS if name != "average"]
METRICS = {"plain": "the estimate itself", "adam": "divided as in Adam"}
BINS = (0.1, 1, 3)  # by where they begin, in standard deviations
CLEAR = 2  # standard errors


def blocks(record: Record) -> dict[str, str]:
    """By name, what stands between the comments."""
    return {
        "status": status(record),
        "answers": answers(record),
        "setting": setting(record),
        "parts": parts_table(record),
        "errors": errors_table(record),
        "angles": angles_table(record),
        "downhill": downhill_table(record),
        "best gain": best_gain_table(record),
        "steps": steps_table(record),
        "leads": leads_table(record),
    }


# --- numbers in words -----------------------------------------------------------------------------


def with_error(number: Number, digits: int = 2, scale: float = 1.0) -> str:
    value, error = number["value"], number["error"]
    if value is None or error is None:
        return "none"
    return f"{scale * value:.{digits}f} ± {scale * error:.{digits}f}"


def percent(part: float) -> str:
    return f"{100 * part:.0f} %"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return f"\n{markdown_table(header, rows)}\n"


def by_step(record: Record) -> list[str]:
    return [f"step {point['step']}" for point in record["points"]]


# --- the tables -----------------------------------------------------------------------------------


def status(record: Record) -> str:
    if record["model"] != "gpt-tiny":
        return ""
    return (
        "\n**These are the numbers of the quick run on a CPU: a tiny model that learns a generated "
        "text in seconds, with one seed. They show how the measurement works. The answer for a "
        "language model needs the run on a GPU, which replaces them.**\n"
    )


def setting(record: Record) -> str:
    betas = ", ".join(f"{beta:g}" for beta in record["betas"])
    optimizer = {"filter-adamw": "`FilterAdamW(gain_scale=1)`", "adamw": "AdamW"}
    text = "the lab's generated text" if record["text"] == "synthetic" else record["text"]
    return (
        f"\nHere: `{record['model']}` ({record['parameters']:,} parameters) on {text}, "
        f"{optimizer[record['optimizer']]} with lr {record['lr']:g}, betas ({betas}) and weight "
        f"decay {record['weight_decay']:g}, {record['steps']:,} steps of {record['batch']} windows "
        "with a warm-up over 5 % of them and then a cosine, gradients clipped to "
        f"{record['clip']:g}; "
        f"{record['replicas']} replicas over {record['span']} steps before each measured one, "
        f"the truth from {record['truth']} batches; {record['machine']['device']}, "
        f"{record['precision']}. The command is `{record['command']}`.\n"
    )


def parts_table(record: Record) -> str:
    """What the run and the error of m^ are like at each point."""
    rows = [
        [
            f"{point['step']:,}",
            f"{point['held_out_loss']:.3f}",
            f"{point['lr']:.2g}",
            f"{point['noise'] / point['signal']:.2g}",
            *(percent(lag_share(point, metric)) for metric in METRICS),
            percent(point["clipped"]),
        ]
        for point in record["points"]
    ]
    header = (
        "step", "held-out loss", "lr", "noise / signal", "lag in m^'s error", "after the division",
        "gradients clipped",
    )  # fmt: skip
    return markdown(header, rows)


def lag_share(point: Point, metric: str) -> float:
    row = point[metric]["average"]
    return float(row["bias2"]["value"] / row["mse"]["value"])


def errors_table(record: Record) -> str:
    """Squared errors relative to m^'s."""
    return estimates_table(record, lambda p, m, name: with_error(p[m][name]["ratio"], 3), OTHERS)


def estimates_table(
    record: Record, cell: Callable[[Point, str, str], str], names: Sequence[str]
) -> str:
    """A row per estimate, before and after the division, and a column per point."""
    rows = [
        [f"{LABELS[name]}, {words}", *(cell(point, metric, name) for point in record["points"])]
        for metric, words in METRICS.items()
        for name in names
    ]
    return markdown(["", *by_step(record)], rows)


def angles_table(record: Record) -> str:
    """After the division: the cosines with the truth and with its signs, and the size."""

    def cell(point: Point, name: str) -> str:
        rows = point["adam"]
        size = rows[name]["size"]["value"] / rows["average"]["size"]["value"]
        cosines = (rows[name][key]["value"] for key in ("cosine", "sign_cosine"))
        numbers = (*cosines, size)
        return "; ".join("none" if one is None else f"{one:.3f}" for one in numbers)

    rows = [[LABELS[name], *(cell(p, name) for p in record["points"])] for name in LABELS]
    return markdown([METRICS["adam"], *by_step(record)], rows)


def downhill_table(record: Record) -> str:
    names = {"K": "K (g - m^)", "residual": "g - m^"}
    rows = [
        [
            f"{label}, {METRICS[metric]}",
            *(with_error(point["changes"][name][metric]) for point in record["points"]),
        ]
        for name, label in names.items()
        for metric in METRICS
    ]
    return markdown(["cosine with the truth", *by_step(record)], rows)


def best_gain_table(record: Record) -> str:
    """K and the best gain, in three bins of the residual and over all coordinates."""
    rows = []
    for metric, words in METRICS.items():
        for low in BINS:
            found = [bin_at(point, metric, low) for point in record["points"]]
            label = f"residual {low:g} to {found[0]['high']:g}, {words}"
            cells = [f"{one['gain']:.3f}; {with_error(one['best'])}" for one in found]
            rows.append([label, *cells])
        everywhere = [point["gain_by"]["all"][metric][0] for point in record["points"]]
        cells = [f"{one['gain']:.3f}; {with_error(one['best'])}" for one in everywhere]
        rows.append([f"all, {words}", *cells])
    return markdown(["K; the best gain", *by_step(record)], rows)


def bin_at(point: Point, metric: str, low: float) -> Mapping[str, Any]:
    bins = point["gain_by"]["residual"][metric]
    (found,) = (one for one in bins if one["low"] == low)
    return dict(found)


def steps_table(record: Record) -> str:
    """Slope, cost and what the best length would win, over those of a step along m^."""

    def cell(point: Point, metric: str, name: str) -> str:
        over = point["steps"][metric][name]["over average"]
        return "; ".join(with_error(over[key]) for key in ("slope", "cost", "most"))

    return estimates_table(record, cell, OTHERS[:-1])


def leads_table(record: Record) -> str:
    """Leads of steps of the real length over m^'s, in thousandths of a nat."""
    return estimates_table(
        record, lambda p, m, name: with_error(p["steps"][m][name]["lead"], 2, 1000), OTHERS
    )


# --- the answers ----------------------------------------------------------------------------------


def answers(record: Record) -> str:
    """Yes, no or not clear, by question and point; a table before and one after the division."""
    return "".join(
        markdown(
            [words, *by_step(record)],
            [
                [question, *(in_a_word(number) for number in numbers)]
                for question, numbers in questions(record, metric).items()
            ],
        )
        for metric, words in METRICS.items()
    )


def questions(record: Record, metric: str) -> dict[str, list[Number]]:
    """By question, a number per point that is above 0 if the answer is yes."""
    points = record["points"]
    return {
        "Is K nearer to the truth than m^?": [
            one_minus(point[metric]["K"]["ratio"]) for point in points
        ],
        "Does a short step along K lower the loss more than one along m^?": [
            point["steps"][metric]["K"]["short lead"] for point in points
        ],
        "Does a step of the real length along K lower the loss more than one along m^?": [
            point["steps"][metric]["K"]["lead"] for point in points
        ],
        "Does it lower the loss more than a step with the constant gain (1 - β₁)/2?": [
            lead_over(point, metric, "K", "half") for point in points
        ],
        "Does such a step along 2K lower it more than one with Nesterov's gain 1 - β₁?": [
            lead_over(point, metric, "2K", "nesterov") for point in points
        ],
        "If every step had its best length, would K win more than m^?": [
            less_one(point["steps"][metric]["K"]["over average"]["most"]) for point in points
        ],
        "Has 2K a lower cost than the constant gain (1 - β₁)/2?": [
            one_minus(cost_over(point, metric, "2K", "half")) for point in points
        ],
    }


def lead_over(point: Point, metric: str, ours: str, theirs: str) -> Number:
    rows = point["steps"][metric]
    difference = np.subtract(rows[ours]["tried"]["full"], rows[theirs]["tried"]["full"])
    return asdict(mean_of(difference.tolist()))


def cost_over(point: Point, metric: str, ours: str, theirs: str) -> Number:
    rows = point["steps"][metric]
    first, second = (TriedSteps(**rows[name]["tried"]) for name in (ours, theirs))
    return asdict(first.over(second)["cost"])


def one_minus(ratio: Number) -> Number:
    return {**ratio, "value": 1 - ratio["value"]}


def less_one(ratio: Number) -> Number:
    return ratio if ratio["value"] is None else {**ratio, "value": ratio["value"] - 1}


def in_a_word(number: Number) -> str:
    """Yes above 0; None is what could not be fitted."""
    value, error = number["value"], number["error"]
    if value is None or error is None or not abs(value) > CLEAR * error:
        return "not clear"
    return "yes" if value > 0 else "no"


# --- the figures ----------------------------------------------------------------------------------

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
    """The middle of a bin on a logarithmic axis; the first begins at 0 and the last has no end."""
    low, high = one["low"], one["high"]
    if not low:
        return float(high) / 2
    return float(np.sqrt(low * high)) if high else 1.3 * float(low)


def gains(record: Record) -> Figure:
    """Quantiles of K by kind of layer, through the run and by depth."""
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
