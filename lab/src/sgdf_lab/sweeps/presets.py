"""Sweeps by name: searches over published grids or declared spaces, and the paper's experiments."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sgdf_lab import paper, tasks
from sgdf_lab.registry.tasks import Task
from sgdf_lab.runs import config as configs
from sgdf_lab.support.errors import UserError, unknown
from sgdf_lab.sweeps.plan import (
    CLASSIFIERS,
    OWN_IMAGES,
    TRIALS,
    Cell,
    Grid,
    Sweep,
    Table,
    check_count,
    sweep_from_table,
)


def with_half_steps(rates: Iterable[float]) -> list[float]:
    """Add half of a rate where the next is a tenth of it; the paper itself has 1, 0.5, 0.1.

    >>> with_half_steps((1.0, 0.5, 0.1, 0.01))
    [1.0, 0.5, 0.1, 0.05, 0.01]
    """
    falling = sorted(rates, reverse=True)
    halves = [high / 2 for high, low in itertools.pairwise(falling) if high > 5.001 * low]
    return sorted({*falling, *halves}, reverse=True)


def lr_grid_cells(task: str) -> list[Cell]:
    return [
        {"optimizer": optimizer, "lr": lr}
        for optimizer in ("sgdf", "sgd", "adam")
        for lr in with_half_steps(paper.LEARNING_RATES[optimizer])
    ]


def budget_cells(task: str) -> list[Cell]:
    """The complete published grids; beta2 is that of the published settings."""
    cells = []
    for optimizer, search in paper.SEARCHES.items():
        _, beta2 = paper.settings(task, optimizer).get("betas", (0.9, 0.999))
        grid: dict[str, Iterable[Any]] = {"lr": search.lr}
        if search.beta1:
            grid["betas"] = [[beta1, beta2] for beta1 in search.beta1]
        if search.weight_decay:
            grid["weight_decay"] = search.weight_decay
        cells += [
            {"optimizer": optimizer, **dict(zip(grid, values, strict=True))}
            for values in itertools.product(*grid.values())
        ]
    return cells


# Title and cells, given a task.
PRESETS: dict[str, tuple[str, Callable[[str], list[Cell]]]] = {
    "lr-grid": (
        "The paper's learning rates, and half steps between, for three optimizers",
        lr_grid_cells,
    ),
    "budget": ("Every optimizer that the paper searched, over its published grid", budget_cells),
}
TUNED = "tuned"  # trials of every optimizer in its space, then seeds of the best
PRESET_NAMES = (*PRESETS, TUNED)

# Of the preset tuned, by kind of task.
LANGUAGE = ("adamw", "nadamw", "filter-adamw", "lion", "schedule-free-adamw", "soap", "muon")
IMAGES = ("sgd", "sgd-nesterov", "sgd-ema", "sgdf", "adamw", "filter-adamw")


def sweep_from_preset(name: str, values: Table) -> Sweep:
    """A search by name: what chooses its settings is held out, and is not what it ends with.

    That is a tenth of the training images; of a text, whose validation part always is, it is cut in
    two, and the second half is for the test.
    """
    if name not in PRESET_NAMES:
        raise unknown("preset", name, PRESET_NAMES)
    if name != TUNED and "trials" in values:
        raise UserError(f"the preset {name} is a grid: leave --trials out")
    if "task" not in values:
        raise UserError(f"the preset {name} needs a task: --task, one of {', '.join(tasks.TASKS)}")
    task = tasks.find(values["task"])
    full_name = "-".join((name, task.name, values.get("model") or task.model))
    if name == TUNED:
        optimizers = LANGUAGE if task.kind == "language" else IMAGES
        cells: list[Cell] = [{"optimizer": optimizer} for optimizer in optimizers]
        values = {"title": full_name, "trials": TRIALS, **values}
        holds_out = task.kind in CLASSIFIERS and task.name != OWN_IMAGES
    else:
        if task.kind not in ("classify", "photos"):
            raise UserError(f"the preset {name} is for classification, which {task.name} is not")
        if not task.of_paper:
            raise UserError(f"the preset {name} needs a dataset of the lab: write a file for yours")
        title, make_cells = PRESETS[name]
        cells, values, holds_out = make_cells(task.name), {**values, "title": title}, True
    settings = dict(values.get("set", {}))
    if "test_tokens" in task.options:
        settings.setdefault("test_tokens", task.options["eval_tokens"])
    if holds_out:
        settings.setdefault("validation", training_images(task, values) // 10)
    return sweep_from_table(full_name, {**values, "cells": cells, "set": settings})


def training_images(task: Task, values: Table) -> int:
    from sgdf_lab import data
    from sgdf_lab.data import synthetic

    if values.get("data") == "synthetic":
        return synthetic.TRAIN
    return data.find(task.dataset).train


# --- the paper ------------------------------------------------------------------------------------


def sweep_from_paper(
    name: str,
    *,
    only: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    epochs: int | None = None,
    precision: str = "tf32",
    data: str = "real",
    overrides: Mapping[str, Any] | None = None,
) -> Grid:
    """A preset as published, unless an argument changes it.

    Args:
        name: one of `paper.PRESETS`.
        only: only these optimizers.
        seeds, epochs: instead of the published ones.
        precision, data: as in `sgdf train`.
        overrides: settings for all of its runs; they override those of a cell.
    """
    preset = paper.preset(name)
    names = {cell.optimizer for cell in preset.cells}
    for optimizer in only or ():
        if optimizer not in names:
            raise unknown(f"optimizer in {preset.name}:", optimizer, names)
    cells = [cell for cell in preset.cells if not only or cell.optimizer in only]
    seeds = seeds or preset.seeds
    check_count(len(cells), len(seeds))
    norms = {"norms": True} if preset.track_norms else {}
    planned = tuple(
        configs.make(
            cell.task,
            model=cell.model,
            optimizer=cell.optimizer,
            seed=seed,
            epochs=epochs or preset.epochs,
            precision=precision,
            data=data,
            overrides={**cell.overrides, **(overrides or {}), **norms},
        )
        for cell in cells
        for seed in seeds
    )
    return Grid(preset.name, preset.title, planned, preset.note)
