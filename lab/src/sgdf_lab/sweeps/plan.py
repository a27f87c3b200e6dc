"""Plan a sweep: a grid of settings times seeds, from a TOML file or a preset.

Importing this needs no more than sgdf itself does.
"""

import dataclasses
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sgdf_lab import paper, tasks
from sgdf_lab.runs import config as configs
from sgdf_lab.runs.config import Config
from sgdf_lab.runs.parse import read_toml
from sgdf_lab.support.errors import UserError, unknown
from sgdf_lab.support.files import explained, write_atomically

# Arguments of `configs.make`; every other name in a cell is an override.
ARGUMENTS = ("task", "model", "optimizer", "epochs", "precision", "data")
OF_TRIALS = ("finalists", "choice_seeds", "space")  # keys that have a meaning with trials alone
KEYS = (*ARGUMENTS, "title", "seeds", "set", "grid", "cells", "trials", *OF_TRIALS)

#: A sweep of more runs is a mistake: its plan alone would take gigabytes.
MAX_RUNS = 10_000

Table = Mapping[str, Any]  # of a TOML file
Cell = dict[str, Any]  # the settings of runs that differ in their seed only


@dataclass(frozen=True)
class Sweep:
    """Runs to compare, in the order in which they run: all cells with one seed, then the next."""

    name: str
    title: str
    configs: tuple[Config, ...]
    note: str = ""  # for the reader of the results
    subject: str = ""  # the title without the stage
    chosen_from: "Sweep | None" = None  # the tuned sweep whose best settings these are
    contestants: int = 0  # of trials, in turns; their best settings follow, with these seeds
    seeds: tuple[int, ...] = ()
    finalists: int = 0  # so many of the best trials run again, with the seeds of the choice
    choice_seeds: tuple[int, ...] = ()


# --- from a file --------------------------------------------------------------------------------


def sweep_from_file(path: Path, overrides: Table | None = None) -> Sweep:
    """The sweep of a TOML file; `overrides`, with the same keys, override the file."""
    values, given = read_toml(path), dict(overrides or {})
    try:
        settings = {**subtable(values, "set"), **given.pop("set", {})}
        return sweep_from_table(path.stem, {**values, **given, "set": settings})
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def sweep_from_table(name: str, values: Table) -> Sweep:
    """The sweep that the keys of a sweep file describe (docs/sweeps.md)."""
    for key in values:
        if key not in KEYS:
            raise unknown("key", key, KEYS)
    title = values.get("title", name)
    if not isinstance(title, str):
        raise UserError(f"title is a text, not {title!r}")
    if "trials" in values:
        from sgdf_lab.sweeps import tuned

        return tuned.sweep_from_table(name, values)
    for key in OF_TRIALS:
        if key in values:
            written = f"a [{key}]" if key == "space" else key
            raise UserError(f"{written} needs trials: give trials = N")
    shared = {**{key: values[key] for key in ARGUMENTS if key in values}, **subtable(values, "set")}
    grid, listed, seeds = grid_in(values), listed_cells(values), seeds_in(values)
    check_count(grid_size(grid) + len(listed), len(seeds))
    cells = [{**shared, **cell} for cell in (*grid_cells(grid), *listed)]
    if not cells:
        raise UserError("there is nothing to run: give a [grid] of lists, or [[cells]]")
    first = [config_of_cell(cell, seeds[0]) for cell in cells]
    refuse_duplicates(first)
    planned = tuple(dataclasses.replace(config, seed=seed) for seed in seeds for config in first)
    return Sweep(name, title, planned)


def subtable(values: Table, name: str) -> Cell:
    content = values.get(name, {})
    if not isinstance(content, dict):
        raise UserError(f"{name} is a table: write [{name}] above its settings")
    return content


def grid_in(values: Table) -> dict[str, list[Any]]:
    grid = subtable(values, "grid")
    for name, choices in grid.items():
        if name in ("seed", "seeds"):
            raise UserError("write seeds outside of the grid, as in seeds = [0, 1, 2]")
        if not isinstance(choices, list):
            raise UserError(f"in the grid, {name} is a list of values, not {choices!r}")
        if not choices:
            raise UserError(f"in the grid, {name} has no values")
    return grid


def grid_size(grid: Mapping[str, list[Any]]) -> int:
    """The number of combinations, without making any."""
    return math.prod(map(len, grid.values())) if grid else 0


def check_count(cells: int, seeds: int) -> None:
    """Refuse a sweep of more than MAX_RUNS runs, before any of them is made."""
    runs = cells * seeds
    if runs > MAX_RUNS:
        count = f"{runs:,}" if runs < 10**15 else f"about 10^{math.log10(runs):.0f}"
        raise UserError(
            f"the sweep has {count} runs, and the limit is {MAX_RUNS:,}: give fewer values or "
            "seeds, or split it into several sweeps"
        )


def grid_cells(grid: Mapping[str, list[Any]]) -> list[Cell]:
    """Every combination of the grid's values."""
    if not grid:
        return []
    return [dict(zip(grid, choice, strict=True)) for choice in itertools.product(*grid.values())]


def listed_cells(values: Table) -> list[Cell]:
    cells = values.get("cells", [])
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        raise UserError("cells are tables: write [[cells]] above the settings of each")
    if any(name in ("seed", "seeds") for cell in cells for name in cell):
        raise UserError("write seeds outside of the cells, as in seeds = [0, 1, 2]")
    return cells


def seeds_in(values: Table, key: str = "seeds") -> list[int]:
    seeds = values.get(key, [0])
    if not isinstance(seeds, list) or not seeds or not all(type(seed) is int for seed in seeds):
        raise UserError(f"{key} is a list of integers, like [0, 1, 2], not {seeds!r}")
    if len(set(seeds)) < len(seeds):
        raise UserError(f"{key} has a duplicate: {seeds}")
    return seeds


def config_of_cell(cell: Table, seed: int) -> Config:
    arguments = {name: cell[name] for name in ARGUMENTS if name in cell}
    if "task" not in arguments:
        raise UserError(f"which task? There are {', '.join(tasks.TASKS)}")
    overrides = {name: value for name, value in cell.items() if name not in ARGUMENTS}
    return configs.make(**arguments, seed=seed, overrides=overrides)


def refuse_duplicates(cells: Iterable[Config]) -> None:
    seen = set()
    for config in cells:
        if config.cell_key in seen:
            settings = ", ".join(f"{name} = {value}" for name, value in config.settings.items())
            raise UserError(
                f"duplicate cell: {config.task} {config.model} {config.optimizer}, {settings}"
            )
        seen.add(config.cell_key)


# --- presets ------------------------------------------------------------------------------------


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


def sweep_from_preset(name: str, values: Table) -> Sweep:
    """A search by name, with a tenth of the training images held out for validation."""
    if name == TUNED:
        from sgdf_lab.sweeps import tuned

        return tuned.sweep_from_preset(values)
    if name not in PRESETS:
        raise unknown("preset", name, PRESET_NAMES)
    if "trials" in values:
        raise UserError(f"the preset {name} is a grid: leave --trials out")
    if "task" not in values:
        raise UserError(f"the preset {name} needs a task: --task, one of {', '.join(tasks.TASKS)}")
    task = tasks.find(values["task"])
    title, cells = PRESETS[name]
    if task.kind not in ("classify", "photos"):
        raise UserError(f"the preset {name} is for classification, which {task.name} is not")
    if not task.of_paper:
        raise UserError(f"the preset {name} needs a dataset of the lab: write a file for yours")
    is_synthetic = values.get("data") == "synthetic"
    from sgdf_lab import data
    from sgdf_lab.data import synthetic

    images = synthetic.TRAIN if is_synthetic else data.find(task.dataset).train
    settings = {"validation": images // 10, **values.get("set", {})}
    full_name = "-".join((name, task.name, values.get("model") or task.model))
    return sweep_from_table(
        full_name, {**values, "title": title, "cells": cells(task.name), "set": settings}
    )


# --- on disk ------------------------------------------------------------------------------------


def write_plan(sweep: Sweep, out: Path, command: str) -> None:
    """Write what is to be run, so that a report can say what is missing."""
    planned = {
        "name": sweep.name,
        "title": sweep.title,
        "note": sweep.note,
        "command": command,
        "configs": [config.as_json() for config in sweep.configs],
    }
    with explained(out):
        out.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"[^\w.-]", "_", sweep.name)
        write_atomically(out / f"sweep-{name}.json", json.dumps(planned, indent=2) + "\n")
