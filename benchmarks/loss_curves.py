"""The figure and the table with which README.md and docs/index.md begin, from recorded runs.

    python benchmarks/loss_curves.py

Draws the validation loss by step of the tuned optimizers on two tasks, means and ranges of the
seeds, into docs/figures/loss-curves.svg. The table has how many of its steps FilterAdamW saves on
the way to AdamW's last loss, and the metric; benchmarks/pages.py puts it into the pages. It trains
nothing.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from sgdf_lab import optimizers
from sgdf_lab.support.figures import STYLE, write_svg
from sgdf_lab.support.pages import markdown_table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "evidence"
FIGURE = ROOT / "docs" / "figures" / "loss-curves"

OURS = "FilterAdamW, 2K"  # in files of its forms, with gain_eps 0, the default; else the paper's
DRAWN = {
    "gpt-mini-encyclopedia-form": "encyclopedia articles",
    "gpt-mini-books-form": "books",
}
RIVALS = ("AdamW", "NAdamW")
ROWS = {
    "gpt-mini-encyclopedia-form": "GPT, 0.8 M, encyclopedia",
    "gpt-mini-books-form": "GPT, 0.8 M, books",
    "vit-mini-fashion-form": "small ViT, Fashion-MNIST",
    "gpt-tiny-encyclopedia-finals": "GPT, 0.1 M, encyclopedia (paper's form)",
    "gpt-tiny-books-finals": "GPT, 0.1 M, books (paper's form)",
    "mlp-fashion-finals": "perceptron, Fashion-MNIST (paper's form)",
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


def steps_words(task: str, rival: str = "AdamW") -> str:
    """How many of the rival's steps ours saves on the way to the rival's last loss."""
    if "step" not in summary_of(task)["unit"]:
        return "–"
    steps, theirs = curves(task, rival)
    reached = steps_to(steps, curves(task, OURS)[1].mean(axis=0), theirs.mean(axis=0)[-1])
    return "not reached" if reached is None else f"{steps[-1] - reached:.0f} of {steps[-1]}"


def difference_words(summary: Summary, rival: str) -> str:
    """Ours minus the rival's in the final metric; bold: decided, and "behind" where it is so."""
    (rows,) = [c["rows"] for c in summary["comparisons"] if c["reference"] == rival]
    (row,) = [row for row in rows if row["contestant"] == OURS]
    digits = 3 if summary["metric"]["lower_is_better"] else 2
    text = f"{row['mean']:+.{digits}f}".replace("-", "−")
    behind = " (behind)" if row["verdict"] == "behind" else ""
    return f"**{text}**{behind}" if row["verdict"] in ("ahead", "behind") else text


def table() -> str:
    rows = []
    for task, words in ROWS.items():
        summary = summary_of(task)
        unit = "test loss" if summary["metric"]["lower_is_better"] else "test accuracy, %"
        differences = [difference_words(summary, rival) for rival in RIVALS]
        rows.append([words, steps_words(task), unit, *differences])
    header = ["", "steps saved", "metric", "minus AdamW", "minus NAdamW"]
    return "\n" + markdown_table(header, rows) + "\n"


def figure(tasks: Sequence[str] = tuple(DRAWN)) -> Figure:
    with matplotlib.rc_context(STYLE):
        drawn = Figure(figsize=(8.4, 3.5), layout="constrained")
        for axes, task in zip(drawn.subplots(1, len(tasks)), tasks, strict=True):
            for label in (*RIVALS, OURS):
                steps, losses = curves(task, label)
                name = contestant(summary_of(task), label)["optimizer"]
                colour = optimizers.style(name).colour
                shown = label.partition(",")[0]
                low, high = losses.min(axis=0), losses.max(axis=0)
                axes.fill_between(steps, low, high, color=colour, alpha=0.18, linewidth=0)
                axes.plot(steps, losses.mean(axis=0), color=colour, linewidth=1.8, label=shown)
            seeds = len(losses)
            target = curves(task, "AdamW")[1].mean(axis=0)[-1]
            reached = steps_to(steps, losses.mean(axis=0), target)
            assert reached is not None
            axes.hlines(target, reached, steps[-1], color="#888888", linewidth=1, linestyle="--")
            saved = f"{steps[-1] - reached:.0f} of {steps[-1]} steps saved"
            axes.annotate(saved, ((reached + steps[-1]) / 2, target), xytext=(0, 34), fontsize=9,
                          textcoords="offset points", ha="center",
                          arrowprops={"arrowstyle": "-", "color": "#888888"})  # fmt: skip
            axes.set_title(f"GPT of 0.8 million parameters, {DRAWN[task]}", fontsize=9.5)
            axes.set(xlabel=f"step ({seeds} seeds)", ylabel="validation loss (nats per byte)")
            axes.legend(frameon=False, fontsize=9)
        return drawn


def main() -> None:
    print("wrote", write_svg(figure(), FIGURE).relative_to(ROOT))


if __name__ == "__main__":
    main()
