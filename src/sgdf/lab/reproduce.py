"""Run a table or figure of the paper again: every cell, resumable, beside the published value."""

import argparse
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from sgdf.lab import config as configs
from sgdf.lab import paper
from sgdf.lab.config import Config
from sgdf.lab.errors import unknown
from sgdf.lab.paper import Cell, Preset, Value
from sgdf.lab.runs import Run
from sgdf.lab.train import Place, place_from, train


@dataclass
class Row:
    """A cell of the preset and the results of its seeds, as far as they are there."""

    cell: Cell
    wanted: list[Config]
    results: list[dict[str, Any]] = field(default_factory=list)


def run(options: argparse.Namespace) -> None:
    preset = paper.preset(options.name)
    place = place_from(options)
    console = Console()
    rows = plan(preset, options)
    together = options.together if place.device.type == "cuda" else 1
    try:
        for group in groups(rows, together):
            train(group, place, console)
    finally:  # also of what there is when it is stopped
        collect(rows, place)
        show(preset, rows, console, options.data)
    console.print(f"The runs are in {place.out}", soft_wrap=True)


def plan(preset: Preset, options: argparse.Namespace) -> list[Row]:
    """What to run: the preset's cells, or those of some optimizers, with the seeds asked for."""
    names = {cell.optimizer for cell in preset.cells}
    for name in options.only or ():
        if name not in names:
            raise unknown(f"optimizer in {preset.name}:", name, names)
    return [
        Row(
            cell, [config_of(preset, cell, seed, options) for seed in options.seeds or preset.seeds]
        )
        for cell in preset.cells
        if not options.only or cell.optimizer in options.only
    ]


def config_of(preset: Preset, cell: Cell, seed: int, options: argparse.Namespace) -> Config:
    overrides = dict(cell.overrides)
    if preset.track_norms:
        overrides["norms"] = True
    return configs.make(
        cell.task,
        model=cell.model,
        optimizer=cell.optimizer,
        seed=seed,
        epochs=options.epochs or preset.epochs,
        precision=options.precision,
        data=options.data,
        overrides=overrides,
    )


def groups(rows: Sequence[Row], together: int) -> Iterator[list[Config]]:
    """All cells with the first seed before any with the second: a table that is never empty."""
    seeds = range(max(len(row.wanted) for row in rows))
    todo = [row.wanted[i] for i in seeds for row in rows]
    for start in range(0, len(todo), together):
        yield todo[start : start + together]


def collect(rows: Sequence[Row], place: Place) -> None:
    """The results on disk."""
    for row in rows:
        found = (Run(place.out, config).result() for config in row.wanted)
        row.results = [result for result in found if result is not None]


def show(preset: Preset, rows: Sequence[Row], console: Console, data: str) -> None:
    table = Table(title=preset.title, caption=caption(rows, data))
    table.add_column("", style="bold")
    for name in ("best", "final", "published", "difference", "runs", "s/run"):
        table.add_column(name, justify="right")
    several = len({(row.cell.task, row.cell.model) for row in rows}) > 1
    for row in rows:
        place = f"{row.cell.task} {row.cell.model} " if several else ""
        table.add_row(
            place + row.cell.label, *numbers(row, row.cell.published if data == "real" else None)
        )
    console.print(table)
    if preset.note:
        console.print(preset.note)


def caption(rows: Sequence[Row], data: str) -> str:
    epochs = sorted({config.epochs for row in rows for config in row.wanted})
    made = "" if data == "real" else "; the images are synthetic"
    return (
        f"test accuracy in percent, best over epochs and after the last of "
        f"{' or '.join(map(str, epochs))}: mean ± std over runs{made}"
    )


def numbers(row: Row, published: Value | None) -> list[str]:
    done = [result for result in row.results if result["status"] == "finished"]
    diverged = sum(result["status"] == "diverged" for result in row.results)
    count = f"{len(done)} of {len(row.wanted)}" + (f", {diverged} diverged" if diverged else "")
    beside = "-" if published is None else spread([published.mean], published.std)
    if not done:
        return ["-", "-", beside, "-", count, "-"]
    best = [result["best_test_accuracy"] for result in done]
    difference = "-" if published is None else f"{statistics.mean(best) - published.mean:+.2f}"
    return [
        spread(best),
        spread([result["final_test_accuracy"] for result in done]),
        beside,
        difference,
        count,
        f"{statistics.mean(result['seconds'] for result in done):.0f}",
    ]


def spread(values: Sequence[float], std: float | None = None) -> str:
    if std is None and len(values) > 1:
        std = statistics.stdev(values)
    return f"{statistics.mean(values):.2f}" + ("" if std is None else f" ± {std:.2f}")
