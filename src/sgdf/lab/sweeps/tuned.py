"""A fair comparison in two stages: as many trials for everyone, then several seeds of the best.

The trials of an optimizer are points of a Sobol sequence in its space (`spaces`), the same for
everyone in the dimensions that they share. The setting with the best final validation metric is
chosen, and trained with every seed. The same command resumes either stage.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sgdf.lab import data, tasks
from sgdf.lab.data import class_folders, synthetic
from sgdf.lab.runs.config import Config
from sgdf.lab.runs.disk import read_end, read_lines
from sgdf.lab.sweeps import spaces
from sgdf.lab.sweeps.plan import (
    ARGUMENTS,
    Cell,
    Sweep,
    Table,
    check_count,
    config_of_cell,
    grid_cells,
    grid_in,
    grid_size,
    listed_cells,
    refuse_duplicates,
    seeds_in,
    subtable,
)
from sgdf.support.errors import UserError

TRIALS = 16
TRIAL_SEED = 0
SEEDS = [1, 2, 3, 4, 5]  # of the chosen settings: not the seed that they were chosen by
SCRAMBLING = 20260101  # of the Sobol sequence
DIMENSIONS = 8  # of the sequence, whatever a space needs: so all share the first coordinates

OWN_IMAGES = "images"  # the folder may have validation images
CLASSIFIERS = ("classify", "photos", "fast")  # kinds of tasks that can hold out images

# Of the preset, by kind of task.
LANGUAGE = ("adamw", "nadamw", "filter-adamw", "lion", "schedule-free-adamw", "soap", "muon")
IMAGES = ("sgd", "sgd-nesterov", "sgd-ema", "sgdf", "adamw", "filter-adamw")


# --- the plan -------------------------------------------------------------------------------------


def sweep_from_table(name: str, values: Table) -> Sweep:
    """The trials of a sweep file with the key `trials`; `best_of` follows when they have ended."""
    trials, seeds = trials_in(values), seeds_in({"seeds": SEEDS, **values})
    shared = {**{key: values[key] for key in ARGUMENTS if key in values}, **subtable(values, "set")}
    grid, listed = grid_in(values), listed_cells(values)
    check_count(grid_size(grid) + len(listed), trials + len(seeds))
    contestants = [{**shared, **cell} for cell in (*grid_cells(grid), *listed)]
    if not contestants:
        raise UserError("there is nothing to run: give a [grid] of lists, or [[cells]]")
    ends = subtable(values, "space")
    searched = [trials_of(cell, trials, ends) for cell in contestants]
    refuse_unused(ends, contestants)
    # The first trial of all before the second of any, so that a table fills evenly.
    turns = zip(*searched, strict=True)
    first = [config_of_cell(cell, TRIAL_SEED) for turn in turns for cell in turn]
    refuse_duplicates(first)
    for config in first[: len(contestants)]:
        validation_key(config)
    for seed in seeds:
        replace(first[0], seed=seed)  # refuses what is none, before the trials are trained
    if TRIAL_SEED in seeds:
        raise UserError(f"seed {TRIAL_SEED} is that of the trials: the best settings need others")
    return Sweep(
        name,
        f"{values.get('title', name)}: {trials} trials of each",
        tuple(first),
        contestants=len(contestants),
        seeds=tuple(seeds),
    )


def trials_in(values: Table) -> int:
    trials = values.get("trials", TRIALS)
    if type(trials) is not int or trials < 1:
        raise UserError(f"trials is an integer of at least 1, not {trials!r}")
    return trials


def trials_of(cell: Cell, trials: int, ends: Mapping[str, Any]) -> list[Cell]:
    optimizer = cell.get("optimizer", "sgdf")
    if not isinstance(optimizer, str):
        raise UserError(f"optimizer is a name, not {optimizer!r}")
    space = spaces.space_of(optimizer, cell, subtable(ends, optimizer))
    return [
        spaces.with_constant_gain({**cell, **spaces.settings_at(space, point)})
        for point in points(space, trials)
    ]


def points(space: spaces.Space, trials: int) -> list[dict[str, float]]:
    """Parts of the ranges. More trials begin with the same ones."""
    from scipy.stats import qmc

    power = max(trials - 1, 1).bit_length()  # a Sobol sequence is balanced in powers of two
    sequence = qmc.Sobol(DIMENSIONS, scramble=True, seed=SCRAMBLING).random_base2(power)
    return [dict(zip(space, map(float, row), strict=False)) for row in sequence[:trials]]


def refuse_unused(ends: Mapping[str, Any], contestants: Sequence[Cell]) -> None:
    names = [cell.get("optimizer", "sgdf") for cell in contestants]
    for optimizer in ends:
        if optimizer not in names:
            raise UserError(f"[space.{optimizer}] is of an optimizer that is not in the sweep")


def sweep_from_preset(values: Table) -> Sweep:
    """The usual optimizers for a task, with a tenth of training images held out for validation."""
    if "task" not in values:
        raise UserError(f"the preset tuned needs a task: --task, one of {', '.join(tasks.TASKS)}")
    task = tasks.find(values["task"])
    settings = dict(values.get("set", {}))
    if task.kind in CLASSIFIERS and task.name != OWN_IMAGES:
        is_synthetic = values.get("data") == "synthetic"
        images = synthetic.TRAIN if is_synthetic else data.find(task.dataset).train
        settings.setdefault("validation", images // 10)
    cells = [{"optimizer": name} for name in (LANGUAGE if task.kind == "language" else IMAGES)]
    name = "-".join(("tuned", task.name, values.get("model") or task.model))
    return sweep_from_table(name, {"title": name, **values, "cells": cells, "set": settings})


# --- the choice -----------------------------------------------------------------------------------


def best_of(sweep: Sweep, out: Path) -> Sweep:
    """The best setting of every contestant that has a finished trial, with every seed."""
    waiting = sum(read_end(out / config.name, config) is None for config in sweep.configs)
    if waiting:
        raise UserError(
            f"{waiting} of {len(sweep.configs)} trials have not ended (another process may be "
            "training them): the same command continues when they have"
        )
    turns = [sweep.configs[i :: sweep.contestants] for i in range(sweep.contestants)]
    able = [trials for trials in turns if has_finished(trials, out)]
    chosen = [best_config(trials, out) for trials in able or turns]
    planned = tuple(replace(config, seed=seed) for seed in sweep.seeds for config in chosen)
    title = sweep.title.rpartition(":")[0]
    return Sweep(f"{sweep.name}-best", f"{title}: the best setting of each", planned)


def has_finished(trials: Sequence[Config], out: Path) -> bool:
    """Whether any of them has; one that diverged or failed has not."""
    return any(final_validation(config, out) is not None for config in trials)


def best_config(trials: Sequence[Config], out: Path) -> Config:
    """The trial with the best validation metric after its last step; not one that diverged."""
    values = {config.name: final_validation(config, out) for config in trials}
    ended = [config for config in trials if values[config.name] is not None]
    if not ended:
        raise UserError(f"no trial of {trials[0].optimizer} on {trials[0].task} has finished")
    metric = trials[0].task_definition.metric
    sign = -1 if metric.lower_is_better else 1
    return max(ended, key=lambda config: sign * (values[config.name] or 0.0))


def final_validation(config: Config, out: Path) -> float | None:
    """None of a run that failed or diverged."""
    folder = out / config.name
    result = read_end(folder, config)
    if result is None or result["status"] != "finished":
        return None
    value: float | None = read_lines(folder / "metrics.jsonl")[-1].get(validation_key(config))
    return value


def check_validation_images(sweep: Sweep, data_dir: Path | None) -> None:
    """Whether a user's own folder has images to choose by, which the plan alone does not say."""
    if all(config.validation or config.task != OWN_IMAGES for config in sweep.configs):
        return
    dataset = class_folders.read(data_dir)
    if "validation" not in dataset.evaluation:
        raise UserError(
            f"trials are compared by validation: set validation=N, since {dataset.folder} has no "
            "train, val and test"
        )


def validation_key(config: Config) -> str:
    """The metric that a setting is chosen by."""
    task = config.task_definition
    if task.kind == "language":  # always holds out a part of its text
        return task.metric.key
    if task.kind not in CLASSIFIERS:
        raise UserError(f"{config.task} has no validation data to choose a setting by")
    if not config.validation and config.task != OWN_IMAGES:
        raise UserError(f"trials are compared by validation: set validation=N for {config.task}")
    return task.metric.key.replace("test_", "validation_", 1)
