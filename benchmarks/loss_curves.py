"""The figure and the table with which README.md and docs/index.md begin, from recorded runs.

    python benchmarks/loss_curves.py

Draws the validation loss by step of the tuned contestants on two tasks, means and ranges of the
seeds, into docs/figures/loss-curves.svg. The table has how many steps FilterAdamW saves on the way
to the last loss of AdamW, and FilterMuon with an eigenbasis (FilterMuon*) on the way to Muon's, and
the test metric of each; benchmarks/pages.py puts it into the pages. It trains nothing.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from sgdf_lab import optimizers
from sgdf_lab.support.figures import LINE_STYLES, STYLE, write_svg
from sgdf_lab.support.pages import markdown_table

sys.path.insert(0, str(Path(__file__).parent))
import filter_map_page

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "evidence"
FIGURE = ROOT / "docs" / "figures" / "loss-curves"

STARRED = filter_map_page.EIGENBASIS
NAMES = {STARRED: "FilterMuon*"}  # as the pages and the figure call it
DRAWN = {"contest-gpt-encyclopedia": "encyclopedia articles", "contest-gpt-books": "books"}
CURVES = ("AdamW", "FilterAdamW", "SOAP", "Muon", STARRED)
SAVERS = {"FilterAdamW": "AdamW", STARRED: "Muon"}  # who saves steps, and on whom
SHOWN = ("AdamW", "FilterAdamW", "Muon", "SOAP", "FilterMuon", STARRED)
ROWS = {
    "contest-gpt-encyclopedia": "GPT, encyclopedia",
    "contest-gpt-books": "GPT, books",
    "contest-lstm-encyclopedia": "LSTM, encyclopedia",
    "contest-vit-cifar10": "ViT, CIFAR-10, %",
    "contest-cnn-cifar10": "CNN, CIFAR-10, %",
}

Summary = dict[str, Any]


def summary_of(task: str) -> Summary:
    return json.loads((RESULTS / task / "summary.json").read_text(encoding="utf-8"))


def curves(task: str, label: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps, and the validation loss of every seed of the chosen setting: a row for each."""
    summary = summary_of(task)
    chosen = contestant(summary, label)
    settings, rows = chosen["chosen"]["settings"], []
    for line in (RESULTS / task / "runs.jsonl").read_text(encoding="utf-8").splitlines():
        run = json.loads(line)
        config = run["config"]
        same = config["optimizer"] == chosen["optimizer"] and config["settings"] == settings
        if same and str(config["seed"]) in chosen["seeds"] and "result" in run:
            rows.append([row["val_loss"] for row in run["metrics"]])
            steps = [row["step"] for row in run["metrics"]]
    assert len(rows) == chosen["final"]["n"], (task, label, len(rows))
    return np.array(steps), np.array(rows)


def contestant(summary: Summary, label: str) -> Mapping[str, Any]:
    (found,) = [c for c in summary["contestants"] if c["label"] == label]
    return found


def steps_to(steps: np.ndarray, losses: np.ndarray, target: float) -> float | None:
    """Where the line through the mean losses first is at the target; None: nowhere."""
    below = np.flatnonzero(losses <= target)
    if not below.size or below[0] == 0:
        return None
    last, first = below[0] - 1, below[0]
    share = (losses[last] - target) / (losses[last] - losses[first])
    return float(steps[last] + share * (steps[first] - steps[last]))


def steps_words(task: str, ours: str) -> str:
    """How many of the rival's steps, or passes over images, ours saves on the way to its end."""
    rival, summary = SAVERS[ours], summary_of(task)
    if "step" in summary["unit"]:  # by the mean losses
        steps, theirs = curves(task, rival)
        reached = steps_to(steps, curves(task, ours)[1].mean(axis=0), theirs.mean(axis=0)[-1])
        last, unit = steps[-1], ""
    else:  # the evaluation at which half of the seeds are there
        rows = next(c["reached"] for c in summary["comparisons"] if c["reference"] == rival)
        reached = next(row["length"] for row in rows if row["contestant"] == ours)
        last, unit = summary["length"], " passes"
    saved = 0 if reached is None else round(last - reached)
    return f"{saved} of {last}{unit}" if saved else "none"


def wins_of_filter_adamw() -> str:
    """On how many tasks its mean is better than AdamW's, and on how many clearly."""
    rows = []
    for task in ROWS:
        summary = summary_of(task)
        sign = -1 if summary["metric"]["lower_is_better"] else 1
        (found,) = [
            row
            for comparison in summary["comparisons"]
            if comparison["reference"] == "AdamW"
            for row in comparison["rows"]
            if row["contestant"] == "FilterAdamW"
        ]
        rows.append((sign * found["mean"] > 0, found["verdict"] == "ahead"))
    better, clearly = map(sum, zip(*rows, strict=True))
    words = ("none", "one", "two", "three", "four", "all five")
    return f"{words[better]}, clearly on {words[clearly]}"


def metric_words(summary: Summary, name: str) -> str:
    """The mean of a contestant; bold: clearly ahead of all four rivals of the contest."""
    label = next(
        (c["label"] for c in summary["contestants"] if filter_map_page.short_name(c) == name), None
    )
    if label is None:  # on images, SOAP's rule steps kernels as matrices
        return metric_words(summary, "SOAP, kernels as matrices")
    digits = 3 if summary["metric"]["lower_is_better"] else 1
    mean = f"{contestant(summary, label)['final']['mean']:.{digits}f}"
    return f"**{mean}**" if filter_map_page.ahead_of_all(summary, name) else mean


def table() -> str:
    rows = []
    for task, words in ROWS.items():
        summary = summary_of(task)
        saved = [steps_words(task, ours) for ours in SAVERS]
        rows.append([words, *saved, *(metric_words(summary, name) for name in SHOWN)])
    saving = [f"steps {shown(ours)} saves on {rival}" for ours, rival in SAVERS.items()]
    header = ["", *saving, *map(shown, SHOWN)]
    header = [name.replace("Filter", "Filter<wbr>").replace("*", r"\*") for name in header]
    return "\n" + markdown_table(header, rows) + "\n"


def shown(label: str) -> str:
    return NAMES.get(label, label)


def figure(tasks: Sequence[str] = tuple(DRAWN)) -> Figure:
    with matplotlib.rc_context(STYLE):
        drawn = Figure(figsize=(8.4, 3.7), layout="constrained")
        for axes, task in zip(drawn.subplots(1, len(tasks)), tasks, strict=True):
            for label in CURVES:
                steps, losses = curves(task, label)
                style = optimizers.style(contestant(summary_of(task), label)["optimizer"])
                low, high = losses.min(axis=0), losses.max(axis=0)
                axes.fill_between(steps, low, high, color=style.colour, alpha=0.18, linewidth=0)
                dashes = LINE_STYLES[style.dash]
                axes.plot(steps, losses.mean(axis=0), color=style.colour, linestyle=dashes,
                          linewidth=1.8, label=shown(label))  # fmt: skip
            for ours, rival in SAVERS.items():
                mine, theirs = (curves(task, x)[1].mean(axis=0) for x in (ours, rival))
                target = theirs[-1]
                reached = steps_to(steps, mine, target)
                if reached is None:
                    continue
                axes.hlines(target, reached, steps[-1], color="#555555", linewidth=1.4)
                words = f"{steps[-1] - reached:.0f} steps saved on {rival}"
                offset = (0, 30) if rival == "AdamW" else (-80, -16)
                line = {"arrowstyle": "-", "color": "#888888"}
                axes.annotate(words, (reached, target), offset, textcoords="offset points",
                              ha="center", va="center", fontsize=8.5, arrowprops=line)  # fmt: skip
            axes.set_title(f"GPT of 0.8 million parameters, {DRAWN[task]}", fontsize=9.5)
            axes.set(xlabel=f"step ({len(losses)} seeds)", ylabel="validation loss (nats per byte)")
            axes.set_xlim(100, steps[-1])
            axes.set_ylim(top=losses.mean(axis=0)[0] * 1.12)
            axes.legend(frameon=False, fontsize=8.5)
        return drawn


def main() -> None:
    print("wrote", write_svg(figure(), FIGURE).relative_to(ROOT))


if __name__ == "__main__":
    main()
