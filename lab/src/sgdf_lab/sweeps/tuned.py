"""A fair comparison in stages: as many trials for everyone, then several seeds of the best.

The trials of an optimizer are points of a Sobol sequence in its space (`spaces`), the same for
everyone in the dimensions that they share. The setting with the best final validation metric is
chosen, and trained with every seed. With `finalists` there is a stage between: the best trials run
again with other seeds, and the best mean of these is chosen, since the best of many trials of one
seed may be a lucky run of a setting that is bad on average. The same command resumes every stage.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sgdf_lab import tasks
from sgdf_lab.registry.spaces import Space
from sgdf_lab.runs.config import Config
from sgdf_lab.runs.reading import read_end
from sgdf_lab.runs.records import read_runs
from sgdf_lab.support.errors import UserError
from sgdf_lab.sweeps import spaces
from sgdf_lab.sweeps.contestants import (
    CLASSIFIERS,
    OWN_IMAGES,
    Contestant,
    contestants_of,
    turns_of,
    validation_key,
)
from sgdf_lab.sweeps.plan import (
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

TRIALS = 16
TRIAL_SEED = 0
CHOICE_SEEDS = [101, 102, 103]  # of the finalists
SEEDS = [1, 2, 3, 4, 5]  # of the chosen settings: not a seed that they were chosen by
SCRAMBLING = 20260101  # of the Sobol sequence
DIMENSIONS = 8  # of the sequence, whatever a space needs: so all share the first coordinates

# Of the preset, by kind of task.
LANGUAGE = ("adamw", "nadamw", "filter-adamw", "lion", "schedule-free-adamw", "soap", "muon")
IMAGES = ("sgd", "sgd-nesterov", "sgd-ema", "sgdf", "adamw", "filter-adamw")


# --- the plan -------------------------------------------------------------------------------------


def sweep_from_table(name: str, values: Table) -> Sweep:
    """The trials of a sweep file with the key `trials`; `best_of` follows when they have ended."""
    trials, seeds = count_in(values, "trials", TRIALS), seeds_in({"seeds": SEEDS, **values})
    finalists, choice_seeds = finals_in(values, trials)
    shared = {**{key: values[key] for key in ARGUMENTS if key in values}, **subtable(values, "set")}
    grid, listed = grid_in(values), listed_cells(values)
    check_count(grid_size(grid) + len(listed), trials + finalists * len(choice_seeds) + len(seeds))
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
    for seed in (*seeds, *choice_seeds):
        replace(first[0], seed=seed)  # refuses what is none, before the trials are trained
    if TRIAL_SEED in (*seeds, *choice_seeds):
        raise UserError(f"seed {TRIAL_SEED} is that of the trials: the best settings need others")
    if shared_seeds := sorted({*seeds} & {*choice_seeds}):
        raise UserError(f"seed {shared_seeds[0]} is in seeds and in choice_seeds: they must differ")
    return Sweep(
        name,
        f"{values.get('title', name)}: {trials} trials of each",
        tuple(first),
        subject=values.get("title", name),
        contestants=len(contestants),
        seeds=tuple(seeds),
        finalists=finalists,
        choice_seeds=tuple(choice_seeds),
    )


def count_in(values: Table, key: str, default: int) -> int:
    count = values.get(key, default)
    if type(count) is not int or count < 1:
        raise UserError(f"{key} is an integer of at least 1, not {count!r}")
    return count


def finals_in(values: Table, trials: int) -> tuple[int, list[int]]:
    """How many finalists, and their seeds; 0 and none if a file has no such stage."""
    if "finalists" not in values:
        if "choice_seeds" in values:
            raise UserError("choice_seeds are the seeds of finalists: give finalists = N")
        return 0, []
    finalists = count_in(values, "finalists", 0)
    if finalists > trials:
        raise UserError(f"there are {finalists} finalists of {trials} trials: give fewer")
    return finalists, seeds_in({"choice_seeds": CHOICE_SEEDS, **values}, "choice_seeds")


def trials_of(cell: Cell, trials: int, ends: Mapping[str, Any]) -> list[Cell]:
    optimizer = cell.get("optimizer", "sgdf")
    if not isinstance(optimizer, str):
        raise UserError(f"optimizer is a name, not {optimizer!r}")
    space = spaces.space_of(optimizer, cell, subtable(ends, optimizer))
    return [
        spaces.with_constant_gain({**cell, **spaces.settings_at(space, point)})
        for point in points(space, trials)
    ]


def points(space: Space, trials: int) -> list[dict[str, float]]:
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
        from sgdf_lab import data
        from sgdf_lab.data import synthetic

        images = synthetic.TRAIN if is_synthetic else data.find(task.dataset).train
        settings.setdefault("validation", images // 10)
    cells = [{"optimizer": name} for name in (LANGUAGE if task.kind == "language" else IMAGES)]
    name = "-".join(("tuned", task.name, values.get("model") or task.model))
    return sweep_from_table(name, {"title": name, **values, "cells": cells, "set": settings})


# --- the stages after the trials ------------------------------------------------------------------


def finals_of(sweep: Sweep, out: Path) -> Sweep:
    """The best trials of every contestant, with the seeds of the choice."""
    wait_for(sweep.configs, out, "trials")
    chosen = [final.trial.config for c in contestants_in(sweep, out) for final in c.finals]
    planned = tuple(replace(config, seed=seed) for seed in sweep.choice_seeds for config in chosen)
    title = f"{sweep.subject}: the best {sweep.finalists} of each"
    return Sweep(f"{sweep.name}-finals", title, planned, subject=sweep.subject)


def best_of(sweep: Sweep, out: Path) -> Sweep:
    """The best setting of every contestant that has a finished trial, with every seed."""
    wait_for(sweep.configs, out, "trials")
    if sweep.finalists:
        wait_for(finals_of(sweep, out).configs, out, "runs of finalists")
    chosen = [c.chosen.config for c in contestants_in(sweep, out) if c.chosen]
    if not chosen:
        first = sweep.configs[0]
        raise UserError(f"no trial of {first.optimizer} on {first.task} has finished")
    planned = tuple(replace(config, seed=seed) for seed in sweep.seeds for config in chosen)
    title = f"{sweep.subject}: the best setting of each"
    return Sweep(f"{sweep.name}-best", title, planned, subject=sweep.subject, chosen_from=sweep)


def wait_for(configs: Sequence[Config], out: Path, words: str) -> None:
    """Among fewer runs the choice might be another one."""
    waiting = sum(read_end(out / config.name, config) is None for config in configs)
    if waiting:
        raise UserError(
            f"{waiting} of {len(configs)} {words} have not ended (another process may be "
            "training them): the same command continues when they have"
        )


def contestants_in(sweep: Sweep, out: Path) -> list[Contestant]:
    """The contestants with the runs that are in a folder."""
    ended = [config for trials in turns_of(sweep) for config in trials]
    again = [replace(config, seed=seed) for seed in sweep.choice_seeds for config in ended]
    folders = (out / config.name for config in (*ended, *again))
    records, _ = read_runs(folder for folder in folders if folder.is_dir())
    return contestants_of(sweep, records)


def check_validation_images(sweep: Sweep, data_dir: Path | None) -> None:
    """Whether a user's own folder has images to choose by, which the plan alone does not say."""
    if all(config.validation or config.task != OWN_IMAGES for config in sweep.configs):
        return
    from sgdf_lab.data import class_folders

    dataset = class_folders.read(data_dir)
    if "validation" not in dataset.evaluation:
        raise UserError(
            f"trials are compared by validation: set validation=N, since {dataset.folder} has no "
            "train, val and test"
        )
