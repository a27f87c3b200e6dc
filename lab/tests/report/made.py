"""Runs as the lab leaves them on disk, with numbers made up for the tests, and their report."""

import dataclasses
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from sgdf_lab.reports.comparison import Comparison, compare_runs
from sgdf_lab.reports.tables import comparison_in_terminal
from sgdf_lab.runs import config as configs
from sgdf_lab.runs import results
from sgdf_lab.runs.config import Config
from sgdf_lab.runs.records import read_runs


def config(optimizer: str = "sgdf", seed: int = 0, task: str = "digits", **settings: Any) -> Config:
    names = ("model", "epochs", "precision", "data")
    own = {name: settings.pop(name) for name in names if name in settings}
    if task == "digits":
        own.setdefault("epochs", 3)
    return configs.make(task, optimizer=optimizer, seed=seed, overrides=settings, **own)


def hostile(optimizer: str, **settings: Any) -> Config:
    """Settings with a name that the lab would not train, but that a file may hold."""
    return dataclasses.replace(config("sgd"), optimizer=optimizer, settings=settings)


def run(
    out: Path,
    made: Config,
    accuracies: Sequence[float],
    *,
    status: str | None = "finished",
    seconds: float = 2.0,
    extra: dict[str, Any] | None = None,
) -> Path:
    """A folder with these test accuracies; a diverged run has one more line, without a loss.

    In `extra`, other measurements, a list has a value for each epoch.
    """
    lines: list[dict[str, Any]] = [
        {
            "epoch": epoch, "lr": 0.1, "train_loss": 1 / epoch, "train_accuracy": value - 1,
            "test_loss": 2 / epoch, "test_accuracy": value,
            **{k: v[epoch - 1] if isinstance(v, list) else v for k, v in (extra or {}).items()},
        }
        for epoch, value in enumerate(accuracies, start=1)
    ]  # fmt: skip
    if status == "diverged":
        broken = {"epoch": len(lines) + 1, "train_loss": None, "test_loss": None}
        lines.append({**broken, "test_accuracy": 10.0, "diverged": True})
    folder, metric = out / made.name, made.task_definition.metric.key
    folder.mkdir(parents=True)
    write(folder / "config.json", [made.as_json()])
    write(folder / "metrics.jsonl", lines)
    times = [{"epoch": line["epoch"], "seconds": seconds} for line in lines]
    write(folder / "times.jsonl", times)
    environment = {"command": "sgdf train it", "commit": "abc", "machine": {"device": "a CPU"}}
    write(folder / "env.json", [environment])
    if status:
        whole = all(line.get("diverged") or metric in line for line in lines)
        result = {"status": status, "epochs": len(lines)}
        if lines and whole:
            result = results.summary_of(made, lines, times, status)
        write(folder / "result.json", [result])
    return folder


def write(path: Path, lines: Sequence[Any]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def curve(final: float, epochs: int) -> list[float]:
    return [final - 60 * math.exp(-epoch / 10) for epoch in range(1, epochs + 1)]


def compare(out: Path, **how: Any) -> Comparison:
    (comparison,) = compare_runs(read_runs([out])[0], **how)
    return comparison


def in_terminal(comparison: Comparison, width: int) -> str:
    output = io.StringIO()
    Console(file=output, width=width).print(comparison_in_terminal(comparison, width))
    return output.getvalue()
