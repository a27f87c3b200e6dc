"""The tables and sentences of docs/why.md, made from the record of benchmarks/why.py.

The page keeps them between two comments, ``<!-- NAME -->`` and ``<!-- end of NAME -->``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from sgdf_lab.instruments.directions import TriedSteps, mean_of
from sgdf_lab.support.pages import markdown_table

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
    """What the training and the error of m^ are like at each point."""
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
    """Of three bins of the residual and of all coordinates: K, and the best gain."""
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
