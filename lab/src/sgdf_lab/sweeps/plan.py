"""Plan a sweep: settings times seeds, or trials in declared spaces, from a TOML file.

Importing this needs no torch.
"""

import inspect
import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sgdf_lab import optimizers, tasks
from sgdf_lab.registry.optimizers import OptimizerRow
from sgdf_lab.registry.spaces import DIGITS, SCALES, Choice, Range, Space
from sgdf_lab.runs import config as configs
from sgdf_lab.runs.config import Config, read_toml
from sgdf_lab.support.errors import UserError, unknown
from sgdf_lab.support.files import explained, write_atomically
from sgdf_lab.support.numbers import is_number

# Arguments of `configs.make`; every other name in a cell is an override.
ARGUMENTS = ("task", "model", "optimizer", "epochs", "precision", "data")
OF_TRIALS = ("finalists", "choice_seeds", "space")  # keys that have a meaning only with trials
KEYS = (*ARGUMENTS, "title", "seeds", "set", "grid", "cells", "trials", *OF_TRIALS)

#: A sweep of more runs is a mistake: even its plan would take gigabytes.
MAX_RUNS = 10_000

TRIALS = 16
MAX_TRIALS = 1_000  # of a contestant: `opda` takes binomial coefficients of them in float64
TRIAL_SEED = 0
CHOICE_SEEDS = [101, 102, 103]  # of the finalists
SEEDS = [1, 2, 3, 4, 5]  # of the chosen settings: not a seed that they were chosen by
SCRAMBLING = 20260101  # of the Sobol sequence
DEFAULT = "default"  # instead of a range: not searched
DIMENSIONS = 8  # of the sequence, whatever a space needs: so all share the first coordinates
BETA = re.compile(r"beta[1-9]")  # together the setting betas
DECAY_RATES = ("beta", "momentum")  # whose scale is that of one minus them
GAIN_SHARE = "gain_share"  # of a cell: a constant gain, as a share of 1 - beta1

OWN_IMAGES = "images"  # the folder may have validation images
CLASSIFIERS = ("classify", "photos", "fast")  # kinds of tasks that can hold out images

Table = Mapping[str, Any]  # of a TOML file
Cell = dict[str, Any]  # the settings of runs that differ in their seed only


@dataclass(frozen=True)
class Grid:
    """Runs to compare, in the order in which they run: all cells with one seed, then the next."""

    name: str
    title: str
    configs: tuple[Config, ...]
    note: str = ""  # for the reader of the results
    chosen_from: "Tuned | None" = None  # whose best settings these are
    is_choice: bool = False  # by its runs settings are chosen: over them there is no verdict

    def with_data(self, data_dir: Path | None) -> "Grid":
        """On the user's own data in a folder; as it was, if its tasks have other data."""
        return replace(self, configs=tuple(configs.with_data(c, data_dir) for c in self.configs))


@dataclass(frozen=True)
class Tuned:
    """A fair comparison: trials of every contestant, then the best setting of each with all seeds.

    The best trials, as many as `finalists`, run again, with the seeds of the choice.
    """

    name: str
    title: str
    trials: tuple[tuple[Config, ...], ...]  # of each contestant
    seeds: tuple[int, ...]
    finalists: int = 0
    choice_seeds: tuple[int, ...] = ()
    spaces: tuple[Space, ...] = ()  # what the trials of each contestant vary

    @property
    def configs(self) -> tuple[Config, ...]:
        """The first trial of all before the second of any, so that a table fills evenly."""
        return tuple(config for turn in zip(*self.trials, strict=True) for config in turn)

    def with_data(self, data_dir: Path | None) -> "Tuned":
        """On the user's own data in a folder; as it was, if its task has other data."""
        trials = (tuple(configs.with_data(c, data_dir) for c in each) for each in self.trials)
        return replace(self, trials=tuple(trials))


Sweep = Grid | Tuned


def with_trials(sweep: Sweep) -> Tuned:
    """The sweep, which has to be one with trials."""
    if isinstance(sweep, Grid):
        raise UserError(f"{sweep.name} is a grid without trials: sgdf report shows it")
    return sweep


def validation_key(config: Config) -> str:
    """The measurement that a setting is chosen by; a `UserError` if the run has none."""
    task = config.task_definition
    if task.kind not in (*CLASSIFIERS, "language"):
        raise UserError(f"{config.task} has no validation data to choose a setting by")
    if task.kind != "language" and not config.validation and config.task != OWN_IMAGES:
        raise UserError(f"trials are compared by validation: set validation=N for {config.task}")
    return task.validation_key


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
    if not isinstance(title := values.get("title", name), str):
        raise UserError(f"title is a text, not {title!r}")
    return tuned_in(name, values) if "trials" in values else grid_of(name, values)


def grid_of(name: str, values: Table) -> Grid:
    for key in OF_TRIALS:
        if key in values:
            written = f"a [{key}]" if key == "space" else key
            raise UserError(f"{written} needs trials: give trials = N")
    seeds = seeds_in(values)
    first = [config_of_cell(cell, seeds[0]) for cell in cells_in(values, len(seeds))]
    refuse_duplicates(first)
    planned = tuple(replace(config, seed=seed) for seed in seeds for config in first)
    return Grid(name, values.get("title", name), planned)


def cells_in(values: Table, runs_of_each: int) -> list[Cell]:
    """The cells of the grid and the listed ones; counted before any is made."""
    shared = {**{key: values[key] for key in ARGUMENTS if key in values}, **subtable(values, "set")}
    grid, listed = grid_in(values), listed_cells(values)
    check_count(grid_size(grid) + len(listed), runs_of_each)
    cells = [{**shared, **cell} for cell in (*grid_cells(grid), *listed)]
    if not cells:
        raise UserError("there is nothing to run: give a [grid] of lists, or [[cells]]")
    return cells


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


# --- trials ---------------------------------------------------------------------------------------


def tuned_in(name: str, values: Table) -> Tuned:
    """The sweep of a file with the key `trials`.

    The trials of an optimizer are points of a Sobol sequence in its space, the same for everyone
    in the dimensions that they share.
    """
    count, seeds = count_in(values, "trials", TRIALS), seeds_in({"seeds": SEEDS, **values})
    finalists, choice_seeds = finals_in(values, count)
    cells = cells_in(values, count + finalists * len(choice_seeds) + len(seeds))
    if count > MAX_TRIALS:
        raise UserError(f"trials is at most {MAX_TRIALS:,}, not {count:,}")
    ends = subtable(values, "space")
    spaces = tuple(
        space_of(name, cell, subtable(ends, name))
        for cell, name in ((cell, optimizer_of(cell)) for cell in cells)
    )
    trials = tuple(
        tuple(config_of_cell(trial, TRIAL_SEED) for trial in trials_of(cell, count, space))
        for cell, space in zip(cells, spaces, strict=True)
    )
    refuse_unused(ends, cells)
    refuse_duplicates(config for each in trials for config in each)
    for first, *_ in trials:
        validation_key(first)
    for seed in (*seeds, *choice_seeds):
        replace(trials[0][0], seed=seed)  # refuses what is none, before the trials are trained
    if TRIAL_SEED in (*seeds, *choice_seeds):
        raise UserError(f"seed {TRIAL_SEED} is that of the trials: the best settings need others")
    if shared_seeds := sorted({*seeds} & {*choice_seeds}):
        raise UserError(f"seed {shared_seeds[0]} is in seeds and in choice_seeds: they must differ")
    title = values.get("title", name)
    return Tuned(name, title, trials, tuple(seeds), finalists, tuple(choice_seeds), spaces)


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


def trials_of(cell: Cell, trials: int, space: Space) -> list[Cell]:
    varied = [name for name in space if BETA.fullmatch(name)]
    row = optimizers.find(optimizer_of(cell))
    # Those of a class are looked up only where they are needed: most plans need no torch.
    are_all = str(len(varied)) == row.kinds.get("betas")
    betas = default_betas(row) if varied and not are_all else ()
    return [
        with_constant_gain({**cell, **settings_at(space, point, betas)})
        for point in points(space, trials)
    ]


def optimizer_of(cell: Cell) -> str:
    optimizer = cell.get("optimizer", "sgdf")
    if not isinstance(optimizer, str):
        raise UserError(f"optimizer is a name, not {optimizer!r}")
    return optimizer


def points(space: Space, trials: int) -> list[dict[str, float]]:
    """Parts of the ranges. More trials begin with the same ones."""
    from scipy.stats import qmc

    power = max(trials - 1, 1).bit_length()  # a Sobol sequence is balanced in powers of two
    sequence = qmc.Sobol(DIMENSIONS, scramble=True, seed=SCRAMBLING).random_base2(power)
    return [dict(zip(space, map(float, row), strict=False)) for row in sequence[:trials]]


def refuse_unused(ends: Mapping[str, Any], contestants: Sequence[Cell]) -> None:
    names = [optimizer_of(cell) for cell in contestants]
    for optimizer in ends:
        if optimizer not in names:
            raise UserError(f"[space.{optimizer}] is of an optimizer that is not in the sweep")


# --- spaces ---------------------------------------------------------------------------------------


def space_of(optimizer: str, fixed: Mapping[str, Any], given: Mapping[str, Any]) -> Space:
    """What is searched: the declared space without what is `fixed`, with what a file has `given`.

    An optimizer without a declared space has a learning rate from a tenth to ten times its own. A
    file may name any other setting of the optimizer, and of its betas each one. "default" leaves a
    setting as the optimizer has it.
    """
    row = optimizers.find(optimizer)
    declared: Space = row.space or {"lr": around_default(row)}
    for name in given:
        if name not in declared and name not in row.kinds and not row.any_setting:
            betas = [f"beta{i}" for i, _ in enumerate(default_betas(row), start=1)]
            if name not in betas:
                raise unknown(f"setting of {optimizer}", name, [*row.kinds, *betas])
    found: Space = {}
    for name in {**declared, **given}:
        if name in fixed or (BETA.fullmatch(name) and "betas" in fixed):
            continue
        if given.get(name) == DEFAULT:
            continue
        if name == "gain_scale" and GAIN_SHARE in fixed:
            continue
        known = declared.get(name)
        if name in given:
            found[name] = searched(name, given[name], known, row.kinds.get(name, ""))
        elif known is not None:
            found[name] = known
    if not found:
        raise UserError(f"{optimizer}: all settings are given, and none is left to search")
    if len(found) > DIMENSIONS:
        raise UserError(f"{optimizer}: at most {DIMENSIONS} settings are searched at a time")
    return found


def searched(name: str, value: Any, known: Range | Choice | None, kind: str) -> Range | Choice:
    """The range or the choices that a file gives for a setting."""
    how = (
        f"the space of {name} is a list of two numbers, or a table with a range, and a scale of "
        f"{', '.join(SCALES)}, or with choices"
    )
    integer = kind == "integer"
    if isinstance(value, dict) and value.keys() == {"choices"}:
        choices = value["choices"]
        if not isinstance(choices, list):
            raise UserError(f"{how}, not {value!r}")
        return Choice(tuple(tuple(c) if isinstance(c, list) else c for c in choices))
    scale = None
    if isinstance(value, dict) and "range" in value and value.keys() <= {"range", "scale"}:
        value, scale = value["range"], value.get("scale")
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise UserError(f"{how}, not {value!r}")
    low, high = value
    if scale is None and isinstance(known, Range):
        scale = known.scale
    if scale is None:
        is_rate = name in DECAY_RATES or BETA.fullmatch(name)
        scale = "memory" if is_rate else "log" if is_number(low) and low > 0 else "linear"
    return Range(low, high, scale, integer)


def default_betas(row: OptimizerRow) -> tuple[float, ...]:
    """The betas that it has where nothing else is said; none if it has no such setting."""
    if "betas" not in row.kinds:
        return ()
    known = {**row.fixed, **row.settings}.get("betas")
    if known is None:
        parameter = inspect.signature(row.load()).parameters.get("betas")
        known = parameter.default if parameter else ()
    return tuple(known) if isinstance(known, list | tuple) else ()


def around_default(row: OptimizerRow) -> Range:
    rate = row.settings.get("lr", 1e-3)
    return Range(rate / 10, rate * 10)


def settings_at(
    space: Space, point: Mapping[str, float], betas: Sequence[float] = ()
) -> dict[str, Any]:
    """The settings of a trial, given for each the part of its range; `betas` where none varies."""
    values = {name: space[name].at(part) for name, part in point.items()}
    varied = {name: values.pop(name) for name in list(values) if BETA.fullmatch(name)}
    if not varied:
        return values
    count = max(len(betas), *(int(name[4:]) for name in varied))
    names = [f"beta{i}" for i in range(1, count + 1)]
    known = dict(zip(names, betas, strict=False)) | varied
    if missing := [name for name in names if name not in known]:
        raise UserError(f"betas are searched together: {missing[0]} is missing from the space")
    return {**values, "betas": [known[name] for name in names]}


def stage_sizes(sweep: Sweep) -> dict[str, int]:
    """How many runs each stage has, if all contestants reach it."""
    if isinstance(sweep, Grid):
        return {"runs": len(sweep.configs)}
    contestants = len(sweep.trials)
    sizes = {
        "trials": len(sweep.configs),
        "runs of finalists": contestants * sweep.finalists * len(sweep.choice_seeds),
        "runs of the chosen settings": contestants * len(sweep.seeds),
    }
    return {words: size for words, size in sizes.items() if size}


def lines_of_search(sweep: Tuned) -> list[str]:
    """What each contestant's trials vary, and a warning if they vary different numbers of settings.

    >>> sweep = sweep_from_table("t", {"task": "digits", "trials": 2, "set": {"validation": 200},
    ...     "cells": [{"optimizer": "fromage"}, {"optimizer": "sgd-ema", "beta": 0.9}]})
    >>> for line in lines_of_search(sweep): print(line)
    fromage searches lr 0.001 to 0.1
    sgd-ema searches lr 0.03 to 10; weight_decay 5e-05 to 0.005
    warning: the contestants search 1 to 2 settings: who searches more may gain by it
    """
    lines = list(
        dict.fromkeys(
            f"{trials[0].optimizer} searches "
            + "; ".join(f"{name} {known}" for name, known in space.items())
            for trials, space in zip(sweep.trials, sweep.spaces, strict=True)
        )
    )
    counts = sorted(map(len, sweep.spaces))
    if counts and counts[0] != counts[-1]:
        lines.append(
            f"warning: the contestants search {counts[0]} to {counts[-1]} settings: who searches "
            "more may gain by it"
        )
    return lines


def with_constant_gain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A share of 1 - beta1 as the gain that it is: 1 is Nesterov's momentum, 0 a plain average.

    >>> with_constant_gain({"betas": [0.9, 0.99], "gain_share": 0.5})
    {'betas': [0.9, 0.99], 'gain_power': 0.0, 'gain_scale': 0.05}
    """
    if GAIN_SHARE not in settings:
        return dict(settings)
    others = {name: value for name, value in settings.items() if name != GAIN_SHARE}
    share = settings[GAIN_SHARE]
    if not is_number(share) or share < 0:
        raise UserError(f"{GAIN_SHARE} is a number of at least 0, not {share!r}")
    if "betas" not in others:
        raise UserError(
            f"{GAIN_SHARE} is a share of 1 - beta1: give betas, or let them be searched"
        )
    betas = others["betas"]
    if not isinstance(betas, list | tuple) or not betas or not is_number(betas[0]):
        raise UserError(f"betas is a pair of numbers, not {betas!r}")
    gain = float(f"{share * (1 - betas[0]):.{DIGITS}g}")
    return {**others, "gain_power": 0.0, "gain_scale": gain}


# --- on disk ------------------------------------------------------------------------------------


def write_plan(sweep: Grid, out: Path, command: str) -> None:
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
